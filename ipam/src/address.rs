// SPDX-License-Identifier: Apache-2.0
//! Addresses as numbers. Two numbers describe a range of any size.

use ipnetwork::IpNetwork;
use std::{fmt, net::IpAddr};

/// The address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// Returns the family of `ip`.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the address of this family with `number`. For IPv4, only the low 32 bits are used.
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "numbers of IPv4 addresses have 32 bits"
            )]
            Self::V4 => IpAddr::V4((number as u32).into()),
            Self::V6 => IpAddr::V6(number.into()),
        }
    }

    /// Returns the length in bits of the longest prefix with an address that can be assigned. A prefix of this length
    /// has, without network and broadcast address, two addresses (IPv4), or, without the anycast address, three (IPv6).
    pub fn longest_prefix(self) -> u8 {
        match self {
            Self::V4 => 30,
            Self::V6 => 126,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Returns the number of `ip`.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// Parses `ADDRESS/LENGTH` strictly: `ipnetwork` would also accept `10.0.0.1` and `10.0.0.0/255.0.0.0`. Rejects
/// IPv4-mapped addresses (`::ffff:10.0.0.1`), because they belong to neither family.
pub fn cidr(text: &str) -> Option<IpNetwork> {
    let (address, length) = text.split_once('/')?;
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNetwork::new(plain(address)?, length.parse().ok()?).ok()
}

/// Parses an address strictly, without a prefix length.
pub fn plain(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    (ip.to_canonical() == ip).then_some(ip)
}

/// Returns the prefix of `network`, without host bits.
pub fn prefix(network: IpNetwork) -> IpNetwork {
    IpNetwork::new(network.network(), network.prefix()).unwrap_or(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_address_are_one() {
        for text in ["0.0.0.0", "10.1.2.3", "255.255.255.255"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Family::V4.address(number(ip)), ip);
        }
        for text in ["::", "fd00::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Family::V6.address(number(ip)), ip);
        }
    }

    #[test]
    fn sloppy_networks_are_refused() {
        for text in [
            "10.0.0.1",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/+8",
            "10.0.0.0/33",
            "010.0.0.0/8",
            "fd00::/129",
            "::ffff:10.0.0.0/120",
            "/8",
            "",
        ] {
            assert_eq!(cidr(text), None, "{text}");
        }
        assert_eq!(cidr("fd00::5/64").unwrap().to_string(), "fd00::5/64");
    }
}
