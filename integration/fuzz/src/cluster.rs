// SPDX-License-Identifier: Apache-2.0
//! Answers of kubelet and the API server.

use crate::assert_one_line;
use dra::{
    Claim, ClaimName,
    slices::{self, Change, Owner},
    status,
};
use kubelet_api::pod_resources::v1::{GetPodResourcesResponse, ListPodResourcesResponse};
use kubernetes_api::{StatusCode, access::Identity, client, watch::Lines};
use plan::allocation;
use prost::Message;
use rdma_device_plugin::{refused::pod::Pod, report::condition::Condition};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Kubelet's answers to `List` and `Get`, which list the devices of pods.
///
/// # Panics
/// A pod has an id or a device twice; a claim's UID is empty or could be a path.
pub fn pod_resources(input: &[u8]) {
    let published = json!({
        "format": 1,
        "resources": {
            "rdma/hca": {"sharing": "shared", "every": ["0000:3b:00.0"]},
            "rdma/vf": {"sharing": "exclusive", "byId": {"0000:3b:00.2": ["0000:3b:00.2"]}},
        },
    });
    let published = serde_json::from_value(published).expect("resources");
    let list = ListPodResourcesResponse::decode(input).unwrap_or_default();
    let one = GetPodResourcesResponse::decode(input).unwrap_or_default();
    for pod in list.pod_resources.into_iter().chain(one.pod_resources) {
        let devices = pod.containers.iter().flat_map(|it| &it.devices);
        let resources: BTreeSet<_> = devices.map(|it| it.resource_name.clone()).collect();
        let resources: Vec<_> = resources.into_iter().collect();
        let ids = allocation::ids(&pod, &resources);
        let texts: BTreeSet<_> = ids.iter().map(|it| (&it.resource, &it.id)).collect();
        assert_eq!(texts.len(), ids.len(), "an id comes twice");
        let meanings = ids.iter().filter_map(|id| {
            let meaning = allocation::meaning(id, None, Some(&published));
            meaning.ok()
        });
        let meanings: Vec<_> = meanings.collect();
        if let Ok(allotments) = allocation::devices(&meanings, &[]) {
            let addresses: BTreeSet<_> = allotments.iter().map(|it| &it.address).collect();
            assert_eq!(addresses.len(), allotments.len(), "a device comes twice");
        }
        for claim in allocation::claims(&pod) {
            let inner = |it: char| it.is_ascii_alphanumeric() || it == '-';
            assert!(!claim.uid.is_empty() && claim.uid.chars().all(inner));
        }
    }
}

/// An answer of the API server, with the status in the first two bytes. The input is also read as a service account's
/// token.
///
/// # Panics
/// The client reads a refusal as an object; a token has a node's UID without the node's name.
pub fn api_server(input: &[u8]) {
    if let Some((status, text)) = input.split_first_chunk() {
        let status = u16::from_be_bytes(*status) % 500 + 100;
        let status = StatusCode::from_u16(status).expect("a status");
        let read = client::read(status, text);
        assert!(status.is_success() || read.is_err());
    }
    if let Some(identity) = str::from_utf8(input).ok().and_then(Identity::of_token) {
        assert!(identity.node.is_some() || identity.node_uid.is_none());
    }
}

/// A ResourceClaim, with its own parameters and those of its class.
///
/// # Panics
/// A message has several lines; the claim has no device, a device of another pool, or a request with a slash; a rail is
/// 1000 or higher.
pub fn claim(input: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let name = ClaimName {
        namespace: "default".into(),
        name: "a".into(),
        uid: object["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    };
    match Claim::read(&object, &name, "hca.rdma", "n") {
        Err(error) => assert_one_line(&error),
        Ok(claim) => {
            assert!(!claim.results.is_empty());
            for result in &claim.results {
                assert!(result.pool == "n" && !result.request.contains('/'));
                let rails = result.parameters.rails.iter().flatten();
                assert!(rails.copied().all(|rail| rail < 1000));
            }
        }
    }
}

/// Objects of the API server as a JSON list: pods, nodes, claims' `status.devices`, the node's ResourceSlices.
///
/// # Panics
/// - The deleter accepts a pod of another node, a mirror pod, or a pod without an owner.
/// - Slices or a claim's status differ from the desired state after the planned changes.
/// - A node's condition differs from the written condition when it is read again.
pub fn objects(input: &[u8]) {
    let Ok(Value::Array(objects)) = serde_json::from_slice(input) else {
        return;
    };
    for object in &objects {
        if let Some(pod) = Pod::read(object)
            && pod.stays("n").is_none()
        {
            assert!(pod.node == "n" && !pod.is_mirror && pod.owner.is_some());
        }
        if let Some((condition, heartbeat, transition)) = Condition::read(object) {
            let patch = condition.patch(heartbeat, transition);
            let again = Condition::read(&patch);
            assert_eq!(again, Some((condition, heartbeat, transition)));
        }
        let own = [
            json!({"driver": "hca.rdma", "pool": "n", "device": "d", "shareID": null,
                          "conditions": [{"type": "Ready", "status": "True"}]}),
        ];
        let present = &object["status"]["devices"];
        if let Some(merged) = status::merged(&own, "hca.rdma", present, "2026-01-31T10:00:00Z") {
            let merged = Value::Array(merged);
            let again = status::merged(&own, "hca.rdma", &merged, "2026-02-01T10:00:00Z");
            assert_eq!(again, None);
        }
        let _ = status::has_all(&object["status"]["allocation"], &own);
    }
    let owner = Owner {
        driver: "hca.rdma".into(),
        node: "n".into(),
        node_uid: None,
    };
    // an API server has only one object of each name
    let mut names = BTreeSet::new();
    let name = |it: &Value| it["metadata"]["name"].as_str().map(str::to_owned);
    let mut slices = objects;
    slices.retain(|it| name(it).is_some_and(|it| names.insert(it)));
    for change in slices::plan(&owner, &[], &slices) {
        match change {
            Change::Delete(gone) => slices.retain(|it| name(it).as_ref() != Some(&gone)),
            Change::Create(object) => slices.push(object),
            Change::Replace(object) => {
                let of = name(&object);
                slices.retain(|it| name(it) != of);
                slices.push(object);
            }
        }
    }
    assert_eq!(slices::plan(&owner, &[], &slices), []);
}

/// A watch's stream. The first byte is the size of the pieces in which it arrives.
///
/// # Panics
/// The events depend on the size of the pieces.
pub fn watch(input: &[u8]) {
    let Some((size, stream)) = input.split_first() else {
        return;
    };
    let events_of = |size: usize| {
        let mut lines = Lines::default();
        let mut events = vec![];
        for piece in stream.chunks(size) {
            lines.0.extend_from_slice(piece);
            loop {
                match lines.event() {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break,
                    Err(error) => {
                        assert_one_line(&error);
                        return (events, true);
                    }
                }
            }
        }
        (events, false)
    };
    assert_eq!(
        events_of(usize::from(*size).max(1)),
        events_of(stream.len().max(1))
    );
}
