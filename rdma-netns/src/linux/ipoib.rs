// SPDX-License-Identifier: Apache-2.0
//! IPoIB netdevs. Attributes come from rtnetlink (`IFLA_IPOIB_*`, `include/uapi/linux/if_link.h`), and the partitions
//! of ports from sysfs. The mode is changed through its file in sysfs if the file exists, else through rtnetlink.

use super::{Space, devices, inside, link_messages};
use crate::{
    Ipoib, IpoibMode, Pkey,
    netlink::{NetlinkError, attribute, text, u16_of},
    rdma::name,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{self, InfoData, InfoIpoib, InfoKind, LinkAttribute, LinkInfo},
};
use nix::libc::{IFLA_INFO_DATA, IFLA_INFO_KIND};
use std::{fs, io, path::Path};

const IFLA_IPOIB_PKEY: u16 = 1;
const IFLA_IPOIB_MODE: u16 = 2;
const IFLA_IPOIB_UMCAST: u16 = 3;

const IPOIB_MODE_CONNECTED: u16 = 1;

/// Parses `IFLA_LINKINFO` of an IPoIB netdev.
pub(super) fn parse(info: &[u8]) -> Option<Ipoib> {
    let is_ipoib = attribute(info, IFLA_INFO_KIND).and_then(text) == Some("ipoib");
    let data = attribute(info, IFLA_INFO_DATA).filter(|_| is_ipoib)?;
    let number = |wanted| u16_of(attribute(data, wanted)?);
    Some(Ipoib {
        pkey: Pkey(number(IFLA_IPOIB_PKEY)?),
        mode: match number(IFLA_IPOIB_MODE)? {
            IPOIB_MODE_CONNECTED => IpoibMode::Connected,
            _ => IpoibMode::Datagram,
        },
        umcast: number(IFLA_IPOIB_UMCAST).is_some_and(|it| it != 0),
    })
}

fn set(index: u32, data: InfoIpoib) -> RouteNetlinkMessage {
    let info = vec![
        LinkInfo::Kind(InfoKind::Ipoib),
        LinkInfo::Data(InfoData::Ipoib(vec![data])),
    ];
    // RTM_NEWLINK without NLM_F_CREATE changes settings of a netdev's kind (`iplink_modify()`, iproute2)
    RouteNetlinkMessage::NewLink(link_messages::message(
        index,
        vec![LinkAttribute::LinkInfo(info)],
    ))
}

pub(super) fn set_umcast(index: u32, on: bool) -> RouteNetlinkMessage {
    set(index, InfoIpoib::UmCast(on.into()))
}

fn set_mode(index: u32, mode: IpoibMode) -> RouteNetlinkMessage {
    let mode = match mode {
        IpoibMode::Datagram => link::IpoibMode::Datagram,
        IpoibMode::Connected => link::IpoibMode::Connected,
    };
    set(index, InfoIpoib::Mode(mode))
}

/// Changes the mode of the netdev `name` with the index `index`.
///
/// `ipoib_set_mode()` releases the rtnl lock for a moment. If another process then takes the lock, `ipoib_set_mode()`
/// continues without it. The write to sysfs handles this case (`mode_store()`, `ipoib_cm.c`). A netlink request does
/// not, and would then release the lock of the other process. Only children that netlink made have no file for the
/// mode, so netlink changes their mode.
pub(super) fn change_mode(
    space: &Space,
    is_host: bool,
    sysfs: &Path,
    (name, index): (&str, u32),
    mode: IpoibMode,
) -> Result<(), NetlinkError> {
    let write = |sysfs: &Path| write_mode(sysfs, name, mode);
    let written = match is_host {
        true => write(sysfs),
        false => space
            .netns()
            .run(|| inside::mount_own(sysfs, inside::WRITE).and_then(|()| write(sysfs)))
            .flatten(),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            space.route().request(&set_mode(index, mode), 0).map(drop)
        }
        written => Ok(written?),
    }
}

fn write_mode(sysfs: &Path, netdev: &str, mode: IpoibMode) -> io::Result<()> {
    let file = sysfs.join("class/net").join(netdev).join("mode");
    // the call must not create a missing file
    let mut file = fs::OpenOptions::new().write(true).open(file)?;
    // `ipoib_set_mode()` compares whole lines
    io::Write::write_all(&mut file, format!("{}\n", mode.name()).as_bytes())
}

/// Returns the P_Keys of a port (`/sys/class/infiniband/DEVICE/ports/PORT/pkeys/`). Omits empty entries.
pub(super) fn partitions(sysfs: &Path, device: &str, port: u32) -> io::Result<Vec<Pkey>> {
    let table = name::directory(sysfs, device).join(format!("ports/{port}/pkeys"));
    fs::metadata(&table)?;
    let places = devices::entries(&table)?;
    let keys = places
        .iter()
        .filter_map(|it| fs::read_to_string(it).ok()?.trim_end().parse().ok());
    let mut keys: Vec<Pkey> = keys.collect();
    keys.sort_unstable_by_key(|it| it.0);
    Ok(keys)
}

#[cfg(test)]
#[path = "ipoib_tests.rs"]
mod tests;
