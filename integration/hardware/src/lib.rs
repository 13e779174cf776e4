// SPDX-License-Identifier: Apache-2.0
//! Models of PCI functions. QEMU attaches them by vfio-user, and an unmodified Linux driver uses them.
//!
//! | module | contents |
//! |---|---|
//! | [`pci`] | configuration space, BARs and MSI-X of a function |
//! | [`interrupts`] | MSI-X vectors |
//! | [`memory`] | the memory of the virtual machine |
//! | [`transfer`] | copying between the memories of two functions |
//! | [`network`] | the network headers of RoCE |
//! | [`transport`] | the vfio-user server |
//! | [`orders`] | hardware addresses and control sockets of the programs |
//! | [`erdma`] | an Alibaba eRDMA function, and the fabric that connects several of them |
//! | [`mlx5`] | functions of ConnectX cards |
//!
//! The driver, the user-space provider and the kernel are real. The firmware is modelled: a model may accept a request
//! that real firmware refuses.

pub mod arming;
pub mod erdma;
pub mod interrupts;
pub mod memory;
pub mod mlx5;
pub mod network;
pub mod orders;
pub mod pci;
pub mod transfer;
pub mod transport;
