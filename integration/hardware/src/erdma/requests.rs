// SPDX-License-Identifier: Apache-2.0
//! Work requests: their layout in a send queue (`ERDMA_SQE_*`, `struct erdma_*_sqe`) and in a receive queue
//! (`struct erdma_rqe`).

use super::{
    fields::{bits, bits32, bytes, le32, le64},
    queue_pairs::{MAX_SLOTS, SLOT, Service},
    translation::INLINE_PAGES,
};

/// Bytes of the largest request.
pub const SIZE: usize = MAX_SLOTS as usize * SLOT as usize;

/// The most segments of a request (`ERDMA_MAX_SEND_SGE`).
pub const MAX_SEGMENTS: usize = 6;

/// The largest message: 2 GiB.
pub const MAX_MESSAGE: u64 = 1 << 31;

/// Numbers of operations, `enum erdma_opcode`.
pub mod opcode {
    #![expect(missing_docs, reason = "the names of the verbs")]
    pub const WRITE: u8 = 0;
    pub const READ: u8 = 1;
    pub const SEND: u8 = 2;
    pub const SEND_IMMEDIATE: u8 = 3;
    pub const RECEIVE: u8 = 4;
    pub const RECEIVE_WRITE_IMMEDIATE: u8 = 5;
    pub const RECEIVE_INVALIDATE: u8 = 6;
    pub const WRITE_IMMEDIATE: u8 = 9;
    pub const RECEIVE_SEND_IMMEDIATE: u8 = 12;
    pub const SEND_INVALIDATE: u8 = 13;
    pub const REGISTER: u8 = 14;
    pub const INVALIDATE: u8 = 15;
    pub const READ_INVALIDATE: u8 = 16;
    pub const COMPARE_AND_SWAP: u8 = 17;
    pub const FETCH_AND_ADD: u8 = 18;
}

/// Memory to which a key refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address of the segment's first byte.
    pub address: u64,
    /// The segment's size in bytes.
    pub len: u32,
    /// The key.
    pub key: u32,
}

/// Location of the data of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// The request contains the data.
    Inline(Vec<u8>),
    /// Memory segments contain the data.
    Segments(Vec<Segment>),
}

/// The fourth word of the receiver's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// The word is not used.
    None,
    /// Immediate data: its four bytes as a little-endian number.
    Immediate(u32),
    /// A key of the peer that becomes unusable.
    Invalidate(u32),
}

/// An operation, decoded from a work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes to the peer's memory.
    Write {
        /// The payload.
        data: Data,
        /// The address in the peer's memory.
        address: u64,
        /// The peer's key.
        key: u32,
        /// Nothing, or immediate data. A write with immediate data consumes a receive request of the peer.
        extra: Extra,
    },
    /// Reads the peer's memory.
    Read {
        /// The local memory that gets the data.
        into: Segment,
        /// The peer's memory with the data.
        from: Segment,
        /// A key of the requester that becomes unusable afterwards.
        invalidate: Option<u32>,
    },
    /// Sends to a receive request of the peer.
    Send {
        /// The payload.
        data: Data,
        /// Immediate data, or a key to invalidate.
        extra: Extra,
    },
    /// Sends a datagram.
    Datagram {
        /// The payload.
        data: Data,
        /// Nothing, or immediate data.
        extra: Extra,
        /// The address handle.
        handle: u32,
        /// The number of the destination queue pair.
        number: u32,
        /// The queue key of the destination queue pair.
        key: u32,
    },
    /// Changes 8 bytes of the peer's memory atomically.
    Atomic {
        /// The 8 bytes of the peer's memory.
        remote: Segment,
        /// The local memory that gets the previous value.
        into: Segment,
        /// The value with which the memory is compared before the exchange. `None` selects fetch-and-add.
        compare: Option<u64>,
        /// The new value, or the addend.
        operand: u64,
    },
    /// Registers a region.
    Register {
        /// The region's address.
        address: u64,
        /// The region's size.
        len: u32,
        /// The region's key.
        key: u32,
        /// The region's rights.
        rights: u32,
        /// The number of the region's pages.
        count: u32,
        /// The addresses of the pages, or `None` if the region's table contains them.
        pages: Option<[u64; INLINE_PAGES]>,
    },
    /// Makes a key unusable.
    Invalidate {
        /// The key.
        key: u32,
    },
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `enum erdma_opcode`.
    pub opcode: u8,
    /// The number of slots of the request: 1 to 8. The driver uses at most 4.
    pub slots: u16,
    /// The number of segments, or the bytes of inline data.
    pub count: usize,
    /// True if the request contains the data.
    pub is_inline: bool,
    /// True if the function writes a completion even if the request succeeds.
    pub is_signaled: bool,
    /// True if the request solicits an event at the peer.
    pub is_solicited: bool,
    /// Bytes of the message, as the driver counted them.
    pub len: u32,
}

impl Header {
    /// Decodes the first 16 bytes of a request.
    pub fn read(request: &[u8]) -> Header {
        let header = le64(request, 0);
        Header {
            opcode: bits(header, 31, 27) as u8,
            slots: bits(header, 54, 52) as u16 + 1,
            count: bits(header, 63, 56) as usize,
            is_inline: bits(header, 25, 25) == 1,
            is_signaled: bits(header, 22, 22) == 1,
            is_solicited: bits(header, 23, 23) == 1,
            len: le32(request, 12),
        }
    }
}

fn segment(request: &[u8], at: usize) -> Segment {
    Segment {
        address: le64(request, at),
        len: le32(request, at + 8),
        key: le32(request, at + 12),
    }
}

fn data(header: &Header, request: &[u8], at: usize) -> Option<Data> {
    if header.is_inline {
        return Some(Data::Inline(request.get(at..at + header.count)?.to_vec()));
    }
    if header.count > MAX_SEGMENTS || at + 16 * header.count > request.len() {
        return None;
    }
    let segments: Vec<_> = (0..header.count)
        .map(|it| segment(request, at + 16 * it))
        .collect();
    let len: u64 = segments.iter().map(|it| u64::from(it.len)).sum();
    (len <= MAX_MESSAGE).then_some(Data::Segments(segments))
}

/// Decodes the operation of a work request. Returns `None` if the request is malformed, or `service` does not have its
/// opcode.
pub fn operation(header: &Header, service: Service, request: &[u8]) -> Option<Operation> {
    // the field of the immediate data (big-endian) or the key (little-endian); a completion contains the same word
    let word = le32(request, 8);
    let far_address = u64::from(le32(request, 20)) | u64::from(le32(request, 24)) << 32;
    let extra = match header.opcode {
        opcode::SEND_IMMEDIATE | opcode::WRITE_IMMEDIATE => Extra::Immediate(word),
        opcode::SEND_INVALIDATE => Extra::Invalidate(word),
        _ => Extra::None,
    };
    if service == Service::Datagram {
        return match header.opcode {
            opcode::SEND | opcode::SEND_IMMEDIATE => Some(Operation::Datagram {
                data: data(header, request, 32)?,
                extra,
                key: le32(request, 16),
                number: bits32(le32(request, 20), 19, 0),
                handle: le32(request, 24),
            }),
            _ => None,
        };
    }
    match header.opcode {
        opcode::WRITE | opcode::WRITE_IMMEDIATE => Some(Operation::Write {
            data: data(header, request, 32)?,
            address: far_address,
            key: le32(request, 16),
            extra,
        }),
        opcode::READ | opcode::READ_INVALIDATE => {
            if u64::from(header.len) > MAX_MESSAGE {
                return None;
            }
            Some(Operation::Read {
                into: Segment {
                    address: far_address,
                    len: header.len,
                    key: le32(request, 16),
                },
                from: Segment {
                    len: header.len,
                    ..segment(request, 32)
                },
                invalidate: (header.opcode == opcode::READ_INVALIDATE).then_some(word),
            })
        }
        opcode::SEND | opcode::SEND_IMMEDIATE | opcode::SEND_INVALIDATE => Some(Operation::Send {
            data: data(header, request, 16)?,
            extra,
        }),
        opcode::COMPARE_AND_SWAP | opcode::FETCH_AND_ADD => Some(Operation::Atomic {
            remote: Segment {
                len: 8,
                ..segment(request, 32)
            },
            into: Segment {
                len: 8,
                ..segment(request, 48)
            },
            compare: (header.opcode == opcode::COMPARE_AND_SWAP).then(|| le64(request, 24)),
            operand: le64(request, 16),
        }),
        opcode::REGISTER => {
            let attributes = le32(request, 24);
            let count = bits32(attributes, 31, 12);
            let is_inline = bits32(attributes, 7, 6) == 0;
            if is_inline && count as usize > INLINE_PAGES {
                return None;
            }
            let pages = [32, 40, 48, 56].map(|at| le64(request, at));
            Some(Operation::Register {
                address: le64(request, 8),
                len: le32(request, 16),
                key: le32(request, 20),
                rights: bits32(attributes, 5, 1),
                count,
                pages: is_inline.then_some(pages),
            })
        }
        opcode::INVALIDATE => Some(Operation::Invalidate {
            key: le32(request, 20),
        }),
        _ => None,
    }
}

/// The memory segment of a receive request.
pub fn receive(request: &[u8; SLOT as usize]) -> Segment {
    segment(&bytes::<16>(request, 16), 0)
}
