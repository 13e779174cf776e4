//! The whole program on a fake kernel: every verb through [`rdma_cni::run`], with real
//! files for its records, and a world that is compared before and after.

mod addresses;
mod dead;
mod drop_in;
mod dying;
mod failing;
mod holding;
mod ipam;
mod moving;
mod namespaces;
mod node;
mod nowhere;
mod random;
mod records;
mod refusing;
mod tampering;
mod wrapped;
