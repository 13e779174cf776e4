// SPDX-License-Identifier: Apache-2.0
//! `rdma-ipam` without `rdma-cni`: called by Debian's main plugins, and what is then really
//! configured in the pods. And the same by `rdma-cni`, for several rails without RDMA.

mod host_device;
mod lan;
mod macvlan;
mod rails;
mod stress;
