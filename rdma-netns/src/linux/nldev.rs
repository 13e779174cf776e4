// SPDX-License-Identifier: Apache-2.0
//! RDMA netlink (`include/uapi/rdma/rdma_netlink.h`): the system's namespace mode, RDMA devices with their ports and
//! character devices, and moves of RDMA devices.
//!
//! A query returns the devices of the namespace in which the socket was opened. For a move, the *sending thread* must
//! be in the device's namespace (`ib_device_set_netns_put()` in `drivers/infiniband/core/device.c` checks `current`).

use crate::{
    RdmaMode,
    netlink::{
        NetlinkError, Request, Socket, attribute, attributes, text, u16_of, u32_of, u64_of,
        until_nul,
    },
    rdma::name,
};
use nix::libc;
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// `NETLINK_RDMA`
const PROTOCOL: isize = 20;
/// `RDMA_NL_NLDEV`
const CLIENT: u16 = 5;
/// The command `RDMA_NLDEV_CMD_DELDEV` (Linux 6.11). Older headers lack it.
const DELDEV: u16 = 27;
/// The attribute `RDMA_NLDEV_ATTR_PARENT_NAME` (Linux 6.11).
const PARENT_NAME: u16 = 100;
/// The module of SMC-R.
const SMC: &str = "smc";

/// `enum rdma_nldev_command`
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const SET: u16 = 2;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const SYS_SET: u16 = 7;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const RES_CM_ID_GET: u16 = 11;
    pub(super) const GET_CHARDEV: u16 = 15;
}

/// `enum rdma_nldev_attr`
mod attr {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const NODE_GUID: u16 = 6;
    pub(super) const PORT_STATE: u16 = 12;
    pub(super) const RES_SUMMARY: u16 = 15;
    pub(super) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(super) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(super) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(super) const RES_KERN_NAME: u16 = 29;
    pub(super) const RES_CM_ID: u16 = 30;
    pub(super) const RES_CM_ID_ENTRY: u16 = 31;
    pub(super) const RES_SRC_ADDR: u16 = 33;
    pub(super) const NDEV_INDEX: u16 = 50;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    /// `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`
    pub(super) const SYS_NETNS_MODE: u16 = 66;
    /// `RDMA_NLDEV_NET_NS_FD`
    pub(super) const NET_NS_FD: u16 = 68;
    pub(super) const CHARDEV_TYPE: u16 = 69;
    pub(super) const CHARDEV_NAME: u16 = 70;
    pub(super) const CHARDEV: u16 = 72;
    pub(super) const UVERBS_DRIVER_ID: u16 = 73;
}

fn request(command: u16) -> Request {
    Request::new(CLIENT << 10 | command, &[])
}

/// An RDMA device as `RDMA_NLDEV_CMD_GET` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index, which is constant for the device's lifetime.
    pub index: u32,
    /// Name, in the form of [`name::text`].
    pub name: String,
    /// Node GUID, such as `0011:2233:4455:6677`.
    pub node_guid: String,
    /// Name of the parent RDMA device. `None`: the device is no [sub-device](crate::SubDevice).
    pub parent: Option<String>,
    /// True if the device's first port is an iWARP port.
    pub is_iwarp: bool,
}

/// A port as `RDMA_NLDEV_CMD_PORT_GET` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Number, from 1.
    pub number: u32,
    /// `enum ib_port_state`
    pub state: u8,
    /// Index of the port's netdev, if the netdev is in the socket's namespace.
    pub netdev: Option<u32>,
}

/// A character device as `RDMA_NLDEV_CMD_GET_CHARDEV` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharDeviceInfo {
    /// Name below `/dev/infiniband`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Driver id of the RDMA device (`enum rdma_driver_id`, `include/uapi/rdma/ib_user_ioctl_verbs.h`). Only uverbs
    /// devices have a driver id. `None`: the driver does not report its id (`uverbs_no_driver_id_binding`), or the
    /// kernel is older than 5.3.
    pub driver: Option<u32>,
}

impl CharDeviceInfo {
    /// Returns the driver id if the driver drives hardware. Returns `None` for rxe, siw and drivers that report no id.
    pub fn hardware(&self) -> Option<u32> {
        /// `RDMA_DRIVER_UNKNOWN`, `RDMA_DRIVER_RXE`, `RDMA_DRIVER_SIW`
        const OTHERS: [u32; 3] = [0, 14, 18];
        self.driver.filter(|it| !OTHERS.contains(it))
    }
}

/// A connection to RDMA netlink. Its queries return the devices of one namespace.
#[derive(Debug)]
pub struct Nldev(Socket);

impl Nldev {
    /// Opens RDMA netlink in the calling thread's namespace. Returns `None` if the kernel has no RDMA subsystem.
    pub fn open() -> io::Result<Option<Self>> {
        match Socket::open(PROTOCOL) {
            Ok(socket) => Ok(Some(Self(socket))),
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the namespace mode (`rdma system show`). Returns shared mode if the kernel's answer has no mode.
    pub fn mode(&mut self) -> Result<RdmaMode, NetlinkError> {
        let answers = self.0.request(&request(command::SYS_GET), 0)?;
        let mode = answers.bodies().find_map(parse_mode);
        Ok(mode.unwrap_or(RdmaMode::Shared))
    }

    /// Sets the namespace mode (`rdma system set netns MODE`). The kernel returns EBUSY while other namespaces exist.
    pub fn set_mode(&mut self, mode: RdmaMode) -> Result<(), NetlinkError> {
        let mode = match mode {
            RdmaMode::Shared => 1,
            RdmaMode::Exclusive => 0,
        };
        let request = request(command::SYS_SET).with(attr::SYS_NETNS_MODE, vec![mode]);
        self.0.request(&request, 0).map(drop)
    }

    /// Returns the RDMA devices: `rdma dev show`.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, NetlinkError> {
        let answers = self.0.dump(&request(command::GET))?;
        Ok(answers.bodies().filter_map(parse_device).collect())
    }

    /// Returns the ports of an RDMA device: `rdma link show DEVICE`.
    pub fn ports(&mut self, device: u32) -> Result<Vec<PortInfo>, NetlinkError> {
        let request = request(command::PORT_GET).number(attr::DEV_INDEX, device);
        let answers = self.0.dump(&request)?;
        Ok(answers.bodies().filter_map(parse_port).collect())
    }

    /// Returns the number of objects of each kind (`pd`, `qp`, `ctx`) of a device (`rdma resource show DEVICE`).
    pub fn resources(&mut self, device: u32) -> Result<Vec<(String, u64)>, NetlinkError> {
        let request = request(command::RES_GET).number(attr::DEV_INDEX, device);
        let answers = self.0.request(&request, 0)?;
        Ok(answers.bodies().flat_map(parse_resources).collect())
    }

    /// Returns the kernel modules that have a connection through a device, or listen on one of its addresses
    /// (`rdma resource show cm_id dev DEVICE`), without duplicates. Omits modules that listen on the unspecified
    /// address. Omits SMC, because it reconnects through another device.
    ///
    /// The result includes modules that use the RDMA connection manager, such as NVMe, NFS, Lustre, iSER and SMB. It
    /// does not include SRP, which uses InfiniBand's own connection manager. A list of queue pairs would include SRP,
    /// but costs a firmware query for each queue pair (`fill_res_qp_entry()`, `drivers/infiniband/core/nldev.c`).
    pub fn kernel_users(&mut self, device: u32) -> Result<Vec<String>, NetlinkError> {
        let request = request(command::RES_CM_ID_GET).number(attr::DEV_INDEX, device);
        let answers = self.0.dump(&request)?;
        let mut users: Vec<String> = answers.bodies().flat_map(parse_kernel_users).collect();
        users.sort();
        users.dedup();
        Ok(users)
    }

    /// Returns the character device of the kernel client `client`, if there is one. A `uverbs` device belongs to an
    /// RDMA device, a `umad` device to one port of the RDMA device. Call this function only if the client's module is
    /// loaded, because this request makes the kernel *load* a missing module (`ib_get_client_nl_info()`).
    pub fn char_device(
        &mut self,
        client: &str,
        device: u32,
        port: Option<u32>,
    ) -> Result<Option<CharDeviceInfo>, NetlinkError> {
        const ABSENT: [i32; 4] = [libc::ENOENT, libc::ENODEV, libc::EOPNOTSUPP, libc::EINVAL];
        let mut request = request(command::GET_CHARDEV)
            .text(attr::CHARDEV_TYPE, client)
            .number(attr::DEV_INDEX, device);
        if let Some(port) = port {
            request = request.number(attr::PORT_INDEX, port);
        }
        match self.0.request(&request, 0) {
            Ok(answers) => Ok(answers.bodies().find_map(parse_char_device)),
            // the client has no character device for this RDMA device or port
            Err(error) if error.errno().is_some_and(|it| ABSENT.contains(&it)) => {
                log::debug!("the RDMA device with index {device} has no {client} device: {error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves an RDMA device from the namespace of the calling thread: `rdma dev set DEVICE netns TARGET`.
    pub fn move_device(&mut self, name: &str, target: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let target = target.as_raw_fd().to_ne_bytes().to_vec();
        self.change(command::SET, name, |it| it.with(attr::NET_NS_FD, target))
    }

    /// Renames an RDMA device: `rdma dev set DEVICE name NAME`.
    pub fn rename_device(&mut self, device: &str, name: &str) -> Result<(), NetlinkError> {
        let name = [name::bytes(name).as_slice(), b"\0"].concat();
        self.change(command::SET, device, |it| it.with(attr::DEV_NAME, name))
    }

    /// Deletes a sub-device: `rdma dev delete DEVICE`. Returns ENODEV for an RDMA device that is no sub-device:
    /// `ib_del_sub_device_and_put()` would refuse it, and leak a reference.
    pub fn delete_sub_device(&mut self, name: &str) -> Result<(), NetlinkError> {
        self.change(DELDEV, name, |it| it)
    }

    /// Sends a request for the device whose present name is `name`. `with` adds the request's further attributes. The
    /// request [`DELDEV`] requires a sub-device.
    fn change(
        &mut self,
        command: u16,
        name: &str,
        with: impl FnOnce(Request) -> Request,
    ) -> Result<(), NetlinkError> {
        let devices = self.devices()?;
        let mut devices = devices.iter();
        let device =
            devices.find(|it| it.name == name && (command != DELDEV || it.parent.is_some()));
        let device = device.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let request = request(command).number(attr::DEV_INDEX, device.index);
        self.0.request(&with(request), 0).map(drop)
    }
}

fn device_name(value: &[u8]) -> String {
    name::text(until_nul(value))
}

pub(super) fn parse_mode(body: &[u8]) -> Option<RdmaMode> {
    match attribute(body, attr::SYS_NETNS_MODE)? {
        [0] => Some(RdmaMode::Exclusive),
        [_] => Some(RdmaMode::Shared),
        _ => None,
    }
}

pub(super) fn parse_device(body: &[u8]) -> Option<DeviceInfo> {
    let guid = attribute(body, attr::NODE_GUID)
        .and_then(u64_of)
        .unwrap_or_default();
    let group = |shift: u32| guid >> shift & 0xffff;
    Some(DeviceInfo {
        index: attribute(body, attr::DEV_INDEX).and_then(u32_of)?,
        name: attribute(body, attr::DEV_NAME).map(device_name)?,
        parent: attribute(body, PARENT_NAME).map(device_name),
        // `fill_dev_info()`, `drivers/infiniband/core/nldev.c`
        is_iwarp: attribute(body, attr::DEV_PROTOCOL).and_then(text) == Some("iw"),
        node_guid: format!(
            "{:04x}:{:04x}:{:04x}:{:04x}",
            group(48),
            group(32),
            group(16),
            group(0)
        ),
    })
}

pub(super) fn parse_port(body: &[u8]) -> Option<PortInfo> {
    Some(PortInfo {
        number: attribute(body, attr::PORT_INDEX).and_then(u32_of)?,
        state: attribute(body, attr::PORT_STATE)
            .and_then(|value| value.first().copied())
            .unwrap_or(0),
        netdev: attribute(body, attr::NDEV_INDEX).and_then(u32_of),
    })
}

pub(super) fn parse_resources(body: &[u8]) -> Vec<(String, u64)> {
    let summary = attribute(body, attr::RES_SUMMARY).unwrap_or_default();
    attributes(summary)
        .filter(|(kind, _)| *kind == attr::RES_SUMMARY_ENTRY)
        .filter_map(|(_, entry)| {
            let name = attribute(entry, attr::RES_SUMMARY_ENTRY_NAME).and_then(text)?;
            let count = attribute(entry, attr::RES_SUMMARY_ENTRY_CURR).and_then(u64_of)?;
            Some((name.to_owned(), count))
        })
        .collect()
}

/// Returns the kernel modules that own CM ids with an address, without SMC. The CM id of a process has a PID instead of
/// a module name (`fill_res_name_pid()`, `drivers/infiniband/core/nldev.c`).
pub(super) fn parse_kernel_users(body: &[u8]) -> Vec<String> {
    let table = attribute(body, attr::RES_CM_ID).unwrap_or_default();
    attributes(table)
        .filter(|(kind, _)| *kind == attr::RES_CM_ID_ENTRY)
        .filter_map(|(_, entry)| {
            let owner = attribute(entry, attr::RES_KERN_NAME).and_then(text)?;
            let is_bound = attribute(entry, attr::RES_SRC_ADDR).is_some_and(names_an_address);
            (is_bound && owner != SMC).then(|| owner.to_owned())
        })
        .collect()
}

/// Returns true if a `struct sockaddr_storage` has an IP address other than the unspecified address, or an address of
/// another family.
fn names_an_address(socket: &[u8]) -> bool {
    let family = socket.get(..2).and_then(u16_of);
    let address = match family.map(i32::from) {
        // `struct sockaddr_in`, `struct sockaddr_in6`
        Some(libc::AF_INET) => socket.get(4..8),
        Some(libc::AF_INET6) => socket.get(8..24),
        // `struct sockaddr_ib`: InfiniBand's own addresses
        family => return family.is_some(),
    };
    address.is_some_and(|address| address.iter().any(|byte| *byte != 0))
}

pub(super) fn parse_char_device(body: &[u8]) -> Option<CharDeviceInfo> {
    // `huge_encode_dev()`, `include/linux/kdev_t.h`: minor 0-7, major 8-19, minor 20-31.
    let number = attribute(body, attr::CHARDEV).and_then(u64_of)?;
    Some(CharDeviceInfo {
        name: attribute(body, attr::CHARDEV_NAME)
            .and_then(text)?
            .to_owned(),
        major: (number >> 8 & 0xfff) as u32,
        minor: (number & 0xff | number >> 12 & 0xf_ff00) as u32,
        driver: attribute(body, attr::UVERBS_DRIVER_ID).and_then(u32_of),
    })
}

#[cfg(test)]
#[path = "nldev_tests.rs"]
mod tests;
