// SPDX-License-Identifier: Apache-2.0
//! `cluster-lab DIRECTORY ARGUMENT...` runs `integration/lab/vm ARGUMENT...`, whose machine reaches a control plane of
//! Kubernetes on this one. Its keys and certificates are made anew in DIRECTORY. It ends as the machine does.

use integration::control_plane::server;
use std::{env, path::Path, process};

fn main() {
    let mut arguments = env::args_os().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!(
            "cluster-lab: name a directory for the keys, then the arguments of integration/lab/vm"
        );
        process::exit(2);
    };
    let ended = server::run_vm(Path::new(&directory), arguments);
    // by a signal: as a shell says it
    process::exit(ended.code().unwrap_or(128 + 15));
}
