// SPDX-License-Identifier: Apache-2.0
//! The routes and addresses that a configuration or a runtime requests.

use super::list;
use crate::address::{cidr, plain};
use cni_protocol::Environment;
use conf_reader::{Field, Number, Wrong, json};
use serde_json::Value;
use std::net::IpAddr;

/// Reads `ipam.routes`. Leaves the routes unchanged, with all fields that CNI 1.1 defines.
pub(super) fn routes(ipam: &Field<'_>) -> Result<Option<Vec<Value>>, Wrong> {
    let field = ipam.at("routes");
    for route in field.list()? {
        match route.is_object() {
            true => check_route(&route)?,
            false => return Err(route.wrong("must be an object with dst")),
        }
    }
    Ok(field.value().and_then(Value::as_array).cloned())
}

fn check_route(route: &Field<'_>) -> Result<(), Wrong> {
    let must = "must be a network with its prefix length";
    let destination: Option<String> = route.get("dst")?;
    let destination = destination.and_then(|text| cidr(&text));
    let destination = destination.ok_or_else(|| route.at("dst").wrong(must))?;
    let field = route.at("gw");
    if let Some(gateway) = field.text()? {
        let gateway = plain(&gateway).ok_or_else(|| field.wrong("must be an address"))?;
        if gateway.is_ipv4() != destination.is_ipv4() {
            return Err(field.wrong("must have the family of dst"));
        }
    }
    for name in ["mtu", "advmss", "priority", "table"] {
        route.get::<Number<0, { u32::MAX }>>(name)?;
    }
    route.get::<Number<0, 255>>("scope")?;
    Ok(())
}

/// Reads the addresses that `CNI_ARGS` (`IP=`), `args.cni.ips` and `runtimeConfig.ips` request. Ignores their prefix
/// lengths. `IP=` has one address, or several with commas between them: Multus joins all `ips` of a network selection.
pub(super) fn requested(root: &Field<'_>, environment: &Environment) -> Result<Vec<IpAddr>, Wrong> {
    let mut requested = vec![];
    if let Some(text) = environment.args.get("IP").filter(|text| !text.is_empty()) {
        let must = "must be addresses, separated by commas, optionally with prefix lengths";
        let value = || json(&Value::from(text.as_str()));
        let wrong = || Wrong::value("CNI_ARGS: IP", value(), must);
        let ips: Option<Vec<IpAddr>> = text.split(',').map(address).collect();
        requested.extend(ips.ok_or_else(wrong)?);
    }
    for (fields, must) in [
        (root.object("args")?.at("cni"), "must list addresses"),
        (
            root.object("runtimeConfig")?,
            "must list addresses, optionally with prefix lengths",
        ),
    ] {
        let ips = list(&fields.at("ips"), must, |value| address(value.as_str()?))?;
        requested.extend(ips.unwrap_or_default());
    }
    requested.sort_unstable();
    requested.dedup();
    Ok(requested)
}

/// Parses an address with or without a prefix length, as host-local does.
fn address(text: &str) -> Option<IpAddr> {
    let network = cidr(text).map(|network| network.ip());
    network.or_else(|| plain(text))
}
