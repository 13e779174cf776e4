// SPDX-License-Identifier: Apache-2.0
//! What a shared resource has only if it is named: by a netdev, an RDMA device or an address, or a
//! pattern of these.

use crate::conf::Selector;
use rdma_netns::{Function, Hca};

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
    for netdev in &function.netdevs {
        let name = &netdev.name;
        if netdev.default_route {
            return Some(format!(
                "the node's default route leaves by its netdev {name}"
            ));
        }
        if let Some(other) = &netdev.taken_by {
            return Some(format!("its netdev {name} is a port of {other}"));
        }
    }
    hca.soft.then(|| "it is RDMA in software".to_owned())
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
