// SPDX-License-Identifier: Apache-2.0
//! Selection of devices that have no netdev.

use super::{SelectError, check_holders};
use crate::locate::places;
use attachments::{Attachment, Rail};
use network_conf::Conf;
use rdma_netns::{Device, DeviceAddress, LinkType, Observed, RdmaDevice};

/// Returns a rail for a device that has no netdev in any namespace, such as an InfiniBand port without IPoIB. A
/// drop-in selected the device. ADD moves only the RDMA device, as Mellanox's rdma-cni does.
pub(super) fn rail(
    conf: &Conf,
    address: &DeviceAddress,
    observed: &Observed,
    others: &[Attachment],
) -> Result<Option<Rail>, SelectError> {
    let has_netdev = observed.device(address).is_none_or(|it| it.has_netdev);
    let mut seen = places(observed).map(|(_, it)| it.links_of(address, &observed.host));
    let rdma = rdma_of(address, observed).filter(|_| !has_netdev && seen.all(|it| it.is_empty()));
    let Some((rdma, pod_name)) = rdma.zip(conf.attachment_name()) else {
        return Ok(None);
    };
    check_holders(address, others)?;
    Ok(Some(Rail {
        rdma: Some(rdma.clone()),
        bare: true,
        ..Rail::new(pod_name)
    }))
}

/// Returns the reason why ADD cannot attach the device at `address`. Neither the host nor the pod has a netdev of this
/// device.
pub(super) fn refusal(address: &DeviceAddress, observed: &Observed) -> SelectError {
    match observed.device(address) {
        None => SelectError::NotFound(address.to_string()),
        Some(device) if device.has_netdev => SelectError::Elsewhere(address.clone()),
        Some(device) => {
            let rdma = rdma_of(address, observed);
            SelectError::NoNetdev {
                device: describe(address, rdma),
                reason: reason(device, rdma),
            }
        }
    }
}

/// Returns the error for the shared RDMA device `rdma`. Its Ethernet port has no GIDs, so pods cannot use it.
pub(super) fn no_gids(
    address: &DeviceAddress,
    rdma: &RdmaDevice,
    observed: &Observed,
) -> SelectError {
    let reason = match observed.device(address) {
        Some(device) if device.has_netdev => {
            "its netdev is in another network namespace, and in no record of rdma-cni; move the netdev to the host"
                .to_owned()
        }
        Some(device) => reason(device, Some(rdma)),
        None => "its function is no longer on the node".to_owned(),
    };
    SelectError::NoNetdev {
        device: describe(address, Some(rdma)),
        reason: format!("an Ethernet port without a netdev has no GIDs; {reason}"),
    }
}

/// Returns the RDMA device of the function `address`, if the host sees it.
pub(super) fn rdma_of<'a>(
    address: &DeviceAddress,
    observed: &'a Observed,
) -> Option<&'a RdmaDevice> {
    let mut all = observed.host.rdma.iter();
    all.find(|rdma| rdma.parent.as_ref() == Some(address))
}

fn describe(address: &DeviceAddress, rdma: Option<&RdmaDevice>) -> String {
    match rdma {
        Some(rdma) => format!("RDMA device {} ({address})", rdma.name),
        None => address.to_string(),
    }
}

/// Returns the reason why a device has no netdev in any namespace.
fn reason(device: &Device, rdma: Option<&RdmaDevice>) -> String {
    let infiniband = |rdma: &RdmaDevice| {
        let mut layers = rdma.ports.iter().map(|port| port.link_layer);
        layers.any(|layer| layer == Some(LinkType::Infiniband))
    };
    match &device.driver {
        None => "no driver is bound to it; bind its network driver".to_owned(),
        Some(driver) if device.is_passed_through() => format!(
            "its driver is {driver}, which passes it to a virtual machine or a program; bind its network driver"
        ),
        Some(_) if rdma.is_some_and(infiniband) => {
            "its InfiniBand port has no IPoIB netdev; load ib_ipoib, or let type \"rdma\" move the \
             RDMA device alone"
                .to_owned()
        }
        Some(driver) => format!(
            "its driver {driver} made no netdev; see the kernel's log (dmesg), and check that devlink does not disable \
             the netdev (enable_eth)"
        ),
    }
}
