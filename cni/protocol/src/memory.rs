// SPDX-License-Identifier: Apache-2.0
//! The memory of a plugin's process. musl's own allocator maps and unmaps pages all the time; dlmalloc's own lock is
//! musl's mutex, which took a sixth of what an ADD does besides calling the kernel.

use dlmalloc::Dlmalloc;
use std::{
    alloc::{GlobalAlloc, Layout},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How much is mapped at a time, bytes: all that an ADD of a few rails needs. Only what is used takes memory.
const GRANULARITY: usize = 512 << 10;

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
