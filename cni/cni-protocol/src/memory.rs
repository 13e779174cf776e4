// SPDX-License-Identifier: Apache-2.0
//! The allocator of a plugin's process. It replaces musl's allocator, which constantly maps and unmaps pages, and whose
//! mutex took a sixth of the time that an ADD spends outside the kernel.

use dlmalloc::Dlmalloc;
use nix::{
    sys::mman::{MmapAdvise, madvise},
    unistd::{SysconfVar, sysconf},
};
use std::{
    alloc::{GlobalAlloc, Layout},
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Step in which the heap grows, bytes. An ADD of a few rails needs one step. Pages that the process does not touch use
/// no memory.
const GRANULARITY: usize = 512 << 10;

/// Size of the heap that an ADD of one rail uses, bytes.
const HEAP: usize = 144 << 10;

/// Size of the stack that an ADD of one rail uses, bytes.
const STACK: usize = 44 << 10;

/// An allocator for `#[global_allocator]`. Its lock is the standard library's `Mutex`, which allocates no memory.
pub struct Memory(Mutex<Dlmalloc>);

impl Memory {
    /// Returns an empty heap.
    #[expect(
        clippy::new_without_default,
        reason = "a static is its only use, which needs a const function"
    )]
    pub const fn new() -> Self {
        let mut heap = Dlmalloc::new();
        assert!(heap.set_granularity(GRANULARITY));
        Self(Mutex::new(heap))
    }

    fn heap(&self) -> MutexGuard<'_, Dlmalloc> {
        // a poisoned lock is usable: dlmalloc does not panic while its state is inconsistent
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: dlmalloc returns memory that is valid for its layout and belongs to the caller until it is freed. dlmalloc
// requires one caller at a time, which the lock ensures.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout's size and alignment are valid ones.
        unsafe { self.heap().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout's size and alignment are valid ones.
        unsafe { self.heap().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got the pointer from this allocator, with this layout.
        unsafe { self.heap().free(pointer, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller got the pointer from this allocator, with this layout.
        unsafe {
            self.heap()
                .realloc(pointer, layout.size(), layout.align(), size)
        }
    }
}

/// Makes the kernel map the pages that an ADD of one rail needs, by two calls. Otherwise the first access to each page
/// causes a fault. These faults took a twelfth of an ADD's time. Linux before 5.14 has no `MADV_POPULATE_WRITE`: the
/// call fails, and the kernel maps the pages one by one.
pub fn populate() {
    // the block is freed when this function returns, so the next allocations use its pages
    let heap = Vec::<u8>::with_capacity(HEAP);
    have_pages(heap.as_ptr(), HEAP);
    let here = 0_u8;
    have_pages((&raw const here).wrapping_sub(STACK), STACK);
}

/// Makes the kernel map all whole pages of the `length` bytes from `start` on.
fn have_pages(start: *const u8, length: usize) {
    let page = page_size();
    let before = start.addr().next_multiple_of(page) - start.addr();
    let length = length.saturating_sub(before) / page * page;
    if let Some(start) = NonNull::new(start.wrapping_add(before).cast_mut()) {
        // SAFETY: MADV_POPULATE_WRITE does not change the content. Pages that it cannot map are mapped on first
        // access.
        let _ = unsafe { madvise(start.cast(), length, MmapAdvise::MADV_POPULATE_WRITE) };
    }
}

fn page_size() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|it| usize::try_from(it).ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{UsageWho, getrusage};

    #[test]
    fn pages_that_are_there_are_touched_without_a_fault() {
        let faults = || {
            let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("usage");
            usage.minor_page_faults()
        };
        let touched = |populated: bool| {
            let mut pages = Vec::<u8>::with_capacity(100 * page_size());
            if populated {
                have_pages(pages.as_ptr(), pages.capacity());
            }
            let before = faults();
            pages.resize(pages.capacity(), 1);
            faults() - before
        };
        // the block contains only a part of the first and the last page
        assert!(touched(true) <= 8, "{}", touched(true));
        assert!(touched(false) >= 50, "{}", touched(false));
    }
}
