// SPDX-License-Identifier: Apache-2.0
//! Checks that a starting container still gets the devices of its grant. Kubelet calls Allocate before the runtime
//! calls ADD. A device that ADD moves gets new character devices with the lowest free numbers.

use crate::select::hca_of;
use rdma_netns::{CharDevice, Inventory};
use rdma_resources::{CharNode, Grant};

/// Remedy for a container that may not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// Time: the cause may end by itself. Kubelet retries.
    Time,
    /// Another pod: this pod can never start.
    AnotherPod,
    /// The return of the device. If the device does not return: another pod.
    DeviceOrAnotherPod,
}

/// Difference between a grant and the container's devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Stale {
    /// Sentence with the difference and the remedy.
    pub why: String,
    /// The remedy.
    pub cure: Cure,
}

/// Checks that the granted paths of one container still belong to the container's devices. A path may now belong to
/// another of these devices. If the container gets devices by CDI names, checks only that the devices are present:
/// `rdma-cni` updates the CDI entry of a device that it moves.
///
/// # Errors
/// Names the first device that has no RDMA device now, or the first path that is missing, has another device number, or
/// belongs to a device outside `grants`.
pub fn still_as_granted(grants: &[&Grant], inventory: &Inventory) -> Result<(), Stale> {
    let stale = |cure, why| Err(Stale { why, cure });
    let mut by_path = vec![];
    for grant in grants {
        for device in &grant.devices {
            let hca = inventory.function(&device.address).and_then(hca_of);
            let Some(hca) = hca.filter(|hca| !hca.char_devices.is_empty()) else {
                let why = format!(
                    "{}, granted for id {:?} of {}, has no RDMA device on this node now; wait for the device, or \
                     delete the pod to get another one",
                    device.address, grant.id, grant.resource
                );
                return stale(Cure::DeviceOrAnotherPod, why);
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
        let address = &device.address;
        let id = format!("{:?} of {}", grant.id, grant.resource);
        for granted in &device.char_devices {
            // compare only paths: the runtime reads the device number again from the path, and the number can change at
            // a reboot
            let mut theirs = by_path.iter().flat_map(|(_, _, all)| all.iter());
            let present = theirs.find(|it| it.name == granted.name);
            let of_kind = |it: &&CharDevice| CharNode::from(*it).kind() == granted.kind();
            let is_had = own.iter().filter(of_kind).any(|it| is_granted(&it.name));
            let Some(present) = present.filter(|_| is_had) else {
                let (granted, now) = (path(granted), now(granted.kind(), own));
                let why = format!(
                    "{address} ({id}) was granted as {granted}, and is {now} now; delete the pod to get a new allocation"
                );
                // only another pod helps: another device may have the path now, and no later move gives the path back
                // to this device
                return stale(Cure::AnotherPod, why);
            };
            if !present.is_in_place() {
                let found = match present.node {
                    None => "the file does not exist".to_owned(),
                    Some((major, minor)) => format!("its device number is {major}:{minor}"),
                };
                let why = format!(
                    "/dev/infiniband/{} of {address} ({id}) is not in place: {found}; the container cannot start \
                     before it is in place",
                    granted.name
                );
                return stale(Cure::Time, why);
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
