// SPDX-License-Identifier: Apache-2.0
//! Memory regions, and the rights of their keys.

use super::{
    completions::Status,
    translation::{Pages, Table},
};
use crate::{memory::Memory, transfer};
use std::collections::HashMap;

/// The largest number of regions: twice the number of queue pairs, as the driver calculates it.
pub const MAX_REGIONS: usize = 8192;

/// The key with which the driver's own requests access all memory (`ERDMA_CMD_DEV_CAP_DMA_LOCAL_KEY`).
pub const LOCAL_DMA_KEY: u32 = 0xffff_ff00;

/// Access rights of a region, as bits 5 to 1 of the command contain them.
pub mod rights {
    /// The peer may execute atomic operations.
    pub const REMOTE_ATOMIC: u32 = 1 << 0;
    /// Requests of the region's own function may read.
    pub const LOCAL_READ: u32 = 1 << 1;
    /// Requests of the region's own function may write.
    pub const LOCAL_WRITE: u32 = 1 << 2;
    /// The peer may read.
    pub const REMOTE_READ: u32 = 1 << 3;
    /// The peer may write.
    pub const REMOTE_WRITE: u32 = 1 << 4;
    /// The rights of [`super::LOCAL_DMA_KEY`].
    pub const LOCAL: u32 = LOCAL_READ | LOCAL_WRITE;
}

/// The reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No region has the key, or the key is not valid.
    Key,
    /// The addresses are outside the region.
    Bounds,
    /// The region does not allow the access.
    Rights,
    /// The region belongs to another protection domain.
    Domain,
    /// The addresses wrap around.
    Wrap,
}

impl Refusal {
    /// Returns the status of a request if its own function refuses an access.
    pub fn local(self) -> Status {
        match self {
            Refusal::Key => Status::SendKey,
            Refusal::Bounds => Status::SendBounds,
            Refusal::Rights => Status::SendRights,
            Refusal::Domain => Status::SendDomain,
            Refusal::Wrap => Status::SendWrap,
        }
    }

    /// Returns the status of a request if the peer's function refuses an access.
    pub fn remote(self) -> Status {
        match self {
            Refusal::Key => Status::ReceiveKey,
            Refusal::Bounds => Status::ReceiveBounds,
            Refusal::Rights => Status::ReceiveRights,
            Refusal::Domain => Status::ReceiveDomain,
            Refusal::Wrap => Status::ReceiveWrap,
        }
    }
}

/// The type of a region, `ERDMA_MR_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command registered the region.
    Normal,
    /// A request in a send queue registered the region.
    Fast,
    /// The region contains all memory.
    Dma,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The lowest byte of the region's key.
    pub key: u8,
    /// The region's protection domain.
    pub domain: u32,
    /// The region's type.
    pub kind: Kind,
    /// True if requests may use the region's key.
    pub is_valid: bool,
    /// The first address of the region, as requests name it.
    pub start: u64,
    /// The region's size in bytes.
    pub size: u64,
    /// The allowed accesses: [`rights`].
    pub rights: u32,
    /// The region's pages.
    pub pages: Pages,
    /// The page table of a region that requests register, and the largest number of pages. The command that created the
    /// region set both.
    pub table: (Table, u64),
}

/// The bytes of memory that an access by a key reaches.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The location of the memory.
    pub place: Place,
    /// The window's size in bytes.
    pub len: u64,
}

/// The location of a window's memory.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Contiguous memory at this address.
    Address(u64),
    /// Memory in pages, from this byte offset on.
    Pages(Pages, u64),
}

impl transfer::Window for Window {
    fn len(&self) -> u64 {
        self.len
    }

    fn locate(&self, memory: &Memory, at: u64) -> Option<(u64, u64)> {
        let left = self.len.checked_sub(at)?;
        let (address, contiguous) = match self.place {
            Place::Address(address) => (address.checked_add(at)?, left),
            Place::Pages(pages, offset) => pages.locate(memory, offset.checked_add(at)?)?,
        };
        Some((address, contiguous.min(left)))
    }
}

/// All regions of a function, by the upper 24 bits of their keys.
#[derive(Debug, Default)]
pub struct Regions {
    by_index: HashMap<u32, Region>,
}

impl Regions {
    /// Adds a region. Returns false if a region has this index already, or the function has [`MAX_REGIONS`] regions.
    pub fn add(&mut self, index: u32, region: Region) -> bool {
        if self.by_index.len() >= MAX_REGIONS || self.by_index.contains_key(&index) {
            return false;
        }
        self.by_index.insert(index, region);
        true
    }

    /// Removes a region. Returns false if no region has the index.
    pub fn remove(&mut self, index: u32) -> bool {
        self.by_index.remove(&index).is_some()
    }

    /// The region with this index: the upper 24 bits of its key.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Region> {
        self.by_index.get_mut(&index)
    }

    /// Returns true if there is no region.
    pub fn is_empty(&self) -> bool {
        self.by_index.is_empty()
    }

    /// Translates `len` bytes at `address` by `key`, for a queue pair of protection domain `domain` that needs the
    /// rights `needed`.
    ///
    /// # Errors
    /// The access is refused.
    pub fn find(
        &self,
        key: u32,
        domain: u32,
        address: u64,
        len: u64,
        needed: u32,
    ) -> Result<Window, Refusal> {
        if len == 0 {
            let place = Place::Address(address);
            return Ok(Window { place, len });
        }
        address.checked_add(len - 1).ok_or(Refusal::Wrap)?;
        if key == LOCAL_DMA_KEY && needed & !rights::LOCAL == 0 {
            let place = Place::Address(address);
            return Ok(Window { place, len });
        }
        let region = self.by_index.get(&(key >> 8)).ok_or(Refusal::Key)?;
        if !region.is_valid || region.key != key as u8 {
            return Err(Refusal::Key);
        }
        if region.domain != domain {
            return Err(Refusal::Domain);
        }
        if region.rights & needed != needed {
            return Err(Refusal::Rights);
        }
        if region.kind == Kind::Dma {
            let place = Place::Address(address);
            return Ok(Window { place, len });
        }
        let offset = address.checked_sub(region.start).ok_or(Refusal::Bounds)?;
        if region.size < len || offset > region.size - len {
            return Err(Refusal::Bounds);
        }
        let place = Place::Pages(region.pages, offset);
        Ok(Window { place, len })
    }

    /// Makes a key unusable.
    ///
    /// # Errors
    /// No region that requests can register has the key, or the region belongs to another protection domain.
    pub fn invalidate(&mut self, key: u32, domain: u32) -> Result<(), Refusal> {
        let region = self.by_index.get_mut(&(key >> 8)).ok_or(Refusal::Key)?;
        if region.kind != Kind::Fast || region.key != key as u8 {
            return Err(Refusal::Key);
        }
        if region.domain != domain {
            return Err(Refusal::Domain);
        }
        region.is_valid = false;
        Ok(())
    }
}
