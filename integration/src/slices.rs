// SPDX-License-Identifier: Apache-2.0
//! A node's ResourceSlices, as the API server has them.

use serde_json::Value;

/// The names of all their devices, and of those that no new pod may have: a taint without an effect keeps none away.
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

/// The attribute `name` of one of their devices; null: it has none.
pub fn attribute(slices: &[Value], device: &str, name: &str) -> Value {
    let devices = slices
        .iter()
        .flat_map(|it| it["spec"]["devices"].as_array());
    let found = devices.flatten().find(|it| it["name"] == device);
    found.map_or(Value::Null, |it| it["attributes"][name].clone())
}
