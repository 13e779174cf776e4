// SPDX-License-Identifier: Apache-2.0
//! RDMA devices of one namespace, from RDMA netlink, sysfs and `/dev`.

use super::{
    devices::{self, Verbs},
    nldev::{CharDeviceInfo, DeviceInfo, Nldev},
};
use crate::{
    CharDevice, DeviceAddress, RdmaDevice, SubDevice,
    netlink::NetlinkError,
    rdma::{RdmaPort, name},
};
use nix::libc;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

/// Sources of an RDMA device's data, in addition to RDMA netlink.
pub(super) struct DeviceContext<'a> {
    /// Mount point of sysfs.
    pub(super) sysfs: &'a Path,
    /// Directory of device files.
    pub(super) dev: &'a Path,
    /// RDMA devices in `/sys/class/infiniband_verbs`. Empty if ib_uverbs is not loaded.
    pub(super) verbs: &'a [Verbs],
    /// Devices whose ports are read. `None`: the ports of all devices. The ports of RDMA devices without a parent in
    /// sysfs, such as software RDMA devices, are always read.
    pub(super) ports: Option<&'a BTreeSet<DeviceAddress>>,
    /// True for the host's namespace.
    pub(super) is_host: bool,
}

/// Returns the RDMA devices and sub-devices that the namespace of `nldev` sees. Also adds each RDMA device that has a
/// hardware driver to `hardware`, with the driver's id.
pub(super) fn read(
    nldev: &mut Nldev,
    context: &DeviceContext<'_>,
    hardware: &mut BTreeMap<String, u32>,
) -> Result<(Vec<RdmaDevice>, Vec<SubDevice>), NetlinkError> {
    let mut infos = nldev.devices()?;
    if infos.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    // a sub-device follows its parent
    infos.sort_by_key(|it| it.parent.is_some());
    let class = context.sysfs.join("class");
    let uverbs = class.join("infiniband_verbs").exists();
    let umad = class.join("infiniband_mad").exists();
    let (mut devices, mut sub_devices): (Vec<RdmaDevice>, Vec<SubDevice>) = Default::default();
    for info in infos {
        // a query of a device that has disappeared since the first request returns EINVAL: the loop omits such a device
        let mut verbs = context.verbs.iter();
        let verbs = verbs.find(|verbs| verbs.device == info.name);
        let parent = verbs.and_then(|verbs| verbs.parent.clone());
        let is_observed = match (context.ports, &parent) {
            (Some(ports), Some(parent)) => ports.contains(parent),
            _ => true,
        };
        let ports = match is_observed.then(|| nldev.ports(info.index)) {
            None => vec![],
            Some(Err(error)) if error.errno() == Some(libc::EINVAL) => continue,
            Some(ports) => ports?,
        };
        let mut found = Vec::new();
        if uverbs && info.parent.is_none() {
            let verbs = nldev.char_device("uverbs", info.index, None)?;
            let driver = verbs.as_ref().and_then(CharDeviceInfo::hardware);
            hardware.extend(driver.map(|driver| (info.name.clone(), driver)));
            found.extend(verbs);
        }
        if umad {
            for port in &ports {
                found.extend(nldev.char_device("umad", info.index, Some(port.number))?);
            }
        }
        let char_devices = found.into_iter().map(|found| CharDevice {
            node: node(&context.dev.join("infiniband").join(&found.name)),
            name: found.name,
            major: found.major,
            minor: found.minor,
        });
        if let Some(parent) = info.parent {
            let mut devices = devices.iter_mut();
            if let Some(device) = devices.find(|it| it.name == parent) {
                device.char_devices.extend(char_devices);
            }
            let name = info.name;
            sub_devices.push(SubDevice { name, parent });
            continue;
        }
        let directory = name::directory(context.sysfs, &info.name).join("ports");
        let users = match context.is_host {
            true => kernel_users(nldev, &info),
            false => Vec::new(),
        };
        let ports = ports.into_iter().map(|port| RdmaPort {
            number: port.number,
            netdev: port.netdev,
            state: port.state,
            link_layer: match port.netdev {
                None => devices::link_layer(&directory.join(port.number.to_string())),
                Some(_) => None,
            },
        });
        devices.push(RdmaDevice {
            parent,
            name: info.name,
            index: info.index,
            node_guid: info.node_guid,
            ports: ports.collect(),
            char_devices: char_devices.collect(),
            kernel_users: users,
        });
    }
    Ok((devices, sub_devices))
}

/// Returns the names of the kernel modules that use the device. Returns none after an error, as with Linux before 4.17.
pub(super) fn kernel_users(nldev: &mut Nldev, device: &DeviceInfo) -> Vec<String> {
    nldev.kernel_users(device.index).unwrap_or_else(|error| {
        log::debug!("cannot read the kernel's users of {}: {error}", device.name);
        Vec::new()
    })
}

/// Returns major and minor number of a character device's node.
pub(super) fn node(path: &Path) -> Option<(u32, u32)> {
    let metadata = fs::metadata(path).ok()?;
    let number = metadata.rdev();
    metadata
        .file_type()
        .is_char_device()
        .then(|| (libc::major(number), libc::minor(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_character_devices_have_a_number() {
        assert_eq!(node(Path::new("/dev/null")), Some((1, 3)));
        assert_eq!(node(Path::new("/dev")), None);
        assert_eq!(node(Path::new("/dev/infiniband/none")), None);
    }
}
