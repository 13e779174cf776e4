// SPDX-License-Identifier: Apache-2.0
//! A function of the fabric as a PCI function, and the thread that executes pending requests.

use super::{
    fabric::{Fabric, Next},
    registers,
};
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

const VENDOR: u16 = 0x1ded;
const DEVICE: u16 = 0x107f;
/// PCI class "unclassified", as on an instance of Alibaba Cloud.
const CLASS: [u8; 3] = [0, 0xff, 0];
const VECTORS: u16 = 32;
const VECTOR_BAR: u8 = 2;
const VECTOR_BAR_SIZE: usize = 4096;

/// Most requests that the model executes before a guest's doorbell write returns.
const BUDGET_OF_A_DOORBELL: usize = 16;
/// Most requests that the thread executes before it releases the fabric's lock.
const BUDGET_OF_THE_THREAD: usize = 64;

/// The fabric of a process. All ports, the handlers of orders and the thread share it.
#[derive(Debug)]
pub struct Shared {
    fabric: Mutex<Fabric>,
    changed: Condvar,
    begin: Instant,
}

impl Shared {
    /// Shares a fabric.
    pub fn new(fabric: Fabric) -> Arc<Shared> {
        Arc::new(Shared {
            fabric: Mutex::new(fabric),
            changed: Condvar::new(),
            begin: Instant::now(),
        })
    }

    /// Locks the fabric. The lock stays usable after a panic of another thread.
    pub fn fabric(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the fabric, and executes as many requests as after a doorbell.
    pub fn change<T>(&self, change: impl FnOnce(&mut Fabric) -> T) -> T {
        let mut fabric = self.fabric();
        let result = change(&mut fabric);
        if fabric.advance(self.begin.elapsed(), BUDGET_OF_A_DOORBELL) != Next::Idle {
            self.changed.notify_one();
        }
        result
    }

    /// Executes requests that wait for a timer, and requests beyond the budget of a doorbell. Does not return.
    pub fn run(&self) -> ! {
        loop {
            let mut fabric = self.fabric();
            let wait = match fabric.advance(self.begin.elapsed(), BUDGET_OF_THE_THREAD) {
                Next::Now => {
                    drop(fabric);
                    // a doorbell's handler may wait for the lock
                    thread::yield_now();
                    continue;
                }
                Next::At(due) => due.saturating_sub(self.begin.elapsed()),
                Next::Idle => Duration::from_secs(3600),
            };
            let _woken = self.changed.wait_timeout(fabric, wait);
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
        Identity {
            vendor: VENDOR,
            device: DEVICE,
            class: CLASS,
            bars: [registers::BAR_SIZE, 0, VECTOR_BAR_SIZE as u64, 0, 0, 0],
            vectors: VECTORS,
            vector_bar: VECTOR_BAR,
            has_gateway: false,
        }
    }

    fn is_present(&self) -> bool {
        self.shared.fabric().device(self.position).link.is_present
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            0 => self
                .shared
                .fabric()
                .device(self.position)
                .read(offset, data),
            VECTOR_BAR => pci::read(&self.vector_bar, offset, data),
            _ => data.fill(0),
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            0 => self
                .shared
                .change(|fabric| fabric.write(self.position, offset, data)),
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
        change(&mut self.shared.fabric().device_mut(self.position).memory);
    }

    fn interrupts(&mut self, change: &mut dyn FnMut(&mut Vectors)) {
        change(&mut self.shared.fabric().device_mut(self.position).vectors);
    }

    fn reset(&mut self) {
        self.shared.change(|fabric| {
            fabric.device_mut(self.position).reset();
            fabric.wake_all();
        });
    }
}
