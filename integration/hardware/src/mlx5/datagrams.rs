// SPDX-License-Identifier: Apache-2.0
//! Datagrams (UD, and QP 1). The receiver gets 40 bytes of network header before the data.

use super::{
    context::{self, service},
    fabric::Fabric,
    pairs::{Completion, Kind, Syndrome},
    requests::{Address, Data, Header},
    verbs::{Outcome, Place},
    vport::RoceAddress,
};
use crate::{
    network::{Route, is_ipv4},
    transfer::{Source, copy},
};

/// The most bytes of a datagram.
const MAX_DATAGRAM: u64 = 4096;
/// The bit of a key by which the request means that of its queue pair.
const OWN_KEY: u32 = 1 << 31;
/// The number of the queue pair for management datagrams, and the key of its partition.
const MANAGEMENT: u32 = 1;
const PARTITION: u32 = 0xffff;
/// The network header is in the buffer (`flags_rqpn`).
const HAS_HEADER: u32 = 1 << 28;
/// RoCE v1, of the table of RoCE addresses.
const VERSION_1: u8 = 0;

impl Fabric {
    /// Sends a datagram. The fabric drops it if there is no receiver. The sender gets a successful completion all the same.
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
        let Some(from) = function.vport.roce_address(to.source) else {
            return Outcome::Failed(Syndrome::LocalOperation);
        };
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
            sender: HAS_HEADER
                | header_type(&from) << 24
                | if is_management { MANAGEMENT } else { number },
            is_solicited: header.is_solicited,
            ..Completion::RECEIVED
        };
        let route = Route {
            from: from.gid,
            to: to.gid,
            traffic_class: to.traffic_class,
            hop_limit: to.hop_limit,
            flow_label: to.flow_label,
        };
        let message = [&route.header(payload.len())[..], &payload].concat();
        let receiver = self.find(&to.gid, to.mac);
        let receiver = receiver.filter(|it| self.is_connected(position, *it));
        let receiver = receiver.and_then(|there| Some((there, self.receiver(there, to, key)?)));
        if let Some(receiver) = receiver {
            self.count(position, receiver.0, payload.len() as u64);
            self.deliver(receiver, message, completion);
        }
        Outcome::Done(payload.len() as u32)
    }

    /// The queue pair of a function that takes a datagram.
    fn receiver(&self, position: usize, to: &Address, key: u32) -> Option<u32> {
        let function = &self.functions()[position];
        let is_of = |number: u32, kind| function.pair(number, context::SERVICE) == kind;
        let number = match to.number {
            MANAGEMENT => (function.pairs.keys().copied()).find(|it| is_of(*it, service::QP1))?,
            number => Some(number).filter(|it| is_of(*it, service::DATAGRAM))?,
        };
        let is_for_it = function.receives(number)
            && function.pair(number, context::KEY) == u64::from(key)
            && function.has_receive(number);
        is_for_it.then_some(number)
    }

    fn deliver(&mut self, (position, number): Place, message: Vec<u8>, completion: Completion) {
        let function = self.function_mut(position);
        let len = message.len() as u32;
        let target = function.receive_memory(number, len.into());
        let stored = target.and_then(|target| {
            let memory = &function.memory;
            (copy(memory, &Source::Bytes(message), memory, &target))
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

/// `MLX5_CQE_ROCE_L3_HEADER_TYPE_*`.
fn header_type(from: &RoceAddress) -> u32 {
    match (from.version, is_ipv4(&from.gid)) {
        (VERSION_1, _) => 0,
        (_, false) => 1,
        (_, true) => 2,
    }
}
