// SPDX-License-Identifier: Apache-2.0
//! Tests of eRDMA NICs: the metadata service's client with a stand-in on loopback, plans as data, and bring-up and
//! release on a fake kernel. The test process itself models all processes, because a child process would inherit the
//! locks.

mod asking;
mod dying;
mod failing;
mod metadata;
mod node;
mod plans;
mod releasing;
mod settling;
mod whose;
