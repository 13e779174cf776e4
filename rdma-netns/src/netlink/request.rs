// SPDX-License-Identifier: Apache-2.0
//! A request whose message type the netlink crates do not provide.

use netlink_packet_core::{DefaultNla, Emitable, NetlinkSerializable};

/// A request: the header of its message type, and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    kind: u16,
    header: Vec<u8>,
    attributes: Vec<DefaultNla>,
}

impl Request {
    /// Returns a request of the message type `kind`, without attributes.
    pub(crate) fn new(kind: u16, header: &[u8]) -> Self {
        Self {
            kind,
            header: header.to_vec(),
            attributes: vec![],
        }
    }

    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.with(kind, value.to_ne_bytes().to_vec())
    }

    /// Adds a string attribute, with a terminating NUL.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.with(kind, [value.as_bytes(), b"\0"].concat())
    }

    pub(crate) fn with(mut self, kind: u16, value: Vec<u8>) -> Self {
        self.attributes.push(DefaultNla::new(kind, value));
        self
    }
}

impl NetlinkSerializable for Request {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.header.len() + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (header, rest) = buffer.split_at_mut(self.header.len());
        header.copy_from_slice(&self.header);
        self.attributes.as_slice().emit(rest);
    }
}
