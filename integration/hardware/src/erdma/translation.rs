// SPDX-License-Identifier: Apache-2.0
//! Translation tables (MTT). A buffer is contiguous for a program of the guest; the tables list the pages of guest
//! memory that contain it.
//!
//! A table has up to three levels:
//!
//! - Level 0: the command itself contains the addresses of up to four pages.
//! - Level 1: the command contains the address of an array of page addresses.
//! - Levels 2 and 3: the command contains the address of a page. This page lists the pages of the level below.
//!
//! The tables stay in the guest's memory, and each access reads them again.

use crate::memory::Memory;

/// The smallest page: 4 KiB (`ERDMA_HW_PAGE_SHIFT`).
pub const HARDWARE_PAGE_SHIFT: u32 = 12;

/// The largest number of page addresses in a command.
pub const INLINE_PAGES: usize = 4;

/// Location of the page addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The command contains the addresses.
    Inline([u64; INLINE_PAGES]),
    /// The guest's memory contains the addresses.
    Tree {
        /// The address of the topmost array.
        root: u64,
        /// The number of levels, 1 to 3.
        levels: u32,
        /// The size of an array below the topmost level, as a power of two in bytes.
        page_shift: u32,
    },
}

/// A buffer that consists of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The size of a page, as a power of two in bytes.
    pub shift: u32,
    /// The offset of the buffer in its first page, in bytes.
    pub offset: u64,
    /// The number of pages.
    pub count: u64,
    /// The addresses of the pages.
    pub table: Table,
}

impl Pages {
    /// Creates a buffer of `count` pages. Returns `None` if a number is out of range.
    pub fn new(shift: u32, offset: u64, count: u64, table: Table) -> Option<Pages> {
        let is_valid = match table {
            Table::Inline(pages) => count <= pages.len() as u64,
            Table::Tree {
                levels, page_shift, ..
            } => (1..=3).contains(&levels) && (HARDWARE_PAGE_SHIFT..32).contains(&page_shift),
        };
        (is_valid && (HARDWARE_PAGE_SHIFT..32).contains(&shift) && offset < 1 << shift).then_some(
            Pages {
                shift,
                offset,
                count,
                table,
            },
        )
    }

    /// Returns the number of bytes from the start of the buffer to the end of its last page.
    pub fn size(&self) -> u64 {
        (self.count.saturating_mul(1 << self.shift)).saturating_sub(self.offset)
    }

    /// The address of byte `offset` of the buffer, and the number of contiguous bytes from this address on. Returns
    /// `None` beyond the last page, and if a table's memory is not mapped.
    pub fn locate(&self, memory: &Memory, offset: u64) -> Option<(u64, u64)> {
        let at = self.offset.checked_add(offset)?;
        let page = self.page(memory, at >> self.shift)?;
        let inside = at & ((1 << self.shift) - 1);
        Some((page.checked_add(inside)?, (1 << self.shift) - inside))
    }

    /// The address of entry `slot` of a queue whose entries have `size` bytes. Returns `None` if [`Pages::locate`] does
    /// not find the entry, or the entry is not in one page.
    pub fn entry(&self, memory: &Memory, slot: u64, size: u64) -> Option<u64> {
        let (address, contiguous) = self.locate(memory, slot.checked_mul(size)?)?;
        (contiguous >= size).then_some(address)
    }

    fn page(&self, memory: &Memory, index: u64) -> Option<u64> {
        if index >= self.count {
            return None;
        }
        let (mut array, levels, page_shift) = match self.table {
            Table::Inline(pages) => return pages.get(usize::try_from(index).ok()?).copied(),
            Table::Tree {
                root,
                levels,
                page_shift,
            } => (root, levels, page_shift),
        };
        // the number of index bits that select an entry of one array
        let width = page_shift - 3;
        for level in (1..levels).rev() {
            // the model does not limit the size of the topmost array
            let above = index >> (width * level);
            let entry = match level + 1 == levels {
                true => above,
                false => above & ((1 << width) - 1),
            };
            array = memory.u64(array.checked_add(entry.checked_mul(8)?)?).ok()?;
        }
        let entry = match levels {
            1 => index,
            _ => index & ((1 << width) - 1),
        };
        memory.u64(array.checked_add(entry.checked_mul(8)?)?).ok()
    }
}
