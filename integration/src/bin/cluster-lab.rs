// SPDX-License-Identifier: Apache-2.0
//! `cluster-lab DIRECTORY NODES ARGUMENT...` starts a Kubernetes control plane on this machine, and boots NODES virtual
//! machines (1 or 2) that use it, by `integration/lab/vm ARGUMENT...`. It makes new keys and certificates in DIRECTORY.
//! When the first machine ends, the program ends the second machine, and then itself.

use integration::control_plane::{nodes, server};
use std::{env, ffi::OsString, path::Path, process};

fn main() {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let [directory, count, arguments @ ..] = &arguments[..] else {
        stop(
            "usage: cluster-lab DIRECTORY NODES ARGUMENT...: a directory for keys, the number of nodes, and the arguments of integration/lab/vm",
        );
    };
    let count = count.to_str().and_then(|it| it.parse().ok());
    let Some(members) = count.and_then(|it: usize| nodes::ALL.get(..it)) else {
        stop("NODES must be 1 or 2");
    };
    let ended = server::run(Path::new(directory), members, arguments);
    // if a signal ended the machine: the exit code that a shell reports for SIGTERM
    process::exit(ended.code().unwrap_or(128 + 15));
}

fn stop(why: &str) -> ! {
    eprintln!("cluster-lab: {why}");
    process::exit(2)
}
