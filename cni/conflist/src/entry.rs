// SPDX-License-Identifier: Apache-2.0
//! The configuration of our plugin, as an entry of a list.

use crate::{TYPE, programs::ipam};
use network_conf::ANNOTATIONS;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Field of a detecting entry. With such an entry `rdma-cni` attaches nothing, and only records the runtime's calls.
pub const DETECT: &str = "detect";

/// Name of a resource that no pod can request.
const UNUSED_RESOURCE: &str = "rdma-cni.invalid/none";

/// Our plugin's entry: the object that the daemon adds to a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry(Map<String, Value>);

impl Default for Entry {
    fn default() -> Self {
        Self::new(Map::new())
    }
}

impl Entry {
    /// Returns an entry with these fields, and with [`TYPE`] as its `type`. The entry requests the pod's annotations,
    /// by which a pod can request SMC-R, unless `capabilities` in `fields` excludes annotations.
    pub fn new(fields: Map<String, Value>) -> Self {
        let mut entry = Map::from_iter([("type".to_owned(), TYPE.into())]);
        entry.extend(fields.into_iter().filter(|(name, _)| name != "type"));
        let capabilities = entry.entry("capabilities").or_insert_with(|| json!({}));
        if let Some(capabilities) = capabilities.as_object_mut() {
            let wanted = capabilities.entry(ANNOTATIONS);
            wanted.or_insert(Value::Bool(true));
        }
        Self(entry)
    }

    /// Returns an entry with exactly these fields and no defaults. An earlier version may have written an entry without
    /// the default fields.
    pub fn as_it_is(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// Returns a detecting entry: it attaches nothing, and records calls of ADD and DEL in the `stateDir` of this
    /// entry.
    pub fn detecting(&self) -> Self {
        let mut entry = Map::from_iter([("type".to_owned(), TYPE.into())]);
        entry.insert(DETECT.to_owned(), Value::Bool(true));
        // a version of `rdma-cni` without `detect` queries kubelet for this resource. No pod has such a resource, so
        // `rdma-cni` attaches nothing
        entry.insert("resources".to_owned(), json!([UNUSED_RESOURCE]));
        let state_dir = self.0.get("stateDir").cloned();
        entry.extend(state_dir.map(|it| ("stateDir".to_owned(), it)));
        Self(entry)
    }

    /// Returns the text of a file that contains only this entry.
    pub fn text(&self) -> String {
        format!("{:#}\n", self.value())
    }

    /// Returns the fields of the entry.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns the entry with `name` set to `value`. Does not change an existing value other than `null`.
    pub fn or(mut self, name: &str, value: Value) -> Self {
        let field = self.0.entry(name).or_insert(Value::Null);
        if field.is_null() {
            *field = value;
        }
        self
    }

    /// Returns the programs that the entry needs: our plugin, and its IPAM plugin if it has one.
    pub fn programs(&self) -> BTreeSet<String> {
        let value = self.value();
        let all = [TYPE].into_iter().chain(ipam(&value));
        all.map(str::to_owned).collect()
    }

    pub(crate) fn value(&self) -> Value {
        Value::Object(self.0.clone())
    }
}
