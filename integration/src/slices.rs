// SPDX-License-Identifier: Apache-2.0
//! A node's ResourceSlices from the API server.

use serde_json::Value;

/// Returns the names of all devices of the slices, and the names of the devices that no new pod may use. A taint
/// without an effect excludes no pod.
pub fn devices(slices: &[Value]) -> (Vec<String>, Vec<String>) {
    let devices = slices
        .iter()
        .flat_map(|it| it["spec"]["devices"].as_array());
    let devices: Vec<&Value> = devices.flatten().collect();
    let name = |it: &&Value| it["name"].as_str().expect("a name").to_owned();
    let is_tainted = |it: &&&Value| {
        let taints = it["taints"].as_array();
        taints
            .into_iter()
            .flatten()
            .any(|it| it["effect"] != "None")
    };
    let tainted = devices.iter().filter(is_tainted).map(name).collect();
    (devices.iter().map(name).collect(), tainted)
}

/// Returns the attribute `name` of a device in the slices. `Null`: the device has no such attribute.
pub fn attribute(slices: &[Value], device: &str, name: &str) -> Value {
    let devices = slices
        .iter()
        .flat_map(|it| it["spec"]["devices"].as_array());
    let found = devices.flatten().find(|it| it["name"] == device);
    found.map_or(Value::Null, |it| it["attributes"][name].clone())
}
