// SPDX-License-Identifier: Apache-2.0
//! The place of a function on its card and in the fabric.

use super::Mac;

/// The place of a function on its card and in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function's hardware address.
    pub mac: Mac,
    /// The hardware address of the first function of the card.
    pub card: Mac,
    /// The number of the function's port on the card, from 1 on.
    pub port: u8,
    /// The number of ports of the card.
    pub ports: u8,
    /// The LID of an InfiniBand port, or `None` for an Ethernet port.
    pub lid: Option<u16>,
    /// True if the function is virtual: the driver does not switch its port on or off.
    pub is_virtual: bool,
}
