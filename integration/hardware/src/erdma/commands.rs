// SPDX-License-Identifier: Apache-2.0
//! The doorbells of the command queue (`ERDMA_CMD_HDR_*`). The driver posts requests of up to 128 bytes. The function
//! writes one entry for each request to the completion queue.

use super::{
    command_queue::CommandQueue,
    completions::{self, ENTRY},
    device::Device,
    events::EventQueue,
    fields::{bits, le64},
    registers,
};

/// Bytes of a request.
pub const REQUEST: usize = 128;

const SLOT: u64 = 32;
const SLOTS: u16 = 4;
const QUEUE_TYPE: u32 = 2;
const REFUSED: u32 = 1;

impl Device {
    /// Handles the doorbell of the command queue: executes the commands before `position`.
    pub fn commands_posted(&mut self, position: u16) {
        loop {
            let Some(queue) = &mut self.commands else {
                return;
            };
            let pending = position.wrapping_sub(queue.taken);
            if pending == 0 {
                return;
            }
            if u32::from(pending) > queue.depth {
                log::warn!(
                    "{}: {pending} slots of commands in a queue of {}",
                    self.name,
                    queue.depth
                );
                return;
            }
            let index = u32::from(queue.taken) & (queue.depth - 1);
            let mut request = [0; REQUEST];
            let mut is_read = true;
            for (slot, bytes) in (0..).zip(request.chunks_exact_mut(SLOT as usize)) {
                let at = u64::from((index + slot) & (queue.depth - 1));
                is_read &= (self
                    .memory
                    .read(queue.requests.wrapping_add(at * SLOT), bytes))
                .is_ok();
            }
            let header = le64(&request, 0);
            let slots = bits(header, 54, 52) as u16 + 1;
            queue.taken = queue.taken.wrapping_add(slots.min(SLOTS).min(pending));
            let (module, code) = (bits(header, 25, 24) as u8, bits(header, 23, 16) as u8);
            let answer = match (is_read, slots > pending) {
                (false, _) => Err("it is not in memory"),
                (true, true) => Err("it is not posted as a whole"),
                (true, false) => self.execute(module, code, &request),
            };
            match &answer {
                Ok(answer) => log::trace!("{}: command {module}.{code}: {answer:x?}", self.name),
                Err(reason) => log::warn!(
                    "{}: command {module}.{code} is refused: {reason}",
                    self.name
                ),
            }
            self.answer(index, answer.map_err(|_| REFUSED));
        }
    }

    fn answer(&mut self, index: u32, answer: Result<[u64; 2], u32>) {
        let Some(queue) = &mut self.commands else {
            return;
        };
        let lap = u32::from(queue.completed & queue.depth == 0);
        let (status, [first, second]) = match answer {
            Ok(answer) => (0, answer),
            Err(status) => (status, [0, 0]),
        };
        let entry = completions::entry([
            lap << 31 | QUEUE_TYPE << 8 | status,
            index,
            first as u32,
            (first >> 32) as u32,
            second as u32,
            (second >> 32) as u32,
            0,
            0,
        ]);
        let slot = u64::from(queue.completed & (queue.depth - 1));
        let address = queue.completions.wrapping_add(slot * ENTRY);
        if self.memory.publish(address, &entry).is_err() {
            log::warn!(
                "{}: the completion queue of the commands is not in memory",
                self.name
            );
        }
        queue.completed = queue.completed.wrapping_add(1);
        if queue.is_armed {
            queue.is_armed = false;
            queue.events.push(&self.memory, &self.vectors, 0, [0; 3]);
        }
    }

    /// Handles the doorbell of the command completion queue. The driver requests an event by this doorbell.
    pub fn commands_armed(&mut self, value: u64) {
        let Some(queue) = &mut self.commands else {
            return;
        };
        queue.is_armed = bits(value, 31, 31) == 1;
        let is_unread = bits(value, 23, 0) != bits(queue.completed.into(), 23, 0);
        if queue.is_armed && is_unread {
            queue.is_armed = false;
            queue.events.push(&self.memory, &self.vectors, 0, [0; 3]);
        }
    }

    /// Starts the function with the queues that its registers name. The driver waits until the function has started.
    pub(super) fn start(&mut self) {
        let registers = &self.registers;
        let asynchronous = EventQueue::new(
            registers.address(registers::ASYNCHRONOUS),
            registers.get(registers::ASYNCHRONOUS_DEPTH),
            0,
        );
        let events = EventQueue::new(
            registers.address(registers::COMMAND_EVENTS),
            registers.get(registers::COMMAND_EVENTS_DEPTH),
            0,
        );
        let commands = events.and_then(|events| {
            CommandQueue::new(
                registers.address(registers::COMMAND_SEND),
                registers.address(registers::COMMAND_COMPLETIONS),
                registers.get(registers::COMMAND_DEPTH),
                events,
            )
        });
        let (Some(asynchronous), Some(commands)) = (asynchronous, commands) else {
            log::warn!(
                "{}: a queue's depth is no power of two, or too large",
                self.name
            );
            return;
        };
        self.asynchronous = Some(asynchronous);
        self.commands = Some(commands);
        self.registers.set_started();
    }
}
