// SPDX-License-Identifier: Apache-2.0
//! `cluster-lab DIRECTORY NODES ARGUMENT...` boots one or two machines by `integration/lab/vm ARGUMENT...`, which reach
//! a Kubernetes control plane on this one. It makes new keys and certificates in DIRECTORY. It ends with the first
//! machine; the second one ends then, too.

use integration::control_plane::{nodes, server};
use std::{env, ffi::OsString, path::Path, process};

fn main() {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let [directory, count, arguments @ ..] = &arguments[..] else {
        stop(
            "name a directory for the keys, how many nodes, and the arguments of integration/lab/vm",
        );
    };
    let count = count.to_str().and_then(|it| it.parse().ok());
    let Some(members) = count.and_then(|it: usize| nodes::ALL.get(..it)) else {
        stop("one node, or two");
    };
    let ended = server::run(Path::new(directory), members, arguments);
    // by a signal: as a shell says it
    process::exit(ended.code().unwrap_or(128 + 15));
}

fn stop(why: &str) -> ! {
    eprintln!("cluster-lab: {why}");
    process::exit(2)
}
