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

/// Whether the paths that were granted still are those of the granted devices. For a grant by
/// CDI names it is enough that the devices are there: the entry is put right by the move.
pub fn still_as_granted(grant: &Grant, inventory: &Inventory) -> Result<(), Stale> {
    let (resource, id) = (&grant.resource, &grant.id);
    for device in &grant.devices {
        let address = &device.address;
        let hca = inventory.function(address).and_then(hca_of);
        let Some(hca) = hca.filter(|hca| !hca.char_devices.is_empty()) else {
            return Err(Stale::Gone {
                resource: resource.clone(),
                id: id.clone(),
                address: address.clone(),
            });
        };
        if grant.cdi {
            continue;
        }
        for granted in &device.char_devices {
            // the runtime reads the number anew at the path: after a boot it can be another one
            let same = |it: &&CharDevice| it.name == granted.name;
            let Some(present) = hca.char_devices.iter().find(same) else {
                return Err(Stale::Renumbered {
                    resource: resource.clone(),
                    id: id.clone(),
                    address: address.clone(),
                    given: told(granted),
                    now: now(granted.kind(), &hca.char_devices),
                });
            };
            if !present.is_in_place() {
                return Err(Stale::NotInPlace {
                    resource: resource.clone(),
                    id: id.clone(),
                    address: address.clone(),
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
