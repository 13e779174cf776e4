// SPDX-License-Identifier: Apache-2.0
//! The fabric: all functions, the connections between their queue pairs, and the order in which requests are executed.
//!
//! The caller supplies the time, so that a unit test need not wait.

use super::{
    completions::{Completion, Status},
    device::{Device, Unreadable, counter},
    faults::{Chance, Limits, RETRANSMISSION, RETRIES},
    queue_pairs::{AddressVector, Peer, Service, State},
    requests::{Header, Operation, operation},
};
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// A queue pair: the position of its function in the fabric, and its number.
pub type Place = (usize, u32);

/// The outcome of an attempt to execute a request.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// The request ended with this status.
    Done(Status),
    /// The fabric tries the request again when the peer changes, or at this time, if there is one.
    Later(Option<Duration>),
}

/// The time of the next call of [`Fabric::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Immediately.
    Now,
    /// At this time.
    At(Duration),
    /// After the next write of a guest or order of a test.
    Idle,
}

/// All functions of a process.
#[derive(Debug, Default)]
pub struct Fabric {
    devices: Vec<Device>,
    /// The longest times that requests wait.
    pub limits: Limits,
    pub(super) chance: Chance,
    now: Duration,
    ready: VecDeque<Place>,
    timers: BTreeSet<(Duration, Place)>,
}

impl Fabric {
    /// Adds a function and returns its position.
    pub fn add(&mut self, mut device: Device) -> usize {
        let position = self.devices.len();
        device.cookies = (position as u32 + 1) << 24;
        self.devices.push(device);
        position
    }

    /// All functions.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The function at `position`.
    ///
    /// # Panics
    /// No function has the position.
    pub fn device(&self, position: usize) -> &Device {
        &self.devices[position]
    }

    /// The function at `position`, mutable.
    ///
    /// # Panics
    /// No function has the position.
    pub fn device_mut(&mut self, position: usize) -> &mut Device {
        &mut self.devices[position]
    }

    /// Handles a guest's write to BAR 0.
    pub fn write(&mut self, position: usize, offset: u64, data: &[u8]) {
        self.devices[position].write(offset, data);
        for number in std::mem::take(&mut self.devices[position].woken) {
            self.wake((position, number));
            // the peer may be waiting for a receive request or a connection
            if let Some(peer) = self.peer((position, number)) {
                self.wake(peer);
            }
        }
        self.wake_peers_of_lost();
    }

    /// Wakes all queue pairs if a queue pair failed or was destroyed: its peer may wait for it.
    fn wake_peers_of_lost(&mut self) {
        let mut is_any = false;
        for device in &mut self.devices {
            is_any |= std::mem::take(&mut device.has_lost_pairs);
        }
        if is_any {
            self.wake_all();
        }
    }

    /// Wakes all queue pairs: after a change of the fabric, their requests may proceed.
    pub fn wake_all(&mut self) {
        let places: Vec<Place> = (self.devices.iter().enumerate())
            .flat_map(|(position, device)| {
                device.pairs.keys().map(move |number| (position, *number))
            })
            .collect();
        places.into_iter().for_each(|place| self.wake(place));
    }

    fn wake(&mut self, place: Place) {
        if let Some(pair) = self.devices[place.0].pairs.get_mut(&place.1)
            && !pair.is_ready
        {
            pair.is_ready = true;
            self.ready.push_back(place);
        }
    }

    /// Executes up to `budget` requests. `now` is the time since a fixed start.
    pub fn advance(&mut self, now: Duration, budget: usize) -> Next {
        self.now = self.now.max(now);
        while let Some((due, place)) = self.timers.first().copied()
            && due <= self.now
        {
            self.timers.pop_first();
            if let Some(pair) = self.devices[place.0].pairs.get_mut(&place.1)
                && pair.timer == Some(due)
            {
                pair.timer = None;
                self.wake(place);
            }
        }
        for _ in 0..budget {
            let Some(place) = self.ready.pop_front() else {
                break;
            };
            self.step(place);
            self.wake_peers_of_lost();
        }
        match (self.ready.is_empty(), self.timers.first()) {
            (false, _) => Next::Now,
            (true, Some((due, _))) => Next::At(*due),
            (true, None) => Next::Idle,
        }
    }

    fn set_timer(&mut self, place: Place, due: Option<Duration>) {
        if let Some(pair) = self.devices[place.0].pairs.get_mut(&place.1)
            && pair.timer != due
        {
            if let Some(old) = std::mem::replace(&mut pair.timer, due) {
                self.timers.remove(&(old, place));
            }
            self.timers.extend(due.map(|due| (due, place)));
        }
    }

    /// Executes the next request of a queue pair if possible. Flushes the requests of a failed queue pair.
    fn step(&mut self, place: Place) {
        let (now, (position, number)) = (self.now, place);
        let device = &mut self.devices[position];
        let is_present = device.link.is_present;
        let Some(pair) = device.pairs.get_mut(&number) else {
            return;
        };
        pair.is_ready = false;
        match pair.state {
            _ if !is_present => return,
            State::Error => return device.flush(number),
            State::ReadyToSend => {}
            _ => return,
        }
        let Some(pair) = device.pairs.get(&number) else {
            return;
        };
        let service = pair.service;
        let (header, request) = match device.next_send(pair) {
            Ok(None) => return,
            Ok(Some(next)) => next,
            Err(Unreadable) => return self.cannot_read(place),
        };
        if let Some(pair) = device.pairs.get_mut(&number) {
            pair.attempt.since.get_or_insert(now);
        }
        let outcome = match operation(&header, service, &request) {
            None => Outcome::Done(Status::SendFormat),
            Some(Operation::Datagram {
                data,
                extra,
                handle,
                number,
                key,
            }) => self.datagram(place, &header, &data, extra, handle, (number, key)),
            Some(operation) => self.reliable(place, &header, operation),
        };
        match outcome {
            Outcome::Later(due) => self.set_timer(place, due),
            Outcome::Done(status) => self.done(place, &header, status),
        }
    }

    /// Completes a request that ended. Then wakes its queue pair for the next request, or fails the queue pair.
    fn done(&mut self, place: Place, header: &Header, status: Status) {
        self.set_timer(place, None);
        let (position, number) = place;
        let device = &mut self.devices[position];
        device.counters[counter::SENT_REQUESTS] += 1;
        let Some(pair) = device.pairs.get_mut(&number) else {
            return;
        };
        pair.attempt = Default::default();
        let completion = Completion {
            opcode: header.opcode,
            is_receive: false,
            status,
            index: pair.send.position(),
            queue_pair: number,
            extra: 0,
            size: header.len,
            datagram: 0,
            is_solicited: false,
        };
        pair.send.take(header.slots);
        let queue = pair.send_completions;
        if status != Status::Success || header.is_signaled {
            device.complete(queue, &completion);
        }
        match status {
            Status::Success => self.wake(place),
            _ => self.devices[position].fail(number),
        }
    }

    /// Fails a queue pair whose next send request cannot be read. Discards the requests after it: their positions are
    /// unknown.
    fn cannot_read(&mut self, place: Place) {
        self.set_timer(place, None);
        let (position, number) = place;
        let device = &mut self.devices[position];
        let Some(pair) = device.pairs.get_mut(&number) else {
            return;
        };
        let completion = Completion {
            opcode: 0,
            is_receive: false,
            status: Status::SendFormat,
            index: pair.send.position(),
            queue_pair: number,
            extra: 0,
            size: 0,
            datagram: 0,
            is_solicited: false,
        };
        pair.send.take(pair.send.pending());
        let queue = pair.send_completions;
        device.complete(queue, &completion);
        device.fail(number);
    }

    /// Returns the peer of a reliable queue pair if the peer is also connected to this queue pair.
    pub(super) fn peer(&self, (position, number): Place) -> Option<Place> {
        let pair = self.devices[position].pairs.get(&number)?;
        if pair.service != Service::Reliable {
            return None;
        }
        match pair.peer {
            Peer::None => None,
            Peer::Cookie(cookie) => {
                // the upper 8 bits of a cookie are the position of its function, plus 1
                let position = ((cookie >> 24) as usize).checked_sub(1)?;
                let mut pairs = self.devices.get(position)?.pairs.values();
                let other = pairs.find(|other| other.cookie == cookie)?;
                (other.peer == Peer::Cookie(pair.cookie)).then_some((position, other.number))
            }
            Peer::Address(address, other_number) => {
                let position = self.find(&address)?;
                let other = self.devices[position].pairs.get(&other_number)?;
                let is_mutual = matches!(other.peer, Peer::Address(_, back) if back == number);
                (is_mutual && other.service == Service::Reliable)
                    .then_some((position, other_number))
            }
        }
    }

    /// Returns the function with the GID of `address`. Of several functions, returns the one that also has the hardware
    /// address, else the first: the hardware address is then a router's.
    pub(super) fn find(&self, address: &AddressVector) -> Option<usize> {
        let has_gid = |device: &&Device| device.gids.values().any(|gid| *gid == address.gid);
        let mut found = (self.devices.iter().enumerate()).filter(|(_, device)| has_gid(device));
        let first = found.next()?;
        let is_it = |(_, device): &(usize, &Device)| device.mac == address.mac;
        let same = [first].into_iter().chain(found).find(is_it);
        Some(same.unwrap_or(first).0)
    }

    /// Returns true if messages pass between two functions.
    pub(super) fn is_connected(&self, from: usize, to: usize) -> bool {
        [from, to].iter().all(|position| {
            let link = &self.devices[*position].link;
            link.is_up && link.is_present
        })
    }

    /// The outcome of a request whose peer does not respond.
    pub(super) fn no_answer(&self, (position, number): Place) -> Outcome {
        self.wait(position, number, Some(self.limits.no_answer))
    }

    /// The outcome of a request whose peer has no receive request.
    pub(super) fn no_receive(&self, (position, number): Place) -> Outcome {
        self.wait(position, number, self.limits.no_receive)
    }

    fn wait(&self, position: usize, number: u32, limit: Option<Duration>) -> Outcome {
        let since = (self.devices[position].pairs.get(&number)).and_then(|pair| pair.attempt.since);
        let due = limit.map(|limit| since.unwrap_or(self.now).saturating_add(limit));
        match due {
            Some(due) if due <= self.now => Outcome::Done(Status::RetryExceeded),
            _ => Outcome::Later(due),
        }
    }

    /// Applies the delay and the loss of a message. Returns `None` if the message passes now.
    pub(super) fn fault(&mut self, (position, number): Place) -> Option<Outcome> {
        let now = self.now;
        let device = &mut self.devices[position];
        let link = device.link;
        if link.delay.is_zero() && link.loss_percent == 0 {
            return None;
        }
        let attempt = &mut device.pairs.get_mut(&number)?.attempt;
        let due = match attempt.not_before {
            Some(due) => due,
            None => *attempt.not_before.insert(now.saturating_add(link.delay)),
        };
        if due > now {
            return Some(Outcome::Later(Some(due)));
        }
        if !self.chance.is_lost(link.loss_percent) {
            return None;
        }
        device.counters[counter::SENT_DROPPED] += 1;
        attempt.lost += 1;
        if attempt.lost > RETRIES {
            return Some(Outcome::Done(Status::RetryExceeded));
        }
        let due = now
            .saturating_add(RETRANSMISSION)
            .saturating_add(link.delay);
        attempt.not_before = Some(due);
        Some(Outcome::Later(Some(due)))
    }

    pub(super) fn count(&mut self, from: usize, to: usize, len: u64) {
        let sent = &mut self.devices[from].counters;
        sent[counter::SENT_PACKETS] += 1;
        sent[counter::SENT_BYTES] = sent[counter::SENT_BYTES].wrapping_add(len);
        let received = &mut self.devices[to].counters;
        received[counter::RECEIVED_PACKETS] += 1;
        received[counter::RECEIVED_BYTES] = received[counter::RECEIVED_BYTES].wrapping_add(len);
    }
}
