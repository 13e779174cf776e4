// SPDX-License-Identifier: Apache-2.0
//! One exchange of a request and its answer with the kernel, for rtnetlink, RDMA netlink and generic netlink.
//!
//! This module owns framing, sequence numbers, retries and errors. Callers pass the bodies of messages, and get the
//! bodies of the answers.

mod ext_ack;
pub(crate) mod generic;
mod request;
mod socket;

pub(crate) use request::Request;
pub use socket::{Answers, Socket};

use netlink_packet_core::{NLA_HEADER_SIZE, NLA_TYPE_MASK, NetlinkBuffer};
use std::io;

/// `sizeof(struct nlmsghdr)`
const HEADER: usize = 16;

/// The kernel refused a request, or the exchange with the kernel failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}{}", message.as_ref().map(|m| format!(" ({m})")).unwrap_or_default())]
pub struct NetlinkError {
    /// The kernel's errno, or the error of the exchange.
    pub source: io::Error,
    /// The kernel's own error text (`NLMSGERR_ATTR_MSG`), if the kernel sent one.
    pub message: Option<String>,
}

impl NetlinkError {
    /// Returns the errno, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl From<io::Error> for NetlinkError {
    fn from(source: io::Error) -> Self {
        Self {
            source,
            message: None,
        }
    }
}

/// Treats the error `errno` as success: the kernel returns it if the state is already reached.
pub(crate) fn tolerate(errno: i32, outcome: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match outcome {
        Err(error) if error.errno() == Some(errno) => Ok(()),
        outcome => outcome,
    }
}

/// Returns the messages of `datagram`, up to the first malformed message.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        // this check precedes parsing, because the parser formats an error text for empty input
        if datagram.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        let end = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(end..).unwrap_or_default();
        Some(message)
    })
}

/// Returns the attributes of `bytes` as (type, value), up to the first malformed attribute. Callers read attributes one
/// by one, so an unknown attribute does not hide other attributes.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header: [u8; 4] = bytes.get(..NLA_HEADER_SIZE)?.try_into().ok()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let value = bytes.get(NLA_HEADER_SIZE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Returns a string attribute up to its NUL.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(until_nul(value)).ok()
}

/// Returns the bytes before the first NUL, or all bytes if there is none.
pub(crate) fn until_nul(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses a number in host byte order of exactly two bytes.
pub(crate) fn u16_of(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_ne_bytes)
}

/// Parses a number in host byte order of exactly four bytes.
pub(crate) fn u32_of(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// Parses a number in host byte order of exactly eight bytes.
pub(crate) fn u64_of(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_ne_bytes)
}
