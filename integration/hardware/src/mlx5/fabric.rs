// SPDX-License-Identifier: Apache-2.0
//! All functions of a process.

use super::{
    Mac,
    function::{Function, Place},
};

/// All functions of a process.
#[derive(Debug, Default)]
pub struct Fabric {
    functions: Vec<Function>,
}

impl Fabric {
    /// Cards, each with the hardware addresses of its ports.
    pub fn new(cards: &[Vec<Mac>]) -> Fabric {
        let functions = cards.iter().flat_map(|macs| {
            (1..).zip(macs).map(|(port, mac)| {
                Function::new(Place {
                    mac: *mac,
                    card: macs[0],
                    port,
                    ports: macs.len() as u8,
                })
            })
        });
        Fabric {
            functions: functions.collect(),
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

    /// A guest writes to BAR 0.
    pub fn write(&mut self, position: usize, offset: u64, data: &[u8]) {
        self.functions[position].write(offset, data);
    }
}
