// SPDX-License-Identifier: Apache-2.0
//! Requests of send queues (`struct mlx5_wqe_ctrl_seg` and the segments after it).

use super::{
    Mac,
    fields::{Field, field},
    keys::Segment,
    work_queue::SEGMENT,
};

/// Bytes of a block of a send queue.
pub const BLOCK: usize = 64;

const OPCODE: Field = field(24, 8);
const INDEX: Field = field(8, 16);
const COMPLETES: Field = field(11 * 8 + 4, 2);
const SOLICITS: Field = field(11 * 8 + 6, 1);
const IMMEDIATE: Field = field(12 * 8, 32);
/// `MLX5_WQE_CTRL_CQ_UPDATE`: always write a completion. With the lower bit, also raise an event.
const ALWAYS: u64 = 2;
const INLINE: u32 = 1 << 31;
/// The most bytes of a message.
const MAX_MESSAGE: u64 = 1 << 30;

/// `MLX5_OPCODE_*`.
pub mod opcode {
    /// No operation.
    pub const NOP: u8 = 0;
    pub(super) const WRITE: u8 = 8;
    pub(super) const WRITE_IMMEDIATE: u8 = 9;
    /// Sends a message, or a frame on an Ethernet queue.
    pub const SEND: u8 = 0xa;
    pub(super) const SEND_IMMEDIATE: u8 = 0xb;
    /// Sends a frame that the function splits into segments.
    pub const LSO: u8 = 0xe;
    pub(super) const READ: u8 = 0x10;
    pub(super) const COMPARE_AND_SWAP: u8 = 0x11;
    pub(super) const FETCH_AND_ADD: u8 = 0x12;
}

/// The header of each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `MLX5_OPCODE_*`.
    pub opcode: u8,
    /// The position of the request, in blocks.
    pub index: u16,
    /// The number of blocks of the request.
    pub blocks: u16,
    /// True if the function writes a completion even if the request succeeds.
    pub is_reported: bool,
    /// True if the request solicits an event at the peer.
    pub is_solicited: bool,
}

impl Header {
    /// Decodes the header of a complete request.
    pub fn read(request: &[u8]) -> Header {
        Header {
            opcode: OPCODE.get(request) as u8,
            index: INDEX.get(request) as u16,
            blocks: request.len().div_ceil(BLOCK) as u16,
            is_reported: COMPLETES.get(request) & ALWAYS != 0,
            is_solicited: SOLICITS.get(request) == 1,
        }
    }
}

/// The payload of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The first bytes, in the request.
    pub inline: Vec<u8>,
    /// The other bytes, in memory.
    pub segments: Vec<Segment>,
}

impl Data {
    /// Returns the payload from the byte `at` of a request to its end. Returns `None` if the payload is too long or
    /// incomplete, or has inline bytes after a segment.
    fn read(request: &[u8], at: usize) -> Option<Data> {
        let mut rest = request.get(at..)?;
        let (mut inline, mut segments) = (Vec::new(), Vec::new());
        while rest.len() >= SEGMENT {
            let word = field(0, 32).get32(rest);
            let len = match word & INLINE {
                0 => {
                    segments.push(Segment::read(rest));
                    SEGMENT
                }
                _ if !segments.is_empty() => return None,
                _ => {
                    let end = (word & !INLINE) as usize + 4;
                    inline.extend_from_slice(rest.get(4..end)?);
                    end.next_multiple_of(SEGMENT)
                }
            };
            rest = rest.get(len..).unwrap_or_default();
        }
        let size: u64 = segments.iter().map(|it| u64::from(it.len)).sum();
        (size <= MAX_MESSAGE).then_some(Data { inline, segments })
    }
}

/// The receiver of a datagram (`struct mlx5_av`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The queue key of the receiver.
    pub key: u32,
    /// The number of the receiver's queue pair.
    pub number: u32,
    /// The LID of the receiver, on InfiniBand.
    pub lid: u16,
    /// True if the datagram has a network header. On Ethernet each datagram has one.
    pub has_header: bool,
    /// The hardware address of the receiver, or of a router.
    pub mac: Mac,
    /// The receiver's GID.
    pub gid: [u8; 16],
    /// The index of the sender's RoCE address or GID.
    pub source: usize,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl Address {
    /// Decodes an address vector of 48 bytes.
    fn read(segment: &[u8]) -> Option<Address> {
        Some(Address {
            key: field(0, 32).get32(segment),
            number: field(0x48, 24).get32(segment),
            lid: field(14 * 8, 16).get(segment) as u16,
            has_header: field(28 * 8 + 1, 1).get(segment) == 1,
            mac: *segment.get(20..)?.first_chunk()?,
            traffic_class: *segment.get(26)?,
            hop_limit: *segment.get(27)?,
            source: field(28 * 8 + 4, 8).get(segment) as usize,
            flow_label: field(28 * 8 + 12, 20).get32(segment),
            gid: *segment.get(32..)?.first_chunk()?,
        })
    }
}

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// No operation.
    Nop,
    /// Sends a message to a receive request of the peer.
    Send {
        /// The request's payload.
        data: Data,
        /// The request's immediate data.
        immediate: Option<u32>,
    },
    /// Writes to the peer's memory.
    Write {
        /// The data to write.
        data: Data,
        /// The peer's memory to be written. Its length is that of the data.
        remote: Segment,
        /// Immediate data, which consume a receive request of the peer.
        immediate: Option<u32>,
    },
    /// Reads from the peer's memory.
    Read {
        /// The peer's memory to be read.
        remote: Segment,
        /// The local memory that gets the data.
        into: Vec<Segment>,
    },
    /// Changes 8 bytes of the peer's memory atomically, and returns their previous value.
    Atomic {
        /// The 8 bytes of the peer's memory.
        remote: Segment,
        /// The local memory that gets the previous value.
        into: Vec<Segment>,
        /// The value with which the memory is compared before the exchange. `None` selects
        /// fetch-and-add.
        compare: Option<u64>,
        /// The new value, or the addend.
        operand: u64,
    },
    /// Sends a datagram to an address.
    Datagram {
        /// The address of the receiver.
        to: Address,
        /// The request's payload.
        data: Data,
        /// The request's immediate data.
        immediate: Option<u32>,
    },
}

/// Decodes a request. Returns `None` if the request is malformed, or the queue pair's service does not support its
/// operation.
pub fn operation(request: &[u8], is_datagram: bool) -> Option<Operation> {
    let code = OPCODE.get(request) as u8;
    let word = IMMEDIATE.get32(request);
    let immediate = [opcode::SEND_IMMEDIATE, opcode::WRITE_IMMEDIATE]
        .contains(&code)
        .then_some(word);
    let is_send = [opcode::SEND, opcode::SEND_IMMEDIATE].contains(&code);
    if code == opcode::NOP {
        return Some(Operation::Nop);
    }
    if is_datagram {
        return match is_send {
            true => Some(Operation::Datagram {
                to: Address::read(request.get(16..64)?)?,
                data: Data::read(request, 64)?,
                immediate,
            }),
            false => None,
        };
    }
    if is_send {
        let data = Data::read(request, 16)?;
        return Some(Operation::Send { data, immediate });
    }
    let remote = |len| Segment {
        address: field(16 * 8, 64).get(request),
        key: field(24 * 8, 32).get32(request),
        len,
    };
    let into = |at| {
        let data = Data::read(request, at)?;
        data.inline.is_empty().then_some(data.segments)
    };
    let size = |segments: &[Segment]| segments.iter().map(|it| it.len).sum::<u32>();
    match code {
        opcode::WRITE | opcode::WRITE_IMMEDIATE => {
            let data = Data::read(request, 32)?;
            let len = data.inline.len() as u32 + size(&data.segments);
            Some(Operation::Write {
                data,
                remote: remote(len),
                immediate,
            })
        }
        opcode::READ => {
            let into = into(32)?;
            Some(Operation::Read {
                remote: remote(size(&into)),
                into,
            })
        }
        opcode::COMPARE_AND_SWAP | opcode::FETCH_AND_ADD => Some(Operation::Atomic {
            remote: remote(8),
            into: into(48).filter(|it| size(it) == 8)?,
            compare: (code == opcode::COMPARE_AND_SWAP).then(|| field(40 * 8, 64).get(request)),
            operand: field(32 * 8, 64).get(request),
        }),
        _ => None,
    }
}
