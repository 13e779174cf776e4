// SPDX-License-Identifier: Apache-2.0
//! The eRDMA function, against the driver's header. A guest is played by [`driver`], or by a client of vfio-user.

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
