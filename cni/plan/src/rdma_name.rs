// SPDX-License-Identifier: Apache-2.0
//! The names of RDMA devices. A pod with `NET_ADMIN` can rename its own RDMA devices, and in shared mode all of them.

use super::locate::places;
use attachments::{Attachment, Attribute};
use rdma_netns::{NetnsSide, Observed, Op, RdmaDevice};

/// Returns the operations that restore the host names of the RDMA devices of `attachments`. Omits attachments of
/// earlier boots.
pub fn renamed<'a>(
    attachments: impl IntoIterator<Item = &'a Attachment>,
    observed: &Observed,
) -> Vec<Op> {
    let mut ops = vec![];
    let attachments = attachments.into_iter();
    let of_boot = attachments.filter(|it| it.boot_id == observed.boot_id);
    for host_device in of_boot
        .flat_map(|it| &it.rails)
        .filter_map(|it| it.rdma.as_ref())
    {
        let op = places(observed).find_map(|(side, namespace)| {
            let mut devices = namespace.rdma.iter();
            devices.find_map(|it| restore(host_device, (side, it), observed, &[]))
        });
        ops.extend(op.filter(|it| !ops.contains(it)));
    }
    ops
}

/// Returns the operation that restores the name of `device` if it is the device recorded as `host_device`. If another
/// device has the recorded name, `device` first gets a temporary name, so two devices can exchange their names. Returns
/// `None` if
/// - `device` has its recorded name;
/// - the name was `given_up`;
/// - `device` is not the recorded device. A device has another index after its driver was bound again, and udev names
///   it.
pub(super) fn restore(
    host_device: &RdmaDevice,
    (at, device): (NetnsSide, &RdmaDevice),
    observed: &Observed,
    given_up: &[Attribute],
) -> Option<Op> {
    let is_it = device.index == host_device.index && device.node_guid == host_device.node_guid;
    let is_given_up = given_up
        .iter()
        .any(|it| matches!(it, Attribute::RdmaName(_)));
    if !is_it || is_given_up || device.name == host_device.name {
        return None;
    }
    let temporary = format!("ibdev{}", device.index);
    // sysfs shows the names of all namespaces
    let mut names = observed
        .devices
        .iter()
        .flat_map(|it| &it.rdma)
        .chain(&observed.unpaired);
    let is_taken = names.any(|it| *it == host_device.name);
    let name = match is_taken && device.name != temporary {
        true => temporary,
        false => host_device.name.clone(),
    };
    Some(Op::RenameRdma {
        at,
        device: device.name.clone(),
        name,
    })
}
