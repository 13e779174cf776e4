// SPDX-License-Identifier: Apache-2.0
//! Faults of the fabric: loss, delay, links that are down, functions that fell off their bus.

use std::time::Duration;

/// A lost message of a reliable connection is sent again after this time.
pub const RETRANSMISSION: Duration = Duration::from_millis(20);

/// Number of times that a lost message is sent again. Another loss ends the connection.
pub const RETRIES: u32 = 7;

/// The port of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if messages pass.
    pub is_up: bool,
    /// True if the function answers on its bus. A function that does not answer neither reads nor writes memory, and
    /// raises no interrupt.
    pub is_present: bool,
    /// Percentage of its messages that are lost.
    pub loss_percent: u8,
    /// Delay of the function's messages. The messages of one queue pair wait for one another.
    pub delay: Duration,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            is_up: true,
            is_present: true,
            loss_percent: 0,
            delay: Duration::ZERO,
        }
    }
}

/// Time that a request waits before it ends with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a peer that does not answer.
    pub no_answer: Duration,
    /// For a receive request of the peer. None waits forever.
    pub no_receive: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            no_answer: Duration::from_secs(10),
            no_receive: None,
        }
    }
}

/// Numbers that decide which message is lost. They are the same in each run.
#[derive(Debug)]
pub struct Chance {
    state: u64,
}

impl Default for Chance {
    fn default() -> Chance {
        Chance {
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Chance {
    /// True in `percent` of a hundred calls.
    pub fn is_lost(&mut self, percent: u8) -> bool {
        // xorshift64
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) % 100 < percent.into()
    }
}
