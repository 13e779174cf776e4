// SPDX-License-Identifier: Apache-2.0
//! What kubelet and the API server say.

use crate::assert_one_line;
use dra::{Claim, ClaimName};
use kubelet_api::pod_resources::v1::{GetPodResourcesResponse, ListPodResourcesResponse};
use kubernetes_api::{StatusCode, access::Identity, client};
use plan::allocation;
use prost::Message;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Kubelet's answer to `List`, and to `Get`: which devices a pod has.
///
/// # Panics
/// An id or a claim comes twice; a claim's uid is a path.
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

/// An answer of the API server: the status in the first two bytes, then the text; and a service account's token.
///
/// # Panics
/// A success has no object, or a refusal is one.
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

/// A ResourceClaim, with the parameters of it and of its class.
///
/// # Panics
/// A message has several lines; what is not ours is taken.
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
