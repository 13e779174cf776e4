// SPDX-License-Identifier: Apache-2.0
//! The result of ADD: `prevResult` and the rails that this plugin added, in the format of the configuration's version
//! (CNI specification, section 5).

use crate::SpecVersion;
use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// One rail of a pod, as the result describes it.
#[derive(Clone, Debug, Default)]
pub struct RailResult {
    /// Interface name in the pod.
    pub name: String,
    /// MAC address.
    pub mac: String,
    /// MTU, bytes.
    pub mtu: u32,
    /// `CNI_NETNS`
    pub sandbox: String,
    /// PCI address, or name of the auxiliary device.
    pub device: Option<String>,
    /// Addresses: objects with `address`, and optionally `gateway`.
    pub ips: Vec<Value>,
    /// Routes: objects with `dst`, and optionally `gw` and the route attributes of version 1.1.0.
    pub routes: Vec<Value>,
    /// `dns`
    pub dns: Option<Value>,
}

/// Returns the result `previous` with `rails` appended, or a new result with `rails`. Existing values of `previous`
/// stay unchanged.
pub fn extend(previous: Option<&Value>, version: SpecVersion, rails: &[RailResult]) -> Value {
    let mut result = match previous {
        Some(Value::Object(object)) => object.clone(),
        _ => Map::new(),
    };
    result
        .entry("cniVersion")
        .or_insert_with(|| version.as_str().into());
    if previous.is_none() {
        result.insert("dns".into(), json!({}));
    }
    for rail in rails {
        let interface = append(&mut result, "interfaces", interface(rail, version));
        for ip in &rail.ips {
            let mut ip = address(ip, version);
            ip["interface"] = interface.into();
            append(&mut result, "ips", ip);
        }
        for route in &rail.routes {
            append(&mut result, "routes", self::route(route, version));
        }
        if let (Some(dns), None) = (&rail.dns, previous) {
            result.insert("dns".into(), dns.clone());
        }
    }
    Value::Object(result)
}

/// Appends `value` to the list `name` of `result`, and returns its index.
fn append(result: &mut Map<String, Value>, name: &str, value: Value) -> usize {
    let list = result.entry(name).or_insert(Value::Null);
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else {
        return 0;
    };
    list.push(value);
    list.len() - 1
}

fn interface(rail: &RailResult, version: SpecVersion) -> Value {
    let mut interface = json!({ "name": rail.name, "mac": rail.mac, "sandbox": rail.sandbox });
    if version >= SpecVersion::V1_1_0 {
        interface["mtu"] = rail.mtu.into();
        if let Some(device) = &rail.device {
            interface["pciID"] = device.as_str().into();
        }
    }
    interface
}

/// Returns an element of `ips` in the format of `version`.
pub fn address(ip: &Value, version: SpecVersion) -> Value {
    let mut ip = ip.clone();
    if let Some(object) = ip.as_object_mut() {
        object.remove("version");
    }
    if version < SpecVersion::V1_0_0 {
        let text = ip["address"].as_str().unwrap_or_default();
        ip["version"] = if text.contains(':') { "6" } else { "4" }.into();
    }
    ip
}

/// Returns a route in the format of `version`.
pub fn route(route: &Value, version: SpecVersion) -> Value {
    let mut route = route.clone();
    if let (true, Some(object)) = (version < SpecVersion::V1_1_0, route.as_object_mut()) {
        object.retain(|key, _| key == "dst" || key == "gw");
    }
    route
}

/// Adds `addresses`, each with an optional gateway, to the pod's interface `name` in `result`. Changes nothing if
/// `result` lacks this interface.
pub fn add_addresses(
    result: &mut Value,
    name: &str,
    addresses: impl Iterator<Item = (IpNetwork, Option<IpAddr>)>,
    version: SpecVersion,
) {
    let (Some(index), Some(result)) = (position(result, name), result.as_object_mut()) else {
        return;
    };
    for (ip, router) in addresses {
        let mut ip = address(&json!({ "address": ip.to_string() }), version);
        if let Some(router) = router {
            ip["gateway"] = router.to_string().into();
        }
        ip["interface"] = index.into();
        append(result, "ips", ip);
    }
}

/// Returns all addresses in `result`.
pub fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().into_iter().flatten();
    let ip = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
    ips.filter_map(ip).collect()
}

/// Returns the index of the pod's interface `name`.
fn position(result: &Value, name: &str) -> Option<usize> {
    let is_it = |interface: &Value| {
        interface["name"] == name && interface["sandbox"].as_str().is_some_and(|s| !s.is_empty())
    };
    result["interfaces"].as_array()?.iter().position(is_it)
}

/// An interface of a result, and its addresses.
#[derive(Clone, Debug)]
pub struct Interface<'a> {
    /// `mac`
    pub mac: Option<&'a str>,
    /// `mtu`
    pub mtu: Option<u32>,
    /// Addresses, with the lengths of their prefixes in bits.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Returns the pod's interface `name` from the final result of a chain.
pub fn find_interface<'a>(result: &'a Value, name: &str) -> Option<Interface<'a>> {
    let index = position(result, name)?;
    let interface = &result["interfaces"][index];
    let addresses = result["ips"].as_array().into_iter().flatten();
    let addresses = addresses.filter(|ip| ip["interface"].as_u64() == Some(index as u64));
    Some(Interface {
        mac: interface["mac"].as_str().filter(|mac| !mac.is_empty()),
        mtu: interface["mtu"]
            .as_u64()
            .and_then(|mtu| u32::try_from(mtu).ok()),
        addresses: addresses
            .filter_map(|ip| {
                let (address, prefix) = ip["address"].as_str()?.split_once('/')?;
                Some((address.parse().ok()?, prefix.parse().ok()?))
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail() -> RailResult {
        RailResult {
            name: "rdma0".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: 9000,
            sandbox: "/run/netns/a".into(),
            device: Some("0000:3b:00.2".into()),
            ips: vec![json!({"address": "fd00::2/64", "gateway": "fd00::1"})],
            routes: vec![json!({"dst": "::/0", "gw": "fd00::1", "priority": 200})],
            dns: None,
        }
    }

    #[test]
    fn everything_of_the_previous_result_stays() {
        let previous = json!({
            "cniVersion": "1.0.0", "x": {"y": [1, null]},
            "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/run/netns/a", "z": 1}],
            "ips": [{"address": "10.0.0.2/24", "interface": 1, "w": true}],
        });
        let result = extend(Some(&previous), SpecVersion::V1_0_0, &[rail()]);
        assert_eq!(result["x"], previous["x"]);
        assert_eq!(result["ips"][0], previous["ips"][0]);
        assert_eq!(result["ips"][1]["interface"], 2);
        assert_eq!(
            result["interfaces"].as_array().unwrap()[..2],
            *previous["interfaces"].as_array().unwrap()
        );
        assert_eq!(result["routes"], json!([{"dst": "::/0", "gw": "fd00::1"}]));
        assert!(result.get("dns").is_none());
    }

    #[test]
    fn every_version_has_its_shape() {
        for version in crate::version::SUPPORTED {
            let result = extend(None, version, &[rail()]);
            assert_eq!(result["cniVersion"], version.as_str());
            let old = version < SpecVersion::V1_0_0;
            assert_eq!(
                result["ips"][0].get("version"),
                old.then(|| json!("6")).as_ref()
            );
            let new = version == SpecVersion::V1_1_0;
            assert_eq!(result["interfaces"][0].get("mtu").is_some(), new);
            assert_eq!(result["routes"][0].get("priority").is_some(), new);
        }
    }
}
