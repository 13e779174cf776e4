// SPDX-License-Identifier: Apache-2.0
//! A client of the container runtime interface (CRI), v1, over a Unix socket: the calls with which kubelet runs a pod.

#[expect(
    missing_docs,
    reason = "generated code; proto/cri.proto says what it is"
)]
mod v1 {
    tonic::include_proto!("runtime.v1");
}

pub use v1::*;
