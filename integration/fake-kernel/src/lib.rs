// SPDX-License-Identifier: Apache-2.0
//! A fake kernel: a small world of namespaces, netdevs and RDMA devices in memory, with the
//! kernel's rules, for tests of what is built on [`rdma_netns::Kernel`].
//!
//! It is no record of expected calls: the fake does or refuses each request as Linux would,
//! and tests observe the outcome. Every rule stands where it is kept,
//! with the place in the kernel that it is from; `tests/` has one test for each, and the crate
//! `conformance` the tests that the real kernel has to pass as well.
//!
//! | module | owns |
//! |---|---|
//! | [`world`] | namespaces and paths, who is in which |
//! | `vfs` | virtual functions, as their physical function has them |
//! | `drivers` | drivers that are bound again, and udev's names |
//! | [`nic`], `bonds` | hardware to furnish a world with |
//! | `links`, `children`, `ipoib`, `vlans`, `addresses`, `probe`, `routes`, `rules`, `hca`, `gids`, `smc` | the rules |
//! | `death` | the end of a namespace, unplugging, reboot |
//! | `observe`, `execute` | the two halves of the seam |
//! | [`kernel`] | the seam itself, and what can go wrong at it |
//! | [`snapshot`] | a whole world as text, to be compared |
//!
//! What it does not have: packets, routers and their advertisements, bonds' LACP, the default
//! GIDs that the kernel makes of a hardware address.
//! Time passes by observation: duplicate address detection ends after some of them. A pause of the
//! seam is over at once.

mod addresses;
mod bonds;
mod children;
mod death;
mod drivers;
mod execute;
mod gids;
mod hca;
mod ipoib;
pub mod kernel;
mod links;
pub mod nic;
mod observe;
mod probe;
mod routes;
mod rules;
mod smc;
pub mod snapshot;
mod vfs;
mod vlans;
pub mod world;

pub use kernel::{Died, FakeKernel, FakePod, Step, Verdict};
pub use nic::Nic;
pub use smc::Smc;
pub use snapshot::Snapshot;
pub use world::{Refusal, World};
