// SPDX-License-Identifier: Apache-2.0
//! Datagrams (UD, and QP 1). The receiver gets 40 bytes of network header before the data. On InfiniBand these bytes
//! can be undefined, and a LID selects the destination: a port, a multicast group, or the subnet administrator.

use super::{
    context::{self, service},
    fabric::Fabric,
    function::Function,
    infiniband::{self, FIRST_GROUP, MANAGER},
    pairs::{Completion, Kind, Syndrome},
    queue_pair::Place,
    requests::{Address, Data, Header},
    verbs::Outcome,
    vport::RoceAddress,
};
use crate::{
    network::{HEADER, Route, is_ipv4},
    transfer::{Source, copy},
};

/// The most bytes of a datagram.
const MAX_DATAGRAM: u64 = 4096;
/// The bit of a request's queue key that selects the key of the sending queue pair instead.
const OWN_KEY: u32 = 1 << 31;
/// The number of the queue pair for management datagrams, and the partition key in completions of datagrams.
const MANAGEMENT: u32 = 1;
const PARTITION: u32 = 0xffff;
/// Flag of a completion: the buffer contains the network header (`flags_rqpn`).
const HAS_HEADER: u32 = 1 << 28;
/// The offset of the next header's type in a GRH, and the value for InfiniBand.
const NEXT_HEADER: usize = 6;
const INFINIBAND: u8 = 0x1b;
/// The RoCE v1 type in the table of RoCE addresses.
const VERSION_1: u8 = 0;

impl Fabric {
    /// Sends a datagram. The request succeeds even if no queue pair receives the datagram.
    pub(super) fn datagram(
        &mut self,
        place: Place,
        header: Header,
        to: &Address,
        data: &Data,
        immediate: Option<u32>,
    ) -> Outcome {
        let (position, number) = place;
        let function = &self.functions()[position];
        let payload = match self.source(place, data) {
            Ok(source) if source.len() > MAX_DATAGRAM => Err(Syndrome::LocalLength),
            Ok(source) => source
                .read(&function.memory)
                .ok_or(Syndrome::LocalProtection),
            Err(syndrome) => Err(syndrome),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(syndrome) => return Outcome::Failed(syndrome),
        };
        let Some((network, kind)) = function.network_header(to, payload.len()) else {
            return Outcome::Failed(Syndrome::LocalOperation);
        };
        let is_to_manager =
            function.place.lid.is_some() && to.lid == MANAGER && to.number == MANAGEMENT;
        let key = match to.key & OWN_KEY {
            0 => to.key,
            _ => function.pair(number, context::KEY) as u32,
        };
        let is_management = function.pair(number, context::SERVICE) == service::QP1;
        let completion = Completion {
            kind: match immediate {
                None => Kind::Receive,
                Some(_) => Kind::ReceiveImmediate,
            },
            extra: immediate.unwrap_or(PARTITION),
            sender: kind | if is_management { MANAGEMENT } else { number },
            lid: function.place.lid.unwrap_or_default(),
            vlan: function.vport.vlan(to.source),
            is_solicited: header.is_solicited,
            ..Completion::RECEIVED
        };
        let message = [&network[..], &payload].concat();
        for receiver in self.receivers(place, to, key) {
            self.count(position, receiver.0, payload.len() as u64);
            self.deliver(receiver, message.clone(), completion);
        }
        if is_to_manager && self.is_connected(position, position) {
            self.administer(place, key, &payload);
        }
        Outcome::Done(payload.len() as u32)
    }

    /// The queue pairs that receive a datagram.
    fn receivers(&self, place: Place, to: &Address, key: u32) -> Vec<Place> {
        let (position, number) = place;
        let sender = &self.functions()[position];
        if sender.place.lid.is_none() {
            let there = self.find(&to.gid, to.mac, sender.vport.vlan(to.source));
            let there = there.filter(|it| self.is_connected(position, *it));
            let receiver = there.and_then(|there| Some((there, self.receiver(there, to, key)?)));
            return receiver.into_iter().collect();
        }
        let ports = (0..self.functions().len()).filter(|it| self.is_connected(position, *it));
        let found = ports.flat_map(|there| {
            let function = &self.functions()[there];
            let one = (function.place.lid == Some(to.lid)).then(|| self.receiver(there, to, key));
            let port = infiniband::gid(&function.place);
            let is_member = to.lid >= FIRST_GROUP && self.administrator.is_member(to.lid, &port);
            let attached = (function.pairs.iter())
                .filter(move |(_, pair)| is_member && pair.groups.contains(&to.gid))
                .map(|(number, _)| *number)
                .filter(move |number| function.takes(*number, service::DATAGRAM, key));
            let numbers = one.flatten().into_iter().chain(attached);
            let numbers = numbers.filter(|it| sender.shares_partition(number, function, *it));
            numbers
                .map(move |number| (there, number))
                .collect::<Vec<_>>()
        });
        found.collect()
    }

    /// Passes a datagram to the subnet administrator. Delivers the administrator's answer, which has no network header,
    /// if the sender can receive it.
    fn administer(&mut self, (position, number): Place, key: u32, request: &[u8]) {
        let functions = self.functions().iter();
        let active = functions.filter(|it| it.link.is_present && it.has_carrier());
        let ports = active.filter_map(|it| Some((infiniband::gid(&it.place), it.place.lid?)));
        let ports: Vec<_> = ports.collect();
        let answer = self.administrator.answer(request, &ports);
        let service = self.functions()[position].pair(number, context::SERVICE);
        let is_taken = self.functions()[position].takes(number, service, key);
        if let Some(answer) = answer.filter(|_| is_taken) {
            let completion = Completion {
                extra: PARTITION,
                sender: MANAGEMENT,
                lid: MANAGER,
                ..Completion::RECEIVED
            };
            self.deliver(
                (position, number),
                [&[0; HEADER][..], &answer].concat(),
                completion,
            );
        }
    }

    /// The queue pair that receives a datagram to the function at `position`.
    fn receiver(&self, position: usize, to: &Address, key: u32) -> Option<u32> {
        let function = &self.functions()[position];
        let mut numbers = function.pairs.keys().copied();
        match to.number {
            MANAGEMENT => numbers.find(|it| function.takes(*it, service::QP1, key)),
            number => Some(number).filter(|it| function.takes(*it, service::DATAGRAM, key)),
        }
    }

    fn deliver(&mut self, (position, number): Place, message: Vec<u8>, completion: Completion) {
        let function = self.function_mut(position);
        let len = message.len() as u32;
        let target = function.receive_memory(number, len.into());
        let stored = target.and_then(|target| {
            let memory = &function.memory;
            (copy(memory, &Source::new(message, vec![]), memory, &target))
                .map_err(|_| Syndrome::LocalProtection)
        });
        let completion = Completion { len, ..completion };
        match stored {
            Ok(()) => function.received(number, completion),
            Err(syndrome) => {
                let failed = Completion {
                    kind: Kind::ReceiveError,
                    syndrome: Some(syndrome),
                    ..completion
                };
                function.received(number, failed);
                function.fail_pair(number);
            }
        }
    }
}

impl Function {
    /// Returns true if a queue pair currently accepts datagrams of a service with a key.
    fn takes(&self, number: u32, service: u64, key: u32) -> bool {
        self.receives(number)
            && self.pair(number, context::SERVICE) == service
            && self.pair(number, context::KEY) == u64::from(key)
            && self.has_receive(number)
    }

    /// The network header of a datagram of `len` bytes, and its description in the completion. Returns `None` if the
    /// function does not have the RoCE address that the request names.
    fn network_header(&self, to: &Address, len: usize) -> Option<([u8; HEADER], u32)> {
        let is_infiniband = self.place.lid.is_some();
        if is_infiniband && !to.has_header {
            return Some(([0; HEADER], 0));
        }
        let (from, kind) = match is_infiniband {
            true => (infiniband::gid(&self.place), 0),
            false => {
                let address = self.vport.roce_address(to.source)?;
                (address.gid, header_type(&address))
            }
        };
        let route = Route {
            from,
            to: to.gid,
            traffic_class: to.traffic_class,
            hop_limit: to.hop_limit,
            flow_label: to.flow_label,
        };
        let mut header = route.header(len);
        if is_infiniband {
            header[NEXT_HEADER] = INFINIBAND;
        }
        Some((header, HAS_HEADER | kind << 24))
    }
}

/// `MLX5_CQE_ROCE_L3_HEADER_TYPE_*`.
fn header_type(from: &RoceAddress) -> u32 {
    match (from.version, is_ipv4(&from.gid)) {
        (VERSION_1, _) => 0,
        (_, false) => 1,
        (_, true) => 2,
    }
}
