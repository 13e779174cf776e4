// SPDX-License-Identifier: Apache-2.0
//! Our plugin's configuration, as it stands in a list.

use crate::{TYPE, programs::ipam};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The capability by which containerd and CRI-O hand over the pod's annotations: SMC-R is asked
/// for by one.
pub const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The field of an entry that does nothing but note that the runtime called it.
pub const DETECT: &str = "detect";

/// A resource that no pod has.
const NOBODYS: &str = "rdma-cni.invalid/none";

/// The object that is put into a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry(Map<String, Value>);

impl Default for Entry {
    fn default() -> Self {
        Self::new(Map::new())
    }
}

impl Entry {
    /// An entry with these fields; `type` is ours whatever they say, and the runtime is asked for
    /// the pod's annotations unless they refuse them.
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

    /// One that is in a list, whichever version put it there.
    pub fn as_it_is(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// One that attaches nothing, and notes that it was called where this one has its records.
    pub fn detecting(&self) -> Self {
        let mut entry = Map::from_iter([("type".to_owned(), TYPE.into())]);
        entry.insert(DETECT.to_owned(), Value::Bool(true));
        // a version that does not know `detect` asks kubelet for it, and passes the pod on
        entry.insert("resources".to_owned(), json!([NOBODYS]));
        let state_dir = self.0.get("stateDir").cloned();
        entry.extend(state_dir.map(|it| ("stateDir".to_owned(), it)));
        Self(entry)
    }

    /// The text of a file with nothing else in it.
    pub fn text(&self) -> String {
        format!("{:#}\n", self.value())
    }

    /// Its fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The same with `name`, unless it has that already; `null` is none.
    pub fn or(mut self, name: &str, value: Value) -> Self {
        let field = self.0.entry(name).or_insert(Value::Null);
        if field.is_null() {
            *field = value;
        }
        self
    }

    /// The programs that it takes: our plugin, and the IPAM plugin that it calls.
    pub fn programs(&self) -> BTreeSet<String> {
        let value = self.value();
        let all = [TYPE].into_iter().chain(ipam(&value));
        all.map(str::to_owned).collect()
    }

    pub(crate) fn value(&self) -> Value {
        Value::Object(self.0.clone())
    }
}
