// SPDX-License-Identifier: Apache-2.0
//! Which devices can be used now: from the kernel's events to what kubelet is told.
//!
//! ```text
//! events, records, deadlines → Watch::next           something may have changed: look again
//! Linux::inventory, netdevs, pods → DeviceState      what is seen of each device, wherever it is
//! DeviceState → evaluate → Verdict                   pure: the rule
//! thresholds, counters → ErrorRates                  pure: which error counters grow too fast
//! (Verdict, time) → Damper → Unhealthy               pure: what flaps is not told at each turn
//! ```
//! A device that is inside a pod is seen there. What cannot be seen keeps the health that it had.

pub mod damper;
pub(crate) mod error_files;
pub(crate) mod error_rates;
mod errors;
pub mod evaluate;
mod node;
mod observe;
pub(crate) mod ports;
mod records;
mod watch;

pub use error_files::unknown_counters;
pub use watch::Watch;
