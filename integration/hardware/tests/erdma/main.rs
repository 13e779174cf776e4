// SPDX-License-Identifier: Apache-2.0
//! The eRDMA function, against what the driver's header says. A guest is played by [`driver`], or by a client of vfio-user.

mod attached;
mod driver;
