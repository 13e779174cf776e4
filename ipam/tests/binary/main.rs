// SPDX-License-Identifier: Apache-2.0
//! Tests of the real binary: every verb in every version, alone and together with host-local, killed, and in
//! many processes.

mod added_twice;
mod bad_input;
mod bounds;
mod check;
mod cost;
mod examples;
mod full_disk;
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
mod remembered;
mod requests;
mod stable;
mod stress;
mod unwritten;
