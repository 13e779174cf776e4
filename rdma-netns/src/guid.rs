// SPDX-License-Identifier: Apache-2.0
//! GUIDs of InfiniBand devices and ports (EUI-64; InfiniBand Architecture Specification, volume 1, chapter 4).

use crate::{HardwareAddress, Link, LinkType, RdmaDevice, text_type::serde_as_text};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Length in bytes of an IPoIB hardware address: flags and queue pair, then the port's GID (`INFINIBAND_ALEN`,
/// `include/uapi/linux/if_infiniband.h`).
const IPOIB_ADDRESS: usize = 20;

/// Offset in bytes of the GUID in an IPoIB hardware address.
const IN_ADDRESS: usize = 12;

/// A GUID. The number's highest byte is the GUID's first byte, as in `struct ifla_vf_guid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Guid(pub u64);

serde_as_text!(Guid);

/// The text is no GUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no GUID (00:11:22:33:44:55:66:77)")]
pub struct InvalidGuid(String);

impl Guid {
    /// GUID of a port without an assigned GUID.
    pub const ZERO: Self = Self(0);

    /// GUID that ib-sriov-cni gives a virtual function without a GUID, because the kernel accepts no zero GUID.
    pub const ONES: Self = Self(u64::MAX);

    /// Returns true if the GUID can identify a device.
    pub fn is_valid(self) -> bool {
        self != Self::ZERO && self != Self::ONES
    }

    /// Returns the port GUID of the IPoIB netdev `link`. Reads the permanent address, because an administrator can
    /// change the present address. Reads the present address if the permanent one has no valid GUID. Returns `None` if
    /// `link` is no IPoIB netdev.
    pub fn of_port(link: &Link) -> Option<Self> {
        let permanent = link.permanent_mac.as_ref().and_then(Self::in_address);
        let present = || Self::in_address(&link.mac);
        let guid = permanent.filter(|it| it.is_valid()).or_else(present);
        guid.filter(|_| link.link_type == LinkType::Infiniband)
    }

    /// Returns true if the GUID in the address of the IPoIB netdev `link` is not the GUID of its port. An
    /// administrator has then set the address.
    pub fn is_changed(link: &Link) -> bool {
        Self::of_port(link) != Self::in_address(&link.mac)
    }

    fn in_address(HardwareAddress(address): &HardwareAddress) -> Option<Self> {
        let guid = address.get(IN_ADDRESS..IPOIB_ADDRESS)?;
        guid.try_into().ok().map(u64::from_be_bytes).map(Self)
    }

    /// Returns the node GUID of `device`.
    pub fn of_node(device: &RdmaDevice) -> Option<Self> {
        Self::of_groups(&device.node_guid)
    }

    /// Parses a GUID in the form of sysfs, with four groups of four digits.
    pub(crate) fn of_groups(text: &str) -> Option<Self> {
        let groups: Vec<&str> = text.trim_end().split(':').collect();
        let is_group = |it: &&str| it.len() == 4 && it.bytes().all(|it| it.is_ascii_hexdigit());
        let is_guid = groups.len() == 4 && groups.iter().all(is_group);
        let guid = u64::from_str_radix(&groups.concat(), 16).ok();
        guid.filter(|_| is_guid).map(Self)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HardwareAddress(self.0.to_be_bytes().to_vec()).fmt(f)
    }
}

impl FromStr for Guid {
    type Err = InvalidGuid;

    fn from_str(text: &str) -> Result<Self, InvalidGuid> {
        let is_hex = text.bytes().all(|it| it == b':' || it.is_ascii_hexdigit());
        let bytes = text.parse::<HardwareAddress>().ok().filter(|_| is_hex);
        let bytes = bytes.and_then(|it| <[u8; 8]>::try_from(it.0).ok());
        let guid = bytes.map(|it| Self(u64::from_be_bytes(it)));
        guid.ok_or_else(|| InvalidGuid(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_guid_is_eight_bytes_of_two_digits() {
        let guid: Guid = "02:C9:03:00:21:6e:70:01".parse().expect("a GUID");
        assert_eq!(guid, Guid(0x02c9_0300_216e_7001));
        assert_eq!(guid.to_string(), "02:c9:03:00:21:6e:70:01");
        for bad in [
            "",
            "02:c9:03:00:21:6e:70",
            "02:c9:03:00:21:6e:70:01:02",
            "2:c9:03:00:21:6e:70:01",
            "02c90300216e7001",
            "02:c9:03:00:21:6e:70:0g",
            "+2:c9:03:00:21:6e:70:01",
        ] {
            assert!(bad.parse::<Guid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_ports_is_at_the_end_of_its_netdevs_first_address() {
        let address = |guid: &str| format!("80:00:00:41:fe:80:00:00:00:00:00:00:{guid}");
        let [first, present] = ["02:c9:03:00:21:6e:70:01", "02:c9:03:00:21:6e:70:02"];
        let link = |fields| -> Link {
            let mut link = json!({
                "index": 4, "name": "ib0", "mtu": 2044, "up": true, "link_type": "infiniband",
                "mac": address(present), "permanent_mac": address(first),
            });
            let fields: serde_json::Value = fields;
            for (key, value) in fields.as_object().expect("fields") {
                link[key] = value.clone();
            }
            serde_json::from_value(link).expect("a netdev")
        };
        let of = |fields| Guid::of_port(&link(fields)).map(|guid| guid.to_string());
        assert_eq!(of(json!({})).as_deref(), Some(first));
        assert_eq!(of(json!({"permanent_mac": null})).as_deref(), Some(present));
        assert_eq!(of(json!({"link_type": "ether"})), None);
        for none in ["02:00:00:00:00:01", &*address("00:00:00:00:00:00:00:00")] {
            assert_eq!(
                of(json!({ "permanent_mac": none })).as_deref(),
                Some(present)
            );
        }
    }

    #[test]
    fn a_nodes_difference_is_reported_in_four_groups() {
        let of = |guid: &str| {
            let device = json!({"name": "mlx5_0", "index": 0, "node_guid": guid});
            Guid::of_node(&serde_json::from_value(device).expect("a device"))
        };
        assert_eq!(of("02c9:0300:216e:7001"), Some(Guid(0x02c9_0300_216e_7001)));
        assert_eq!(of(""), None);
    }
}
