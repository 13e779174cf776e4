// SPDX-License-Identifier: Apache-2.0
//! ConnectX functions, against the driver's header. [`driver`] plays a guest.

mod administrator;
mod attached;
mod commands;
mod datagrams;
mod driver;
mod ethernet;
mod hostile;
mod infiniband;
mod port;
mod reliable;
mod verbs;
