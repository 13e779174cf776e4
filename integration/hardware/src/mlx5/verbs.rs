// SPDX-License-Identifier: Apache-2.0
//! The order in which the requests of queue pairs are executed, and the connections between queue pairs.
//!
//! A doorbell executes the requests of its queue pair. [`Fabric::advance`] retries a request that waits for its peer,
//! because a guest that posts a receive request rings no doorbell. The caller supplies the time, so a unit test can
//! advance it without waiting.

use super::{
    Mac,
    context::{self, service, state},
    counters::counter,
    fabric::Fabric,
    function::Function,
    pairs::{Completion, Syndrome},
    queue_pair::{self, Place, Wait},
    requests::{Header, Operation, operation},
};
use std::time::Duration;

/// The most requests of a queue pair that are executed before the fabric's lock is released.
const BUDGET: usize = 64;
/// The unit of the timeouts of contexts: 4.096 µs.
const TIMEOUT: Duration = Duration::from_nanos(4096);
/// The unit of the timers of receivers: 10 µs.
const TIMER: Duration = Duration::from_micros(10);
/// The number of retries that means unlimited retries.
const FOREVER: u64 = 7;

/// The outcome of an attempt to execute a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// The request succeeded and moved this number of bytes.
    Done(u32),
    /// The request failed with this syndrome.
    Failed(Syndrome),
    /// The request waits for this reason and is tried again.
    Later(Wait),
}

/// The next step of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Execute the next request of the queue.
    Request,
    /// Try the request again later.
    Attempt,
    /// Wait for a doorbell.
    Idle,
}

impl Fabric {
    /// Sets the time since a fixed start.
    pub fn set_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Retries the waiting requests. `now` is the time since a fixed start. Returns true if requests still wait.
    pub fn advance(&mut self, now: Duration) -> bool {
        self.set_time(now);
        for place in std::mem::take(&mut self.waiting) {
            self.run(place);
        }
        self.execute_rung();
        self.is_waiting()
    }

    /// Returns true if requests wait.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Executes the requests of queue pairs whose doorbells were rung or that failed, and of peers that fail because of
    /// these requests.
    pub(super) fn execute_rung(&mut self) {
        let mut is_any = true;
        while std::mem::take(&mut is_any) {
            for position in 0..self.functions().len() {
                for number in std::mem::take(&mut self.function_mut(position).rung) {
                    self.run((position, number));
                    is_any = true;
                }
            }
        }
    }

    fn run(&mut self, place: Place) {
        for _ in 0..BUDGET {
            match self.step(place) {
                Next::Request => {}
                Next::Attempt => break,
                Next::Idle => return,
            }
        }
        self.waiting.insert(place);
    }

    fn step(&mut self, place: Place) -> Next {
        let (position, number) = place;
        let now = self.now;
        let function = self.function_mut(position);
        if !function.link.is_present || !function.pairs.contains_key(&number) {
            return Next::Idle;
        }
        match function.pair(number, context::STATE) {
            // a queue pair in error is tried again, because the driver may post more requests
            state::ERROR => {
                function.flush(number);
                return Next::Attempt;
            }
            state::READY_TO_SEND => {}
            _ => return Next::Idle,
        }
        let Some((header, request)) = function.next_send(number) else {
            return Next::Idle;
        };
        let outcome = match function.pair(number, context::SERVICE) {
            service::RELIABLE => self.execute(place, header, request, false),
            service::DATAGRAM | service::QP1 => self.execute(place, header, request, true),
            _ => Outcome::Failed(Syndrome::LocalOperation),
        };
        let (syndrome, len) = match outcome {
            Outcome::Done(len) => (None, len),
            Outcome::Failed(syndrome) => (Some(syndrome), 0),
            Outcome::Later(wait) => {
                let since = self.waits(place, wait, now);
                let limit = self.limit(place, wait);
                if limit.is_none_or(|limit| now < since.saturating_add(limit)) {
                    return Next::Attempt;
                }
                match wait {
                    Wait::Answer => {
                        let function = self.function_mut(position);
                        let retries = function.pair(number, context::RETRIES) as u32;
                        function.counters.count(counter::TIMEOUTS, retries + 1);
                        (Some(Syndrome::RetriesExceeded), 0)
                    }
                    Wait::Receive => (Some(Syndrome::ReceiveRetriesExceeded), 0),
                }
            }
        };
        let function = self.function_mut(position);
        if let Some(pair) = function.pairs.get_mut(&number) {
            pair.waits = None;
        }
        let completion = (syndrome.is_some() || header.is_reported)
            .then(|| Completion::of_request(header, syndrome, len));
        if syndrome.is_some() {
            function.fail_pair(number);
        }
        function.sent(number, header.blocks, completion);
        Next::Request
    }

    /// Returns the time at which the next request began to wait for the reason `wait`. Records and counts a new wait.
    fn waits(&mut self, place: Place, wait: Wait, now: Duration) -> Duration {
        let (position, number) = place;
        let pair = self.function_mut(position).pairs.get_mut(&number);
        let Some(pair) = pair else {
            return now;
        };
        match pair.waits {
            Some((same, since)) if same == wait => since,
            _ => {
                pair.waits = Some((wait, now));
                if wait == Wait::Receive {
                    self.function_mut(position)
                        .counters
                        .count(counter::RECEIVE_RETRIES, 1);
                    if let Some((peer, _)) = self.peer(place) {
                        self.function_mut(peer)
                            .counters
                            .count(counter::OUT_OF_BUFFER, 1);
                    }
                }
                now
            }
        }
    }

    /// Returns the longest time that a request waits, or `None` for an unlimited wait.
    fn limit(&self, place: Place, wait: Wait) -> Option<Duration> {
        let (position, number) = place;
        let field = |field| self.functions()[position].pair(number, field);
        match wait {
            Wait::Answer => {
                let timeout = field(context::TIMEOUT) as u32;
                let attempts = field(context::RETRIES) as u32 + 1;
                (timeout > 0).then(|| TIMEOUT * (1 << timeout) * attempts)
            }
            Wait::Receive => {
                let retries = field(context::RECEIVE_RETRIES);
                let (peer, number) = self.peer(place)?;
                let timer = self.functions()[peer].pair(number, context::RECEIVE_TIMER);
                // 0 selects the longest time; the time doubles with every second value
                let timer = if timer == 0 { 32 } else { timer as u32 };
                let once = TIMER * (1 << (timer / 2)) * (2 + timer % 2) / 2;
                (retries != FOREVER).then(|| once * (retries as u32 + 1))
            }
        }
    }

    fn execute(
        &mut self,
        place: Place,
        header: Header,
        request: Option<Vec<u8>>,
        is_datagram: bool,
    ) -> Outcome {
        let decoded = request.and_then(|it| operation(&it, is_datagram));
        match decoded {
            None => Outcome::Failed(Syndrome::LocalOperation),
            Some(Operation::Nop) => Outcome::Done(0),
            Some(Operation::Datagram {
                to,
                data,
                immediate,
            }) => self.datagram(place, header, &to, &data, immediate),
            Some(operation) => self.reliable(place, header, operation),
        }
    }

    /// Returns the peer of a reliable queue pair if the peer is also connected to this queue pair.
    pub(super) fn peer(&self, (position, number): Place) -> Option<Place> {
        let address = |position: usize, number| {
            let function = &self.functions()[position];
            let context = function.objects.get(queue_pair::CREATE, number)?;
            let there = match function.place.lid {
                Some(_) => {
                    let lid = context::LID.get(context) as u16;
                    (self.functions().iter()).position(|it| it.place.lid == Some(lid))?
                }
                None => {
                    let gid = context.get(context::GID..)?.first_chunk::<16>()?;
                    let [_, _, mac @ ..] = context::MAC.get(context).to_be_bytes();
                    let source = context::SOURCE.get(context) as usize;
                    self.find(gid, mac, function.vport.vlan(source))?
                }
            };
            let service = context::SERVICE.get(context);
            (service == service::RELIABLE).then_some((there, context::PEER.get(context) as u32))
        };
        let peer = address(position, number)?;
        (address(peer.0, peer.1)? == (position, number)).then_some(peer)
    }

    /// Returns the function with the GID in the VLAN. Of several functions, returns the one that also has the hardware
    /// address `mac`, else the first: `mac` is then a router's.
    pub(super) fn find(&self, gid: &[u8; 16], mac: Mac, vlan: Option<u16>) -> Option<usize> {
        let mut found = None;
        for (position, function) in self.functions().iter().enumerate() {
            for (_, address) in function.vport.roce_addresses() {
                if address.gid == *gid && address.vlan == vlan {
                    if address.mac == mac {
                        return Some(position);
                    }
                    found = found.or(Some(position));
                }
            }
        }
        found
    }

    /// Returns true if messages pass between two functions. A function in a bond uses all links of its card.
    pub(super) fn is_connected(&self, from: usize, to: usize) -> bool {
        let is_linked = |position: usize| {
            let function = &self.functions()[position];
            let card = function.place.card;
            let mut bonded = self.functions().iter().filter(|it| it.place.card == card);
            function.link.is_present
                && (function.has_carrier()
                    || function.lag.is_some() && bonded.any(Function::has_carrier))
        };
        is_linked(from) && is_linked(to)
    }
}
