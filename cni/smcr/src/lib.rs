// SPDX-License-Identifier: Apache-2.0
//! SMC-R for a pod.
//!
//! | module | owns |
//! |---|---|
//! | [`decision`] | pure: the interfaces whose connections the kernel would carry correctly, and the changes for them |
//! | [`apply`] | choosing, recording, applying, checking and removing; used by `rdma-cni` |
//! | [`readout`] | the device that carries each connection of a pod, and the reasons: `rdma-device-plugin smc` |
//!
//! The record's part is [`attachments::Smc`]; netlink and sysctls are in `rdma_netns::smc`.

pub mod apply;
pub mod decision;
pub mod readout;
