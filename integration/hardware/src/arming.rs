// SPDX-License-Identifier: Apache-2.0
//! Events of a completion queue. A driver requests the next event, and states how many entries it has read.

/// The kind of event that a driver has requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Any,
    Solicited,
}

/// Entry counts of a completion queue, and the driver's request for the next event.
#[derive(Debug)]
pub struct Arming {
    produced: u32,
    /// The value of `produced` after the newest completion that solicits an event.
    solicited: u32,
    armed: Armed,
}

impl Arming {
    /// Returns the number of entries since the queue was created, modulo 2^32.
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Counts an entry.
    pub fn add(&mut self, is_solicited: bool) {
        self.produced = self.produced.wrapping_add(1);
        if is_solicited {
            self.solicited = self.produced;
        }
    }

    /// Returns true if the entry added last must raise an event. Ends the driver's request for an event in this case.
    pub fn take(&mut self) -> bool {
        let is_due = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => self.solicited == self.produced,
        };
        if is_due {
            self.armed = Armed::No;
        }
        is_due
    }

    /// Handles a request for the next event. The low 24 bits of `read` are the number of entries that the driver has
    /// read. Returns true if an event is due at once, because an entry of the requested kind is unread.
    pub fn arm(&mut self, only_solicited: bool, read: u32) -> bool {
        let (armed, newest) = match only_solicited {
            false => (Armed::Any, self.produced),
            true => (Armed::Solicited, self.solicited),
        };
        let unread = newest.wrapping_sub(read) & 0xff_ffff;
        // a difference of 2^23 or more is negative
        let is_due = unread != 0 && unread < 1 << 23;
        self.armed = if is_due { Armed::No } else { armed };
        is_due
    }
}

impl Default for Arming {
    /// Returns the state of an empty queue without a request for an event.
    fn default() -> Self {
        Self {
            produced: 0,
            solicited: 0,
            armed: Armed::No,
        }
    }
}
