// SPDX-License-Identifier: Apache-2.0
//! A fake kernel: a small world of namespaces, netdevs and RDMA devices in memory, with the kernel's rules, for tests
//! of code that uses [`rdma_netns::Kernel`].
//!
//! Tests do not list expected calls: the fake kernel executes or refuses each request like Linux, and tests observe the
//! outcome. Most rules name their source in the kernel. `tests/` has tests of the rules, and the crate `conformance`
//! has the tests that the real kernel must pass too.
//!
//! | module | owns |
//! |---|---|
//! | [`world`] | namespaces, their paths and their content |
//! | `vfs` | settings of a virtual function, made through its physical function |
//! | `drivers` | drivers that are bound again, and udev's names |
//! | `netdev`, `hca`, `gid_table`, `smc_state` | the content of a world |
//! | [`nic`], `plug`, `bonds` | hardware to put into a world |
//! | `links`, `children`, `ipoib`, `vlans`, `addresses`, `probe`, `routes`, `rules`, `rdma`, `gids`, `smc` | the rules |
//! | `death` | the end of a namespace, unplugging, reboot |
//! | `observe`, `execute` | the observed state, and the execution of each change |
//! | [`kernel`] | the implementation of the trait, and its faults |
//! | [`snapshot`] | a whole world as text, for comparison |
//!
//! Not modelled: packets, routers and their advertisements, bonds' LACP, and the default GIDs that the kernel derives
//! from a hardware address. Time passes by observations: duplicate address detection ends after some of them. A pause
//! ends at once.

mod addresses;
mod bonds;
mod children;
mod death;
mod drivers;
mod execute;
mod gid_table;
mod gids;
mod hca;
mod ipoib;
pub mod kernel;
mod links;
mod netdev;
pub mod nic;
mod observe;
mod plug;
mod probe;
mod rdma;
mod routes;
mod rules;
mod smc;
mod smc_state;
pub mod snapshot;
mod vfs;
mod vlans;
pub mod world;

pub use kernel::{Died, FakeKernel, FakePod, Step, Verdict};
pub use nic::Nic;
pub use smc_state::Smc;
pub use snapshot::Snapshot;
pub use world::{Refusal, World};
