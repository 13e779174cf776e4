// SPDX-License-Identifier: Apache-2.0
//! A generic netlink family. The first query returns the family's number, which all later requests contain.

use super::{Answers, NetlinkError, Request, Socket, attribute, attributes, text, u16_of, u32_of};
use netlink_sys::protocols::NETLINK_GENERIC;
use nix::libc;
use std::io;

/// `sizeof(struct genlmsghdr)`
const HEADER: usize = 4;

/// Number of the controller family, which reports all other families (`include/uapi/linux/genetlink.h`).
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;

/// `SMCR_GENL_FAMILY_VERSION`, `SMC_GENL_FAMILY_VERSION` and `DEVLINK_GENL_VERSION`; the controller ignores the
/// version.
const VERSION: u8 = 1;

/// A family in the namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Family {
    socket: Socket,
    id: u16,
}

/// Returns the answers to `command` of the family called `name`. Returns none if the kernel has no such family, or if
/// the family has no such command.
pub(crate) fn dump_if_known(name: &str, command: u8) -> Result<Answers, NetlinkError> {
    dump_of_known(name, command).map(Option::unwrap_or_default)
}

/// Returns the answers like [`dump_if_known`]. Returns `None` if the kernel has no such family, or if the family has no
/// such command.
pub(crate) fn dump_of_known(name: &str, command: u8) -> Result<Option<Answers>, NetlinkError> {
    if_known(Family::open(name).and_then(|mut family| family.dump(command)))
}

/// Returns the number of a multicast group of the family called `name`. A socket joins the group by this number.
/// Returns `None` if the kernel has no such family, or if the family has no such group.
pub(crate) fn group(name: &str, group: &str) -> Result<Option<u32>, NetlinkError> {
    let mut socket = Socket::open(NETLINK_GENERIC)?;
    let answers = if_known(ask(&mut socket, name))?.unwrap_or_default();
    Ok(answers.bodies().find_map(|body| parse_group(body, group)))
}

/// Queries the controller for the family called `name`.
fn ask(socket: &mut Socket, name: &str) -> Result<Answers, NetlinkError> {
    let question = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY).text(CTRL_ATTR_FAMILY_NAME, name);
    socket.request(&question, 0)
}

/// Converts two errors to `None`: ENOENT (no such family) and EOPNOTSUPP (no such command; `genl_rcv_msg()`,
/// `net/netlink/genetlink.c`).
fn if_known(answers: Result<Answers, NetlinkError>) -> Result<Option<Answers>, NetlinkError> {
    match answers {
        Err(error) if [Some(libc::ENOENT), Some(libc::EOPNOTSUPP)].contains(&error.errno()) => {
            Ok(None)
        }
        answers => answers.map(Some),
    }
}

impl Family {
    /// Opens the family called `name`. The kernel loads the family's module if possible.
    ///
    /// # Errors
    /// ENOENT: the kernel has no such family.
    pub(crate) fn open(name: &str) -> Result<Self, NetlinkError> {
        let mut socket = Socket::open(NETLINK_GENERIC)?;
        let answers = ask(&mut socket, name)?;
        let id = answers.bodies().find_map(parse_id);
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        Ok(Self {
            id: id.ok_or_else(missing)?,
            socket,
        })
    }

    pub(crate) fn change(&mut self, change: &Request) -> Result<(), NetlinkError> {
        self.socket.request(change, 0).map(drop)
    }

    /// Requests all objects that `command` reports.
    pub(crate) fn dump(&mut self, command: u8) -> Result<Answers, NetlinkError> {
        let request = self.request(command);
        self.socket.dump(&request)
    }

    pub(crate) fn request(&self, command: u8) -> Request {
        request(self.id, command)
    }
}

fn request(family: u16, command: u8) -> Request {
    Request::new(family, &[command, VERSION, 0, 0])
}

pub(crate) fn attributes_of(body: &[u8]) -> &[u8] {
    body.get(HEADER..).unwrap_or_default()
}

pub(crate) fn parse_id(body: &[u8]) -> Option<u16> {
    u16_of(attribute(attributes_of(body), CTRL_ATTR_FAMILY_ID)?)
}

fn parse_group(body: &[u8], wanted: &str) -> Option<u32> {
    let groups = attribute(attributes_of(body), CTRL_ATTR_MCAST_GROUPS)?;
    attributes(groups).find_map(|(_, group)| {
        let of = |wanted| attribute(group, wanted);
        let name = of(CTRL_ATTR_MCAST_GRP_NAME).and_then(text)?;
        (name == wanted).then(|| u32_of(of(CTRL_ATTR_MCAST_GRP_ID)?))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::NetlinkSerializable;

    #[test]
    fn a_request_on_the_wire() {
        let request = request(33, 2).text(1, "A1").with(4, vec![1]);
        let mut bytes = vec![0xff; request.buffer_len()];
        request.serialize(&mut bytes);
        let expected: &[&[u8]] = &[
            &[2, 1, 0, 0],
            &[7, 0, 1, 0, b'A', b'1', 0, 0],
            &[5, 0, 4, 0, 1, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(request.message_type(), 33);
    }

    #[test]
    fn a_kernel_before_the_command_reports_nothing() {
        let refused = |errno| {
            if_known(Err(NetlinkError {
                source: io::Error::from_raw_os_error(errno),
                message: None,
            }))
        };
        for errno in [libc::ENOENT, libc::EOPNOTSUPP] {
            assert_eq!(refused(errno).expect("no error"), None);
        }
        assert_eq!(
            refused(libc::EPERM).expect_err("refused").errno(),
            Some(libc::EPERM)
        );
        // a message of type 16 that answers the request 1, with one byte after its header
        let message = [17_u8, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        let mut expected = Answers::default();
        expected.add(&message, 1).expect("an answer");
        assert_eq!(expected.bodies().count(), 1);
        let answers = if_known(Ok(expected.clone())).expect("answers");
        assert_eq!(answers, Some(expected));
    }

    #[test]
    fn the_family_is_found() {
        // CTRL_CMD_NEWFAMILY with a name and an id
        let answer: &[&[u8]] = &[
            &[1, 2, 0, 0],
            &[15, 0, 2, 0],
            b"SMC_PNETID\0\0",
            &[6, 0, 1, 0, 33, 0, 0, 0],
        ];
        assert_eq!(parse_id(&answer.concat()), Some(33));
        assert_eq!(parse_id(&[1]), None);
        assert_eq!(parse_id(&[1, 2, 0, 0, 5, 0, 1, 0, 33, 0, 0, 0]), None);
    }
    #[test]
    fn a_multicast_group_is_found() {
        let answer: &[&[u8]] = &[
            &[1, 2, 0, 0],
            &[12, 0, 2, 0],
            b"devlink\0",
            &[28, 0, 7, 0x80, 24, 0, 1, 0x80],
            &[8, 0, 2, 0, 5, 0, 0, 0, 11, 0, 1, 0],
            b"config\0\0",
        ];
        let answer = answer.concat();
        assert_eq!(parse_group(&answer, "config"), Some(5));
        assert_eq!(parse_group(&answer, "conf"), None);
        for end in 0..answer.len() - 1 {
            assert_eq!(parse_group(&answer[..end], "config"), None);
        }
    }
}
