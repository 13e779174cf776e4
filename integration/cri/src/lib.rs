// SPDX-License-Identifier: Apache-2.0
//! The container runtime interface, v1: the calls that kubelet makes of a runtime for a pod's
//! life, as a client over a Unix socket.

#[expect(
    missing_docs,
    reason = "generated code; proto/cri.proto says what it is"
)]
mod v1 {
    tonic::include_proto!("runtime.v1");
}

pub use v1::*;
