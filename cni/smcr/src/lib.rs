// SPDX-License-Identifier: Apache-2.0
//! SMC-R for a pod.
//!
//! | module | owns |
//! |---|---|
//! | [`decision`] | pure: the interfaces whose connections the kernel would carry correctly, and the changes for them |
//! | [`apply`] | SMC-R of a pod in the kernel: chooses, records, applies, checks and removes it; used by `rdma-cni` |
//! | [`readout`] | the device that carries each connection of a pod, and the reasons for TCP: `rdma-device-plugin smc` |
//!
//! The SMC-R part of a record is [`attachments::Smc`]. Netlink and sysctls are in `rdma_netns::smc`.

pub mod apply;
pub mod decision;
pub mod readout;
