// SPDX-License-Identifier: Apache-2.0
//! The memory of the virtual machine to which a function belongs. QEMU shares the memory by file descriptors.

use std::{fs::File, io, sync::Arc, sync::atomic::Ordering};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion,
};

/// An access to an address that is not mapped, because the virtual machine does not share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped;

/// All mappings of one function.
#[derive(Debug, Default)]
pub struct Memory {
    mappings: GuestMemoryMmap,
}

impl Memory {
    /// Maps `size` bytes of `file` from `offset` on. The function sees them at `address`.
    ///
    /// # Errors
    /// `mmap` fails, or the range overlaps an existing mapping.
    pub fn map(&mut self, address: u64, size: u64, offset: u64, file: File) -> io::Result<()> {
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let mapping =
            MmapRegion::from_file(FileOffset::new(file, offset), size).map_err(io::Error::other)?;
        self.insert(address, mapping)
    }

    /// Maps `size` bytes of zeroes at `address`. No virtual machine shares this mapping: unit tests use the mapping as
    /// the memory of a guest.
    ///
    /// # Errors
    /// `mmap` fails, or the range overlaps an existing mapping or ends beyond the address space.
    pub fn map_anonymous(&mut self, address: u64, size: usize) -> io::Result<()> {
        self.insert(address, MmapRegion::new(size).map_err(io::Error::other)?)
    }

    fn insert(&mut self, address: u64, mapping: MmapRegion) -> io::Result<()> {
        let region = GuestRegionMmap::new(mapping, GuestAddress(address))
            .ok_or_else(|| io::Error::other("the range ends beyond the address space"))?;
        self.mappings = self
            .mappings
            .insert_region(Arc::new(region))
            .map_err(io::Error::other)?;
        Ok(())
    }

    /// Removes the mappings that are completely within `size` bytes from `address` on.
    pub fn unmap(&mut self, address: u64, size: u64) {
        let end = u128::from(address) + u128::from(size);
        let gone: Vec<_> = (self.mappings.iter())
            .map(|region| (region.start_addr(), region.len()))
            .filter(|(start, len)| {
                start.0 >= address && u128::from(start.0) + u128::from(*len) <= end
            })
            .collect();
        for (start, len) in gone {
            if let Ok((rest, _)) = self.mappings.remove_region(start, len) {
                self.mappings = rest;
            }
        }
    }

    /// Removes all mappings.
    pub fn clear(&mut self) {
        self.mappings = GuestMemoryMmap::default();
    }

    /// Reads `into.len()` bytes at `address`.
    ///
    /// # Errors
    /// A part of the range is not mapped.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        (self.mappings.read_slice(into, GuestAddress(address))).map_err(|_| Unmapped)
    }

    /// Writes `from` to `address`.
    ///
    /// # Errors
    /// A part of the range is not mapped.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        (self.mappings.write_slice(from, GuestAddress(address))).map_err(|_| Unmapped)
    }

    /// Reads a little-endian 64-bit number.
    ///
    /// # Errors
    /// A part of the number is not mapped.
    pub fn u64(&self, address: u64) -> Result<u64, Unmapped> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a queue entry whose first 4 bytes contain the owner bit. Writes these 4 bytes last and in one access,
    /// because the guest polls them.
    ///
    /// # Errors
    /// A part of the entry is not mapped, or `address` is not a multiple of 4.
    pub fn publish(&self, address: u64, entry: &[u8]) -> Result<(), Unmapped> {
        let Some((owner, rest)) = entry.split_first_chunk::<4>() else {
            return Ok(());
        };
        self.write(address.checked_add(4).ok_or(Unmapped)?, rest)?;
        let owner = u32::from_ne_bytes(*owner);
        (self
            .mappings
            .store(owner, GuestAddress(address), Ordering::Release))
        .map_err(|_| Unmapped)
    }

    /// Writes a queue entry whose last 4 bytes contain the owner bit. Writes these 4 bytes last and in one access.
    ///
    /// # Errors
    /// A part of the entry is not mapped, or the entry's end is not at a multiple of 4.
    pub fn publish_by_end(&self, address: u64, entry: &[u8]) -> Result<(), Unmapped> {
        let Some((rest, owner)) = entry.split_last_chunk::<4>() else {
            return Ok(());
        };
        self.write(address, rest)?;
        let end = (address.checked_add(rest.len() as u64)).ok_or(Unmapped)?;
        let owner = u32::from_ne_bytes(*owner);
        (self
            .mappings
            .store(owner, GuestAddress(end), Ordering::Release))
        .map_err(|_| Unmapped)
    }
}
