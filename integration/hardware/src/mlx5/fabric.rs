// SPDX-License-Identifier: Apache-2.0
//! All functions of a process, and the switch between their ports.

use super::{
    Mac,
    administrator::Administrator,
    aggregation,
    function::Function,
    infiniband::{FIRST_GROUP, FIRST_LID},
    place::Place,
    queue_pair,
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

/// A card: the functions of a PCI slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The hardware addresses of the card's functions, in the order of the ports.
    pub macs: Vec<Mac>,
    /// True if the functions are virtual. Another machine has their physical functions.
    pub is_virtual: bool,
}

/// All functions of a process.
#[derive(Debug, Default)]
pub struct Fabric {
    functions: Vec<Function>,
    pub(super) administrator: Administrator,
    pub(super) now: Duration,
    /// The queue pairs that are in error, or whose next request waits.
    pub(super) waiting: BTreeSet<queue_pair::Place>,
}

impl Fabric {
    /// Creates the functions of `cards` on one fabric.
    pub fn new(layer: LinkLayer, cards: &[Card]) -> Fabric {
        let places = cards.iter().flat_map(|card| {
            (1..).zip(&card.macs).map(|(port, mac)| Place {
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
            Function::new(Place { lid, ..place })
        });
        Fabric {
            functions: functions.collect(),
            ..Fabric::default()
        }
    }

    /// All functions, in the order of the cards.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function at `position`.
    ///
    /// # Panics
    /// No function has the position.
    pub fn function_mut(&mut self, position: usize) -> &mut Function {
        &mut self.functions[position]
    }

    /// Handles a guest's write to BAR 0. Frames that the write sends arrive at once. Messages arrive at once if their
    /// receivers are ready.
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

    /// Delivers a frame to all functions with carrier that accept its destination, except for the sender:
    ///
    /// - If several receivers belong to one aggregate, one of them gets the frame.
    /// - If the sender belongs to an aggregate, the other functions of this aggregate do not get the frame.
    /// - The switch forwards no frame to a reserved group, and answers LACPDUs.
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
