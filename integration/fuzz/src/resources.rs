// SPDX-License-Identifier: Apache-2.0
//! What the daemon writes for `rdma-cni`, and the CDI file that both write.

use crate::assert_comes_back;
use rdma_netns::DeviceAddress;
use rdma_resources::{CharNode, Grant, Published, cdi::renumbered, grant::GrantedDevice};
use serde_json::{Value, json};

/// `resources.json`, a grant.
///
/// # Panics
/// It does not come back.
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
}

/// The CDI file, in which a device that was moved gets its numbers.
///
/// # Panics
/// An entry of another device is changed, or goes; it is another one when it is done again.
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
