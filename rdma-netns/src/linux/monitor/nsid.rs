// SPDX-License-Identifier: Apache-2.0
//! Numbers of other namespaces in this namespace (`net/core/net_namespace.c`).

use super::WatchError;
use crate::{
    NetnsId,
    netlink::{NetlinkError, Socket, attribute},
    netns::open_file,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    nsid::{NsidAttribute, NsidMessage},
};
use nix::libc;
use std::{
    fmt,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
};

/// Number (nsid) of another network namespace in this program's namespace. The number does not keep the other namespace
/// alive. After the other namespace's end, the kernel can give the number to a new namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsid(pub(in crate::linux) i32);

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `NLMSG_ALIGN(sizeof(struct rtgenmsg))`
const HEADER: usize = 4;
const NETNSA_NSID: u16 = 1;

/// Returns the number of the namespace at `path`. Assigns a number if the namespace has none. The namespace is open
/// only during this call.
pub(super) fn of(socket: &mut Socket, path: &Path, id: NetnsId) -> Result<Nsid, WatchError> {
    let failed = |source: io::Error| WatchError::Open {
        path: path.to_owned(),
        source,
    };
    let file = open_file(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if (metadata.dev(), metadata.ino()) != (id.device, id.inode) {
        return Err(WatchError::Other(path.to_owned()));
    }
    let number = |source| WatchError::Number {
        path: path.to_owned(),
        source,
    };
    if let Some(nsid) = ask(socket, &file).map_err(number)? {
        return Ok(nsid);
    }
    // -1 lets the kernel choose the number
    let request = message(vec![descriptor(&file), NsidAttribute::Id(-1)]);
    match socket.request(&RouteNetlinkMessage::NewNsId(request), 0) {
        Ok(_) => {}
        // another process has assigned a number since the first query
        Err(error) if error.errno() == Some(libc::EEXIST) => {}
        Err(error) => return Err(number(error)),
    }
    let nsid = ask(socket, &file).map_err(number)?;
    nsid.ok_or_else(|| number(io::Error::from_raw_os_error(libc::ENOENT).into()))
}

/// Returns the number of the open namespace `file` in the namespace of `socket`. Returns `None` if it has no number.
pub(in crate::linux) fn ask(
    socket: &mut Socket,
    file: &File,
) -> Result<Option<Nsid>, NetlinkError> {
    let request = RouteNetlinkMessage::GetNsId(message(vec![descriptor(file)]));
    let answers = socket.request(&request, 0)?;
    Ok(answers.bodies().find_map(parse))
}

fn descriptor(file: &File) -> NsidAttribute {
    NsidAttribute::Fd(file.as_raw_fd().unsigned_abs())
}

fn message(attributes: Vec<NsidAttribute>) -> NsidMessage {
    let mut message = NsidMessage::default();
    message.attributes = attributes;
    message
}

/// Returns the number in an `RTM_NEWNSID` or `RTM_DELNSID`. Returns `None` for -1, which means that there is no number.
pub fn parse(body: &[u8]) -> Option<Nsid> {
    let value = attribute(body.get(HEADER..)?, NETNSA_NSID)?;
    let number = value.try_into().ok().map(i32::from_ne_bytes)?;
    (number >= 0).then_some(Nsid(number))
}
