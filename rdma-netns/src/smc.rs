//! SMC-R's pnet table (`smc_pnet`): which netdev and which RDMA port reach the same
//! physical network. Generic netlink family `SMC_PNETID` (`include/uapi/linux/smc.h`).
//!
//! Entries for netdevs are kept per network namespace; those for RDMA ports only in the
//! initial one (`smc_pnet_add_ib()` in `net/smc/smc_pnet.c`; EEXIST elsewhere).

use crate::{
    HardwareAddress,
    netlink::{NetlinkError, Socket, attributes, text},
};
use netlink_packet_core::{DecodeError, DefaultNla, Emitable, ParseableParametrized};
use netlink_packet_generic::{
    GenlFamily, GenlHeader, GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use netlink_sys::protocols::NETLINK_GENERIC;
use nix::libc;
use std::{fmt, io, ops::Deref};

/// `sizeof(struct genlmsghdr)`
const HEADER: usize = 4;

/// `SMCR_GENL_FAMILY_NAME`
const FAMILY: &str = "SMC_PNETID";
/// `SMCR_GENL_FAMILY_VERSION`
const VERSION: u8 = 1;

const NAME: u16 = 1;
const ETHNAME: u16 = 2;
const IBNAME: u16 = 3;
const IBPORT: u16 = 4;

/// What the kernel answers for the half of an entry that is not set.
const UNSET: &str = "n/a";

/// Name of a physical network, as the kernel takes it (`smc_pnetid_valid()`): 1 to 16
/// letters and digits. Lower case is the same as upper case there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PnetId(String);

/// The text is no name of a physical network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pnet id: 1 to 16 letters A-Z and digits")]
pub struct InvalidPnetId(String);

impl TryFrom<&str> for PnetId {
    type Error = InvalidPnetId;

    fn try_from(id: &str) -> Result<Self, InvalidPnetId> {
        let valid = matches!(id.len(), 1..=16) && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if valid {
            Ok(Self(id.to_ascii_uppercase()))
        } else {
            Err(InvalidPnetId(id.to_owned()))
        }
    }
}

impl PnetId {
    /// The name that is a NIC's own: its MAC's 12 digits. None for an address of another
    /// length.
    pub fn from_mac(mac: &HardwareAddress) -> Option<Self> {
        let id: String = mac.0.iter().map(|byte| format!("{byte:02X}")).collect();
        (mac.0.len() == 6).then_some(Self(id))
    }
}

impl Deref for PnetId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// An entry of the table: a netdev, an RDMA port, or (when adding) both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PnetEntry {
    /// The network.
    pub name: PnetId,
    /// A netdev on it.
    pub netdev: Option<String>,
    /// An RDMA device on it, and its port from 1.
    pub rdma: Option<(String, u8)>,
}

/// A request to the family.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PnetRequest {
    Get,
    Add(PnetEntry),
    Del(PnetId),
    Flush,
}

impl PnetRequest {
    fn attributes(&self) -> Vec<DefaultNla> {
        let text = |kind, text: &str| DefaultNla::new(kind, [text.as_bytes(), b"\0"].concat());
        match self {
            Self::Get | Self::Flush => vec![],
            Self::Del(name) => vec![text(NAME, name)],
            Self::Add(PnetEntry { name, netdev, rdma }) => {
                let mut attributes = vec![text(NAME, name)];
                attributes.extend(netdev.as_ref().map(|netdev| text(ETHNAME, netdev)));
                if let Some((device, port)) = rdma {
                    attributes.push(text(IBNAME, device));
                    attributes.push(DefaultNla::new(IBPORT, vec![*port]));
                }
                attributes
            }
        }
    }
}

impl GenlFamily for PnetRequest {
    fn family_name() -> &'static str {
        FAMILY
    }

    fn command(&self) -> u8 {
        match self {
            Self::Get => 1,
            Self::Add(_) => 2,
            Self::Del(_) => 3,
            Self::Flush => 4,
        }
    }

    fn version(&self) -> u8 {
        VERSION
    }
}

impl Emitable for PnetRequest {
    fn buffer_len(&self) -> usize {
        self.attributes().as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes().as_slice().emit(buffer);
    }
}

/// The pnet table of one namespace.
#[derive(Debug)]
pub struct PnetTable {
    socket: Socket,
    family: u16,
}

impl PnetTable {
    /// Opens the table of the calling thread's namespace. ENOENT: the kernel has no SMC,
    /// or it is not loaded and cannot be.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = Socket::open(NETLINK_GENERIC)?;
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(FAMILY.to_owned())],
        });
        let answers = socket.request(&request, 0)?;
        let family = answers.iter().find_map(|answer| parse_family(&answer.body));
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        Ok(Self {
            family: family.ok_or_else(missing)?,
            socket,
        })
    }

    /// `smc_pnet -a NAME -I NETDEV -D DEVICE -P PORT`
    pub fn add(&mut self, entry: PnetEntry) -> Result<(), NetlinkError> {
        self.change(PnetRequest::Add(entry))
    }

    /// `smc_pnet -d NAME`: every entry of that name goes.
    pub fn remove(&mut self, name: PnetId) -> Result<(), NetlinkError> {
        self.change(PnetRequest::Del(name))
    }

    /// `smc_pnet -f`
    pub fn flush(&mut self) -> Result<(), NetlinkError> {
        self.change(PnetRequest::Flush)
    }

    /// `smc_pnet -s`: netdevs and RDMA ports, each in an entry of its own.
    pub fn entries(&mut self) -> Result<Vec<PnetEntry>, NetlinkError> {
        let answers = self.socket.dump(&self.message(PnetRequest::Get))?;
        Ok(answers
            .iter()
            .filter_map(|answer| parse_entry(&answer.body))
            .collect())
    }

    fn change(&mut self, request: PnetRequest) -> Result<(), NetlinkError> {
        let message = self.message(request);
        self.socket.request(&message, 0).map(drop)
    }

    fn message(&self, request: PnetRequest) -> GenlMessage<PnetRequest> {
        let mut message = GenlMessage::from_payload(request);
        message.set_resolved_family_id(self.family);
        message
    }
}

fn parse_family(body: &[u8]) -> Option<u16> {
    let parsed = || -> Result<GenlCtrl, DecodeError> {
        let header = GenlHeader::parse(body)?;
        GenlCtrl::parse_with_param(body.get(HEADER..).unwrap_or_default(), header)
    };
    parsed()
        .ok()?
        .nlas
        .iter()
        .find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(id) => Some(*id),
            _ => None,
        })
}

fn parse_entry(body: &[u8]) -> Option<PnetEntry> {
    let (mut name, mut netdev, mut device, mut port) = (None, None, None, None);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            NAME => name = text(value).and_then(|name| PnetId::try_from(name).ok()),
            ETHNAME => netdev = text(value),
            IBNAME => device = text(value),
            IBPORT => port = value.first().copied(),
            _ => {}
        }
    }
    let set = |value: &&str| *value != UNSET;
    Some(PnetEntry {
        name: name?,
        netdev: netdev.filter(set).map(str::to_owned),
        rdma: device.filter(set).map(str::to_owned).zip(port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> PnetId {
        PnetId::try_from(text).expect("an id")
    }

    /// As `smc_pnet_set_nla()` writes an entry.
    fn answer(name: &str, netdev: &str, device: &str, port: u8) -> Vec<u8> {
        let text = |kind, text: &str| DefaultNla::new(kind, [text.as_bytes(), b"\0"].concat());
        let attributes = [
            text(NAME, name),
            text(ETHNAME, netdev),
            text(IBNAME, device),
            DefaultNla::new(IBPORT, vec![port]),
        ];
        let mut body = vec![0; HEADER + attributes.as_slice().buffer_len()];
        attributes.as_slice().emit(&mut body[HEADER..]);
        body
    }

    #[test]
    fn ids() {
        let mac: HardwareAddress = "02:00:5e:0a:ff:01".parse().expect("a MAC");
        assert_eq!(&*PnetId::from_mac(&mac).expect("an id"), "02005E0AFF01");
        assert_eq!(PnetId::from_mac(&HardwareAddress(vec![0; 20])), None);
        assert_eq!(&*id("net1"), "NET1");
        for bad in ["", "A-B", "ABCDEFGHIJKLMNOPQ", "Ä"] {
            assert!(PnetId::try_from(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn an_added_entry_on_the_wire() {
        let entry = PnetEntry {
            name: id("A1"),
            netdev: Some("eth0".to_owned()),
            rdma: Some(("rxe0".to_owned(), 1)),
        };
        let message = GenlMessage::from_payload(PnetRequest::Add(entry));
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let expected: &[&[u8]] = &[
            &[2, 1, 0, 0],
            &[7, 0, 1, 0, b'A', b'1', 0, 0],
            &[9, 0, 2, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0],
            &[9, 0, 3, 0, b'r', b'x', b'e', b'0', 0, 0, 0, 0],
            &[5, 0, 4, 0, 1, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn entries_are_read() {
        let netdev = PnetEntry {
            name: id("A1"),
            netdev: Some("eth0".to_owned()),
            rdma: None,
        };
        assert_eq!(
            parse_entry(&answer("A1", "eth0", "n/a", 0xff)),
            Some(netdev)
        );
        let rdma = PnetEntry {
            name: id("A1"),
            netdev: None,
            rdma: Some(("rxe0".to_owned(), 1)),
        };
        assert_eq!(parse_entry(&answer("A1", "n/a", "rxe0", 1)), Some(rdma));
        assert_eq!(parse_entry(&[]), None);
        assert_eq!(parse_entry(&answer("not valid", "eth0", "n/a", 0)), None);
    }

    #[test]
    fn the_family_is_found() {
        let ctrl = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::NewFamily,
            nlas: vec![
                GenlCtrlAttrs::FamilyName(FAMILY.to_owned()),
                GenlCtrlAttrs::FamilyId(33),
            ],
        });
        let mut body = vec![0; ctrl.buffer_len()];
        ctrl.emit(&mut body);
        assert_eq!(parse_family(&body), Some(33));
        assert_eq!(parse_family(&[1]), None);
    }
}
