// SPDX-License-Identifier: Apache-2.0
//! The guest memory of a queue.

use super::fields::numbers;

/// A list of pages of guest memory that contain the entries of an event, completion or work queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    addresses: Vec<u64>,
    log_page: u32,
    offset: u64,
}

impl Pages {
    /// Creates the list of pages for `size` bytes from the addresses in `input`, which begin at the byte `at`. The
    /// first entry is `offset` 64ths of a page after the start of the first page. Returns `None` if `input` has too few
    /// pages.
    pub fn new(input: &[u8], at: usize, log_page: u32, offset: u64, size: u64) -> Option<Pages> {
        let log_page = log_page + 12;
        let offset = offset << (log_page - 6);
        let count = (offset + size).div_ceil(1u64.checked_shl(log_page)?) as usize;
        let addresses: Vec<u64> = numbers(input, at)
            .take(count)
            .map(|it| it & !0xfff)
            .collect();
        (addresses.len() == count).then_some(Pages {
            addresses,
            log_page,
            offset,
        })
    }

    /// The address of the byte `at`. Returns an address outside the guest's memory if the list has no such page.
    pub fn address(&self, at: u64) -> u64 {
        let at = at.wrapping_add(self.offset);
        let page = (self.addresses).get((at >> self.log_page) as usize);
        page.map_or(u64::MAX, |page| {
            page.wrapping_add(at & ((1 << self.log_page) - 1))
        })
    }
}
