// SPDX-License-Identifier: Apache-2.0
//! ConnectX functions (PCI 15b3:1017, virtual 15b3:101e), as ports of cards.
//!
//! The layout of commands, contexts and registers is that of Linux' `include/linux/mlx5/mlx5_ifc.h` and `device.h`
//! (GPL-2.0 or OpenIB.org BSD).
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | BAR 0: the initialization segment and doorbells |
//! | [`commands`], [`status`] | the command queue and its mailboxes; the status of commands |
//! | [`execute`] | the commands |
//! | [`capabilities`] | the capabilities of a function |
//! | [`objects`] | objects that commands make, change and destroy |
//! | [`pages`] | the guest memory of a queue |
//! | [`event_queue`], [`events`] | event queues; the commands on them, and the events |
//! | [`completion_queue`], [`work_queue`] | completion queues; send queues and receive queues |
//! | [`queues`] | the commands on queues, keys and queue pairs |
//! | [`ethernet`] | the requests of send queues, and received frames |
//! | [`keys`] | memory keys |
//! | [`context`] | the contexts of queue pairs |
//! | [`queue_pair`], [`pairs`] | the queues of queue pairs; their requests and completions |
//! | [`requests`] | the requests in queue pairs' send queues |
//! | [`verbs`] | the order of execution, and the connections between queue pairs |
//! | [`reliable`] | requests on reliable connections |
//! | [`datagrams`] | datagrams |
//! | [`counters`] | the counters of queue pairs |
//! | [`frames`] | checksums, VLANs and segments of frames |
//! | [`infiniband`] | the InfiniBand port: LIDs, GIDs, partitions, its management agent |
//! | [`administrator`] | the subnet administrator: paths and multicast groups |
//! | [`aggregation`] | the switch's side of a link aggregation |
//! | [`vport`] | the virtual port: addresses, RoCE addresses, state, counters |
//! | [`ports`], [`port_registers`] | the registers of the physical port, and access to them |
//! | [`carrier`] | the carrier of a function |
//! | [`place`], [`function`] | the place of a function; one function |
//! | [`fabric`] | all functions, and the switch between their ports |
//! | [`control`] | the control socket's orders |
//! | [`port`] | a function of the fabric as a PCI function |
//! | [`fields`] | offsets and widths of the numbers in structures |

pub mod administrator;
pub mod aggregation;
pub mod capabilities;
pub mod carrier;
pub mod commands;
pub mod completion_queue;
pub mod context;
pub mod control;
pub mod counters;
pub mod datagrams;
pub mod ethernet;
pub mod event_queue;
pub mod events;
pub mod execute;
pub mod fabric;
pub mod fields;
pub mod frames;
pub mod function;
pub mod infiniband;
pub mod keys;
pub mod objects;
pub mod pages;
pub mod pairs;
pub mod place;
pub mod port;
pub mod port_registers;
pub mod ports;
pub mod queue_pair;
pub mod queues;
pub mod registers;
pub mod reliable;
pub mod requests;
pub mod status;
pub mod verbs;
pub mod vport;
pub mod work_queue;

/// A hardware address.
pub type Mac = [u8; 6];
