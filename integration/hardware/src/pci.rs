// SPDX-License-Identifier: Apache-2.0
//! A PCI function: its identity, its configuration space, its BARs and its interrupts.

use crate::{interrupts::Vectors, memory::Memory};

/// Bytes of a conventional configuration space.
pub const CONFIG_SIZE: usize = 256;

/// The identity of a function.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The vendor ID, and the subsystem vendor ID.
    pub vendor: u16,
    /// The device ID.
    pub device: u16,
    /// Base class, subclass and programming interface.
    pub class: [u8; 3],
    /// The sizes of the six BARs in bytes, powers of two. 0 means that there is no such BAR.
    pub bars: [u64; 6],
    /// The number of MSI-X vectors, at least one.
    pub vectors: u16,
    /// The BAR that contains the MSI-X table, and in its second half the pending bits.
    pub vector_bar: u8,
    /// True if the function has the gateway of ConnectX NICs in a vendor-specific capability.
    pub has_gateway: bool,
}

/// A model of a PCI function. The transport calls it for all accesses of the virtual machine.
pub trait Function: Send {
    /// The function's identity, which does not change.
    fn identity(&self) -> Identity;

    /// Returns true if the function responds on its bus. Reads of an absent function return all ones.
    fn is_present(&self) -> bool;

    /// Reads from a BAR. Addresses beyond the registers read as zero.
    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]);

    /// Writes to a BAR.
    fn write(&mut self, bar: u8, offset: u64, data: &[u8]);

    /// Changes the mappings of the memory that the function may access.
    fn memory(&mut self, change: &mut dyn FnMut(&mut Memory));

    /// Changes the function's interrupts.
    fn interrupts(&mut self, change: &mut dyn FnMut(&mut Vectors));

    /// Resets the function. Memory and interrupts are kept.
    fn reset(&mut self);
}

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u8 = 0x10;
const REVISION: usize = 0x08;
const CLASS: usize = 0x09;
const SUBSYSTEM_VENDOR: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const MSIX: usize = 0x40;
const MSIX_ID: u8 = 0x11;
/// The vendor-specific capability with the registers of the gateway: control, counter, semaphore, address, data
/// (`drivers/net/ethernet/mellanox/mlx5/core/lib/pci_vsc.c`).
const GATEWAY: usize = 0x50;
const GATEWAY_ID: u8 = 0x09;
const GATEWAY_SIZE: usize = 0x18;
const GATEWAY_COUNTER: usize = GATEWAY + 0x08;
/// The driver has the gateway if it reads back the value that it wrote. A value of 0 frees the gateway.
const GATEWAY_SEMAPHORE: usize = GATEWAY + 0x0c;
const GATEWAY_SEMAPHORE_END: usize = GATEWAY_SEMAPHORE + 4;

/// The configuration space of a function, with the MSI-X capability, and with the gateway if the function has one. QEMU
/// stores the BAR addresses itself.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_SIZE],
}

impl ConfigSpace {
    /// Creates the configuration space of a function after power-on.
    pub fn new(identity: &Identity) -> ConfigSpace {
        let mut space = ConfigSpace {
            bytes: [0; CONFIG_SIZE],
        };
        let table_bar = u32::from(identity.vector_bar);
        let size = identity.bars.get(usize::from(identity.vector_bar));
        let pending = size.map_or(0, |size| (size / 2) as u32);
        space.put(0, &identity.vendor.to_le_bytes());
        space.put(2, &identity.device.to_le_bytes());
        space.put(STATUS, &[STATUS_CAPABILITIES]);
        space.put(REVISION, &[1]);
        let [base, sub, interface] = identity.class;
        space.put(CLASS, &[interface, sub, base]);
        space.put(SUBSYSTEM_VENDOR, &identity.vendor.to_le_bytes());
        space.put(CAPABILITIES, &[MSIX as u8]);
        space.put(MSIX, &[MSIX_ID, 0]);
        space.put(MSIX + 2, &identity.vectors.saturating_sub(1).to_le_bytes());
        space.put(MSIX + 4, &table_bar.to_le_bytes());
        space.put(MSIX + 8, &(pending | table_bar).to_le_bytes());
        if identity.has_gateway {
            space.put(MSIX + 1, &[GATEWAY as u8]);
            // the status in the control register stays 0: the gateway supports no address space
            space.put(GATEWAY, &[GATEWAY_ID, 0, GATEWAY_SIZE as u8]);
            space.put(GATEWAY_COUNTER, &1u32.to_le_bytes());
        }
        space
    }

    fn has_gateway(&self) -> bool {
        self.bytes[GATEWAY] == GATEWAY_ID
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Reads `data.len()` bytes. Bytes beyond the configuration space are zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        read(&self.bytes, offset, data);
    }

    /// Writes the registers that a driver may change: command, interrupt line, MSI-X control, the gateway's semaphore.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in positions(offset, data) {
            match at {
                COMMAND | INTERRUPT_LINE => self.bytes[at] = byte,
                _ if at == COMMAND + 1 => self.bytes[at] = byte,
                // function mask and enable bit; the size of the table is read-only
                _ if at == MSIX + 3 => self.bytes[at] = self.bytes[at] & 0x3f | byte & 0xc0,
                GATEWAY_SEMAPHORE..GATEWAY_SEMAPHORE_END if self.has_gateway() => {
                    self.bytes[at] = byte
                }
                _ => {}
            }
        }
    }
}

/// Returns position and value of each byte of a write to `offset`. Omits positions that do not fit into `usize`.
pub fn positions(offset: u64, data: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    (data.iter().enumerate())
        .filter_map(move |(i, byte)| Some((usize::try_from(offset).ok()?.checked_add(i)?, *byte)))
}

/// Reads `data.len()` bytes of `from` at `offset`. Bytes beyond the end of `from` are zero.
pub fn read(from: &[u8], offset: u64, data: &mut [u8]) {
    data.fill(0);
    if let Some(rest) = usize::try_from(offset).ok().and_then(|at| from.get(at..)) {
        let len = rest.len().min(data.len());
        data[..len].copy_from_slice(&rest[..len]);
    }
}
