// SPDX-License-Identifier: Apache-2.0
//! What the one who configures, or the pod, wants besides: routes, and certain addresses.

use crate::address::{cidr, plain};
use cni_protocol::{ConfError, Environment, Fields};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// `ipam.routes`, whole: what CNI 1.1 has in a route is handed on.
pub(super) fn routes(ipam: Fields<'_>) -> Result<Option<Vec<Value>>, ConfError> {
    let Some(list) = ipam.list("routes")? else {
        return Ok(None);
    };
    for (index, route) in list.iter().enumerate() {
        let name = format!("ipam.routes[{index}]");
        let Value::Object(object) = route else {
            return Err(wrong(&name, route, "must be an object with dst"));
        };
        check_route(Fields::at(object, &name))?;
    }
    Ok(Some(list.clone()))
}

fn check_route(route: Fields<'_>) -> Result<(), ConfError> {
    let destination = route.string("dst")?.and_then(cidr);
    let destination = destination
        .ok_or_else(|| route.wrong("dst", "must be a network with its prefix length"))?;
    if let Some(gateway) = route.string("gw")?.filter(|text| !text.is_empty()) {
        let gateway = plain(gateway).ok_or_else(|| route.wrong("gw", "must be an address"))?;
        if gateway.is_ipv4() != destination.is_ipv4() {
            return Err(route.wrong("gw", "must have the family of dst"));
        }
    }
    for name in ["mtu", "advmss", "priority", "table"] {
        route.number(name, 0, u32::MAX)?;
    }
    route.number("scope", 0, 255)?;
    Ok(())
}

/// The addresses asked for by `CNI_ARGS` (`IP=`), `args.cni.ips` and `runtimeConfig.ips`, all
/// of which have to be given. Each may come with a prefix length, which does not count.
pub(super) fn requested(
    root: Fields<'_>,
    environment: &Environment,
) -> Result<Vec<IpAddr>, ConfError> {
    let mut requested = vec![];
    if let Some(text) = environment.args.get("IP").filter(|text| !text.is_empty()) {
        requested.push(address(text).ok_or_else(|| {
            let value = Value::from(text.as_str());
            let expected = "must be an address, perhaps with a prefix length";
            wrong("CNI_ARGS: IP", &value, expected)
        })?);
    }
    let none = Map::new();
    let args = match root.object("args")?.get("cni") {
        Some(Value::Object(object)) => object,
        _ => &none,
    };
    for (fields, expected) in [
        (Fields::at(args, "args.cni"), "must list addresses"),
        (
            root.object("runtimeConfig")?,
            "must list addresses, each perhaps with a prefix length",
        ),
    ] {
        for value in fields.list("ips")?.into_iter().flatten() {
            let ip = value.as_str().and_then(address);
            requested.push(ip.ok_or_else(|| fields.wrong("ips", expected))?);
        }
    }
    requested.sort();
    requested.dedup();
    Ok(requested)
}

/// An address, with or without a prefix length, as host-local takes it.
fn address(text: &str) -> Option<IpAddr> {
    let network = cidr(text).map(|network| network.ip());
    network.or_else(|| plain(text))
}

fn wrong(field: &str, value: &Value, expected: &str) -> ConfError {
    ConfError::Value {
        field: field.to_owned(),
        value: value.to_string(),
        expected: expected.to_owned(),
    }
}
