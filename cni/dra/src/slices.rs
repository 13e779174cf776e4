// SPDX-License-Identifier: Apache-2.0
//! ResourceSlices of a node's pool, and the plan of their changes. A scheduler uses a pool only if all slices of the
//! pool's newest generation exist. A change therefore writes all slices, one after the other, and then deletes the
//! slices that are no longer needed.

use crate::pool::{Effect, PoolDevice, hash};
use serde_json::{Map, Value, json};

/// API group of claims and slices since Kubernetes 1.34.
pub const API: &str = "/apis/resource.k8s.io/v1";

/// Largest number of devices in a ResourceSlice with taints (`ResourceSliceMaxDevicesWithAdvancedFeatures`).
const MOST_DEVICES: usize = 64;

/// Longest name of an object in bytes, if the name is a DNS subdomain.
const LONGEST_NAME: usize = 253;

/// Owner of ResourceSlices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the driver.
    pub driver: String,
    /// Name of the node, which is also the name of its pool.
    pub node: String,
    /// UID of the node, with which Kubernetes deletes the slices together with the node. `None`: the slices have no
    /// owner.
    pub node_uid: Option<String>,
}

/// One change in the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Creates the object.
    Create(Value),
    /// Replaces the object with the same name.
    Replace(Value),
    /// Deletes the object with this name.
    Delete(String),
}

impl Owner {
    /// Returns the selector for list and watch requests.
    pub fn selector(&self) -> String {
        let Self { driver, node, .. } = self;
        format!("fieldSelector=spec.driver%3D{driver}%2Cspec.nodeName%3D{node}")
    }

    fn slice(&self, index: usize) -> String {
        let name = format!("{}-{}-{index}", self.node, self.driver);
        match name.len() <= LONGEST_NAME {
            true => name,
            false => format!("{}-{:016x}-{index}", self.driver, hash(&name)),
        }
    }
}

/// Plans the ordered changes from the `existing` slices to slices with `devices`. Returns no changes if the slices
/// already have these devices. All slices of a plan get one new generation.
pub fn plan(owner: &Owner, devices: &[PoolDevice], existing: &[Value]) -> Vec<Change> {
    // an empty pool has one empty slice, which kubelet deletes after the driver has ended
    let mut parts: Vec<&[PoolDevice]> = devices.chunks(MOST_DEVICES).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let specs: Vec<Value> = parts.iter().map(|part| spec(owner, part)).collect();
    let names: Vec<String> = (0..specs.len()).map(|index| owner.slice(index)).collect();
    let find = |name: &String| existing.iter().find(|it| it["metadata"]["name"] == **name);
    let generations = existing.iter().filter_map(generation);
    let newest = generations.max();
    let count = specs.len();
    let is_equal = existing.len() == count
        && names.iter().zip(&specs).all(|(name, spec)| {
            let is_same = |it: &Value| {
                generation(it) == newest
                    && it["spec"]["pool"]["resourceSliceCount"] == json!(count)
                    && lacks(spec, it).is_none()
                    && !has_surplus(spec, &it["spec"])
            };
            find(name).is_some_and(is_same)
        });
    if is_equal {
        return vec![];
    }
    let pool = json!({
        "name": owner.node,
        "generation": newest.map_or(1, |newest| newest.saturating_add(1)),
        "resourceSliceCount": count,
    });
    let written = names.iter().zip(specs).map(|(name, mut spec)| {
        spec["pool"] = pool.clone();
        keep_times(&mut spec, existing);
        let present = find(name);
        let object = object(owner, name, spec, present);
        match present {
            Some(_) => Change::Replace(object),
            None => Change::Create(object),
        }
    });
    let mut changes: Vec<Change> = written.collect();
    let others = existing
        .iter()
        .filter_map(|it| it["metadata"]["name"].as_str());
    let surplus = others.filter(|name| !names.iter().any(|own| own == name));
    changes.extend(surplus.map(|name| Change::Delete(name.to_owned())));
    changes
}

fn generation(slice: &Value) -> Option<i64> {
    slice["spec"]["pool"]["generation"].as_i64()
}

fn object(owner: &Owner, name: &str, spec: Value, present: Option<&Value>) -> Value {
    let mut metadata = Map::from_iter([("name".to_owned(), json!(name))]);
    if let Some(version) = present.and_then(|it| it["metadata"]["resourceVersion"].as_str()) {
        metadata.insert("resourceVersion".into(), json!(version));
    }
    if let Some(uid) = &owner.node_uid {
        let owner = json!({
            "apiVersion": "v1", "kind": "Node", "name": owner.node, "uid": uid, "controller": true,
        });
        metadata.insert("ownerReferences".into(), json!([owner]));
    }
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    })
}

fn spec(owner: &Owner, devices: &[PoolDevice]) -> Value {
    let devices = devices.iter().map(|device| {
        let mut object = json!({"name": device.name, "attributes": device.attributes});
        if let Some(sharers) = device.sharers {
            object["allowMultipleAllocations"] = json!(true);
            // without the policy the first allocation would take the whole capacity
            let policy = json!({"default": "1", "validValues": ["1"]});
            object["capacity"] =
                json!({"sharers": {"value": quantity(sharers), "requestPolicy": policy}});
        }
        if let Some(effect) = device.taint {
            let reason = match effect {
                Effect::None => "degraded",
                Effect::NoSchedule | Effect::NoExecute => "unhealthy",
            };
            let key = format!("{}/{reason}", owner.driver);
            object["taints"] = json!([{"key": key, "effect": effect}]);
        }
        object
    });
    json!({
        "driver": owner.driver,
        "nodeName": owner.node,
        "devices": devices.collect::<Vec<_>>(),
    })
}

/// Returns the API server's form of `number`, which is below a million (`CanonicalizeBytes()` in
/// `apimachinery/pkg/api/resource/quantity.go`).
fn quantity(number: u32) -> String {
    match number % 1000 {
        0 => format!("{}k", number / 1000),
        _ => number.to_string(),
    }
}

/// Copies the times of equal taints from the `existing` slices to the taints of `spec`. The API server sets the present
/// time for a taint without a time. A pod that tolerates a taint for some seconds would then get these seconds again.
fn keep_times(spec: &mut Value, existing: &[Value]) {
    let list = spec["devices"].as_array_mut();
    let tainted = list.into_iter().flatten();
    for device in tainted.filter(|it| it.get("taints").is_some()) {
        let mut known = existing.iter().flat_map(|it| devices(&it["spec"]));
        let known = known.find(|it| it["name"] == device["name"]);
        let is_same = |taint: &&Value| {
            let fields = ["key", "effect"];
            fields.iter().all(|it| taint[it] == device["taints"][0][it])
        };
        let taints = known.and_then(|it| it["taints"].as_array());
        let same = taints.into_iter().flatten().find(is_same);
        if let Some(time) = same.and_then(|it| it.get("timeAdded")) {
            device["taints"][0]["timeAdded"] = time.clone();
        }
    }
}

/// Returns the first field of `required` that is missing or different in `slice`. `required` is the spec of a slice. An
/// API server drops fields that it does not know, or that a feature gate switches off.
pub fn lacks(required: &Value, slice: &Value) -> Option<String> {
    differs(required, &slice["spec"])
}

fn differs(required: &Value, found: &Value) -> Option<String> {
    match (required, found) {
        (Value::Object(required), Value::Object(found)) => {
            // skip `pool`: `plan` compares its slice count and generation
            let fields = required.iter().filter(|(field, _)| *field != "pool");
            fields
                .map(|(field, value)| match found.get(field) {
                    // a missing field equals an empty list
                    None if value.as_array().is_some_and(Vec::is_empty) => None,
                    None => Some(field.clone()),
                    Some(found) => differs(value, found).map(|below| match below.is_empty() {
                        true => field.clone(),
                        false => below,
                    }),
                })
                .find_map(|field| field)
        }
        // some API servers return null for an empty list
        (Value::Array(required), Value::Null) if required.is_empty() => None,
        (Value::Array(required), Value::Array(found)) => {
            if required.len() != found.len() {
                return Some(String::new());
            }
            let mut pairs = required.iter().zip(found);
            pairs.find_map(|(required, found)| differs(required, found))
        }
        (required, found) => (required != found).then(String::new),
    }
}

/// Returns true if a device in `found` has taints or `allowMultipleAllocations`, and the same device in `required` does
/// not, or if their numbers of attributes differ.
fn has_surplus(required: &Value, found: &Value) -> bool {
    let mut pairs = devices(required).zip(devices(found));
    pairs.any(|(required, found)| {
        let is_new = |field| required.get(field).is_none() && found.get(field).is_some();
        let count = |it: &Value| it["attributes"].as_object().map_or(0, Map::len);
        ["taints", "allowMultipleAllocations"]
            .into_iter()
            .any(is_new)
            || count(required) != count(found)
    })
}

fn devices(spec: &Value) -> impl Iterator<Item = &Value> {
    spec["devices"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API server accepts any generation. Any client that may write slices of this node may have written the
    /// greatest one.
    #[test]
    fn the_greatest_generation_is_not_exceeded() {
        let owner = Owner {
            driver: "hca.rdma".into(),
            node: "n".into(),
            node_uid: None,
        };
        let foreign = json!({
            "metadata": {"name": "theirs"},
            "spec": {"pool": {"name": "n", "generation": i64::MAX, "resourceSliceCount": 1}},
        });
        let changes = plan(&owner, &[], &[foreign]);
        let Some(Change::Create(own)) = changes.first() else {
            panic!("{changes:?}");
        };
        assert_eq!(own["spec"]["pool"]["generation"], i64::MAX);
        assert_eq!(changes[1], Change::Delete("theirs".into()));
        assert_eq!(plan(&owner, &[], std::slice::from_ref(own)), []);
    }
}
