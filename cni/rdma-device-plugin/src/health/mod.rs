//! Which devices can be used now: from the kernel's events to what kubelet is told.
//!
//! ```text
//! events, records, deadlines → Watch::next           something may have changed: look again
//! Linux::inventory, netdevs, pods → Sight            what is seen of each device, wherever it is
//! Sight → judge → Verdict                            pure: the rule
//! (Verdict, time) → Damper → Unhealthy               pure: what flaps is not told at each turn
//! ```
//! A device that is inside a pod is seen there. What cannot be seen keeps the health that it had.

pub mod damper;
pub mod judge;
mod node;
mod ports;
mod records;
mod sights;
mod watch;

pub use records::{Place, Placed, PodSmc, netns_seen, read as placed, smc, used};
pub use watch::Watch;
