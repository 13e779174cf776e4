// SPDX-License-Identifier: Apache-2.0
//! Whether a container that starts now still would get what was granted. Allocate comes before
//! the chain's ADD, and a move gives the RDMA device the lowest free number.

use super::select::hca_of;
use rdma_netns::{CharDevice, DeviceAddress, Inventory};
use rdma_resources::{CharNode, Grant};

/// What was granted is not what the container would get.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// The device is not there.
    #[error(
        "{address}, which {id:?} of {resource} was given for, has no RDMA device on this node now; \
         delete the pod to have another allocated"
    )]
    Gone {
        /// The resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// The device.
        address: DeviceAddress,
    },
    /// The path leads elsewhere.
    #[error(
        "{address} ({id:?} of {resource}) was given as {given}, and is {now} now; delete the pod to \
         have it allocated anew"
    )]
    Renumbered {
        /// The resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// The device.
        address: DeviceAddress,
        /// The path that the container was given, with its number.
        given: String,
        /// Where the device is.
        now: String,
    },
    /// The node in `/dev` is missing, or another device's.
    #[error(
        "{path} of {address} ({id:?} of {resource}) is not in place: {found}; the container \
         cannot start until it is"
    )]
    NotInPlace {
        /// The resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// The device.
        address: DeviceAddress,
        /// The path that the container was given.
        path: String,
        /// What is there.
        found: String,
    },
}

/// Whether the paths that one container was granted still are those of its devices: which of its paths
/// is which of its devices does not matter, as it has all of them. For a grant by CDI names it is
/// enough that the devices are there: the entry is put right by the move.
///
/// # Errors
/// The first device that the container would not have, or the first path by which it would have
/// another one's.
pub fn still_as_granted(grants: &[&Grant], inventory: &Inventory) -> Result<(), Stale> {
    let mut by_path = vec![];
    for grant in grants {
        for device in &grant.devices {
            let hca = inventory.function(&device.address).and_then(hca_of);
            let Some(hca) = hca.filter(|hca| !hca.char_devices.is_empty()) else {
                return Err(Stale::Gone {
                    resource: grant.resource.clone(),
                    id: grant.id.clone(),
                    address: device.address.clone(),
                });
            };
            if !grant.cdi {
                by_path.push((*grant, device, &hca.char_devices));
            }
        }
    }
    let given = |name: &str| {
        let mut given = by_path.iter().flat_map(|(_, it, _)| &it.char_devices);
        given.any(|it| it.name == name)
    };
    for (grant, device, own) in &by_path {
        for granted in &device.char_devices {
            // the runtime reads the number anew at the path: after a boot it can be another one
            let mut theirs = by_path.iter().flat_map(|(_, _, all)| all.iter());
            let present = theirs.find(|it| it.name == granted.name);
            let of_kind = |it: &&CharDevice| CharNode::from(*it).kind() == granted.kind();
            let is_had = own.iter().filter(of_kind).any(|it| given(&it.name));
            let Some(present) = present.filter(|_| is_had) else {
                return Err(Stale::Renumbered {
                    resource: grant.resource.clone(),
                    id: grant.id.clone(),
                    address: device.address.clone(),
                    given: told(granted),
                    now: now(granted.kind(), own),
                });
            };
            if !present.is_in_place() {
                return Err(Stale::NotInPlace {
                    resource: grant.resource.clone(),
                    id: grant.id.clone(),
                    address: device.address.clone(),
                    path: format!("/dev/infiniband/{}", granted.name),
                    found: match present.node {
                        None => "there is no such node".to_owned(),
                        Some((major, minor)) => format!("its number is {major}:{minor}"),
                    },
                });
            }
        }
    }
    Ok(())
}

fn told(node: &CharNode) -> String {
    format!(
        "/dev/infiniband/{} ({}:{})",
        node.name, node.major, node.minor
    )
}

/// The devices of `kind`.
fn now(kind: &str, all: &[CharDevice]) -> String {
    let nodes = all.iter().map(CharNode::from);
    let told: Vec<String> = nodes
        .filter(|node| node.kind() == kind)
        .map(|node| told(&node))
        .collect();
    match told.as_slice() {
        [] => format!("without a {kind} device"),
        told => told.join(", "),
    }
}
