// SPDX-License-Identifier: Apache-2.0
//! Datagrams of RoCE v2 (UD, and QP 1). The receiver gets 40 bytes of network header before the data: an IPv6 header, or
//! an IPv4 header in the last 20 of them.

use super::{
    completions::{Completion, Status},
    device::counter,
    fabric::{Fabric, Outcome, Place},
    queue_pairs::{AddressVector, Service},
    regions::{Refusal, rights},
    requests::{Data, Extra, Header, opcode},
    transfer::{Source, copy, window},
};

/// Bytes of the network header.
pub const NETWORK_HEADER: usize = 40;
/// The most bytes of a datagram.
pub const MAX_DATAGRAM: u64 = 4096;
const IPV4: usize = 20;
/// UDP.
const PROTOCOL: u8 = 17;
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Fabric {
    /// Sends a datagram. The fabric drops it if there is no receiver. The sender gets a successful completion all the same.
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
        let source = Source::new(data, &device.regions, pair.domain, rights::LOCAL_READ);
        let bytes = match source
            .map_err(Refusal::local)
            .and_then(|it| self.bytes(position, &it))
        {
            Ok(bytes) => bytes,
            Err(status) => return Outcome::Done(status),
        };
        // a lost one is not sent again
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
            let network = network_header(&address, &sender, bytes.len());
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

    fn bytes(&self, position: usize, source: &Source) -> Result<Vec<u8>, Status> {
        if source.len() > MAX_DATAGRAM {
            return Err(Status::SendFormat);
        }
        source
            .read(&self.device(position).memory)
            .ok_or(Status::SendBounds)
    }

    /// Whether a queue pair takes it.
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
            let source = Source::Bytes(message.to_vec());
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

fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid.starts_with(&MAPPED)
}

/// The header of a datagram of `len` bytes.
fn network_header(address: &AddressVector, sender: &[u8; 16], len: usize) -> [u8; NETWORK_HEADER] {
    let mut header = [0; NETWORK_HEADER];
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    if is_ipv4(&address.gid) {
        let [high, low] = len.saturating_add(IPV4 as u16).to_be_bytes();
        let ipv4 = &mut header[NETWORK_HEADER - IPV4..];
        ipv4[..4].copy_from_slice(&[0x45, address.traffic_class, high, low]);
        // don't fragment
        ipv4[6] = 0x40;
        ipv4[8..10].copy_from_slice(&[address.hop_limit, PROTOCOL]);
        ipv4[12..16].copy_from_slice(&sender[12..]);
        ipv4[16..20].copy_from_slice(&address.gid[12..]);
        let sum: u32 = ipv4
            .chunks_exact(2)
            .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ipv4[10..12].copy_from_slice(&sum.to_be_bytes());
        return header;
    }
    let first = 6 << 28 | u32::from(address.traffic_class) << 20 | address.flow_label;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..8].copy_from_slice(&[PROTOCOL, address.hop_limit]);
    header[8..24].copy_from_slice(sender);
    header[24..].copy_from_slice(&address.gid);
    header
}
