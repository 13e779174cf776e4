// SPDX-License-Identifier: Apache-2.0
//! Ethernet: the requests of send queues (`struct mlx5_wqe_ctrl_seg`, `mlx5_wqe_eth_seg`), and received frames.

use super::{
    completion_queue::COMPLETION,
    execute::RESERVED_KEY,
    fields::{Field, field},
    frames,
    function::Function,
    keys::{self, Segment},
    requests::{Header, opcode as request_opcode},
    work_queue::{SEGMENT, opcode},
};
use crate::memory::Unmapped;

/// The most bytes of a frame before segmentation.
const MAX_FRAME: usize = 1 << 17;

const CHECKSUMS: Field = field(20 * 8, 2);
const MSS: Field = field(22 * 8, 16);
const INLINE_LENGTH: Field = field(28 * 8 + 6, 10);
const INSERTS_VLAN: Field = field(28 * 8, 1);
const SERVICE_VLAN: Field = field(28 * 8 + 15, 1);
const TAG: Field = field(30 * 8, 16);
const INLINE: usize = 30;

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

const ACCESS_MODE: Field = field(0x80 + 0x16, 2);
const CREATE_RQT: u16 = 0x916;
const LIST_SIZE: Field = field(0x100 + 0xd0, 16);
const LIST: usize = 0x110;
/// The largest number of list entries that the model reads.
const MAX_LIST: u64 = 32;

/// A request that the function cannot execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused;

impl Function {
    /// Handles the doorbell of a send queue: executes the queue's requests.
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
            let (sent, blocks) = match queue.next_request(&self.memory) {
                Some(request) => {
                    let header = Header::read(&request);
                    entry[INDEX_AT..INDEX_AT + 2].copy_from_slice(&header.index.to_be_bytes());
                    let sent = self.send(header.opcode, &request);
                    (sent.map(|()| header.is_reported), header.blocks)
                }
                None => (Err(Refused), 1),
            };
            if let Some(queue) = self.sends.get_mut(&number) {
                queue.taken = queue.taken.wrapping_add(pending.min(blocks));
            }
            match sent {
                Ok(false) => {}
                Ok(true) => {
                    entry[COMPLETION - 1] = REQUEST_DONE;
                    self.complete(completions, entry, false);
                }
                Err(Refused) => {
                    log::warn!("{}: send queue {number} fails", self.name);
                    entry[COMPLETION - 1] = REQUEST_FAILED;
                    entry[SYNDROME_AT] = LOCAL_PROTECTION;
                    self.fail_queue(opcode::CREATE_SQ, number);
                    self.complete(completions, entry, true);
                }
            }
        }
    }

    fn send(&mut self, code: u8, request: &[u8]) -> Result<(), Refused> {
        match code {
            request_opcode::NOP => return Ok(()),
            request_opcode::SEND | request_opcode::LSO if request.len() >= 2 * SEGMENT => {}
            _ => return Err(Refused),
        }
        // a request with a VLAN tag has the tag in the bytes of the inline header
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
            let Segment { address, len, key } = Segment::read(segment);
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
        if code == request_opcode::LSO {
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

    /// Checks that the key names memory by address. The model has no other keys for Ethernet.
    fn reach(&self, key: u32) -> Result<(), Refused> {
        let region = self.objects.get(keys::CREATE, key >> 8);
        let by_address = region.is_some_and(|it| ACCESS_MODE.get(it) == 0);
        match by_address || key == RESERVED_KEY {
            true => Ok(()),
            false => Err(Refused),
        }
    }

    /// The receive queue for a frame: the first queue with room that a table of the driver names.
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

    /// Receives a frame. Drops the frame if no queue has room.
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
            Ok(()) => self.complete(completions, entry, false),
            Err(Refused) => {
                log::warn!("{}: receive queue {number} fails", self.name);
                self.fail_queue(opcode::CREATE_RQ, number);
            }
        }
    }

    fn scatter(&self, list: &[u8], frame: &[u8]) -> Result<(), Refused> {
        let mut rest = frame;
        for Segment { address, len, key } in Segment::list(list) {
            if rest.is_empty() {
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
