// SPDX-License-Identifier: Apache-2.0
//! MSI-X vectors of a function. QEMU passes an eventfd for each vector that the driver has enabled.

use std::{fs::File, io::Write};

/// The vectors of one function.
#[derive(Debug, Default)]
pub struct Vectors {
    events: Vec<Option<File>>,
}

impl Vectors {
    /// Sets the eventfds of the vectors from `start` on. A vector without an eventfd is disabled.
    pub fn set(&mut self, start: usize, events: impl IntoIterator<Item = Option<File>>) {
        for (vector, event) in (start..).zip(events) {
            if vector >= self.events.len() {
                self.events.resize_with(vector + 1, || None);
            }
            self.events[vector] = event;
        }
    }

    /// Disables all vectors.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Raises the interrupt `vector`. Does nothing if the vector is disabled.
    pub fn raise(&self, vector: usize) {
        if let Some(Some(event)) = self.events.get(vector)
            && let Err(error) = (&*event).write_all(&1u64.to_ne_bytes())
        {
            log::warn!("interrupt {vector}: {error}");
        }
    }
}
