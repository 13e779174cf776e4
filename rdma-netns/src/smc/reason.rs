// SPDX-License-Identifier: Apache-2.0
//! Reasons why a connection fell back to TCP (`SMC_CLC_DECL_*`, `net/smc/smc_clc.h`, Linux 6.12).

use serde::{Serialize, Serializer, ser::SerializeMap};
use std::fmt;

/// Number of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason(pub u32);

/// Number and meaning of each reason.
const REASONS: [(u32, &str); 36] = [
    (0x0101_0000, "no memory for the connection's buffers"),
    (0x0201_0000, "the first link was not confirmed in time"),
    (0x0202_0000, "a further link was not added in time"),
    (0x0300_0000, "configuration error"),
    (0x0301_0000, "the peer did not offer SMC"),
    (0x0302_0000, "the connection uses IPsec"),
    (0x0303_0000, "no SMC device for the connection"),
    (0x0303_0001, "no SMC-D device for the connection"),
    (0x0303_0002, "no RDMA device for the connection"),
    (0x0303_0003, "the hardware has no ISMv2"),
    (0x0303_0004, "the peer does not speak SMCv2"),
    (0x0303_0005, "the peer sent no SMC-Dv2 extension"),
    (0x0303_0006, "the peer sent no system EID"),
    (0x0303_0007, "no SMC-Dv2 device for the connection"),
    (0x0303_0008, "no user EID in common with the peer"),
    (0x0303_0009, "no release of SMC in common with the peer"),
    (
        0x0303_000a,
        "no agreement with the peer on connections per link group",
    ),
    (
        0x0303_000b,
        "no agreement with the peer on links per link group",
    ),
    (0x0304_0000, "one end uses SMC-D, and the other end SMC-R"),
    (0x0305_0000, "the peer has eye catchers in its buffers"),
    (0x0306_0000, "a socket option that SMC does not support"),
    (0x0307_0000, "both ends are in different subnets"),
    (0x0308_0000, "the VLAN of the interface is unknown"),
    (0x0309_0000, "the VLAN cannot be set at the ISM device"),
    (0x030a_0000, "no active link in the link group"),
    (0x030b_0000, "the server chose a link that does not exist"),
    (0x030c_0000, "the peer speaks another version of SMC"),
    (0x030d_0000, "no more SMC-D buffers"),
    (0x030e_0000, "no route to the peer's RDMA device"),
    (
        0x030f_0000,
        "one end uses RDMA through a router, and the other end does not",
    ),
    (0x0400_0000, "synchronization error"),
    (0x0500_0000, "the peer declined"),
    (0x0999_0000, "internal error"),
    (0x0999_0001, "the peer's buffer cannot be used"),
    (0x0999_0002, "the link cannot be made ready"),
    (0x0999_0003, "the connection's buffers cannot be registered"),
];

impl Reason {
    /// Returns the meaning of a number that Linux 6.12 knows.
    pub fn words(self) -> Option<&'static str> {
        let mut reasons = REASONS.iter();
        let (_, words) = reasons.find(|(number, _)| *number == self.0)?;
        Some(words)
    }

    /// Returns the remedy, if one is known.
    pub fn advice(self) -> Option<&'static str> {
        Some(match self.0 {
            0x0101_0000 => {
                "free memory on the node, or set smaller buffers (net.smc.wmem, net.smc.rmem)"
            }
            0x0201_0000 => {
                "the RDMA devices do not reach each other, or the wrong GID was chosen: give every NIC a pnet \
                 id of its own"
            }
            0x0301_0000 => {
                "the peer's socket is plain TCP, or a device on the path removes the TCP option"
            }
            0x0302_0000 => "SMC does not support IPsec",
            0x0303_0000 => {
                "the interface must have the pnet id of an RDMA device that this network namespace sees, and a user \
                 EID must be set; over IPv6 the device needs GIDs of RoCE v1"
            }
            0x0303_0002 => {
                "the interface must have the pnet id of an RDMA device that this network namespace sees, with an \
                 active port and a GID of the connection's subnet"
            }
            0x0303_0008 => "set the same user EID on both nodes (smcUeid)",
            0x0306_0000 => "use no TCP_FASTOPEN, TCP_ULP or similar options",
            0x0307_0000 => "SMC-Rv1 needs one subnet; SMC-Rv2, with a user EID, does not",
            0x030a_0000 => "see whether the RDMA device's port is active",
            0x030e_0000 => {
                "the GID that the peer sent must be reached from the interface of the RDMA device"
            }
            0x0500_0000 => "the peer's node reports the reason (rdma-device-plugin smc)",
            0x0999_0000..=0x0999_0003 => "see the kernel's log",
            _ => return None,
        })
    }
}

/// Formats the meaning and the number: `the peer declined (0x05000000)`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.words().unwrap_or("a reason that is not known");
        write!(f, "{words} ({:#010x})", self.0)
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", &format!("{:#010x}", self.0))?;
        if let Some(words) = self.words() {
            map.serialize_entry("words", words)?;
        }
        if let Some(advice) = self.advice() {
            map.serialize_entry("advice", advice)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_there_once_and_in_order() {
        assert!(REASONS.is_sorted_by(|one, other| one.0 < other.0));
    }

    #[test]
    fn a_reason_in_words() {
        let text = Reason(0x0301_0000).to_string();
        assert_eq!(text, "the peer did not offer SMC (0x03010000)");
        assert_eq!(
            Reason(0x1234).to_string(),
            "a reason that is not known (0x00001234)"
        );
        assert!(
            Reason(0x0303_0008)
                .advice()
                .expect("advice")
                .contains("smcUeid")
        );
        assert_eq!(Reason(0x0303_0001).advice(), None);
    }
}
