// SPDX-License-Identifier: Apache-2.0
//! Health of devices, from the kernel's events to the state that kubelet gets.
//!
//! ```text
//! events, records, deadlines → Watch::next           something may have changed: observe again
//! Linux::inventory, netdevs, pods → DeviceState      observation of each device, in any namespace
//! DeviceState → evaluate → Verdict                   pure: the rule
//! thresholds, counters → ErrorRates                  pure: error counters that grow too fast
//! devlink, AER → NicFaults                           pure: errors that a NIC's driver and PCI link report
//! the fabric watch's report → unreachable            rails that the watch found unhealthy
//! (Verdict, time) → Damper → Unhealthy               pure: damping of flapping devices
//! Unhealthy → offer::ids                             healthy and unhealthy ids
//! ```
//! The daemon observes a device inside a pod in the pod's namespace. A device that cannot be observed keeps its health,
//! unless its physical function is unhealthy.

pub mod damper;
pub mod error_files;
pub mod error_rates;
mod errors;
pub mod evaluate;
mod link_state;
pub mod nic_faults;
pub mod nic_reports;
mod node;
mod observe;
pub mod ports;
mod records;
pub mod unreachable;
mod watch;

pub use error_files::unknown_counters;
pub use watch::Watch;
