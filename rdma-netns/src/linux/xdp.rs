// SPDX-License-Identifier: Apache-2.0
//! XDP programs in rtnetlink messages (`IFLA_XDP`, `rtnl_xdp_fill()` and `do_setlink()` in `net/core/rtnetlink.c`).

use super::{
    bpf,
    kind_data::nested,
    link_messages::{self, HEADER, number},
};
use crate::netlink::{NetlinkError, Socket, attributes, u32_of};
use netlink_packet_core::{DefaultNla, NLA_F_NESTED};
use netlink_packet_route::link::LinkAttribute;
use nix::libc::{self, IFLA_XDP};
use std::io;

const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;

/// `IFLA_XDP_*_PROG_ID` of each mode, with the mode's flag (`XDP_FLAGS_*_MODE`): driver mode, generic mode, hardware
/// mode.
const XDP_MODES: [(u16, u32); 3] = [(5, 4), (6, 2), (7, 8)];

/// Returns the XDP programs in an `IFLA_XDP`, each with the flag of its mode.
pub(super) fn programs(value: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    attributes(value).filter_map(|(kind, value)| {
        let mode = XDP_MODES.iter().find(|(attribute, _)| *attribute == kind)?;
        Some((mode.1, u32_of(value).filter(|id| *id != 0)?))
    })
}

/// Detaches the XDP programs of the netdev `index`. The program with the id `kept` remains; 0: none remains.
///
/// # Errors
/// The kernel's error. `NotFound`: `kept` is not attached, and all other programs are now detached.
#[cold]
pub(super) fn detach(socket: &mut Socket, index: u32, kept: u32) -> Result<(), NetlinkError> {
    let answers = socket.request(&link_messages::by_index(index), 0)?;
    let lists = answers.bodies().filter_map(|body| body.get(HEADER..));
    let lists = lists.flat_map(attributes);
    let lists = lists.filter(|(kind, _)| *kind == IFLA_XDP);
    let programs: Vec<(u32, u32)> = lists.flat_map(|(_, list)| programs(list)).collect();
    for (mode, program) in programs.iter().filter(|(_, it)| *it != kept) {
        // a request without a descriptor of a program detaches the attached program
        let list = [number(IFLA_XDP_FD, u32::MAX), number(IFLA_XDP_FLAGS, *mode)];
        let value = nested(&list);
        let list = LinkAttribute::Other(DefaultNla::new(IFLA_XDP | NLA_F_NESTED, value));
        match socket.request(&link_messages::set(index, vec![list]), 0) {
            // the program is attached by a BPF link
            Err(error) if error.errno() == Some(libc::EBUSY) => bpf::detach_xdp(index, *program)?,
            done => drop(done?),
        }
    }
    match kept == 0 || programs.iter().any(|(_, it)| *it == kept) {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::NotFound).into()),
    }
}
