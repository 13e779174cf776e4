// SPDX-License-Identifier: Apache-2.0
//! SMC-R of a pod.
//!
//! | module | owns |
//! |---|---|
//! | [`decision`] | pure: which interfaces the kernel would carry rightly, and which changes that needs |
//! | [`apply`] | chosen, recorded, set, looked at again, and taken away; used by `rdma-cni` |
//! | [`readout`] | what carries a pod's connections, and why: `rdma-device-plugin smc` |
//!
//! The record's part of it is [`attachments::Smc`]; netlink and sysctls are `rdma_netns::smc`.

pub mod apply;
pub mod decision;
pub mod readout;
