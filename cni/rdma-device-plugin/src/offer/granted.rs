// SPDX-License-Identifier: Apache-2.0
//! Checks that a starting container still gets its granted devices. Allocate comes before the chain's ADD, and a move
//! gives the RDMA device the lowest free number.

use super::select::hca_of;
use rdma_netns::{CharDevice, DeviceAddress, Inventory};
use rdma_resources::{CharNode, Grant};

/// Difference between the grant and the container's devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// The device is absent.
    #[error(
        "{address}, granted for {id:?} of {resource}, has no RDMA device on this node now; \
         delete the pod to get another one"
    )]
    Gone {
        /// Name of the resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// Address of the device.
        address: DeviceAddress,
    },
    /// The path refers to another device.
    #[error(
        "{address} ({id:?} of {resource}) was granted as {granted}, and is {now} now; delete the pod to \
         get a new allocation"
    )]
    Renumbered {
        /// Name of the resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// Address of the device.
        address: DeviceAddress,
        /// Granted path, with its number.
        granted: String,
        /// Present path of the device.
        now: String,
    },
    /// The node in `/dev` is missing, or is another device's.
    #[error(
        "{path} of {address} ({id:?} of {resource}) is not in place: {found}; the container \
         cannot start until it is"
    )]
    NotInPlace {
        /// Name of the resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// Address of the device.
        address: DeviceAddress,
        /// Granted path.
        path: String,
        /// Description of the node.
        found: String,
    },
}

/// Checks that the granted paths of one container still belong to its devices. A path may now belong to another device
/// of the same container. For a grant by CDI names the devices only must be present, because the move corrects the
/// entry.
///
/// # Errors
/// The first device that the container would not have, or the first path that would be another's device.
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
    let is_granted = |name: &str| {
        let mut nodes = by_path.iter().flat_map(|(_, it, _)| &it.char_devices);
        nodes.any(|it| it.name == name)
    };
    for (grant, device, own) in &by_path {
        for granted in &device.char_devices {
            // the runtime reads the number again at the path: after a reboot it can differ
            let mut theirs = by_path.iter().flat_map(|(_, _, all)| all.iter());
            let present = theirs.find(|it| it.name == granted.name);
            let of_kind = |it: &&CharDevice| CharNode::from(*it).kind() == granted.kind();
            let is_had = own.iter().filter(of_kind).any(|it| is_granted(&it.name));
            let Some(present) = present.filter(|_| is_had) else {
                return Err(Stale::Renumbered {
                    resource: grant.resource.clone(),
                    id: grant.id.clone(),
                    address: device.address.clone(),
                    granted: path(granted),
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

fn path(node: &CharNode) -> String {
    format!(
        "/dev/infiniband/{} ({}:{})",
        node.name, node.major, node.minor
    )
}

/// Lists the nodes of `kind`.
fn now(kind: &str, all: &[CharDevice]) -> String {
    let nodes = all.iter().map(CharNode::from);
    let paths: Vec<String> = nodes
        .filter(|node| node.kind() == kind)
        .map(|node| path(&node))
        .collect();
    match paths.as_slice() {
        [] => format!("without a {kind} device"),
        paths => paths.join(", "),
    }
}
