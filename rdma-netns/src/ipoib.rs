// SPDX-License-Identifier: Apache-2.0
//! IP over InfiniBand: a netdev's partition and send mode (RFC 4391, RFC 4755).

use crate::text_type::serde_as_text;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Attributes of an IPoIB netdev or of an IPoIB child (`ipoib_fill_info()`,
/// `drivers/infiniband/ulp/ipoib/ipoib_netlink.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipoib {
    /// Partition of the netdev.
    pub pkey: Pkey,
    /// Send mode.
    pub mode: IpoibMode,
    /// True if the netdev ignores multicast groups that programs join without using the kernel's IP stack.
    #[serde(default)]
    pub umcast: bool,
}

/// Kind of queue pair with which an IPoIB netdev sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpoibMode {
    /// The netdev sends unreliable datagrams. The MTU of the port and the MTU of the partition's broadcast group limit
    /// a datagram's size.
    Datagram,
    /// The netdev sends over connections, in packets of up to 65520 bytes.
    Connected,
}

impl IpoibMode {
    /// Returns `datagram` or `connected`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Datagram => "datagram",
            Self::Connected => "connected",
        }
    }
}

/// A partition key (P_Key; InfiniBand Architecture Specification, volume 1, 10.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pkey(pub u16);

serde_as_text!(Pkey);

/// Bit of a P_Key that is set for a full member of the partition, and clear for a limited member.
const FULL_MEMBER: u16 = 0x8000;

impl Pkey {
    /// Returns true if both P_Keys belong to one partition, by the kernel's comparison (`ib_find_pkey()`,
    /// `drivers/infiniband/core/device.c`).
    pub fn is_of_partition(self, other: Self) -> bool {
        (self.0 ^ other.0) & !FULL_MEMBER == 0
    }

    /// Returns the P_Key with the bit of a full member. The kernel sets this bit for every IPoIB netdev
    /// (`ipoib_ndo_init()`, `drivers/infiniband/ulp/ipoib/ipoib_main.c`).
    pub fn full(self) -> Self {
        Self(self.0 | FULL_MEMBER)
    }
}

/// Formats the P_Key as `ip link` and sysfs do: `0x8001`.
impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// A text that is no partition key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a hexadecimal partition key such as 0x8001, and not 0x0 or 0x8000")]
pub struct InvalidPkey;

impl FromStr for Pkey {
    type Err = InvalidPkey;

    /// Parses hexadecimal digits after `0x`. Rejects 0 and 0x8000, which name no partition.
    fn from_str(text: &str) -> Result<Self, InvalidPkey> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let digits = digits.filter(|it| it.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let key = digits.and_then(|it| u16::from_str_radix(it, 16).ok());
        let key = key.filter(|it| it & !FULL_MEMBER != 0);
        key.map(Self).ok_or(InvalidPkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_a_partition_whoever_is_its_member() {
        let key = |text: &str| text.parse::<Pkey>();
        assert_eq!(key("0x8001"), Ok(Pkey(0x8001)));
        assert_eq!(key("0X1").map(|it| it.to_string()), Ok("0x0001".to_owned()));
        for text in [
            "", "8001", "0x", "0x+1", "0x0", "0x8000", "0x18001", "0x80g1",
        ] {
            assert_eq!(key(text), Err(InvalidPkey), "{text}");
        }
        assert!(Pkey(0x0001).is_of_partition(Pkey(0x8001)));
        assert!(!Pkey(0x8001).is_of_partition(Pkey(0x8002)));
        assert_eq!(Pkey(0x0001).full(), Pkey(0x8001));
    }
}
