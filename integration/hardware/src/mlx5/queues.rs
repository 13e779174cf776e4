// SPDX-License-Identifier: Apache-2.0
//! The commands on queues, keys and queue pairs, and the completions of queues.

use super::{
    completion_queue::{self, COMPLETION, CompletionQueue},
    context,
    event_queue::Event,
    fields::{Field, field},
    function::Function,
    keys,
    queue_pair::{self, QueuePair},
    status::Status,
    work_queue::{WorkQueue, opcode, work},
};

const NUMBER: Field = field(0x48, 24);

/// The state of a send or receive queue in the context that [`super::objects`] stores.
const STATE: Field = field(0x108, 4);
const READY: u64 = 1;
const FAILED: u64 = 3;

/// The doorbell bit with which the driver requests an event only for a solicited completion (`MLX5_CQ_DB_REQ_NOT_SOL`).
const ONLY_SOLICITED: u32 = 1 << 24;

/// The type of a cyclic queue. Its entries consist only of data segments.
const CYCLIC: u64 = 1;

impl Function {
    /// Creates, changes or destroys the queue, key or queue pair to which a successful command refers.
    pub(super) fn queues_changed(
        &mut self,
        code: u16,
        input: &[u8],
        output: &[u8],
    ) -> Result<(), Status> {
        let (made, gone) = (NUMBER.get32(output), NUMBER.get32(input));
        match code {
            completion_queue::CREATE => {
                self.completions.insert(made, CompletionQueue::new(input)?);
            }
            opcode::CREATE_SQ => {
                self.sends.insert(made, WorkQueue::new(input)?);
            }
            // the model has no queues of other kinds, and drops their data
            opcode::CREATE_RQ if work::KIND.get(input) == CYCLIC => {
                self.receives.insert(made, WorkQueue::new(input)?);
            }
            opcode::CREATE_RMP => {
                self.shared.insert(made, WorkQueue::new(input)?);
            }
            keys::CREATE => self.keys.add(made, input)?,
            keys::DESTROY => self.keys.remove(gone),
            queue_pair::CREATE => {
                self.pairs.insert(made, QueuePair::new(input)?);
            }
            queue_pair::DESTROY => drop(self.pairs.remove(&gone)),
            context::TO_ERROR => self.pair_failed(gone),
            context::TO_RESET => {
                if let Some(pair) = self.pairs.get_mut(&gone) {
                    pair.reset();
                }
            }
            completion_queue::DESTROY => drop(self.completions.remove(&gone)),
            opcode::DESTROY_SQ => drop(self.sends.remove(&gone)),
            opcode::DESTROY_RQ => drop(self.receives.remove(&gone)),
            opcode::DESTROY_RMP => drop(self.shared.remove(&gone)),
            _ => {}
        }
        Ok(())
    }

    /// Returns true if the driver has set the queue to the ready state. `create` is the opcode of the command that
    /// created the queue.
    pub(super) fn is_ready(&self, create: u16, number: u32) -> bool {
        let context = self.objects.get(create, number);
        context.is_some_and(|it| STATE.get(it) == READY)
    }

    /// Sets the queue to the error state because of one of its entries.
    pub(super) fn fail_queue(&mut self, create: u16, number: u32) {
        if let Some(context) = self.objects.get_mut(create, number) {
            STATE.put(context, FAILED);
        }
    }

    /// Writes a completion, and an event if the driver requested one. `is_solicited` is true for a solicited completion
    /// and for an error: a driver can request an event for these only.
    pub(super) fn complete(&mut self, number: u32, entry: [u8; COMPLETION], is_solicited: bool) {
        let Some(queue) = self.completions.get_mut(&number) else {
            return;
        };
        if queue.push(&self.memory, entry, is_solicited).is_err() {
            log::warn!("{}: completion queue {number} is not in memory", self.name);
        }
        if queue.arming.take() {
            self.completion_event(number);
        }
    }

    fn completion_event(&mut self, number: u32) {
        let Some(queue) = self.completions.get(&number) else {
            return;
        };
        if let Some(events) = self.events.get_mut(&queue.events) {
            let mut data = [0; 28];
            data[24..].copy_from_slice(&number.to_be_bytes());
            events.push(&self.memory, &self.vectors, Event::Completion, 0, &data);
        }
    }

    /// Handles the doorbell with which the driver requests an event of a completion queue. `position` is the number of
    /// completions that the driver has read.
    pub(super) fn completions_armed(&mut self, position: u32, number: u32) {
        let number = number & 0xff_ffff;
        let Some(queue) = self.completions.get_mut(&number) else {
            return;
        };
        if queue.arming.arm(position & ONLY_SOLICITED != 0, position) {
            self.completion_event(number);
        }
    }
}
