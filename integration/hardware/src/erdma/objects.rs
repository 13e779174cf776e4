// SPDX-License-Identifier: Apache-2.0
//! The driver's commands, and the objects that these commands make, change and destroy (`enum CMDQ_RDMA_OPCODE`, `enum
//! CMDQ_COMMON_OPCODE`).

use super::{
    Protocol,
    commands::REQUEST,
    completions::CompletionQueue,
    device::Device,
    events::EventQueue,
    fields::{bits32, bytes, le32, le64},
    queue_pairs::{AddressVector, Peer, QueuePair, Ring, Service, State},
    regions::{Kind, LOCAL_DMA_KEY, Region},
    registers,
    translation::{HARDWARE_PAGE_SHIFT, Pages, Table},
};

/// The answer to a command, or the reason why the function refuses the command.
type Answer = Result<[u64; 2], &'static str>;
type Request = [u8; REQUEST];

/// The number of queue pairs in units of 1024 (`ERDMA_CMD_DEV_CAP_QBLOCK`, `ERDMA_NQP_PER_QBLOCK`).
const QUEUE_PAIR_BLOCKS: u64 = 4;
/// The most queue pairs.
pub const MAX_QUEUE_PAIRS: usize = QUEUE_PAIR_BLOCKS as usize * 1024;
/// The most completion queues.
pub const MAX_COMPLETION_QUEUES: usize = 2 * MAX_QUEUE_PAIRS;
const MAX_GIDS_SHIFT: u64 = 7;
const MAX_HANDLES_SHIFT: u64 = 10;
const MAX_COMPLETIONS_SHIFT: u64 = super::completions::MAX_DEPTH_SHIFT as u64;
const MAX_RECEIVE_SHIFT: u64 = 14;
const MAX_REGION_SHIFT: u64 = 38;
const CONGESTION_CONTROL: u64 = 1;
const ATOMIC: u64 = 1 << 7;
const OWN_DOORBELLS: u64 = 1 << 3;
const FIRMWARE: u64 = 0x0001_0203;
const STATISTICS_MAGIC: u16 = 0x5566;
/// Bytes of the answer to `GET_STATS` (`ERDMA_HW_RESP_SIZE`).
const STATISTICS: usize = 256;
const STATISTICS_HEADER: usize = 16;

// Bits of `attr_mask` in a request that changes a queue pair of RoCE v2.
const CHANGES_STATE: u32 = 1 << 0;
const CHANGES_KEY: u32 = 1 << 1;
const CHANGES_ADDRESS: u32 = 1 << 2;
const CHANGES_SEND_SEQUENCE: u32 = 1 << 3;
const CHANGES_RECEIVE_SEQUENCE: u32 = 1 << 4;
const CHANGES_PEER: u32 = 1 << 5;

const NONE: [u64; 2] = [0, 0];

fn done(is_done: bool, otherwise: &'static str) -> Answer {
    if is_done { Ok(NONE) } else { Err(otherwise) }
}

/// Reads the address vector (`struct erdma_av_cfg`) at offset `at`.
fn address_vector(request: &Request, at: usize) -> AddressVector {
    let [traffic_class, hop_limit, service_level] = bytes(request, at + 4);
    AddressVector {
        source: u16::from_le_bytes(bytes(request, at + 10)),
        mac: bytes(request, at + 12),
        gid: bytes(request, at + 20),
        traffic_class,
        hop_limit,
        service_level,
        flow_label: bits32(le32(request, at), 19, 0),
    }
}

/// Returns the buffer of a queue. The command contains the addresses of its pages, or the address of an array of page
/// addresses.
fn buffer(
    shift: u32,
    offset: u64,
    count: u32,
    is_array: bool,
    pages: [u64; 4],
) -> Result<Pages, &'static str> {
    let table = match is_array {
        false => Table::Inline(pages),
        true => Table::Tree {
            root: pages[0],
            levels: 1,
            page_shift: HARDWARE_PAGE_SHIFT,
        },
    };
    Pages::new(shift, offset, count.into(), table)
        .ok_or("the pages of a queue are out of their range")
}

impl Device {
    pub(super) fn execute(&mut self, module: u8, code: u8, request: &Request) -> Answer {
        let argument = le32(request, 8);
        match (module, code) {
            (0, 0) => Ok(capabilities()),
            (0, 1) => self.create_queue_pair(request),
            (0, 2) => {
                self.has_lost_pairs = true;
                done(self.pairs.remove(&argument).is_some(), "no such queue pair")
            }
            (0, 3) => self.modify_queue_pair(request),
            (0, 4) => self.create_completion_queue(request),
            (0, 5) => done(
                self.completions.remove(&argument).is_some(),
                "no such completion queue",
            ),
            (0, 6) => self.flush_again(request),
            (0, 8) => self.register_region(request),
            (0, 9) => done(
                self.regions.remove(bits32(argument, 19, 0)),
                "no such memory region",
            ),
            (0, 14) => self.set_gid(request),
            (0, 15) => self.create_handle(request),
            (0, 16) => done(
                self.handles.remove(&le32(request, 12)).is_some(),
                "no such address handle",
            ),
            (0, 17) => self.query_queue_pair(argument),
            (1, 0) => self.create_event_queue(request),
            (1, 1) => {
                let [_, number] = bytes(request, 16);
                done(
                    self.events.remove(&number.into()).is_some(),
                    "no such event queue",
                )
            }
            (1, 2) => Ok([FIRMWARE, 0]),
            (1, 3) => {
                self.mtu = argument;
                Ok(NONE)
            }
            (1, 4) => self.statistics(request),
            // the driver's page size: the model ignores it, and accepts doorbells in any page
            (1, 5) => Ok(NONE),
            (1, 8) => self.own_doorbells(),
            (1, 9) => {
                let is_any = self.contexts > 0;
                self.contexts = self.contexts.saturating_sub(1);
                done(is_any, "no doorbells are taken")
            }
            _ => Err("it is unknown"),
        }
    }

    /// Returns the pages of BAR 0 with the doorbells. The driver uses the field `RDB` for completion queues, and `CDB`
    /// for receive queues. All programs share these pages, because a doorbell contains the number of its queue.
    fn own_doorbells(&mut self) -> Answer {
        self.contexts = self.contexts.saturating_add(1);
        let page = |doorbells: &std::ops::Range<u64>| doorbells.start >> HARDWARE_PAGE_SHIFT;
        let send = page(&registers::SEND_DOORBELLS);
        let receive = page(&registers::RECEIVE_DOORBELLS);
        let completion = page(&registers::COMPLETION_DOORBELLS);
        Ok([completion << 48 | receive << 32 | send, 0])
    }

    fn create_event_queue(&mut self, request: &Request) -> Answer {
        let [vector, number, depth_shift] = bytes::<3>(request, 16);
        if self.events.contains_key(&number.into()) {
            return Err("there is such an event queue");
        }
        let depth = 1u32.checked_shl(depth_shift.into()).unwrap_or(0);
        let events = EventQueue::new(le64(request, 8), depth, vector.into())
            .ok_or("an event queue is too large")?;
        self.events.insert(number.into(), events);
        Ok(NONE)
    }

    fn create_completion_queue(&mut self, request: &Request) -> Answer {
        let (first, second) = (le32(request, 8), le32(request, 20));
        let address = u64::from(le32(request, 12)) | u64::from(le32(request, 16)) << 32;
        let number = bits32(first, 19, 0);
        if self.completions.contains_key(&number) {
            return Err("there is such a completion queue");
        }
        if self.completions.len() >= MAX_COMPLETION_QUEUES {
            return Err("there are too many completion queues");
        }
        let pages = buffer(
            HARDWARE_PAGE_SHIFT + bits32(first, 23, 20),
            le32(request, 32).into(),
            bits32(second, 31, 16),
            bits32(second, 15, 15) == 1,
            [address, 0, 0, 0],
        )?;
        let queue = CompletionQueue::new(pages, bits32(first, 31, 24), bits32(second, 9, 0));
        self.completions
            .insert(number, queue.ok_or("a completion queue is too large")?);
        Ok(NONE)
    }

    fn create_queue_pair(&mut self, request: &Request) -> Answer {
        let (first, second) = (le32(request, 8), le32(request, 12));
        let number = bits32(first, 19, 0);
        if self.pairs.contains_key(&number) {
            return Err("there is such a queue pair");
        }
        if self.pairs.len() >= MAX_QUEUE_PAIRS {
            return Err("there are too many queue pairs");
        }
        let ring = |config: usize, address: usize, table: usize, more: usize, depth_shift: u32| {
            let (config, table) = (le32(request, config), le32(request, table));
            let pages = [address, more, more + 8, more + 16].map(|at| le64(request, at));
            let pages = buffer(
                HARDWARE_PAGE_SHIFT + bits32(config, 31, 28),
                (table & 0xffff_f000).into(),
                bits32(table, 11, 1),
                table & 1 == 1,
                pages,
            )?;
            let ring = Ring::new(pages, depth_shift).ok_or("a queue is too large")?;
            Ok::<_, &'static str>((ring, bits32(config, 23, 0)))
        };
        let (send, send_completions) = ring(16, 24, 40, 64, bits32(first, 31, 20))?;
        let (receive, receive_completions) = ring(20, 32, 44, 88, bits32(second, 31, 20))?;
        // drivers before 6.14 do not set this field: it contains bytes of the driver's stack
        let service = match self.protocol == Protocol::Roce && le32(request, 116) == 1 {
            true => Service::Datagram,
            false => Service::Reliable,
        };
        self.next_cookie = self.next_cookie.wrapping_add(1);
        let cookie = self.cookies | self.next_cookie & 0xff_ffff;
        let pair = QueuePair {
            number,
            service,
            domain: bits32(second, 19, 0),
            send,
            receive,
            send_completions,
            receive_completions,
            cookie,
            state: match self.protocol {
                Protocol::Iwarp => State::Init,
                Protocol::Roce => State::Reset,
            },
            peer: Peer::None,
            key: 0,
            sequence: (0, 0),
            attempt: Default::default(),
            is_ready: false,
            timer: None,
        };
        self.pairs.insert(number, pair);
        Ok([cookie.into(), 0])
    }

    fn modify_queue_pair(&mut self, request: &Request) -> Answer {
        let config = le32(request, 8);
        let (number, state) = (bits32(config, 19, 0), bits32(config, 31, 24));
        let protocol = self.protocol;
        let pair = self.pairs.get_mut(&number).ok_or("no such queue pair")?;
        match protocol {
            Protocol::Iwarp => match state {
                // states "idle" and "ready to receive"
                0 | 1 => {}
                2 => {
                    pair.peer = Peer::Cookie(le32(request, 12));
                    pair.state = State::ReadyToSend;
                }
                // states "closing", "terminating" and "error"
                3..=5 => pair.state = State::Error,
                _ => return Err("no such state"),
            },
            Protocol::Roce => modify_roce(pair, state, request)?,
        }
        if pair.state == State::Error {
            self.flush(number);
        }
        self.woken.push(number);
        Ok(NONE)
    }

    fn query_queue_pair(&self, number: u32) -> Answer {
        let pair = self.pairs.get(&number).ok_or("no such queue pair")?;
        let (send, receive) = pair.sequence;
        let is_draining = pair.state == State::SendQueueDrained && pair.send.pending() > 0;
        let sequence = u64::from(receive & 0xff_ffff) << 24 | u64::from(send & 0xff_ffff);
        Ok([
            u64::from(is_draining) << 56 | (pair.state as u64) << 48 | sequence,
            0,
        ])
    }

    /// Flushes the requests that the driver posted after the queue pair entered the error state.
    fn flush_again(&mut self, request: &Request) -> Answer {
        let number = le32(request, 8);
        let pair = self.pairs.get_mut(&number).ok_or("no such queue pair")?;
        let positions = (le32(request, 12) as u16, le32(request, 16) as u16);
        if !pair.send.post(positions.0) | !pair.receive.post(positions.1) {
            return Err("more is posted than a queue has");
        }
        self.flush(number);
        Ok(NONE)
    }

    fn register_region(&mut self, request: &Request) -> Answer {
        let (first, second, third) = (le32(request, 8), le32(request, 12), le32(request, 28));
        let kind = match bits32(second, 7, 6) {
            0 => Kind::Normal,
            1 => Kind::Fast,
            2 => Kind::Dma,
            _ => return Err("no such type of memory region"),
        };
        let (mut size, mut count) = (
            u64::from(le32(request, 24)),
            u64::from(bits32(third, 19, 0)),
        );
        if bits32(first, 30, 28) == 1 {
            size |= u64::from(le32(request, 40)) << 32;
            count |= u64::from(le32(request, 44)) << 20;
        }
        let start = le64(request, 16);
        let table = match bits32(third, 21, 20) {
            0 => Table::Inline([32, 40, 48, 56].map(|at| le64(request, at))),
            levels => Table::Tree {
                root: le64(request, 32),
                levels,
                page_shift: HARDWARE_PAGE_SHIFT + bits32(third, 26, 24),
            },
        };
        let shift = bits32(third, 31, 27);
        let pages = match kind {
            Kind::Normal => Pages::new(shift, start & ((1 << shift) - 1), count, table),
            Kind::Fast => Pages::new(shift, 0, 0, table),
            Kind::Dma => Pages::new(HARDWARE_PAGE_SHIFT, 0, 0, Table::Inline([0; 4])),
        };
        let pages = pages.ok_or("the pages of a memory region are out of their range")?;
        if kind == Kind::Normal && (size > 1 << MAX_REGION_SHIFT || size > pages.size()) {
            return Err("a memory region is larger than its pages");
        }
        let region = Region {
            key: bits32(first, 27, 20) as u8,
            domain: bits32(second, 31, 12),
            kind,
            is_valid: kind == Kind::Dma || bits32(first, 31, 31) == 1,
            start,
            size,
            rights: bits32(second, 5, 1),
            pages,
            table: (table, count),
        };
        done(
            self.regions.add(bits32(first, 19, 0), region),
            "there is such a memory region, or there are too many",
        )
    }

    fn set_gid(&mut self, request: &Request) -> Answer {
        let config = le32(request, 8);
        let position = bits32(config, 15, 0) as u16;
        if u64::from(position) >> MAX_GIDS_SHIFT != 0 {
            return Err("no such position in the GID table");
        }
        match bits32(config, 31, 31) {
            0 => self.gids.insert(position, bytes(request, 12)),
            _ => self.gids.remove(&position),
        };
        Ok(NONE)
    }

    fn create_handle(&mut self, request: &Request) -> Answer {
        let (domain, number) = (le32(request, 8), le32(request, 12));
        if self.handles.contains_key(&number) {
            return Err("there is such an address handle");
        }
        if self.handles.len() as u64 >> MAX_HANDLES_SHIFT != 0 {
            return Err("there are too many address handles");
        }
        self.handles
            .insert(number, (domain, address_vector(request, 16)));
        Ok(NONE)
    }

    fn statistics(&mut self, request: &Request) -> Answer {
        let mut answer = [0; STATISTICS];
        answer[..2].copy_from_slice(&STATISTICS_MAGIC.to_le_bytes());
        for (bytes, value) in (answer[STATISTICS_HEADER..].chunks_exact_mut(8)).zip(self.counters) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        let len = (le32(request, 24) as usize).min(STATISTICS);
        (self.memory.write(le64(request, 16), &answer[..len]))
            .map_err(|_| "its buffer is not in memory")?;
        Ok(NONE)
    }
}

fn modify_roce(pair: &mut QueuePair, state: u32, request: &Request) -> Result<(), &'static str> {
    let state = State::of_roce(state).ok_or("no such state")?;
    let mask = le32(request, 16);
    let (old_address, old_number) = match pair.peer {
        Peer::Address(address, number) => (address, number),
        _ => Default::default(),
    };
    if mask & (CHANGES_ADDRESS | CHANGES_PEER) != 0 {
        let address = match mask & CHANGES_ADDRESS {
            0 => old_address,
            _ => address_vector(request, 32),
        };
        let number = match mask & CHANGES_PEER {
            0 => old_number,
            _ => bits32(le32(request, 12), 19, 0),
        };
        pair.peer = Peer::Address(address, number);
    }
    if mask & CHANGES_KEY != 0 {
        pair.key = le32(request, 20);
    }
    if mask & CHANGES_RECEIVE_SEQUENCE != 0 {
        pair.sequence.1 = le32(request, 24);
    }
    if mask & CHANGES_SEND_SEQUENCE != 0 {
        pair.sequence.0 = le32(request, 28);
    }
    if mask & CHANGES_STATE != 0 {
        pair.state = state;
        if state == State::Reset {
            pair.peer = Peer::None;
            pair.attempt = Default::default();
            pair.send.clear();
            pair.receive.clear();
        }
    }
    Ok(())
}

fn capabilities() -> [u64; 2] {
    let flags = ATOMIC | OWN_DOORBELLS;
    let first = MAX_GIDS_SHIFT << 48
        | MAX_COMPLETIONS_SHIFT << 40
        | flags << 24
        | MAX_RECEIVE_SHIFT << 16
        | MAX_HANDLES_SHIFT << 8
        | MAX_REGION_SHIFT;
    let second =
        u64::from(LOCAL_DMA_KEY) << 32 | CONGESTION_CONTROL << 28 | QUEUE_PAIR_BLOCKS << 16;
    [first, second]
}
