// SPDX-License-Identifier: Apache-2.0
//! What a shared resource has only if it is named: by a netdev, an RDMA device or an address, or a
//! pattern of these.

use crate::conf::Selector;
use rdma_netns::{Function, Hca, Netdev};

/// Whether one of `selectors` has names at all: those that fit the device have named it.
pub(super) fn has_names(selector: &Selector) -> bool {
    !(selector.netdev.is_empty()
        && selector.rdma.is_empty()
        && selector.address.is_empty()
        && selector.pf.is_empty()
        && selector.root.is_empty())
}

/// Why a device is not meant by a resource of all devices, or of all of a kind.
pub(super) fn why_not_meant(function: &Function, hca: &Hca) -> Option<String> {
    let port = function.netdevs.iter().find_map(port);
    port.or_else(|| hca.soft.then(|| "it is RDMA in software".to_owned()))
}

/// A NIC that accelerates the node's own netdev: no pod gets a netdev of it.
pub(super) fn accelerator(function: &Function) -> Option<String> {
    let mut netdevs = function.netdevs.iter();
    netdevs.find(|it| it.accelerates()).and_then(port)
}

/// The owner of all frames of `netdev`, which is no bond.
pub(super) fn port(netdev: &Netdev) -> Option<String> {
    let other = netdev.taken_by.as_ref()?;
    Some(format!("its netdev {} is a port of {other}", netdev.name))
}

/// The node's own way out by a device.
pub(super) fn uplink(function: &Function) -> Option<String> {
    let netdev = function.netdevs.iter().find(|it| it.default_route)?;
    Some(format!(
        "the node's default route, or its way to the API server, is by its netdev {}",
        netdev.name
    ))
}

/// The kernel's own use of a device: storage.
pub(super) fn storage(hca: &Hca) -> Option<String> {
    let users = hca.kernel_users.join(", ");
    (!users.is_empty()).then(|| format!("the host uses it itself ({users})"))
}

/// A device that is no network.
pub(super) fn no_rail(function: &Function) -> Option<String> {
    function.device.no_rail().map(str::to_owned)
}

/// Why a device with sub-devices is moved into no pod: each of them has a reference to it (`ib_add_sub_device()`), and a
/// move waits until there is none (`disable_device()`, `drivers/infiniband/core/device.c`).
pub(super) fn held_by_sub_devices(hca: &Hca) -> String {
    let sub_devices = hca.sub_devices.join(", ");
    format!(
        "the kernel cannot move {} into a pod while it has the sub-device {sub_devices}; delete that (rdma dev delete \
         {sub_devices}), or set the RDMA subsystem to shared",
        hca.name
    )
}
