// SPDX-License-Identifier: Apache-2.0
//! SMC sockets, as `smcss -a` reports them: `SMC_DIAG` over sock_diag (`include/uapi/linux/smc_diag.h`).

use super::Reason;
use crate::{
    netlink::{NetlinkError, Request, Socket, attributes, text, u32_of, u64_of, until_nul},
    rdma::name,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use serde::Serialize;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// `SOCK_DIAG_BY_FAMILY`
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `AF_SMC`
const AF_SMC: u8 = 43;

/// `SMC_DIAG_*`: type of an attribute. A request gets the attribute if it sets bit `type - 1` of `diag_ext`.
const LGRINFO: u16 = 2;
const FALLBACK: u16 = 5;

/// `sizeof(struct smc_diag_req)`, `sizeof(struct smc_diag_msg)`
const REQUEST: usize = 52;
const MESSAGE: usize = 64;

/// `IB_DEVICE_NAME_MAX`, and the length of a GID as text, in `struct smc_diag_linkinfo`.
const NAME: usize = 64;
const GID: usize = 40;

/// An SMC socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// State of the connection.
    pub state: State,
    /// Protocol that carries the connection's payload.
    pub mode: Mode,
    /// Address of this end. `None`: this end has no address yet.
    pub local: Option<SocketAddr>,
    /// Address of the other end. `None`: the other end has no address yet.
    pub peer: Option<SocketAddr>,
    /// User id of the socket's owner.
    pub uid: u32,
    /// Inode of the socket, as in `/proc/PID/fd`. 0: the listener has not accepted the connection yet.
    pub inode: u64,
    /// The RDMA link that carries the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<ConnectionLink>,
    /// Reason why TCP carries the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// The RDMA link that carries a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionLink {
    /// Number of the link in its link group.
    pub id: u8,
    /// The RDMA device.
    pub device: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// GID of this end.
    pub gid: Option<Ipv6Addr>,
    /// GID of the other end.
    pub peer_gid: Option<Ipv6Addr>,
}

/// Reason why TCP carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// Reason that this end found.
    pub reason: Reason,
    /// Reason that the other end sent when it declined SMC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Reason>,
}

/// Protocol that carries a connection's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// RDMA. The kernel reports this mode also for sockets that listen or are not connected.
    Smcr,
    /// TCP: the connection fell back.
    Tcp,
    /// SMC-D: memory that the partitions of a machine share.
    Smcd,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Smcr => "SMCR",
            Self::Tcp => "TCP",
            Self::Smcd => "SMCD",
        })
    }
}

/// `enum smc_state` (`net/smc/smc.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub u8);

impl State {
    /// `SMC_ACTIVE`: connected, both directions open.
    pub const ACTIVE: Self = Self(1);
    /// `SMC_LISTEN`
    pub const LISTEN: Self = Self(10);

    /// Returns the name that smcss prints.
    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "ACTIVE",
            2 => "INIT",
            7 => "CLOSED",
            10 => "LISTEN",
            20 => "PEERCLOSEWAIT1",
            21 => "PEERCLOSEWAIT2",
            22 => "APPCLOSEWAIT1",
            23 => "APPCLOSEWAIT2",
            24 => "APPFINCLOSEWAIT",
            25 => "PEERFINCLOSEWAIT",
            26 => "PEERABORTWAIT",
            27 => "PROCESSABORT",
            _ => return None,
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl Serialize for State {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns a request for all SMC sockets of a namespace.
fn request() -> Request {
    let mut header = [0; REQUEST];
    header[0] = AF_SMC;
    header[3] = 1 << (LGRINFO - 1) | 1 << (FALLBACK - 1);
    Request::new(SOCK_DIAG_BY_FAMILY, &header)
}

/// Returns the SMC sockets of the calling thread's namespace. The kernel does not report sockets that were closed, or
/// whose process has ended, even while it still works on them (`__smc_release()`, `net/smc/af_smc.c`).
///
/// # Errors
/// ENOENT: the kernel has no SMC, or does not report its sockets (`smc_diag`).
pub fn connections() -> Result<Vec<Connection>, NetlinkError> {
    let mut socket = Socket::open(NETLINK_SOCK_DIAG)?;
    let answers = socket.dump(&request())?;
    Ok(answers.bodies().filter_map(parse).collect())
}

pub(super) fn parse(body: &[u8]) -> Option<Connection> {
    let fixed: &[u8; MESSAGE] = body.first_chunk()?;
    let mode = match fixed[2] {
        0 => Mode::Smcr,
        1 => Mode::Tcp,
        _ => Mode::Smcd,
    };
    let mut connection = Connection {
        state: State(fixed[1]),
        mode,
        local: end(&fixed[4..6], &fixed[8..24]),
        peer: end(&fixed[6..8], &fixed[24..40]),
        uid: u32_of(&fixed[52..56])?,
        inode: u64_of(&fixed[56..64])?,
        link: None,
        fallback: None,
    };
    for (kind, value) in attributes(&body[MESSAGE..]) {
        match kind {
            LGRINFO => connection.link = link(value),
            // every socket has this attribute, but its value is valid only for sockets that fell back to TCP
            FALLBACK if mode == Mode::Tcp => connection.fallback = fallback(value),
            _ => {}
        }
    }
    Some(connection)
}

/// Parses a port and an address in network byte order. An IPv4 address is in the first of four words. The kernel does
/// not report the family.
fn end(port: &[u8], address: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(port.try_into().ok()?);
    let address: [u8; 16] = address.try_into().ok()?;
    let ip = match address {
        [a, b, c, d, rest @ ..] if rest == [0; 12] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(address)),
    };
    (port != 0 || !ip.is_unspecified()).then_some(SocketAddr::new(ip, port))
}

/// Parses `struct smc_diag_lgrinfo`, which contains one link.
fn link(value: &[u8]) -> Option<ConnectionLink> {
    let (id, rest) = value.split_first()?;
    let (name, rest) = rest.split_at_checked(NAME)?;
    let (port, rest) = rest.split_first()?;
    let (gid, rest) = rest.split_at_checked(GID)?;
    let address = |gid: &[u8]| text(gid)?.parse().ok();
    Some(ConnectionLink {
        id: *id,
        device: name::text(until_nul(name)),
        port: *port,
        gid: address(gid),
        peer_gid: address(rest.get(..GID)?),
    })
}

/// `struct smc_diag_fallback`
fn fallback(value: &[u8]) -> Option<Fallback> {
    let (reason, peer) = value.split_at_checked(4)?;
    let peer = Reason(u32_of(peer.get(..4)?)?);
    Some(Fallback {
        reason: Reason(u32_of(reason)?),
        peer: (peer != Reason(0)).then_some(peer),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::recorded, *};
    use netlink_packet_core::NetlinkSerializable;

    /// Recorded from Linux 6.12: the server's end of an SMC-R connection, the server's end of a connection with a plain
    /// TCP client, and their listener.
    const ACTIVE: &str = "2b0100001b58ab820a0900010000000000000000000000000a0900020000000000000000000000000000000001\
        0000000000000000000000710500000000000005000300000000000c0005000000000000000000500001000100\
        000000000100000001000000010000000000000000000000000000000000000000000000000000000000000000\
        000000000000000000000000000000000000000000000000000000000097000200017278653000000000000000\
        000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
        000000000000000001303030303a303030303a303030303a303030303a303030303a666666663a306130393a30\
        30303100303030303a303030303a303030303a303030303a303030303a666666663a306130393a303030320001\
        00";
    const TCP: &str = "2b0101001b58ab8c0a0900010000000000000000000000000a0900020000000000000000000000000000000002\
        00000000000000000000005a0100000000000005000300000000000c0005000000010300000000";
    const LISTEN: &str = "2b0a00001b5800000a090001000000000000000000000000000000000000000000000000000000000000000003\
        0000000000000000000000580100000000000005000300000000000c0005000000000000000000";

    fn read(digits: &str) -> Connection {
        parse(&recorded(digits)).expect("a connection")
    }

    fn address(text: &str) -> Option<SocketAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn a_connection_over_rdma() {
        let gid = |text: &str| Some(text.parse().expect("a GID"));
        let expected = Connection {
            state: State::ACTIVE,
            mode: Mode::Smcr,
            local: address("10.9.0.1:7000"),
            peer: address("10.9.0.2:43906"),
            uid: 0,
            inode: 0x571,
            link: Some(ConnectionLink {
                id: 1,
                device: "rxe0".to_owned(),
                port: 1,
                gid: gid("::ffff:10.9.0.1"),
                peer_gid: gid("::ffff:10.9.0.2"),
            }),
            fallback: None,
        };
        assert_eq!(read(ACTIVE), expected);
    }

    #[test]
    fn a_connection_that_fell_back() {
        let found = read(TCP);
        assert_eq!((found.mode, found.link), (Mode::Tcp, None));
        let reason = Reason(0x0301_0000);
        assert_eq!(found.fallback, Some(Fallback { reason, peer: None }));
    }

    #[test]
    fn a_listener() {
        let found = read(LISTEN);
        assert_eq!((found.state, found.fallback), (State::LISTEN, None));
        assert_eq!((found.local, found.peer), (address("10.9.0.1:7000"), None));
    }

    #[test]
    fn an_ipv6_address_is_four_words() {
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets();
        let end = end(&[0x1b, 0x58], &address);
        assert_eq!(end, self::address("[fd00::1]:7000"));
    }

    #[test]
    fn half_an_answer_is_no_connection_or_one_without_the_rest() {
        let bytes = recorded(ACTIVE);
        for end in 0..bytes.len() {
            let found = parse(&bytes[..end]);
            assert_eq!(found.is_some(), end >= MESSAGE);
        }
        assert_eq!(State(99).to_string(), "99");
    }

    #[test]
    fn every_socket_is_requested() {
        let request = request();
        let mut bytes = vec![0xff; request.buffer_len()];
        request.serialize(&mut bytes);
        assert_eq!(bytes[..4], [43, 0, 0, 0b1_0010]);
        assert!(bytes[4..].iter().all(|byte| *byte == 0));
    }
}
