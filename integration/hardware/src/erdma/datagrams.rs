// SPDX-License-Identifier: Apache-2.0
//! Datagrams of RoCE v2 (UD, and QP 1). The receiver gets 40 bytes of network header before the data: an IPv6 header,
//! or an IPv4 header in the last 20 of these bytes.

use super::{
    completions::{Completion, Status},
    device::counter,
    fabric::{Fabric, Outcome, Place},
    queue_pairs::Service,
    regions::{Refusal, Window, rights},
    requests::{Data, Extra, Header, opcode},
    transfer::{source, window},
};
use crate::{
    network::{HEADER, Route, is_ipv4},
    transfer::{Source, copy},
};

/// The most bytes of a datagram.
pub const MAX_DATAGRAM: u64 = 4096;

impl Fabric {
    /// Sends a datagram. The request succeeds even if the fabric loses the datagram, or no queue pair accepts it.
    pub(super) fn datagram(
        &mut self,
        place: Place,
        header: &Header,
        data: &Data,
        extra: Extra,
        handle: u32,
        to: (u32, u32),
    ) -> Outcome {
        let (position, number) = place;
        let device = self.device(position);
        let Some(pair) = device.pairs.get(&number) else {
            return Outcome::Later(None);
        };
        let address = match device.handles.get(&handle) {
            Some((domain, address)) if *domain == pair.domain => *address,
            Some(_) => return Outcome::Done(Status::SendDomain),
            None => return Outcome::Done(Status::SendFormat),
        };
        let Some(sender) = device.gids.get(&address.source).copied() else {
            return Outcome::Done(Status::SendFormat);
        };
        let source = source(data, &device.regions, pair.domain, rights::LOCAL_READ);
        let bytes = match source
            .map_err(Refusal::local)
            .and_then(|it| self.bytes(position, &it))
        {
            Ok(bytes) => bytes,
            Err(status) => return Outcome::Done(status),
        };
        // a lost datagram is not sent again
        match self.fault(place) {
            Some(Outcome::Later(due)) if !self.is_lost(place) => return Outcome::Later(due),
            Some(_) => return Outcome::Done(Status::Success),
            None => {}
        }
        let receiver = self
            .find(&address)
            .filter(|it| self.is_connected(position, *it));
        let is_sent = receiver.is_some_and(|receiver| {
            let words = match extra {
                Extra::Immediate(value) => (opcode::RECEIVE_SEND_IMMEDIATE, value),
                _ => (opcode::RECEIVE, 0),
            };
            let route = Route {
                from: sender,
                to: address.gid,
                traffic_class: address.traffic_class,
                hop_limit: address.hop_limit,
                flow_label: address.flow_label,
            };
            let network: [u8; HEADER] = route.header(bytes.len());
            let message = [&network[..], &bytes].concat();
            let datagram = u32::from(!is_ipv4(&address.gid)) << 31
                | u32::from(address.service_level) << 20
                | number;
            self.count(position, receiver, bytes.len() as u64);
            self.deliver(
                (receiver, to.0),
                to.1,
                &message,
                words,
                datagram,
                header.is_solicited,
            )
        });
        if !is_sent && let Some(receiver) = receiver {
            self.device_mut(receiver).counters[counter::RECEIVED_DROPPED] += 1;
        }
        Outcome::Done(Status::Success)
    }

    fn is_lost(&self, (position, number): Place) -> bool {
        (self.device(position).pairs.get(&number)).is_some_and(|pair| pair.attempt.lost > 0)
    }

    fn bytes(&self, position: usize, source: &Source<Window>) -> Result<Vec<u8>, Status> {
        if source.len() > MAX_DATAGRAM {
            return Err(Status::SendFormat);
        }
        source
            .read(&self.device(position).memory)
            .ok_or(Status::SendBounds)
    }

    /// Delivers a datagram to a queue pair. Returns true if the queue pair accepts the datagram.
    fn deliver(
        &mut self,
        place: Place,
        key: u32,
        message: &[u8],
        (opcode, extra): (u8, u32),
        datagram: u32,
        is_solicited: bool,
    ) -> bool {
        let (position, number) = place;
        let device = self.device(position);
        let Some(pair) = device.pairs.get(&number) else {
            return false;
        };
        let is_for_it =
            pair.service == Service::Datagram && pair.state.receives() && pair.key == key;
        if !is_for_it || !self.has_receive(place) {
            return false;
        }
        let domain = pair.domain;
        let received = self.receive_segment(place).and_then(|segment| {
            if message.len() > segment.len as usize {
                return Err(Status::ReceiveBounds);
            }
            let target = window(&segment, &device.regions, domain, rights::LOCAL_WRITE)
                .map_err(Refusal::remote)?;
            let source = Source::new(message.to_vec(), vec![]);
            copy(&device.memory, &source, &device.memory, &[target])
                .map_err(|_| Status::ReceiveBounds)
        });
        let status = received.err().unwrap_or(Status::Success);
        let device = self.device_mut(position);
        let Some(pair) = device.pairs.get_mut(&number) else {
            return false;
        };
        let completion = Completion {
            opcode,
            is_receive: true,
            status,
            index: pair.receive.position(),
            queue_pair: number,
            extra,
            size: message.len() as u32,
            datagram,
            is_solicited,
        };
        pair.receive.take(1);
        let queue = pair.receive_completions;
        device.complete(queue, &completion);
        if status != Status::Success {
            device.fail(number);
        }
        true
    }
}
