// SPDX-License-Identifier: Apache-2.0
//! `rdma-ipam` without `rdma-cni`. Debian's main plugins call it, and the tests read the network settings in the
//! pods. In some tests `rdma-cni` calls it, for several rails without RDMA.

mod host_device;
mod lan;
mod macvlan;
mod rails;
mod stress;
