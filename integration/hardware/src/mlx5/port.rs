// SPDX-License-Identifier: Apache-2.0
//! A function of the fabric as a PCI function, and the thread that retries waiting requests.

use super::{fabric::Fabric, registers};
use crate::{
    interrupts::Vectors,
    memory::Memory,
    pci::{self, Function, Identity},
};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

const VENDOR: u16 = 0x15b3;
/// The PCI device ID of ConnectX-5.
const DEVICE: u16 = 0x1017;
/// The PCI device ID of a virtual function of any ConnectX.
const VIRTUAL_DEVICE: u16 = 0x101e;
/// PCI classes of Ethernet and InfiniBand controllers.
const ETHERNET: [u8; 3] = [2, 0, 0];
const INFINIBAND: [u8; 3] = [2, 7, 0];
const VECTORS: u16 = 64;
const VECTOR_BAR: u8 = 2;
const VECTOR_BAR_SIZE: usize = 4096;
/// The time between two attempts to execute a waiting request.
const TICK: Duration = Duration::from_millis(1);

/// The fabric of a process. All ports, the handlers of orders and the thread share it.
#[derive(Debug)]
pub struct Shared {
    fabric: Mutex<Fabric>,
    waits: Condvar,
    begin: Instant,
}

impl Shared {
    /// Shares a fabric.
    pub fn new(fabric: Fabric) -> Arc<Shared> {
        Arc::new(Shared {
            fabric: Mutex::new(fabric),
            waits: Condvar::new(),
            begin: Instant::now(),
        })
    }

    /// Locks the fabric. The lock stays usable after a panic of another thread.
    pub fn fabric(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retries waiting requests. Does not return.
    pub fn run(&self) -> ! {
        loop {
            let mut fabric = self.fabric();
            if fabric.advance(self.begin.elapsed()) {
                drop(fabric);
                thread::sleep(TICK);
            } else {
                let _woken = self.waits.wait(fabric);
            }
        }
    }
}

/// The function at a position of the fabric.
#[derive(Debug)]
pub struct Port {
    shared: Arc<Shared>,
    position: usize,
    vector_bar: [u8; VECTOR_BAR_SIZE],
}

impl Port {
    /// Creates the port of the function at `position`, which must exist.
    pub fn new(shared: Arc<Shared>, position: usize) -> Port {
        Port {
            shared,
            position,
            vector_bar: [0; VECTOR_BAR_SIZE],
        }
    }
}

impl Function for Port {
    fn identity(&self) -> Identity {
        let place = self.shared.fabric().functions()[self.position].place;
        Identity {
            vendor: VENDOR,
            device: match place.is_virtual {
                true => VIRTUAL_DEVICE,
                false => DEVICE,
            },
            class: place.lid.map_or(ETHERNET, |_| INFINIBAND),
            bars: [registers::BAR_SIZE, 0, VECTOR_BAR_SIZE as u64, 0, 0, 0],
            vectors: VECTORS,
            vector_bar: VECTOR_BAR,
            // only a physical function has the gateway
            has_gateway: !place.is_virtual,
        }
    }

    fn is_present(&self) -> bool {
        self.shared.fabric().functions()[self.position]
            .link
            .is_present
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            0 => (self.shared.fabric().function_mut(self.position)).read(offset, data),
            VECTOR_BAR => pci::read(&self.vector_bar, offset, data),
            _ => data.fill(0),
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            0 => {
                let mut fabric = self.shared.fabric();
                fabric.set_time(self.shared.begin.elapsed());
                fabric.write(self.position, offset, data);
                if fabric.is_waiting() {
                    self.shared.waits.notify_one();
                }
            }
            VECTOR_BAR => {
                for (at, byte) in pci::positions(offset, data) {
                    if let Some(there) = self.vector_bar.get_mut(at) {
                        *there = byte;
                    }
                }
            }
            _ => {}
        }
    }

    fn memory(&mut self, change: &mut dyn FnMut(&mut Memory)) {
        change(&mut self.shared.fabric().function_mut(self.position).memory);
    }

    fn interrupts(&mut self, change: &mut dyn FnMut(&mut Vectors)) {
        change(&mut self.shared.fabric().function_mut(self.position).vectors);
    }

    fn reset(&mut self) {
        self.shared.fabric().function_mut(self.position).reset();
    }
}
