// SPDX-License-Identifier: Apache-2.0
//! The execution of requests on reliable connections: send, write, read, atomic operations.

use super::{
    context,
    counters::counter,
    fabric::Fabric,
    keys::{Extent, Refusal, Segment, rights},
    pairs::{Completion, Kind, Syndrome},
    queue_pair::{Place, Wait},
    requests::{Data, Header, Operation},
    verbs::Outcome,
};
use crate::transfer::{Missing, Source, Window, copy};

/// The reason why a request fails.
enum Failure {
    /// The request itself is wrong.
    Local(Syndrome),
    /// The peer's receive request is wrong. The peer reports the syndrome in the completion of this
    /// receive request.
    Receive(Syndrome),
    /// The request names memory to which its key gives no access. The peer's queue pair fails with an event.
    Access,
    /// The peer's queue pair does not allow the operation, or the address of an atomic operation is not aligned.
    Request,
}

impl Fabric {
    /// Executes a request of a reliable queue pair.
    pub(super) fn reliable(
        &mut self,
        place: Place,
        header: Header,
        operation: Operation,
    ) -> Outcome {
        let Some(peer) = self.peer(place) else {
            return Outcome::Later(Wait::Answer);
        };
        if !self.is_connected(place.0, peer.0) || !self.functions()[peer.0].receives(peer.1) {
            return Outcome::Later(Wait::Answer);
        }
        let takes_receive = match &operation {
            Operation::Write { immediate, .. } => immediate.is_some(),
            Operation::Send { .. } => true,
            _ => false,
        };
        if takes_receive && !self.functions()[peer.0].has_receive(peer.1) {
            return Outcome::Later(Wait::Receive);
        }
        let received = |kind, extra: Option<u32>| Completion {
            kind,
            extra: extra.unwrap_or(0),
            is_solicited: header.is_solicited,
            ..Completion::RECEIVED
        };
        let counter = match &operation {
            Operation::Write { .. } => Some(counter::WRITES),
            Operation::Read { .. } => Some(counter::READS),
            Operation::Atomic { .. } => Some(counter::ATOMICS),
            _ => None,
        };
        if let Some(counter) = counter {
            self.function_mut(peer.0).counters.count(counter, 1);
        }
        let done = match operation {
            Operation::Send { data, immediate } => {
                let kind = match immediate {
                    None => Kind::Receive,
                    Some(_) => Kind::ReceiveImmediate,
                };
                self.send(place, peer, &data, received(kind, immediate))
            }
            Operation::Write {
                data,
                remote,
                immediate,
            } => {
                let written = self.write_to(place, peer, &data, remote);
                if let (Ok(len), Some(_)) = (&written, immediate) {
                    let completion = received(Kind::ReceiveWriteImmediate, immediate);
                    let completion = Completion {
                        len: *len,
                        ..completion
                    };
                    self.function_mut(peer.0).received(peer.1, completion);
                }
                written
            }
            Operation::Read { remote, into } => self.read_from(place, peer, remote, &into),
            Operation::Atomic {
                remote,
                into,
                compare,
                operand,
            } => self.atomic(place, peer, remote, &into, compare, operand),
            // only datagram queue pairs have datagrams, and the caller executes `Nop`
            Operation::Nop | Operation::Datagram { .. } => {
                Err(Failure::Local(Syndrome::LocalOperation))
            }
        };
        match done {
            Ok(len) => Outcome::Done(len),
            Err(failure) => Outcome::Failed(self.failed(peer, &failure)),
        }
    }

    /// Puts the peer's queue pair into the error state unless the failure is local. Returns the syndrome
    /// for the request.
    fn failed(&mut self, (position, number): Place, failure: &Failure) -> Syndrome {
        let function = self.function_mut(position);
        let syndrome = match failure {
            Failure::Local(syndrome) => return *syndrome,
            Failure::Receive(syndrome) => {
                let completion = Completion {
                    kind: Kind::ReceiveError,
                    syndrome: Some(*syndrome),
                    ..Completion::RECEIVED
                };
                function.received(number, completion);
                match syndrome {
                    Syndrome::LocalLength => Syndrome::RemoteRequest,
                    _ => Syndrome::RemoteOperation,
                }
            }
            Failure::Access => {
                function.access_event(number);
                Syndrome::RemoteAccess
            }
            Failure::Request => Syndrome::RemoteRequest,
        };
        function.fail_pair(number);
        syndrome
    }

    /// Returns the memory and the inline bytes of a payload.
    pub(super) fn source(
        &self,
        (position, number): Place,
        data: &Data,
    ) -> Result<Source<Extent>, Syndrome> {
        let function = &self.functions()[position];
        let extents = function.memory_of(number, &data.segments, rights::LOCAL_READ);
        let extents = extents.map_err(|Refusal| Syndrome::LocalProtection)?;
        Ok(Source::new(data.inline.clone(), extents))
    }

    /// Copies data between the memories of two functions, and counts the message.
    fn transfer(
        &mut self,
        from: usize,
        source: &Source<Extent>,
        to: usize,
        target: &[Extent],
    ) -> Result<u32, Missing> {
        let memory = |position: usize| &self.functions()[position].memory;
        copy(memory(from), source, memory(to), target)?;
        self.count(from, to, source.len());
        Ok(source.len() as u32)
    }

    pub(super) fn count(&mut self, from: usize, to: usize, len: u64) {
        self.function_mut(from).vport.count_message(false, len);
        self.function_mut(to).vport.count_message(true, len);
    }

    /// Returns the peer's memory to which a request refers.
    fn remote(
        &self,
        (position, number): Place,
        remote: Segment,
        needed: u64,
    ) -> Result<Vec<Extent>, Failure> {
        let function = &self.functions()[position];
        let allowed = match needed {
            rights::REMOTE_WRITE => context::MAY_WRITE,
            rights::REMOTE_READ => context::MAY_READ,
            _ => context::MAY_CHANGE,
        };
        if function.pair(number, allowed) == 0 {
            return Err(Failure::Request);
        }
        let extents = function.memory_of(number, &[remote], needed);
        extents.map_err(|Refusal| Failure::Access)
    }

    fn send(
        &mut self,
        from: Place,
        to: Place,
        data: &Data,
        completion: Completion,
    ) -> Result<u32, Failure> {
        let source = self.source(from, data).map_err(Failure::Local)?;
        let target = self.functions()[to.0].receive_memory(to.1, source.len());
        let target = target.map_err(Failure::Receive)?;
        let len =
            (self.transfer(from.0, &source, to.0, &target)).map_err(|missing| match missing {
                Missing::Source => Failure::Local(Syndrome::LocalProtection),
                Missing::Target => Failure::Receive(Syndrome::LocalProtection),
            })?;
        let completion = Completion { len, ..completion };
        self.function_mut(to.0).received(to.1, completion);
        Ok(len)
    }

    fn write_to(
        &mut self,
        from: Place,
        to: Place,
        data: &Data,
        remote: Segment,
    ) -> Result<u32, Failure> {
        let source = self.source(from, data).map_err(Failure::Local)?;
        let target = self.remote(to, remote, rights::REMOTE_WRITE)?;
        (self.transfer(from.0, &source, to.0, &target)).map_err(|missing| match missing {
            Missing::Source => Failure::Local(Syndrome::LocalProtection),
            Missing::Target => Failure::Access,
        })
    }

    fn read_from(
        &mut self,
        near: Place,
        far: Place,
        remote: Segment,
        into: &[Segment],
    ) -> Result<u32, Failure> {
        let source = Source::new(vec![], self.remote(far, remote, rights::REMOTE_READ)?);
        let target = self.functions()[near.0].memory_of(near.1, into, rights::LOCAL_WRITE);
        let target = target.map_err(|Refusal| Failure::Local(Syndrome::LocalProtection))?;
        (self.transfer(far.0, &source, near.0, &target)).map_err(|missing| match missing {
            Missing::Source => Failure::Access,
            Missing::Target => Failure::Local(Syndrome::LocalProtection),
        })
    }

    /// Executes an atomic operation. The values in memory are little-endian, as in the guest.
    fn atomic(
        &mut self,
        near: Place,
        far: Place,
        remote: Segment,
        into: &[Segment],
        compare: Option<u64>,
        operand: u64,
    ) -> Result<u32, Failure> {
        let found = self.remote(far, remote, rights::ATOMIC)?;
        if !remote.address.is_multiple_of(8) {
            return Err(Failure::Request);
        }
        let target = self.functions()[near.0].memory_of(near.1, into, rights::LOCAL_WRITE);
        let target = target.map_err(|Refusal| Failure::Local(Syndrome::LocalProtection))?;
        let memory = &self.functions()[far.0].memory;
        // 8 bytes at a multiple of 8 are in one page
        let place = found.first().and_then(|it| it.locate(memory, 0));
        let (address, _) = place.ok_or(Failure::Access)?;
        let old = memory.u64(address).map_err(|_| Failure::Access)?;
        let new = match compare {
            None => old.wrapping_add(operand),
            Some(compare) if compare == old => operand,
            Some(_) => old,
        };
        let written = memory.write(address, &new.to_le_bytes());
        written.map_err(|_| Failure::Access)?;
        let answer = Source::new(old.to_le_bytes().to_vec(), vec![]);
        (self.transfer(far.0, &answer, near.0, &target))
            .map_err(|_| Failure::Local(Syndrome::LocalProtection))
    }
}
