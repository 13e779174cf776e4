// SPDX-License-Identifier: Apache-2.0
//! The real binary: every verb, in every version, alone, beside host-local, killed and in a
//! crowd.

mod added_twice;
mod bad_input;
mod check;
mod cost;
mod examples;
mod gc_status;
mod gc_sync;
mod host_local;
mod killed;
mod messages;
mod node;
mod odd_files;
mod one_directory;
mod parent;
mod protocol;
mod requests;
mod stable;
mod stress;
mod unwritten;
