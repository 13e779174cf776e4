// SPDX-License-Identifier: Apache-2.0
//! Tests of links, pipes, sockets, directories and a file of a gigabyte at the paths of files in the data directory.
//! The plugin does not wait for such a file, and does not read a file without a limit. It follows a link only to the
//! file of `resolvConf` and to the data directory.

use super::node::{Node, Outcome, call};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A function that makes an object of one kind at a path.
type Put = fn(&Path);

/// Directory of the links' targets, below the directory of the link.
const ELSEWHERE: &str = "elsewhere";

/// Content of the target. It could be a lease's owner, and has the length of a secret.
const OTHERS: &[u8] = b"somebody else's, of thirty-two b";

fn elsewhere(path: &Path, name: &str) -> PathBuf {
    path.parent()
        .expect("a directory")
        .join(ELSEWHERE)
        .join(name)
}

const ODD: [(&str, Put); 6] = [
    ("link", |path| {
        let file = elsewhere(path, "file");
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(&file, OTHERS).expect("a file");
        symlink(file, path).expect("a link");
    }),
    ("dangling link", |path| {
        let nothing = elsewhere(path, "nothing");
        fs::create_dir_all(nothing.parent().expect("a directory")).expect("made");
        symlink(nothing, path).expect("a link");
    }),
    ("pipe", |path| mkfifo(path, Mode::S_IRWXU).expect("a pipe")),
    ("socket", |path| {
        drop(UnixListener::bind(path).expect("a socket"))
    }),
    ("directory", |path| {
        fs::create_dir_all(path.join("in/it")).expect("a directory");
    }),
    ("huge file", |path| {
        let file = File::create(path).expect("a file");
        file.set_len(1 << 30).expect("a hole");
    }),
];

/// Time limit of a call. It is shorter than the wait for a lock, and longer than any call that does not wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Asserts that nothing was written to the target of a link at `path`.
#[track_caller]
fn assert_left_alone(path: &Path, what: &str) {
    assert!(
        !elsewhere(path, "nothing").exists(),
        "{what}: made through a link"
    );
    if let Ok(there) = fs::read(elsewhere(path, "file")) {
        assert_eq!(there, OTHERS, "{what}: written through a link");
    }
}

#[track_caller]
fn run(command: &str, container: &str, conf: &Value) -> Outcome {
    let at = Instant::now();
    let outcome = call(command, container, conf).run();
    assert!(at.elapsed() < TIMEOUT, "{command}: {:?}", at.elapsed());
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
        let lease = node.leases_dir().join("10.77.0.2");
        put(&lease);
        assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.3", "{what}");
        let mut gc = conf.clone();
        gc["cni.dev/valid-attachments"] = json!([]);
        for (command, conf) in [("STATUS", &conf), ("DEL", &conf), ("GC", &gc)] {
            let outcome = run(command, "a", conf);
            assert!(outcome.success, "{what}, {command}: {outcome:?}");
        }
        assert_eq!(node.leases(), ["10.77.0.2"], "{what}: it is left alone");
        assert_left_alone(&lease, what);
    }
}

#[test]
fn a_lock_that_is_no_file_is_named() {
    for (what, put) in ODD {
        let node = Node::new();
        let conf = ranges(&node);
        fs::create_dir_all(node.leases_dir()).expect("made");
        let lock = node.leases_dir().join("lock");
        put(&lock);
        let outcome = run("ADD", "a", &conf);
        assert_left_alone(&lock, what);
        if what == "huge file" {
            // a lock file can be locked whatever it contains, and no process reads it
            assert!(outcome.success, "{outcome:?}");
            assert!(run("DEL", "a", &conf).success);
            assert_eq!(fs::metadata(&lock).expect("the lock").len(), 1 << 30);
            continue;
        }
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
        let pointer = node.leases_dir().join("last_reserved_ip.0");
        put(&pointer);
        let outcome = run("ADD", "a", &conf);
        assert_left_alone(&pointer, what);
        // the pod gets its address even if the round robin's pointer cannot be written
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
        let secret = node.data_dir().join(".rdma-ipam.secret");
        put(&secret);
        let outcome = run("ADD", "b", &conf);
        let names_it = outcome.stdout.contains(".rdma-ipam.secret");
        assert!(!outcome.success && names_it, "{what}: {outcome:?}");
        assert_left_alone(&secret, what);
    }
}

#[test]
fn a_data_directory_that_is_none_is_named_and_not_waited_for() {
    for (what, put) in ODD {
        if what == "directory" {
            continue;
        }
        let node = Node::new();
        let conf = ranges(&node);
        let path = node.data_dir();
        put(&path);
        for command in ["ADD", "STATUS"] {
            let outcome = run(command, "a", &conf);
            // a link to a directory is followed; if the target is no directory, nothing is made
            let names_it = outcome.stdout.contains(path.to_str().expect("text"));
            assert!(
                !outcome.success && names_it,
                "{what}, {command}: {outcome:?}"
            );
            assert_left_alone(&path, what);
        }
        // the calls must end in time, with any result
        let mut gc = conf.clone();
        gc["cni.dev/valid-attachments"] = json!([]);
        run("DEL", "a", &conf);
        run("GC", "", &gc);
        assert_left_alone(&path, what);
    }
}

/// Root can read files with any mode, such as the mode that a restored backup or a hardening script has set.
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
        // the secret is unchanged, and so is the stable address
        assert_eq!(call("ADD", "a", &conf).address(), first, "{mode:o}");
    }
}
