// SPDX-License-Identifier: Apache-2.0
//! The commands on event queues, and the events that a function reports.

use super::{
    event_queue::{Event, EventQueue},
    fields::{Field, field},
    function::Function,
    status::Status,
};

/// The numbers of event queues are 1 to `MAX_QUEUES - 1`.
const MAX_QUEUES: u32 = 128;
const NUMBER: Field = field(0x58, 8);

impl Function {
    /// `CREATE_EQ`.
    pub(super) fn create_event_queue(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Status> {
        let free = (1..MAX_QUEUES).find(|number| !self.events.contains_key(number));
        let number = free.ok_or(Status::Limit)?;
        self.events.insert(number, EventQueue::new(input)?);
        NUMBER.put(output, number.into());
        Ok(())
    }

    /// `DESTROY_EQ`.
    pub(super) fn destroy_event_queue(&mut self, input: &[u8]) -> Result<(), Status> {
        let gone = self.events.remove(&NUMBER.get32(input));
        gone.map(drop).ok_or(Status::Resource)
    }

    /// `QUERY_EQ`.
    pub(super) fn query_event_queue(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Status> {
        let queue = self.events.get(&NUMBER.get32(input));
        queue.ok_or(Status::Resource)?.query(output);
        Ok(())
    }

    /// Reports an event to the queues that the driver subscribed to it.
    pub(super) fn report(&mut self, event: Event, subtype: u8, data: &[u8]) {
        for queue in self.events.values_mut().filter(|queue| queue.has(event)) {
            queue.push(&self.memory, &self.vectors, event, subtype, data);
        }
    }

    /// Reports the end of the command in `slot` to the queues that existed before the command. A new queue gets no
    /// event of its own creation: the driver polls for the end of that command.
    pub(super) fn command_event(&mut self, slot: u32, before: &[u32]) {
        for (number, queue) in &mut self.events {
            if before.contains(number) && queue.has(Event::Command) {
                let data = (1u32 << slot).to_be_bytes();
                queue.push(&self.memory, &self.vectors, Event::Command, 0, &data);
            }
        }
    }
}
