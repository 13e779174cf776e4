// SPDX-License-Identifier: Apache-2.0
//! Tests of the whole program on a fake kernel. They run verbs through [`rdma_cni::run`] with real files for records,
//! and compare the world before and after.

#![expect(
    clippy::disallowed_methods,
    reason = "locks, processes and threads of this machine take real time"
)]

mod addresses;
mod allocated;
mod announcing;
mod asking;
mod bare;
mod beside;
mod called_twice;
mod carriers;
mod cdi_entries;
mod choosing;
mod claims;
mod claims_nccl;
mod dead;
mod detecting;
mod drop_in;
mod dying;
mod erdma;
mod failing;
mod gate;
mod gids;
mod given_up;
mod guids;
mod guids_ends;
mod holding;
mod ib_kubernetes;
mod ipam;
mod ipam_corrected;
mod ipam_rails;
mod ipoib;
mod ipoib_ends;
mod kubelet;
mod leases;
mod logging;
mod long_names;
mod managed;
mod managed_returns;
mod moving;
mod multus;
mod namespaces;
mod node;
mod nowhere;
mod odd_files;
mod one_address;
mod other_interfaces;
mod parents;
mod passed_through;
mod probing;
mod rail_routes;
mod random;
mod rdma_names;
mod records;
mod refusing;
mod renumbered;
mod replaced;
mod returned;
mod routing;
mod share;
mod share_drift;
mod share_ends;
mod side_by_side;
mod smc;
mod smc_at_once;
mod smc_ends;
mod smc_held;
mod smc_primary;
mod smc_returning;
mod smc_shared;
mod spared;
mod sub_devices;
mod tampering;
mod tenants;
mod vf;
mod vf_busy;
mod vf_examples;
mod vf_fields;
mod vf_macs;
mod vf_unreported;
mod wrapped;
