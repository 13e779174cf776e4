// SPDX-License-Identifier: Apache-2.0
//! Faults of the fabric: loss, delay, links that are down, and functions that are no longer on their bus.

use std::time::Duration;

/// Time after which a reliable connection sends a lost message again.
pub const RETRANSMISSION: Duration = Duration::from_millis(20);

/// Number of times that a lost message is sent again. If it is lost once more, the connection ends.
pub const RETRIES: u32 = 7;

/// The fabric port of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if messages pass through the port.
    pub is_up: bool,
    /// True if the function responds on its bus. An absent function does not read or write memory, and does not
    /// raise an interrupt.
    pub is_present: bool,
    /// Percentage of the function's messages that the fabric drops.
    pub loss_percent: u8,
    /// Delay of the function's messages. The fabric keeps the order of the messages of one queue pair.
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

/// Times that a request waits before it ends with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time to wait for a peer that does not respond.
    pub no_answer: Duration,
    /// Time to wait until the peer posts a receive request. With `None`, the request waits forever.
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

/// Pseudorandom numbers that decide which message is lost. Each run gets the same numbers.
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
    /// Returns true in about `percent` percent of the calls.
    pub fn is_lost(&mut self, percent: u8) -> bool {
        // xorshift64
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) % 100 < percent.into()
    }
}
