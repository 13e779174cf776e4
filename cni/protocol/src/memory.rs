// SPDX-License-Identifier: Apache-2.0
//! The memory of a plugin's process. musl's own allocator maps and unmaps pages all the time; dlmalloc's own lock is
//! musl's mutex, which took a sixth of what an ADD does besides calling the kernel.

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

/// How much is mapped at a time, bytes: all that an ADD of a few rails needs. Only what is used takes memory.
const GRANULARITY: usize = 512 << 10;

/// What an ADD of one rail uses of the heap, bytes.
const HEAP: usize = 144 << 10;

/// And of the stack.
const STACK: usize = 44 << 10;

/// An allocator for `#[global_allocator]`. The standard library's lock takes no memory itself.
pub struct Memory(Mutex<Dlmalloc>);

impl Memory {
    /// With nothing in it yet.
    #[expect(
        clippy::new_without_default,
        reason = "it is only made for a static, which needs a const function"
    )]
    pub const fn new() -> Self {
        let mut heap = Dlmalloc::new();
        assert!(heap.set_granularity(GRANULARITY));
        Self(Mutex::new(heap))
    }

    fn heap(&self) -> MutexGuard<'_, Dlmalloc> {
        // nothing in dlmalloc panics between two states that are in order
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: what is given is valid for its layout until it is given back, and nobody else's: that is dlmalloc's own
// promise, to one caller at a time, which the lock sees to.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout's size and alignment are valid ones.
        unsafe { self.heap().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.heap().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller has it from here, with this layout.
        unsafe { self.heap().free(pointer, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            self.heap()
                .realloc(pointer, layout.size(), layout.align(), size)
        }
    }
}

/// Has the kernel make the pages that an ADD will use, all at once. Otherwise it makes each when it is first touched, by
/// a fault, which cost a twelfth of an ADD. Before Linux 5.14 (`MADV_POPULATE_WRITE`) they come one by one.
pub fn populate() {
    // free again, it is what is given out next
    let heap = Vec::<u8>::with_capacity(HEAP);
    have_pages(heap.as_ptr(), HEAP);
    let here = 0_u8;
    have_pages((&raw const here).wrapping_sub(STACK), STACK);
}

/// All whole pages from `start` on.
fn have_pages(start: *const u8, length: usize) {
    let page = page_size();
    let before = start.addr().next_multiple_of(page) - start.addr();
    let length = length.saturating_sub(before) / page * page;
    if let Some(start) = NonNull::new(start.wrapping_add(before).cast_mut()) {
        // SAFETY: not a byte of what is there is changed. What cannot be had is had later, when it is needed.
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
        // the first and the last page are had in part only
        assert!(touched(true) <= 8, "{}", touched(true));
        assert!(touched(false) >= 50, "{}", touched(false));
    }
}
