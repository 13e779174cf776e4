// SPDX-License-Identifier: Apache-2.0
//! The execution of requests on reliable connections: write, read, send, atomic operations, registration of memory.

use super::{
    completions::{Completion, Status},
    device::Device,
    fabric::{Fabric, Outcome, Place},
    queue_pairs::State,
    regions::{Kind, Refusal, Window, rights},
    requests::{Data, Extra, Header, Operation, Segment, opcode, receive},
    transfer::{source, window},
    translation::{Pages, Table},
};
use crate::transfer::{Missing, Source, Window as _, copy};

/// A message that consumes a receive request of the peer.
struct Arrival {
    opcode: u8,
    extra: u32,
    len: u64,
    is_solicited: bool,
    status: Status,
}

impl Fabric {
    /// Executes a request of a reliable queue pair.
    pub(super) fn reliable(
        &mut self,
        place: Place,
        header: &Header,
        operation: Operation,
    ) -> Outcome {
        let (position, number) = place;
        let device = self.device_mut(position);
        let Some(pair) = device.pairs.get(&number) else {
            return Outcome::Later(None);
        };
        let domain = pair.domain;
        match operation {
            Operation::Invalidate { key } => {
                let invalidated = device.regions.invalidate(key, domain);
                return Outcome::Done(
                    invalidated.map_or_else(Refusal::local, |()| Status::Success),
                );
            }
            Operation::Register { .. } => {
                return Outcome::Done(
                    register(device, domain, &operation).map_or_else(|it| it, |()| Status::Success),
                );
            }
            _ => {}
        }
        let Some(peer) = self.peer(place) else {
            return self.no_answer(place);
        };
        if !self.is_connected(position, peer.0) {
            return self.no_answer(place);
        }
        match self.device(peer.0).pairs.get(&peer.1).map(|it| it.state) {
            Some(State::Error) => return Outcome::Done(Status::RetryExceeded),
            Some(state) if state.receives() => {}
            _ => return self.no_answer(place),
        }
        if let Some(outcome) = self.fault(place) {
            return outcome;
        }
        let done = match operation {
            Operation::Write {
                data,
                address,
                key,
                extra,
            } => {
                if extra != Extra::None && !self.has_receive(peer) {
                    return self.no_receive(place);
                }
                self.write_to(place, peer, &data, address, key).map(|len| {
                    if let Extra::Immediate(extra) = extra {
                        let arrival = Arrival {
                            opcode: opcode::RECEIVE_WRITE_IMMEDIATE,
                            extra,
                            len,
                            is_solicited: header.is_solicited,
                            status: Status::Success,
                        };
                        self.arrive(peer, &arrival);
                    }
                })
            }
            Operation::Read {
                into,
                from,
                invalidate,
            } => {
                let read = self.read_from(place, peer, &into, &from);
                read.and_then(|()| match invalidate {
                    None => Ok(()),
                    Some(key) => (self.device_mut(position).regions.invalidate(key, domain))
                        .map_err(Refusal::local),
                })
            }
            Operation::Send { data, extra } => {
                if !self.has_receive(peer) {
                    return self.no_receive(place);
                }
                self.send_to(place, peer, header, &data, extra)
            }
            Operation::Atomic {
                remote,
                into,
                compare,
                operand,
            } => self.atomic(place, peer, &remote, &into, compare, operand),
            // the code above executes these operations, or only datagram queue pairs have them
            Operation::Invalidate { .. }
            | Operation::Register { .. }
            | Operation::Datagram { .. } => Err(Status::SendFormat),
        };
        Outcome::Done(done.err().unwrap_or(Status::Success))
    }

    fn domain(&self, (position, number): Place) -> u32 {
        (self.device(position).pairs.get(&number)).map_or(0, |pair| pair.domain)
    }

    pub(super) fn has_receive(&self, (position, number): Place) -> bool {
        (self.device(position).pairs.get(&number)).is_some_and(|pair| pair.receive.pending() > 0)
    }

    fn source(&self, place: Place, data: &Data) -> Result<Source<Window>, Status> {
        let regions = &self.device(place.0).regions;
        source(data, regions, self.domain(place), rights::LOCAL_READ).map_err(Refusal::local)
    }

    fn write_to(
        &mut self,
        from: Place,
        to: Place,
        data: &Data,
        address: u64,
        key: u32,
    ) -> Result<u64, Status> {
        let source = self.source(from, data)?;
        let (near, far) = (self.device(from.0), self.device(to.0));
        let target = (far.regions).find(
            key,
            self.domain(to),
            address,
            source.len(),
            rights::REMOTE_WRITE,
        );
        let target = target.map_err(Refusal::remote)?;
        copy(&near.memory, &source, &far.memory, &[target]).map_err(|missing| match missing {
            Missing::Source => Status::SendBounds,
            Missing::Target => Status::ReceiveBounds,
        })?;
        self.count(from.0, to.0, source.len());
        Ok(source.len())
    }

    fn read_from(
        &mut self,
        near: Place,
        far: Place,
        into: &Segment,
        from: &Segment,
    ) -> Result<(), Status> {
        let (device, other) = (self.device(near.0), self.device(far.0));
        let source = window(from, &other.regions, self.domain(far), rights::REMOTE_READ);
        let source = Source::new(vec![], vec![source.map_err(Refusal::remote)?]);
        let target = window(
            into,
            &device.regions,
            self.domain(near),
            rights::LOCAL_WRITE,
        );
        let target = target.map_err(Refusal::local)?;
        copy(&other.memory, &source, &device.memory, &[target]).map_err(
            |missing| match missing {
                Missing::Source => Status::ReceiveBounds,
                Missing::Target => Status::SendBounds,
            },
        )?;
        self.count(far.0, near.0, source.len());
        Ok(())
    }

    fn send_to(
        &mut self,
        from: Place,
        to: Place,
        header: &Header,
        data: &Data,
        extra: Extra,
    ) -> Result<(), Status> {
        let source = self.source(from, data)?;
        let (near, far) = (self.device(from.0), self.device(to.0));
        let copied = self.receive_segment(to).and_then(|segment| {
            if source.len() > segment.len.into() {
                return Err(Status::ReceiveBounds);
            }
            let target = window(&segment, &far.regions, self.domain(to), rights::LOCAL_WRITE);
            let target = target.map_err(Refusal::remote)?;
            copy(&near.memory, &source, &far.memory, &[target]).map_err(|missing| match missing {
                Missing::Source => Status::SendBounds,
                Missing::Target => Status::ReceiveBounds,
            })
        });
        if copied == Err(Status::SendBounds) {
            return copied;
        }
        self.count(from.0, to.0, source.len());
        let domain = self.domain(to);
        let (opcode, extra, copied) = match extra {
            Extra::None => (opcode::RECEIVE, 0, copied),
            Extra::Immediate(value) => (opcode::RECEIVE_SEND_IMMEDIATE, value, copied),
            Extra::Invalidate(key) => {
                let regions = &mut self.device_mut(to.0).regions;
                let invalidated =
                    copied.and_then(|()| regions.invalidate(key, domain).map_err(Refusal::remote));
                (opcode::RECEIVE_INVALIDATE, key, invalidated)
            }
        };
        let arrival = Arrival {
            opcode,
            extra,
            len: source.len(),
            is_solicited: header.is_solicited,
            status: copied.err().unwrap_or(Status::Success),
        };
        self.arrive(to, &arrival);
        copied
    }

    /// The memory of the next receive request.
    pub(super) fn receive_segment(&self, (position, number): Place) -> Result<Segment, Status> {
        let device = self.device(position);
        let pair = device.pairs.get(&number).ok_or(Status::ReceiveFormat)?;
        let request = pair.receive.read(&device.memory, 0);
        Ok(receive(&request.ok_or(Status::ReceiveFormat)?))
    }

    /// Completes the next receive request.
    fn arrive(&mut self, (position, number): Place, arrival: &Arrival) {
        let device = self.device_mut(position);
        let Some(pair) = device.pairs.get_mut(&number) else {
            return;
        };
        let completion = Completion {
            opcode: arrival.opcode,
            is_receive: true,
            status: arrival.status,
            index: pair.receive.position(),
            queue_pair: number,
            extra: arrival.extra,
            size: u32::try_from(arrival.len).unwrap_or(u32::MAX),
            datagram: 0,
            is_solicited: arrival.is_solicited,
        };
        pair.receive.take(1);
        let queue = pair.receive_completions;
        device.complete(queue, &completion);
        if arrival.status != Status::Success {
            device.fail(number);
        }
    }

    fn atomic(
        &mut self,
        near: Place,
        far: Place,
        remote: &Segment,
        into: &Segment,
        compare: Option<u64>,
        operand: u64,
    ) -> Result<(), Status> {
        let (device, other) = (self.device(near.0), self.device(far.0));
        let found = window(
            remote,
            &other.regions,
            self.domain(far),
            rights::REMOTE_ATOMIC,
        );
        let source = found.map_err(Refusal::remote)?;
        if !remote.address.is_multiple_of(8) {
            return Err(Status::ReceiveBounds);
        }
        let target = window(
            into,
            &device.regions,
            self.domain(near),
            rights::LOCAL_WRITE,
        );
        let target = target.map_err(Refusal::local)?;
        // 8 bytes at a multiple of 8 are in one page
        let (address, _) = source
            .locate(&other.memory, 0)
            .ok_or(Status::ReceiveBounds)?;
        let old = other
            .memory
            .u64(address)
            .map_err(|_| Status::ReceiveBounds)?;
        let new = match compare {
            None => old.wrapping_add(operand),
            Some(compare) if compare == old => operand,
            Some(_) => old,
        };
        let answer = Source::new(old.to_le_bytes().to_vec(), vec![]);
        copy(&other.memory, &answer, &device.memory, &[target]).map_err(|_| Status::SendBounds)?;
        (other.memory.write(address, &new.to_le_bytes())).map_err(|_| Status::ReceiveBounds)?;
        self.count(near.0, far.0, 8);
        Ok(())
    }
}

/// Executes a request that registers memory.
fn register(device: &mut Device, domain: u32, operation: &Operation) -> Result<(), Status> {
    let Operation::Register {
        address,
        len,
        key,
        rights,
        count,
        pages,
    } = *operation
    else {
        return Err(Status::SendFormat);
    };
    let region = device.regions.get_mut(key >> 8).ok_or(Status::SendKey)?;
    if region.kind != Kind::Fast {
        return Err(Status::SendKey);
    }
    if region.domain != domain {
        return Err(Status::SendDomain);
    }
    let (table, most) = region.table;
    if u64::from(count) > most {
        return Err(Status::SendFormat);
    }
    let shift = region.pages.shift;
    let offset = address & ((1 << shift) - 1);
    let pages = Pages::new(
        shift,
        offset,
        count.into(),
        pages.map_or(table, Table::Inline),
    );
    let pages = pages.ok_or(Status::SendFormat)?;
    if u64::from(len) > pages.size() {
        return Err(Status::SendBounds);
    }
    region.key = key as u8;
    region.start = address;
    region.size = len.into();
    region.rights = rights;
    region.pages = pages;
    region.is_valid = true;
    Ok(())
}
