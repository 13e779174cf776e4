// SPDX-License-Identifier: Apache-2.0
//! Memory keys (`mkc`). The segments of requests name memory by such a key, which refers to memory by address or by
//! pages.

use super::{
    fields::{Field, field, numbers},
    status::Status,
};
use crate::{memory::Memory, transfer::Window};
use std::collections::BTreeMap;

/// `CREATE_MKEY`.
pub const CREATE: u16 = 0x200;
pub(super) const DESTROY: u16 = 0x202;
const CONTEXT: usize = 0x80;
const IS_FREE: Field = field(0x1, 1).within(CONTEXT);
const MODE_HIGH: Field = field(0x3, 3).within(CONTEXT);
const RIGHTS: Field = field(0x11, 5).within(CONTEXT);
const MODE_LOW: Field = field(0x16, 2).within(CONTEXT);
const VARIANT: Field = field(0x38, 8).within(CONTEXT);
const IS_ENDLESS: Field = field(0x60, 1).within(CONTEXT);
const DOMAIN: Field = field(0x68, 24).within(CONTEXT);
const START: Field = field(0x80, 64).within(CONTEXT);
const LENGTH: Field = field(0xc0, 64).within(CONTEXT);
const LOG_PAGE: Field = field(0x1da, 6).within(CONTEXT);
/// Number of pages in the command, in units of two.
const PAIRS: Field = field(0x300, 32);
const PAGES: usize = 0x110;

/// `MLX5_MKC_ACCESS_MODE_*`.
const BY_ADDRESS: u64 = 0;
const BY_PAGES: u64 = 1;

/// The largest total number of pages of all keys of a function.
const MAX_PAGES: usize = 1 << 20;
/// Supported page sizes, as powers of two.
const LOG_PAGES: std::ops::RangeInclusive<u32> = 12..=40;
/// The key that ends a list of segments (`MLX5_TERMINATE_SCATTER_LIST_LKEY`).
const TERMINATOR: u32 = 0x100;
/// A bit of the length field that is not part of the length.
const FLAG: u32 = 1 << 31;

/// The access rights of a key: `a`, `rw`, `rr`, `lw` and `lr`.
pub mod rights {
    /// The peer may execute atomic operations.
    pub const ATOMIC: u64 = 1 << 4;
    /// The peer may write.
    pub const REMOTE_WRITE: u64 = 1 << 3;
    /// The peer may read.
    pub const REMOTE_READ: u64 = 1 << 2;
    /// Requests of the key's own function may write.
    pub const LOCAL_WRITE: u64 = 1 << 1;
    /// Requests of the key's own function may read.
    pub const LOCAL_READ: u64 = 1;
}

/// A refused access. It has no reason, because the completion does not report one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal;

/// Memory that a request names (`struct mlx5_wqe_data_seg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first address of the segment.
    pub address: u64,
    /// The segment's size in bytes.
    pub len: u32,
    /// The memory key.
    pub key: u32,
}

impl Segment {
    /// Decodes the 16 bytes of a segment.
    pub fn read(segment: &[u8]) -> Segment {
        Segment {
            address: field(64, 64).get(segment),
            len: field(0, 32).get32(segment) & !FLAG,
            key: field(32, 32).get32(segment),
        }
    }

    /// The segments of a receive request before the terminator.
    pub fn list(request: &[u8]) -> impl Iterator<Item = Segment> {
        (request.chunks_exact(16).map(Segment::read)).take_while(|it| it.key != TERMINATOR)
    }
}

/// A contiguous range of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    address: u64,
    len: u64,
}

impl Window for Extent {
    fn len(&self) -> u64 {
        self.len
    }

    fn locate(&self, _memory: &Memory, at: u64) -> Option<(u64, u64)> {
        Some((self.address.checked_add(at)?, self.len.checked_sub(at)?))
    }
}

/// The way in which a key refers to memory.
#[derive(Debug)]
enum Space {
    Address,
    Pages {
        log_page: u32,
        pages: Vec<u64>,
    },
    /// A way that the model does not support.
    Other,
}

/// A memory key.
#[derive(Debug)]
struct MemoryKey {
    variant: u32,
    domain: u32,
    rights: u64,
    start: u64,
    /// The size of the memory, or `None` for all memory.
    size: Option<u64>,
    space: Space,
}

impl MemoryKey {
    /// Creates the key that `CREATE_MKEY` describes. A key in the free state has no rights.
    fn new(input: &[u8]) -> Result<MemoryKey, Status> {
        let space = match MODE_HIGH.get(input) << 2 | MODE_LOW.get(input) {
            BY_ADDRESS => Space::Address,
            BY_PAGES => {
                let count = PAIRS.get(input) as usize * 2;
                let pages: Vec<u64> = numbers(input, PAGES).take(count).collect();
                let log_page = LOG_PAGE.get32(input);
                if !LOG_PAGES.contains(&log_page) {
                    return Err(Status::Parameter);
                }
                if pages.len() < count {
                    return Err(Status::InputLength);
                }
                Space::Pages { log_page, pages }
            }
            _ => Space::Other,
        };
        Ok(MemoryKey {
            variant: VARIANT.get32(input),
            domain: DOMAIN.get32(input),
            rights: match IS_FREE.get(input) {
                0 => RIGHTS.get(input),
                _ => 0,
            },
            start: START.get(input),
            size: (IS_ENDLESS.get(input) == 0).then(|| LENGTH.get(input)),
            space,
        })
    }

    fn pages(&self) -> usize {
        match &self.space {
            Space::Pages { pages, .. } => pages.len(),
            Space::Address | Space::Other => 0,
        }
    }

    /// Appends the guest memory of a segment to `into`.
    fn locate(&self, segment: Segment, into: &mut Vec<Extent>) -> Result<(), Refusal> {
        let mut left = u64::from(segment.len);
        segment.address.checked_add(left).ok_or(Refusal)?;
        if let Some(size) = self.size {
            let offset = segment.address.checked_sub(self.start).ok_or(Refusal)?;
            if left > size || offset > size - left {
                return Err(Refusal);
            }
        }
        let Space::Pages { log_page, pages } = &self.space else {
            into.push(Extent {
                address: segment.address,
                len: left,
            });
            return match self.space {
                Space::Address => Ok(()),
                _ => Err(Refusal),
            };
        };
        let page = 1u64 << log_page;
        // the start address contains the offset of the first byte in the first page
        let first = self.start & !(page - 1);
        let mut at = segment.address.checked_sub(first).ok_or(Refusal)?;
        while left > 0 {
            let base = pages.get((at >> log_page) as usize).ok_or(Refusal)? & !(page - 1);
            let inside = at & (page - 1);
            let len = left.min(page - inside);
            into.push(Extent {
                address: base + inside,
                len,
            });
            (at, left) = (at + len, left - len);
        }
        Ok(())
    }
}

/// All keys of a function, by their upper 24 bits.
#[derive(Debug, Default)]
pub struct Keys {
    by_index: BTreeMap<u32, MemoryKey>,
    pages: usize,
}

impl Keys {
    /// Adds the key that `CREATE_MKEY` describes.
    pub fn add(&mut self, index: u32, input: &[u8]) -> Result<(), Status> {
        let key = MemoryKey::new(input)?;
        if self.pages + key.pages() > MAX_PAGES {
            return Err(Status::Limit);
        }
        self.pages += key.pages();
        self.by_index.insert(index, key);
        Ok(())
    }

    /// Removes a key.
    pub fn remove(&mut self, index: u32) {
        if let Some(key) = self.by_index.remove(&index) {
            self.pages -= key.pages();
        }
    }

    /// Returns the memory of `segments` for a queue pair of protection domain `domain` that needs the rights
    /// `needed`.
    ///
    /// # Errors
    /// The access is refused.
    pub fn find(
        &self,
        segments: &[Segment],
        domain: u32,
        needed: u64,
    ) -> Result<Vec<Extent>, Refusal> {
        let mut extents = Vec::new();
        for segment in segments.iter().filter(|it| it.len > 0) {
            let key = self.by_index.get(&(segment.key >> 8)).ok_or(Refusal)?;
            let is_allowed = key.variant == segment.key & 0xff
                && key.domain == domain
                && key.rights & needed == needed;
            if !is_allowed {
                return Err(Refusal);
            }
            key.locate(*segment, &mut extents)?;
        }
        Ok(extents)
    }
}
