// SPDX-License-Identifier: Apache-2.0
//! Kubelet's requests to the daemon.

use crate::assert_one_line;
use daemon_conf::Conf;
use dra::ClaimName;
use kubelet_api::{
    device_plugin::{AllocateRequest, PreStartContainerRequest, PreferredAllocationRequest},
    dra::NodePrepareResourcesRequest,
};
use offer::{Accelerators, Offer, PreviousOffers, Unhealthy, offers};
use prost::Message;
use rdma_netns::Inventory;
use rdma_resources::container::ContainerId;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// The offer of a resource, and the resource's ids.
type Offered = (Offer, BTreeSet<String>);

/// A node with eight NICs, and the offers of shared and exclusive resources on it.
static NODE: LazyLock<(Inventory, Vec<Offered>)> = LazyLock::new(|| {
    let nodes: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cni/rdma-device-plugin/tests/nodes");
    let inventory: Inventory = cases::read_as(&nodes.join("eight-hcas/node.json"));
    let (nothing, healthy) = (BTreeSet::new(), Unhealthy::new());
    let mut all = vec![];
    for name in ["hca.json", "network.json", "shared.json"] {
        let conf = Conf::read(&nodes.join("configs").join(name)).expect("a configuration");
        let before = PreviousOffers::default();
        let (offered, _) = offers(&conf.conf, &inventory, &nothing, &healthy, &before);
        all.extend(offered.into_iter().map(|offer| {
            let ids = offer.ids.iter().map(|it| it.id.clone()).collect();
            (offer, ids)
        }));
    }
    assert!(all.len() > 1, "{} resources", all.len());
    (inventory, all)
});

/// `Allocate`, `PreStartContainer`, `GetPreferredAllocation`, `NodePrepareResources`.
///
/// # Panics
/// An answer has a device that the node lacks, or an id that is not offered; the preferred ids are more than requested,
/// or have one id twice; a message has several lines; a file name could lead into another directory.
pub fn requests(input: &[u8]) {
    let (inventory, offers) = &*NODE;
    let allocate = AllocateRequest::decode(input).unwrap_or_default();
    let start = PreStartContainerRequest::decode(input).unwrap_or_default();
    let containers = allocate.container_requests.iter();
    let ids = containers.map(|it| &it.devices_i_ds);
    for ids in ids.chain([&start.devices_i_ds]) {
        for (offer, offered) in offers {
            match offer.answer(ids, inventory) {
                Err(error) => assert_one_line(&error),
                Ok((_, grants)) => {
                    assert!(ids.iter().all(|id| offered.contains(id)));
                    assert!(grants.len() <= ids.len());
                    let devices = grants.iter().flat_map(|it| &it.devices);
                    for device in devices {
                        assert!(inventory.function(&device.address).is_some());
                    }
                }
            }
            if let Some(container) = ContainerId::of(offer.name.as_str(), ids) {
                let name = container.full_name();
                assert_eq!(name.matches('/').count(), 1, "{name:?}");
            }
        }
    }
    let preferred = PreferredAllocationRequest::decode(input).unwrap_or_default();
    for request in &preferred.container_requests {
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        for (offer, _) in offers {
            let preference = offer.prefer(
                &request.available_device_i_ds,
                &request.must_include_device_i_ds,
                size,
                &Accelerators::of_node(inventory),
            );
            let ids: BTreeSet<&String> = preference.ids.iter().collect();
            assert!(ids.len() == preference.ids.len() && ids.len() <= size);
        }
    }
    let prepare = NodePrepareResourcesRequest::decode(input).unwrap_or_default();
    for claim in prepare.claims {
        let name = ClaimName {
            namespace: claim.namespace,
            name: claim.name,
            uid: claim.uid,
        };
        if name.has_plain_uid() {
            assert!(!name.uid.contains(['/', '.', '\0']));
        }
    }
}
