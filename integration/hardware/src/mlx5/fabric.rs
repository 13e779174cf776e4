// SPDX-License-Identifier: Apache-2.0
//! All functions of a process, and the switch between their ports.

use super::{
    Mac,
    administrator::Administrator,
    aggregation,
    function::{self, Function},
    infiniband::{FIRST_GROUP, FIRST_LID},
    verbs::Place,
};
use std::{collections::BTreeSet, time::Duration};

/// The link layer of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet, with RoCE.
    #[default]
    Ethernet,
    /// InfiniBand, with a subnet manager and administrator.
    InfiniBand,
}

/// The functions of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The hardware addresses of its functions, by port.
    pub macs: Vec<Mac>,
    /// The functions are virtual ones, whose physical functions another machine has.
    pub is_virtual: bool,
}

/// All functions of a process.
#[derive(Debug, Default)]
pub struct Fabric {
    functions: Vec<Function>,
    pub(super) administrator: Administrator,
    pub(super) now: Duration,
    /// The queue pairs whose next request waits, or that are in error.
    pub(super) waiting: BTreeSet<Place>,
}

impl Fabric {
    /// The functions of `cards`, on one fabric.
    pub fn new(layer: LinkLayer, cards: &[Card]) -> Fabric {
        let places = cards.iter().flat_map(|card| {
            (1..).zip(&card.macs).map(|(port, mac)| function::Place {
                mac: *mac,
                card: card.macs[0],
                port,
                ports: card.macs.len() as u8,
                lid: None,
                is_virtual: card.is_virtual,
            })
        });
        let functions = places.zip(FIRST_LID..FIRST_GROUP).map(|(place, lid)| {
            let lid = (layer == LinkLayer::InfiniBand).then_some(lid);
            Function::new(function::Place { lid, ..place })
        });
        Fabric {
            functions: functions.collect(),
            ..Fabric::default()
        }
    }

    /// All functions, card by card.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function at `position`.
    ///
    /// # Panics
    /// There is none.
    pub fn function_mut(&mut self, position: usize) -> &mut Function {
        &mut self.functions[position]
    }

    /// A guest writes to BAR 0. Frames that it sends arrive at once, and messages if their receivers are ready.
    pub fn write(&mut self, position: usize, offset: u64, data: &[u8]) {
        let sender = &mut self.functions[position];
        sender.write(offset, data);
        let frames = std::mem::take(&mut sender.outgoing);
        let is_connected = sender.has_carrier();
        for frame in frames.iter().filter(|_| is_connected) {
            self.switch(position, frame);
        }
        self.execute_rung();
    }

    /// Hands a frame to all functions that accept its target, but its sender. Of the functions of an aggregate one gets
    /// the frame, and none if one of them is the sender. The switch keeps frames to reserved groups.
    fn switch(&mut self, from: usize, frame: &[u8]) {
        let Some(target) = frame.first_chunk::<6>() else {
            return;
        };
        let sender = &mut self.functions[from];
        sender.vport.count(false, *target, frame.len());
        if aggregation::is_reserved(*target) {
            if let Some(answer) = sender.aggregate(frame) {
                sender.vport.count(true, *target, answer.len());
                sender.receive(&answer);
            }
            return;
        }
        let mut reached: BTreeSet<Mac> = sender.aggregate_of().into_iter().collect();
        for (position, function) in self.functions.iter_mut().enumerate() {
            let is_there = function.link.is_present && function.has_carrier();
            if position != from
                && is_there
                && function.vport.accepts(*target)
                && (function.aggregate_of()).is_none_or(|aggregate| reached.insert(aggregate))
            {
                function.vport.count(true, *target, frame.len());
                function.receive(frame);
            }
        }
    }
}
