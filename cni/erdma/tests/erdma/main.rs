// SPDX-License-Identifier: Apache-2.0
//! eRDMA NICs: the metadata service's client against a stand-in on loopback, plans as data, and
//! bring-up and release on a fake kernel. Here all processes are threads of one, so that no child is
//! started: it would keep locks taken.

mod asking;
mod dying;
mod failing;
mod metadata;
mod node;
mod plans;
mod releasing;
mod settling;
mod whose;
