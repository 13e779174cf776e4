// SPDX-License-Identifier: Apache-2.0
//! Runs a program with faults at some of its system calls, by ptrace(2), or attaches to a running program. A fault is a
//! SIGKILL to the program and to all programs that it started, or an error in place of the call. Without a fault, the
//! run reports the calls at which a fault is possible.
//!
//! | module | owns |
//! |---|---|
//! | `fault` | faults, and the report of a run |
//! | `injector` | runs of the injector by tests |
//! | [`point`] | system calls that are points, their effects, and their possible errors |
//! | `netlink` | detection of netlink requests that change something |
//! | `filter` | the filter by which the kernel stops the program at only those calls that can be points |
//! | `memory` | reads of a stopped thread's memory and descriptors |
//! | `registers` | differences between CPUs |
//! | `run` | the loop that stops every thread and child at each call that can be a point |
//!
//! A fault has the number of its point, counted from 1 over all threads and children. Each kind of fault counts only
//! the points at which it is possible. Two runs of a program have the same points as long as they do the same. A run
//! that waits for the kernel may read the kernel's state more often. [`Fault::KillBefore`] counts in each thread
//! separately, for a running daemon whose threads work independently.

mod fault;
mod filter;
mod injector;
mod memory;
mod netlink;
pub mod point;
mod registers;
mod run;

pub use fault::{Fault, Report};
pub use injector::{changes, killed, report, traced};
pub use run::{Traced, attach, run};
