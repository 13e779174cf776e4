// SPDX-License-Identifier: Apache-2.0
//! The eRDMA function, tested against the driver's header. [`driver`] or a vfio-user client acts as the guest.

mod attached;
mod commands;
mod connections;
mod datagrams;
mod driver;
mod errors;
mod events;
mod faults;
mod hostile;
mod regions;
