// SPDX-License-Identifier: Apache-2.0
//! ConnectX functions, tested against the driver's header. [`driver`] acts as a guest.

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
mod shared;
mod verbs;
