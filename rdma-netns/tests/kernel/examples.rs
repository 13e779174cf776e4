// SPDX-License-Identifier: Apache-2.0
//! Runs the examples of the crate as programs.

use crate::world::with_node;
use std::{env, path::PathBuf, process::Command};

/// Returns the path of an example's program, which Cargo writes to `target/PROFILE/examples`.
fn example(name: &str) -> PathBuf {
    let program = env::current_exe().expect("a path");
    let profile = program.ancestors().nth(2).expect("target/PROFILE");
    profile.join("examples").join(name)
}

#[track_caller]
fn run(name: &str, words: &[&str]) -> String {
    let output = Command::new(example(name)).args(words).output();
    let output = output.unwrap_or_else(|error| {
        let path = example(name);
        panic!(
            "{}: {error}: cargo build --all-features --examples makes it",
            path.display()
        )
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_netdev_is_moved_and_restored() {
    with_node(|world| {
        let before = world.host_link("nic0");
        let path = world.pod_path();
        let output = run("move", &["nic0", path.to_str().expect("UTF-8"), "rdma0"]);
        let expected = "\
            ip link set dev nic0 netns pod name rdma0\n  \
            host: lo wire0\n  \
            pod: lo rdma0\n\
            ip -n pod link set dev rdma0 netns 1 name nic0\n  \
            host: lo nic0 wire0\n  \
            pod: lo\n";
        assert_eq!(output, expected);
        assert_eq!(world.host_link("nic0").index, before.index);
    });
}

#[test]
fn observed_state_is_printed() {
    with_node(|world| {
        let path = world.pod_path();
        let output = run("observe", &[path.to_str().expect("UTF-8")]);
        for name in ["wire0", "nic0"] {
            assert!(output.contains(name), "{output}");
        }
    });
}
