// SPDX-License-Identifier: Apache-2.0
//! The registers of the physical port that the driver wrote.

use std::collections::BTreeMap;

/// The largest number of registers that the model stores, and the most bytes of a register.
const MAX_REGISTERS: usize = 256;
const MAX_SIZE: usize = 1024;

/// The state of a port that is switched on.
pub(super) const UP: u64 = 1;

/// The registers that the driver wrote.
#[derive(Debug)]
pub struct Ports {
    pub(super) mtu: u64,
    pub(super) admin: u64,
    pub(super) others: BTreeMap<u64, Vec<u8>>,
}

impl Default for Ports {
    fn default() -> Ports {
        Ports {
            mtu: 1522,
            admin: UP,
            others: BTreeMap::new(),
        }
    }
}

impl Ports {
    /// Returns true unless the driver has switched the port off.
    pub fn is_enabled(&self) -> bool {
        self.admin == UP
    }

    /// Stores the value of a register that the model does not interpret.
    pub(super) fn keep(&mut self, register: u64, value: &[u8]) {
        if self.others.len() < MAX_REGISTERS || self.others.contains_key(&register) {
            let value = &value[..value.len().min(MAX_SIZE)];
            self.others.insert(register, value.to_vec());
        }
    }
}
