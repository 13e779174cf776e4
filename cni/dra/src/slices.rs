// SPDX-License-Identifier: Apache-2.0
//! The ResourceSlices of a node's pool, and what has to be written so that the API server has them.
//!
//! A scheduler uses a pool only when all its slices have the newest generation: so whatever changes, all are
//! written, the first ones first, and what is too much goes at last.

use crate::pool::{PoolDevice, hash};
use serde_json::{Map, Value, json};

/// The API that has claims and slices since Kubernetes 1.34.
pub const API: &str = "/apis/resource.k8s.io/v1";

/// So many devices a slice may have where one has a taint (`ResourceSliceMaxDevicesWithAdvancedFeatures`).
const MOST_DEVICES: usize = 64;

/// The longest name of an object that is a DNS subdomain.
const LONGEST_NAME: usize = 253;

/// Whose slices they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The driver's name.
    pub driver: String,
    /// The node's name, which is its pool's.
    pub node: String,
    /// The node's uid: with the node, its slices go.
    pub node_uid: Option<String>,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The object is new.
    Create(Value),
    /// The object takes the place of the one of that name.
    Replace(Value),
    /// The object of that name is too much.
    Delete(String),
}

impl Owner {
    /// What a list or a watch is limited to.
    pub fn selector(&self) -> String {
        let Self { driver, node, .. } = self;
        format!("fieldSelector=spec.driver%3D{driver}%2Cspec.nodeName%3D{node}")
    }

    /// The name of slice `index`.
    fn slice(&self, index: usize) -> String {
        let name = format!("{}-{}-{index}", self.node, self.driver);
        match name.len() <= LONGEST_NAME {
            true => name,
            false => format!("{}-{:016x}-{index}", self.driver, hash(&name)),
        }
    }
}

/// What to do, in order, so that `devices` are what `existing` slices say; nothing, if they say it. The
/// generation goes up with each change.
pub fn plan(owner: &Owner, devices: &[PoolDevice], existing: &[Value]) -> Vec<Change> {
    // a pool that nothing is in any more says so, until kubelet takes it away with the driver
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
    let is_said = existing.len() == count
        && names.iter().zip(&specs).all(|(name, spec)| {
            let is_same = |it: &Value| {
                generation(it) == newest
                    && it["spec"]["pool"]["resourceSliceCount"] == json!(count)
                    && lacks(spec, it).is_none()
                    && !has_surplus(spec, &it["spec"])
            };
            find(name).is_some_and(is_same)
        });
    if is_said {
        return vec![];
    }
    let pool = json!({
        "name": owner.node,
        "generation": newest.map_or(1, |newest| newest.saturating_add(1)),
        "resourceSliceCount": count,
    });
    let written = names.iter().zip(specs).map(|(name, mut spec)| {
        spec["pool"] = pool.clone();
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
        if device.shared {
            object["allowMultipleAllocations"] = json!(true);
        }
        if device.tainted {
            let key = format!("{}/unhealthy", owner.driver);
            object["taints"] = json!([{"key": key, "effect": "NoSchedule"}]);
        }
        object
    });
    json!({
        "driver": owner.driver,
        "nodeName": owner.node,
        "devices": devices.collect::<Vec<_>>(),
    })
}

/// The first field of `wanted`, the spec of a slice, that `slice` does not have: an API server passes over fields
/// that it does not know, or that a feature gate has turned off.
pub fn lacks(wanted: &Value, slice: &Value) -> Option<String> {
    differs(wanted, &slice["spec"])
}

/// The first field of `wanted` that is not in `found`, or is another there.
fn differs(wanted: &Value, found: &Value) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            // the count and generation of a pool are told apart from what is in it
            let fields = wanted.iter().filter(|(field, _)| *field != "pool");
            fields
                .map(|(field, value)| match found.get(field) {
                    // an empty list is left out
                    None if value.as_array().is_some_and(Vec::is_empty) => None,
                    None => Some(field.clone()),
                    Some(found) => differs(value, found).map(|below| match below.is_empty() {
                        true => field.clone(),
                        false => below,
                    }),
                })
                .find_map(|field| field)
        }
        // an API server says an empty list so
        (Value::Array(wanted), Value::Null) if wanted.is_empty() => None,
        (Value::Array(wanted), Value::Array(found)) => {
            if wanted.len() != found.len() {
                return Some(String::new());
            }
            let mut pairs = wanted.iter().zip(found);
            pairs.find_map(|(wanted, found)| differs(wanted, found))
        }
        (wanted, found) => (wanted != found).then(String::new),
    }
}

/// Whether `found` has what `wanted` has not, of what this driver would write.
fn has_surplus(wanted: &Value, found: &Value) -> bool {
    let mut pairs = devices(wanted).zip(devices(found));
    pairs.any(|(wanted, found)| {
        let is_new = |field| wanted.get(field).is_none() && found.get(field).is_some();
        let count = |it: &Value| it["attributes"].as_object().map_or(0, Map::len);
        ["taints", "allowMultipleAllocations"]
            .into_iter()
            .any(is_new)
            || count(wanted) != count(found)
    })
}

fn devices(spec: &Value) -> impl Iterator<Item = &Value> {
    spec["devices"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may write slices of this node may have written it, and the API server takes each number.
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
