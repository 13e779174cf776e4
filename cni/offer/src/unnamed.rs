// SPDX-License-Identifier: Apache-2.0
//! Reasons for leaving a device out of a resource. Most of them apply only if no selector names the device: by netdev,
//! RDMA device, address or physical function, or by a pattern of such names.

use daemon_conf::Selector;
use rdma_netns::{Function, Hca, Netdev};

/// Returns true if the selector has at least one list of names.
pub(super) fn has_names(selector: &Selector) -> bool {
    !(selector.netdev.is_empty()
        && selector.rdma.is_empty()
        && selector.address.is_empty()
        && selector.pf.is_empty()
        && selector.root.is_empty())
}

/// Returns the reason for leaving out a device that no selector of a shared resource names: its netdev is a port
/// ([`port`]), or it is a software RDMA device.
pub(super) fn not_selected(function: &Function, hca: &Hca) -> Option<String> {
    let port = function.netdevs.iter().find_map(port);
    port.or_else(|| {
        hca.soft
            .then(|| "it is a software RDMA device, such as rxe".to_owned())
    })
}

/// Returns the reason for leaving out a NIC that accelerates the node's own netdev. No pod gets a netdev of such a NIC.
pub(super) fn accelerator(function: &Function) -> Option<String> {
    let mut netdevs = function.netdevs.iter();
    netdevs.find(|it| it.accelerates()).and_then(port)
}

/// Returns the reason for leaving out a device whose `netdev` is a port of a master that is no bond, such as a bridge.
pub(super) fn port(netdev: &Netdev) -> Option<String> {
    let other = netdev.taken_by.as_ref()?;
    Some(format!("its netdev {} is a port of {other}", netdev.name))
}

/// Returns the reason for leaving out a device that has the node's uplink.
pub(super) fn uplink(function: &Function) -> Option<String> {
    let netdev = function.netdevs.iter().find(|it| it.default_route)?;
    Some(format!(
        "the node's default route, or its route to the API server, uses the device's netdev {}",
        netdev.name
    ))
}

/// Returns the reason for leaving out a device that the kernel itself uses for storage.
pub(super) fn storage(hca: &Hca) -> Option<String> {
    let users = hca.kernel_users.join(", ");
    (!users.is_empty()).then(|| format!("the kernel of the host uses it ({users})"))
}

/// Returns the reason for leaving out a device that is never a rail, such as a device that manages NVLink.
pub(super) fn no_rail(function: &Function) -> Option<String> {
    function.device.no_rail().map(str::to_owned)
}

/// Returns the reason why a device with sub-devices cannot be moved into a pod. Each sub-device holds a reference to
/// the device (`ib_add_sub_device()`), and a move waits until no reference exists (`disable_device()`,
/// `drivers/infiniband/core/device.c`).
pub(super) fn held_by_sub_devices(hca: &Hca) -> String {
    let sub_devices = hca.sub_devices.join(", ");
    format!(
        "the kernel cannot move {} into a pod while it has the sub-device {sub_devices}; delete the sub-device (rdma dev delete \
         {sub_devices}), or set the RDMA subsystem to shared",
        hca.name
    )
}
