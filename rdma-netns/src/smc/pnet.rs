// SPDX-License-Identifier: Apache-2.0
//! SMC-R's pnet table (`smc_pnet`). The table names the physical network of a netdev or an RDMA port. Generic netlink
//! family `SMC_PNETID` (`include/uapi/linux/smc.h`).
//!
//! The kernel keeps entries for netdevs in each network namespace, but entries for RDMA ports only in the initial
//! namespace (`smc_pnet_add_ib()` in `net/smc/smc_pnet.c`; EEXIST in other namespaces).

use crate::{
    HardwareAddress,
    netlink::{
        NetlinkError, Request, attributes,
        generic::{self, Family},
        text,
    },
    text_type::checked_text,
};
use serde::{Deserialize, Serialize};

/// `SMCR_GENL_FAMILY_NAME`
const FAMILY: &str = "SMC_PNETID";

/// `SMC_PNETID_*`: commands
const GET: u8 = 1;
const ADD: u8 = 2;
const DEL: u8 = 3;
const FLUSH: u8 = 4;

/// `SMC_PNETID_*`: attributes
const NAME: u16 = 1;
const ETHNAME: u16 = 2;
const IBNAME: u16 = 3;
const IBPORT: u16 = 4;

/// Value that the kernel reports for a missing netdev or RDMA port of an entry.
const UNSET: &str = "n/a";

/// Pnet id: the name of a physical network, 1 to 16 letters and digits (`smc_pnetid_valid()`). The kernel does not
/// distinguish upper and lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PnetId(String);

checked_text!(PnetId);

/// The text is no pnet id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pnet id: a pnet id has 1 to 16 letters A-Z and digits")]
pub struct InvalidPnetId(String);

impl TryFrom<&str> for PnetId {
    type Error = InvalidPnetId;

    fn try_from(id: &str) -> Result<Self, InvalidPnetId> {
        match matches!(id.len(), 1..=16) && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            true => Ok(Self(id.to_ascii_uppercase())),
            false => Err(InvalidPnetId(id.to_owned())),
        }
    }
}

impl TryFrom<String> for PnetId {
    type Error = InvalidPnetId;

    fn try_from(id: String) -> Result<Self, InvalidPnetId> {
        Self::try_from(id.as_str())
    }
}

impl PnetId {
    /// Returns the pnet id that is unique to a NIC: the 12 digits of its MAC. Returns `None` for an address of another
    /// length.
    pub fn from_mac(mac: &HardwareAddress) -> Option<Self> {
        let id: String = mac.0.iter().map(|byte| format!("{byte:02X}")).collect();
        (mac.0.len() == 6).then_some(Self(id))
    }
}

/// An entry of the pnet table: a netdev or an RDMA port. A request that adds an entry can have both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PnetEntry {
    /// The pnet id of the network.
    pub name: PnetId,
    /// A netdev on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// An RDMA device on the network, and its port from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<(String, u8)>,
}

impl PnetEntry {
    /// Returns the netdev and the RDMA port of the entry as separate entries, as the kernel keeps them.
    pub fn halves(&self) -> impl Iterator<Item = Self> {
        let half = |netdev, rdma| Self {
            name: self.name.clone(),
            netdev,
            rdma,
        };
        let netdev = self.netdev.clone().map(|netdev| half(Some(netdev), None));
        let rdma = self.rdma.clone().map(|rdma| half(None, Some(rdma)));
        netdev.into_iter().chain(rdma)
    }

    /// Returns true if the kernel cannot keep both this entry and `other`. A netdev has one entry. An RDMA device has
    /// one entry for all its ports (`smc_pnet_add_eth()`, `smc_pnet_add_ib()`).
    pub fn excludes(&self, other: &Self) -> bool {
        let same_netdev = self.netdev.is_some() && self.netdev == other.netdev;
        let device = |entry: &Self| entry.rdma.as_ref().map(|(device, _)| device.clone());
        same_netdev || (self.rdma.is_some() && device(self) == device(other))
    }

    fn added_to(&self, mut request: Request) -> Request {
        request = request.text(NAME, &self.name);
        if let Some(netdev) = &self.netdev {
            request = request.text(ETHNAME, netdev);
        }
        if let Some((device, port)) = &self.rdma {
            request = request.text(IBNAME, device).with(IBPORT, vec![*port]);
        }
        request
    }
}

/// The netdev or the RDMA device already has an entry with another pnet id or for another port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pnet id of {} is {} already", subject(.0), .0.name)]
pub struct PnetTaken(pub PnetEntry);

fn subject(entry: &PnetEntry) -> String {
    match (&entry.netdev, &entry.rdma) {
        (_, Some((device, port))) => format!("{device}, port {port},"),
        (netdev, None) => netdev.clone().unwrap_or_default(),
    }
}

/// Returns the parts of `entry` that `table` lacks.
///
/// Call this function before you add an entry, for two reasons:
///
/// - A request can have a netdev and an RDMA port. If one of them already has another pnet id, the kernel adds only the
///   other part, and returns no error (`smc_pnet_enter()`).
/// - A request can name the second port of a device that already has an entry. The kernel then sets the port's pnet id,
///   and still refuses the entry (`smc_pnet_add_ib()`).
pub fn missing(table: &[PnetEntry], entry: &PnetEntry) -> Result<Vec<PnetEntry>, PnetTaken> {
    let mut halves: Vec<PnetEntry> = entry.halves().collect();
    halves.retain(|half| !table.contains(half));
    let taken = |half: &PnetEntry| table.iter().find(|other| half.excludes(other));
    match halves.iter().find_map(taken) {
        Some(other) => Err(PnetTaken(other.clone())),
        None => Ok(halves),
    }
}

/// The pnet table of one namespace.
#[derive(Debug)]
pub struct PnetTable(Family);

impl PnetTable {
    /// Opens the pnet table of the calling thread's namespace.
    ///
    /// # Errors
    /// ENOENT: the kernel has no SMC, or cannot load the module.
    pub fn open() -> Result<Self, NetlinkError> {
        Family::open(FAMILY).map(Self)
    }

    /// Adds an entry: `smc_pnet -a NAME -I NETDEV -D DEVICE -P PORT`. The netdev or RDMA device need not exist. A
    /// netdev or RDMA device that gets the name later also gets the pnet id, even if it appears by a move. An RDMA
    /// device gets the pnet id in any namespace (`smc_pnet_add_by_ndev()`, `smc_ib_add_dev()`; a test on Linux 6.12
    /// showed this for RDMA devices).
    ///
    /// # Errors
    /// EEXIST: the netdev or the RDMA device already has an entry (see [`missing`]), or an entry of an RDMA port is
    /// added outside of the initial namespace.
    pub fn add(&mut self, entry: &PnetEntry) -> Result<(), NetlinkError> {
        let request = entry.added_to(self.0.request(ADD));
        self.0.change(&request)
    }

    /// Removes every entry with the pnet id `name` (`smc_pnet -d NAME`).
    ///
    /// # Errors
    /// ENOENT: no entry has this pnet id.
    pub fn remove(&mut self, name: &PnetId) -> Result<(), NetlinkError> {
        let request = self.0.request(DEL).text(NAME, name);
        self.0.change(&request)
    }

    /// Removes all entries: `smc_pnet -f`.
    pub fn flush(&mut self) -> Result<(), NetlinkError> {
        let request = self.0.request(FLUSH);
        self.0.change(&request)
    }

    /// Returns the entries (`smc_pnet -s`). Each entry has a netdev or an RDMA port.
    pub fn entries(&mut self) -> Result<Vec<PnetEntry>, NetlinkError> {
        let answers = self.0.dump(GET)?;
        Ok(answers.bodies().filter_map(parse_entry).collect())
    }
}

pub(super) fn parse_entry(body: &[u8]) -> Option<PnetEntry> {
    let (mut name, mut netdev, mut device, mut port) = (None, None, None, None);
    for (kind, value) in attributes(generic::attributes_of(body)) {
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
    use netlink_packet_core::NetlinkSerializable;

    fn id(text: &str) -> PnetId {
        PnetId::try_from(text).expect("an id")
    }

    fn netdev(name: &str, netdev: &str) -> PnetEntry {
        PnetEntry {
            name: id(name),
            netdev: Some(netdev.to_owned()),
            rdma: None,
        }
    }

    fn port(name: &str, device: &str, port: u8) -> PnetEntry {
        PnetEntry {
            name: id(name),
            netdev: None,
            rdma: Some((device.to_owned(), port)),
        }
    }

    /// Returns an entry in the form of `smc_pnet_set_nla()`.
    fn answer(name: &str, netdev: &str, device: &str, port: u8) -> Vec<u8> {
        let answer = Request::new(0, &[0; 4])
            .text(NAME, name)
            .text(ETHNAME, netdev)
            .text(IBNAME, device)
            .with(IBPORT, vec![port]);
        let mut body = vec![0; answer.buffer_len()];
        answer.serialize(&mut body);
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
            rdma: Some(("rxe0".to_owned(), 1)),
            ..netdev("A1", "eth0")
        };
        let request = entry.added_to(Request::new(0, &[]));
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        let expected: &[&[u8]] = &[
            &[7, 0, 1, 0, b'A', b'1', 0, 0],
            &[9, 0, 2, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0],
            &[9, 0, 3, 0, b'r', b'x', b'e', b'0', 0, 0, 0, 0],
            &[5, 0, 4, 0, 1, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn entries_are_read() {
        let parsed = |body: &[u8]| parse_entry(body);
        assert_eq!(
            parsed(&answer("A1", "eth0", "n/a", 0xff)),
            Some(netdev("A1", "eth0"))
        );
        assert_eq!(
            parsed(&answer("A1", "n/a", "rxe0", 1)),
            Some(port("A1", "rxe0", 1))
        );
        assert_eq!(parsed(&[]), None);
        assert_eq!(parsed(&answer("not valid", "eth0", "n/a", 0)), None);
    }

    #[test]
    fn present_parts_are_not_missing() {
        let table = [netdev("A1", "eth0"), port("A1", "rxe0", 1)];
        let both = PnetEntry {
            rdma: Some(("rxe0".to_owned(), 1)),
            ..netdev("A1", "eth0")
        };
        assert_eq!(missing(&table, &both), Ok(vec![]));
        assert_eq!(missing(&table[..1], &both), Ok(vec![port("A1", "rxe0", 1)]));
        assert_eq!(missing(&[], &both), Ok(table.to_vec()));
        let other = netdev("A1", "eth1");
        assert_eq!(missing(&table, &other), Ok(vec![other.clone()]));
    }

    #[test]
    fn another_id_of_the_same_netdev_or_device_is_reported() {
        let table = [netdev("A1", "eth0"), port("B2", "rxe0", 1)];
        let refused = |entry: &PnetEntry| missing(&table, entry).expect_err("taken").to_string();
        assert_eq!(
            refused(&netdev("C3", "eth0")),
            "the pnet id of eth0 is A1 already"
        );
        for entry in [
            port("C3", "rxe0", 1),
            port("C3", "rxe0", 2),
            port("B2", "rxe0", 2),
        ] {
            assert_eq!(
                refused(&entry),
                "the pnet id of rxe0, port 1, is B2 already"
            );
        }
        // if one half of an entry cannot be added, the other half is not added either
        let both = PnetEntry {
            netdev: Some("eth1".to_owned()),
            ..port("C3", "rxe0", 1)
        };
        assert!(missing(&table, &both).is_err());
    }
}
