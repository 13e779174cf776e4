//! The whole program on a fake kernel: every verb through [`rdma_cni::run`], with real
//! files for its records, and a world that is compared before and after.

mod addresses;
mod allocated;
mod announcing;
mod dead;
mod drop_in;
mod dying;
mod failing;
mod gids;
mod holding;
mod ipam;
mod ipam_rails;
mod kubelet;
mod leases;
mod moving;
mod namespaces;
mod node;
mod nowhere;
mod old_records;
mod passed_through;
mod random;
mod records;
mod refusing;
mod renumbered;
mod reviewed;
mod reviewed_entries;
mod reviewed_routes;
mod routing;
mod share;
mod share_drift;
mod share_ends;
mod tampering;
mod wrapped;
