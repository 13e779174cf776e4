// SPDX-License-Identifier: Apache-2.0
//! Links, pipes, directories and a gigabyte in the place of the data directory's files: nothing is waited for, followed
//! or read to its end.

use super::node::{Node, Outcome, call};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::{Duration, Instant},
};

/// Puts one of them at a path.
type Put = fn(&Path);

const ODD: [(&str, Put); 5] = [
    ("link", |path| {
        symlink("/etc/hostname", path).expect("a link")
    }),
    ("dangling link", |path| {
        symlink("/nonexistent/file", path).expect("a link");
    }),
    ("pipe", |path| mkfifo(path, Mode::S_IRWXU).expect("a pipe")),
    ("directory", |path| {
        fs::create_dir_all(path.join("in/it")).expect("a directory");
    }),
    ("huge file", |path| {
        let file = File::create(path).expect("a file");
        file.set_len(1 << 30).expect("a hole");
    }),
];

#[track_caller]
fn run(command: &str, container: &str, conf: &Value) -> Outcome {
    let at = Instant::now();
    let outcome = call(command, container, conf).run();
    assert!(
        at.elapsed() < Duration::from_secs(10),
        "{command}: {:?}",
        at.elapsed()
    );
    outcome
}

fn ranges(node: &Node) -> Value {
    node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/29"}]]}))
}

#[test]
fn a_lease_that_is_no_file_is_nobodys_and_its_address_is_not_given() {
    for (what, put) in ODD {
        let node = Node::new();
        let conf = ranges(&node);
        fs::create_dir_all(node.leases_dir()).expect("made");
        put(&node.leases_dir().join("10.77.0.2"));
        assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.3", "{what}");
        let mut gc = conf.clone();
        gc["cni.dev/valid-attachments"] = json!([]);
        for (command, conf) in [("STATUS", &conf), ("DEL", &conf), ("GC", &gc)] {
            let outcome = run(command, "a", conf);
            assert!(outcome.success, "{what}, {command}: {outcome:?}");
        }
        assert_eq!(node.leases(), ["10.77.0.2"], "{what}: it is left alone");
    }
}

#[test]
fn a_lock_that_is_no_file_is_named() {
    for (what, put) in ODD {
        if what == "huge file" {
            continue; // it can be locked like any other
        }
        let node = Node::new();
        let conf = ranges(&node);
        fs::create_dir_all(node.leases_dir()).expect("made");
        let lock = node.leases_dir().join("lock");
        put(&lock);
        let outcome = run("ADD", "a", &conf);
        let names_it = outcome.stdout.contains(lock.to_str().expect("text"));
        assert!(!outcome.success && names_it, "{what}: {outcome:?}");
        assert_eq!(node.leases(), [""; 0]);
    }
}

#[test]
fn a_pointer_that_is_no_file_counts_as_none() {
    for (what, put) in ODD {
        let node = Node::new();
        let conf = ranges(&node);
        fs::create_dir_all(node.leases_dir()).expect("made");
        put(&node.leases_dir().join("last_reserved_ip.0"));
        let outcome = run("ADD", "a", &conf);
        // a pod has its address, whether or not the next one is remembered
        assert!(outcome.success, "{what}: {outcome:?}");
    }
}

#[test]
fn a_secret_and_a_resolv_conf_that_are_no_files_are_named() {
    for (what, put) in ODD {
        let node = Node::new();
        let mut conf = ranges(&node);
        fs::create_dir_all(node.leases_dir()).expect("made");
        let resolv_conf = node.data_dir().join("resolv.conf");
        put(&resolv_conf);
        conf["ipam"]["resolvConf"] = json!(resolv_conf);
        let outcome = run("ADD", "a", &conf);
        // /etc/resolv.conf is a link on most machines
        let is_read = what == "link";
        let names_it = outcome.stdout.contains("resolv.conf");
        assert!(
            outcome.success == is_read && (is_read || names_it),
            "{what}: {outcome:?}"
        );

        let mut conf = ranges(&node);
        conf["ipam"]["strategy"] = json!("stable");
        put(&node.data_dir().join(".rdma-ipam.secret"));
        let outcome = run("ADD", "b", &conf);
        let names_it = outcome.stdout.contains(".rdma-ipam.secret");
        assert!(!outcome.success && names_it, "{what}: {outcome:?}");
    }
}

/// Root may read them, whatever a restored backup or a hardening script has made of their modes.
#[test]
fn modes_that_nobody_can_use_keep_no_address() {
    for mode in [0o000, 0o111, 0o7777] {
        let node = Node::new();
        let mut conf = ranges(&node);
        conf["ipam"]["strategy"] = json!("stable");
        let first = call("ADD", "a", &conf).address();
        let inner = fs::read_dir(node.leases_dir()).expect("the leases");
        let inner = inner.map(|it| it.expect("an entry").path());
        let paths: Vec<_> = inner.collect();
        let outer = [
            node.data_dir().join(".rdma-ipam.secret"),
            node.leases_dir(),
            node.data_dir(),
        ];
        for path in paths.iter().chain(&outer) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
        }
        let second = run("ADD", "b", &conf);
        assert!(second.success, "{mode:o}: {second:?}");
        assert!(!second.stdout.contains(&format!("{first}/")), "{mode:o}");
        for container in ["a", "b"] {
            let outcome = run("DEL", container, &conf);
            assert!(outcome.success, "{mode:o}: {outcome:?}");
        }
        assert_eq!(node.leases(), [""; 0], "{mode:o}");
        // its secret is the same: so is the address
        assert_eq!(call("ADD", "a", &conf).address(), first, "{mode:o}");
    }
}
