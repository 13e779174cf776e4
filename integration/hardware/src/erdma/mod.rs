// SPDX-License-Identifier: Apache-2.0
//! An Alibaba eRDMA function (PCI 1ded:107f), and the fabric between several such functions.
//!
//! The layout of registers, commands and queue entries is that of Linux'
//! `drivers/infiniband/hw/erdma/erdma_hw.h` (GPL-2.0 or BSD-3-Clause).
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | BAR 0: registers and doorbells |
//! | [`command_queue`], [`commands`] | the command queue; its doorbells and answers |
//! | [`objects`] | the commands that make, change and destroy objects |
//! | [`events`] | event queues |
//! | [`completions`] | completion queues |
//! | [`translation`] | translation tables (MTT) |
//! | [`regions`] | memory regions, keys and rights |
//! | [`queue_pairs`] | queue pairs, their queues and states |
//! | [`requests`] | the layout of work requests |
//! | [`device`] | one function |
//! | [`fabric`] | all functions, and the connections between their queue pairs |
//! | [`reliable`], [`datagrams`] | the execution of work requests |
//! | [`transfer`] | lookup of the memory to which requests refer |
//! | [`faults`] | loss, delay, links that are down, functions that are no longer on their bus |
//! | [`control`] | the control socket's orders |
//! | [`port`] | a function of the fabric as a PCI function |

pub mod command_queue;
pub mod commands;
pub mod completions;
pub mod control;
pub mod datagrams;
pub mod device;
pub mod events;
pub mod fabric;
pub mod faults;
pub mod fields;
pub mod objects;
pub mod port;
pub mod queue_pairs;
pub mod regions;
pub mod registers;
pub mod reliable;
pub mod requests;
pub mod transfer;
pub mod translation;

/// A hardware address.
pub type Mac = [u8; 6];

/// The protocol of a function, in register 0xc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The driver connects queue pairs over TCP and MPA. A cookie identifies the peer's queue pair.
    #[default]
    Iwarp,
    /// The driver connects queue pairs by number and GID.
    Roce,
}
