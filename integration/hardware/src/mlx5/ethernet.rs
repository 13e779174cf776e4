// SPDX-License-Identifier: Apache-2.0
//! Ethernet: the requests of send queues (`struct mlx5_wqe_ctrl_seg`, `mlx5_wqe_eth_seg`), and received frames.

use super::{
    execute::RESERVED_KEY,
    fields::{Field, field},
    frames,
    function::Function,
    queues::{COMPLETION, opcode},
};
use crate::memory::Unmapped;

/// Bytes of a segment of a request.
const SEGMENT: usize = 16;
/// Bytes of a block of a send queue.
const BLOCK: usize = 64;
/// The longest request has 63 segments.
const MAX_REQUEST: usize = 1024;
/// The most bytes of a frame before it is cut.
const MAX_FRAME: usize = 1 << 17;

const OPCODE: Field = field(24, 8);
const INDEX: Field = field(8, 16);
const SEGMENTS: Field = field(32 + 26, 6);
/// Whether the driver asks for a completion: `MLX5_WQE_CTRL_CQ_UPDATE`.
const COMPLETES: Field = field(11 * 8 + 4, 2);
const ALWAYS: u64 = 2;
const CHECKSUMS: Field = field(20 * 8, 2);
const MSS: Field = field(22 * 8, 16);
const INLINE_LENGTH: Field = field(28 * 8 + 6, 10);
const INSERTS_VLAN: Field = field(28 * 8, 1);
const SERVICE_VLAN: Field = field(28 * 8 + 15, 1);
const TAG: Field = field(30 * 8, 16);
const INLINE: usize = 30;

mod request {
    pub(super) const NOP: u64 = 0;
    pub(super) const SEND: u64 = 0xa;
    pub(super) const LSO: u64 = 0xe;
}

/// The status of a completion, in its last byte.
const REQUEST_DONE: u8 = 0;
const RECEIVED: u8 = 2 << 4;
const REQUEST_FAILED: u8 = 13 << 4;
const LOCAL_PROTECTION: u8 = 4;
const LENGTH_AT: usize = 44;
const SYNDROME_AT: usize = 55;
const QUEUE_AT: usize = 56;
const INDEX_AT: usize = 60;
const CHECKSUM_AT: usize = 20;
/// The end of a list of segments, if it is not full.
const TERMINATOR: u32 = 0x100;
const START_PADDING: u32 = 1 << 31;

const CREATE_MKEY: u16 = 0x200;
const ACCESS_MODE: Field = field(0x80 + 0x16, 2);
const CREATE_RQT: u16 = 0x916;
const LIST_SIZE: Field = field(0x100 + 0xd0, 16);
const LIST: usize = 0x110;
/// The most entries of a list that are read.
const MAX_LIST: u64 = 32;

/// A request that the function cannot execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused;

impl Function {
    /// Handles the doorbell of a send queue: executes its requests.
    pub(super) fn posted(&mut self, number: u32) {
        loop {
            let is_ready = self.is_ready(opcode::CREATE_SQ, number);
            let Some(queue) = self.sends.get(&number).filter(|_| is_ready) else {
                return;
            };
            let pending = queue.pending(&self.memory, true);
            if pending == 0 {
                return;
            }
            let completions = queue.completions;
            let mut entry = [0; COMPLETION];
            entry[QUEUE_AT..QUEUE_AT + 4].copy_from_slice(&number.to_be_bytes());
            let (sent, blocks) = match self.next_request(number) {
                Ok(request) => {
                    let blocks = request.len().div_ceil(BLOCK);
                    let index = INDEX.get(&request) as u16;
                    entry[INDEX_AT..INDEX_AT + 2].copy_from_slice(&index.to_be_bytes());
                    let is_asked = COMPLETES.get(&request) == ALWAYS;
                    (self.send(&request).map(|()| is_asked), blocks)
                }
                Err(Refused) => (Err(Refused), 1),
            };
            if let Some(queue) = self.sends.get_mut(&number) {
                queue.taken = queue.taken.wrapping_add(pending.min(blocks as u16));
            }
            match sent {
                Ok(false) => {}
                Ok(true) => {
                    entry[COMPLETION - 1] = REQUEST_DONE;
                    self.complete(completions, entry);
                }
                Err(Refused) => {
                    log::warn!("{}: send queue {number} fails", self.name);
                    entry[COMPLETION - 1] = REQUEST_FAILED;
                    entry[SYNDROME_AT] = LOCAL_PROTECTION;
                    self.fail_queue(opcode::CREATE_SQ, number);
                    self.complete(completions, entry);
                }
            }
        }
    }

    /// The next request of a send queue, as many segments as it has.
    fn next_request(&self, number: u32) -> Result<Vec<u8>, Refused> {
        let queue = self.sends.get(&number).ok_or(Refused)?;
        let mut request = [0; MAX_REQUEST];
        let read = queue.read(&self.memory, &mut request[..SEGMENT]);
        read.map_err(|Unmapped| Refused)?;
        let len = SEGMENTS.get(&request) as usize * SEGMENT;
        if len < SEGMENT {
            return Err(Refused);
        }
        let read = queue.read(&self.memory, &mut request[..len]);
        read.map_err(|Unmapped| Refused)?;
        Ok(request[..len].to_vec())
    }

    fn send(&mut self, request: &[u8]) -> Result<(), Refused> {
        let code = OPCODE.get(request);
        match code {
            request::NOP => return Ok(()),
            request::SEND | request::LSO if request.len() >= 2 * SEGMENT => {}
            _ => return Err(Refused),
        }
        // a tag is in the place of the inline bytes
        let is_tagged = INSERTS_VLAN.get(request) == 1;
        let inline = match is_tagged {
            true => 0,
            false => INLINE_LENGTH.get(request) as usize,
        };
        let mut frame = match inline {
            0 => Vec::new(),
            _ => (request.get(INLINE..INLINE + inline).ok_or(Refused)?).to_vec(),
        };
        let data = 2 * SEGMENT + inline.saturating_sub(2).next_multiple_of(SEGMENT);
        for segment in request
            .get(data..)
            .unwrap_or_default()
            .chunks_exact(SEGMENT)
        {
            let (len, key, address) = data_segment(segment);
            let at = frame.len();
            let end = at.checked_add(len as usize).filter(|it| *it <= MAX_FRAME);
            frame.resize(end.ok_or(Refused)?, 0);
            self.reach(key)?;
            (self.memory.read(address, &mut frame[at..])).map_err(|Unmapped| Refused)?;
        }
        if is_tagged {
            let is_service = SERVICE_VLAN.get(request) == 1;
            frames::insert_vlan(&mut frame, is_service, TAG.get(request) as u16);
        }
        if code == request::LSO {
            let cut = frames::segments(&frame, inline, MSS.get(request) as usize);
            self.outgoing.extend(cut.ok_or(Refused)?);
        } else {
            if CHECKSUMS.get(request) != 0 {
                frames::fill_checksums(&mut frame);
            }
            self.outgoing.push(frame);
        }
        Ok(())
    }

    /// Only keys that name memory by address are there.
    fn reach(&self, key: u32) -> Result<(), Refused> {
        let region = self.objects.get(CREATE_MKEY, key >> 8);
        let by_address = region.is_some_and(|it| ACCESS_MODE.get(it) == 0);
        match by_address || key == RESERVED_KEY {
            true => Ok(()),
            false => Err(Refused),
        }
    }

    /// The receive queue of a frame: the first one that a table of the driver names, and that has room.
    fn receiver(&self) -> Option<u32> {
        let tables = self.objects.ids(CREATE_RQT);
        let numbers = tables.flat_map(|table| {
            let context = self.objects.get(CREATE_RQT, table).unwrap_or_default();
            let size = LIST_SIZE.get(context).min(MAX_LIST) as usize;
            (0..size).map(|it| field((LIST + it * 4) * 8, 32).get32(context) & 0xff_ffff)
        });
        let mut ready = numbers.filter(|number| {
            let queue = self.receives.get(number);
            self.is_ready(opcode::CREATE_RQ, *number)
                && queue.is_some_and(|it| it.pending(&self.memory, false) > 0)
        });
        ready.next()
    }

    /// Receives a frame. It is lost if no queue has room.
    pub(super) fn receive(&mut self, frame: &[u8]) {
        let Some(number) = self.receiver() else {
            return log::debug!("{}: no receive queue has room", self.name);
        };
        let Some(queue) = self.receives.get_mut(&number) else {
            return;
        };
        let mut list = vec![0; 1 << queue.log_stride];
        let read = queue.read(&self.memory, &mut list);
        let (index, completions) = (queue.taken, queue.completions);
        queue.taken = queue.taken.wrapping_add(1);
        let stored = read.map_err(|Unmapped| Refused);
        let stored = stored.and_then(|()| self.scatter(&list, frame));
        let mut entry = [0; COMPLETION];
        entry[CHECKSUM_AT..CHECKSUM_AT + 2]
            .copy_from_slice(&frames::payload_sum(frame).to_be_bytes());
        entry[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&(frame.len() as u32).to_be_bytes());
        entry[INDEX_AT..INDEX_AT + 2].copy_from_slice(&index.to_be_bytes());
        entry[COMPLETION - 1] = RECEIVED;
        match stored {
            Ok(()) => self.complete(completions, entry),
            Err(Refused) => {
                log::warn!("{}: receive queue {number} fails", self.name);
                self.fail_queue(opcode::CREATE_RQ, number);
            }
        }
    }

    fn scatter(&self, list: &[u8], frame: &[u8]) -> Result<(), Refused> {
        let mut rest = frame;
        for segment in list.chunks_exact(SEGMENT) {
            let (len, key, address) = data_segment(segment);
            if rest.is_empty() || key == TERMINATOR {
                break;
            }
            self.reach(key)?;
            let (part, more) = rest.split_at(rest.len().min(len as usize));
            (self.memory.write(address, part)).map_err(|Unmapped| Refused)?;
            rest = more;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(Refused),
        }
    }
}

/// Length, key and address.
fn data_segment(segment: &[u8]) -> (u32, u32, u64) {
    let len = field(0, 32).get32(segment) & !START_PADDING;
    (
        len,
        field(32, 32).get32(segment),
        field(64, 64).get(segment),
    )
}
