// SPDX-License-Identifier: Apache-2.0
//! Files that the daemon writes for `rdma-cni`, and the CDI file that both programs write.

use crate::assert_comes_back;
use rdma_device_plugin::device_info::Record;
use rdma_netns::DeviceAddress;
use rdma_resources::{
    CharNode, Grant, Published,
    cdi::renumbered,
    container::{ContainerId, Edits, Known, with_entry},
    grant::GrantedDevice,
};
use serde_json::{Value, json};
use std::path::Path;

/// `resources.json`, a grant, the record of device information files, and the rails in containers' CDI entries.
///
/// # Panics
/// A file differs when it is read again; the record has a file that is not for device information; another container's
/// entry is changed.
pub fn published(input: &[u8]) {
    if let Ok(published) = serde_json::from_slice::<Published>(input) {
        assert_comes_back(&published);
        for (name, resource) in &published.resources {
            assert!(
                resource
                    .devices(name)
                    .is_none_or(|it| it.len() <= input.len())
            );
        }
    }
    if let Ok(grant) = serde_json::from_slice::<Grant>(input) {
        assert_comes_back(&grant);
    }
    if let Ok(device) = serde_json::from_slice::<GrantedDevice>(input) {
        assert_comes_back(&device);
    }
    if let Ok(record) = serde_json::from_slice::<Record>(input) {
        assert_comes_back(&record);
        let ours = record.ours();
        let is_ours =
            |path: &Path| path.is_absolute() && path.to_string_lossy().ends_with("-device.json");
        assert!(ours.files().all(is_ours));
    }
    if let Ok(before) = serde_json::from_slice::<(Value, Known)>(input) {
        containers(before);
    }
}

/// Adds a container's entry to the CDI file `content`. Asserts that this changes no other entry, and that adding the
/// entry again changes nothing. `known` has the ids of each container.
fn containers((content, known): (Value, Known)) {
    let (resource, ids) = ("rdma/hca", ["17".to_owned(), "18".to_owned()]);
    let own = ContainerId::of(resource, &ids).expect("ids");
    let edits = Edits {
        rails: Some(vec![json!({"gidIndex": 5})]),
        hook: None,
    };
    let written = |before| with_entry(before, (resource, &ids), &edits, &[own]);
    let (after, ids_after) = written((&content, known)).expect("ids");
    let before = content["devices"].as_array().cloned().unwrap_or_default();
    let (last, others) = after["devices"]
        .as_array()
        .and_then(|it| it.split_last())
        .expect("entries");
    assert!(
        own.full_name()
            .ends_with(last["name"].as_str().expect("a name"))
    );
    assert!(
        others
            .iter()
            .all(|it| before.contains(it) && it["name"] != last["name"])
    );
    let named = |name: &str| {
        after["devices"]
            .as_array()
            .is_some_and(|it| it.iter().any(|it| it["name"] == name))
    };
    assert!(ids_after.keys().all(|it| named(it)));
    assert_eq!(
        written((&after, ids_after.clone())),
        Some((after, ids_after))
    );
}

/// The CDI file after a move, in which the moved device gets its new numbers.
///
/// # Panics
/// An entry of another device is changed or removed; the same change made again has another result.
pub fn cdi(input: &[u8]) {
    let Ok(content) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let device = DeviceAddress::try_from("0000:3b:00.2".to_owned()).expect("an address");
    let node = |name: &str, minor| CharNode {
        name: name.to_owned(),
        major: 231,
        minor,
    };
    let nodes = [node("uverbs3", 195), node("umad3", 3)];
    for promised in [&[][..], &nodes[..1]] {
        let before = content["devices"].as_array().cloned().unwrap_or_default();
        let Some(after) = renumbered(&content, &device, &nodes, promised) else {
            continue;
        };
        let is_its = |it: &Value| it["name"] == *device;
        let first = before.iter().position(is_its).unwrap_or(before.len());
        assert_eq!(after.len(), before.len().max(first + 1));
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            assert!(index == first || before == after);
        }
        let edits = after[first]["containerEdits"]["deviceNodes"].as_array();
        assert!(edits.is_some_and(|it| it.len() <= nodes.len()));
        let again = renumbered(&json!({"devices": after}), &device, &nodes, promised);
        assert_eq!(again.as_ref(), Some(&after));
    }
}
