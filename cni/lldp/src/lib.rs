// SPDX-License-Identifier: Apache-2.0
//! The switches to which a node's NICs are connected, from received LLDP frames (IEEE 802.1AB) or from the output of
//! another LLDP agent. The daemon sends no frames.
//!
//! | module | content |
//! |---|---|
//! | `frame` | parser of a frame |
//! | `listener` | sockets that receive frames, one for each netdev |
//! | `lldpcli` | parser of lldpd's own output |
//! | `table` | age of the neighbours |
//! | `switches` | the neighbours at one time, and their file |
//!
//! LLDP has no authentication, so received data are unverified. The parsers return a neighbour's texts in
//! printable ASCII.

mod frame;
mod listener;
mod lldpcli;
mod switches;
mod table;

pub use frame::{Malformed, parse};
pub use listener::Listener;
pub use lldpcli::neighbours;
pub use switches::{Seen, Switches, joined};
pub use table::{Port, Table};

use serde::{Deserialize, Serialize};

/// Length of the longest text of a neighbour, bytes (IEEE 802.1AB, 8.5.2 and 8.5.6).
const LONGEST_TEXT: usize = 255;

/// The device and port at the other end of a NIC's cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    /// Identifier of the device.
    pub chassis: String,
    /// Identifier of the device's port. `chassis` and `port_id` together identify the neighbour.
    pub port_id: String,
    /// System name of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Description of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Seconds for which the data are valid. 0: the neighbour announces that it stops sending.
    pub ttl: u16,
}

impl Neighbour {
    /// Returns the name of the switch: its system name, or its chassis identifier if it has no system name.
    pub fn switch(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.chassis)
    }

    /// Returns the name of the switch's port: its identifier, or its description if it has one and the identifier is a
    /// hardware address.
    pub fn port(&self) -> &str {
        let is_mac = self.port_id.split(':').count() == 6;
        let description = self.description.as_deref().filter(|_| is_mac);
        description.unwrap_or(&self.port_id)
    }

    /// Returns true if both values describe the same port of the same device.
    fn is_same_port(&self, other: &Self) -> bool {
        (&self.chassis, &self.port_id) == (&other.chassis, &other.port_id)
    }
}

/// Returns `bytes` as printable ASCII, without white space at its ends. Replaces unprintable bytes by `?`. Returns
/// `None` if the text is empty or too long.
fn printable(bytes: &[u8]) -> Option<String> {
    if bytes.len() > LONGEST_TEXT {
        return None;
    }
    let letter = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    let text: String = bytes.iter().map(letter).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
