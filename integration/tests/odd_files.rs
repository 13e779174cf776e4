// SPDX-License-Identifier: Apache-2.0
//! Symbolic links, pipes, sockets, directories and a file of a gigabyte instead of `rdma-cni`'s files. `rdma-cni` does
//! not wait for such a file, follow it or read all of it. Verbs of other pods succeed, and DEL of the affected pod
//! ends.

use integration::{
    Node, OddFile, Outcome, Snapshot,
    plugin::rdma_cni,
    stopwatch::{Stopwatch, WITHOUT_A_LOCK},
    wait,
};
use serde_json::{Value, json};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

struct Host {
    node: Node,
    elsewhere: tempfile::TempDir,
}

impl Host {
    fn new(rails: u32) -> Self {
        Self {
            node: Node::with_rails(rails),
            elsewhere: tempfile::tempdir().expect("a directory"),
        }
    }

    #[track_caller]
    fn put(&self, odd: OddFile, path: &Path) {
        odd.put(path, self.elsewhere.path());
    }

    #[track_caller]
    fn run(&self, command: &str, container: &str, netns: &Path, configuration: &Value) -> Outcome {
        let at = Stopwatch::start();
        let call = self.node.invoke(command, container, netns);
        let outcome = call.input(configuration).run();
        // a verb that waits for a held lock takes 30 s or more
        let took = at.elapsed();
        assert!(took < WITHOUT_A_LOCK, "{command}: {took:?}");
        OddFile::assert_left_alone(self.elsewhere.path());
        outcome
    }
}

#[test]
fn a_record_that_is_no_file_stops_nobody_and_is_put_aside_by_its_del() {
    for odd in OddFile::ALL {
        let host = Host::new(2);
        let node = &host.node;
        let [own, others] = [["eth1"], ["eth2"]].map(|it| node.configuration(&it));
        let (pod, other) = (node.pod("pod"), node.pod("other"));
        node.add(&own, "a", &pod);
        let record = node.record("net", "a");
        host.put(odd, &record);

        host.run("ADD", "b", other.path(), &others).result();
        host.run(
            "CHECK",
            "b",
            other.path(),
            &checked(&others, &node.record("net", "b")),
        );
        // STATUS fails, because no readable record shows which pod has the device
        let status = host.run("STATUS", "", Path::new(""), &own);
        assert_eq!(status.failure().code, 50, "{odd:?}: {status}");
        let mut collected = own.clone();
        collected["cni.dev/valid-attachments"] =
            json!([{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "eth0"}]);
        host.run("GC", "", Path::new(""), &collected).silent();
        host.run("DEL", "b", other.path(), &others).silent();

        let outcome = host.run("DEL", "a", pod.path(), &own);
        outcome.silent();
        assert!(
            outcome.stderr.contains("unreadable record"),
            "{odd:?}: {outcome}"
        );
        assert!(node.records().is_empty(), "{odd:?}: {:?}", node.records());
        let aside = record.with_extension("corrupt");
        assert!(
            fs::symlink_metadata(&aside).is_ok(),
            "{odd:?}: it is not kept"
        );
        wait::until("its netdev is back", || node.host.has_link("eth1"));
        host.run("DEL", "a", pod.path(), &own).silent();
    }
}

/// Returns the input of CHECK: the configuration with a result, which contains the first rail of the record.
fn checked(configuration: &Value, record: &Path) -> Value {
    let mut configuration = configuration.clone();
    let record: Value = serde_json::from_slice(&fs::read(record).expect("a record")).expect("JSON");
    configuration["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": record["rails"][0]["podName"], "sandbox": record["netns"]}],
    });
    configuration
}

#[test]
fn a_lock_that_is_no_file_is_named_and_nothing_is_changed() {
    for odd in OddFile::ALL {
        if odd == OddFile::Huge {
            continue; // tested below
        }
        let host = Host::new(1);
        let node = &host.node;
        let configuration = node.configuration(&["eth1"]);
        let pod = node.pod("pod");
        let before = Snapshot::of(&node.host);
        let locks: [PathBuf; 2] = [
            node.state().join("lock"),
            node.record("net", "a").with_extension("lock"),
        ];
        for lock in locks {
            host.put(odd, &lock);
            let text = host
                .run("ADD", "a", pod.path(), &configuration)
                .failure()
                .text();
            assert!(
                text.contains(lock.to_str().expect("text")),
                "{odd:?}: {text}"
            );
            before.assert_restored(&node.host);
            match odd {
                OddFile::Directory => fs::remove_dir_all(&lock),
                _ => fs::remove_file(&lock),
            }
            .expect("removed");
        }
        host.run("ADD", "a", pod.path(), &configuration).result();
        host.run("DEL", "a", pod.path(), &configuration).silent();
        node.assert_restored(&before);
    }
}

/// rdma-cni does not read lock files: it locks a file of a gigabyte like any other lock file.
#[test]
fn a_gigabyte_in_the_place_of_a_lock_is_locked_like_any_other() {
    let host = Host::new(1);
    let node = &host.node;
    let configuration = node.configuration(&["eth1"]);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let locks = [
        node.state().join("lock"),
        node.record("net", "a").with_extension("lock"),
    ];
    for lock in &locks {
        host.put(OddFile::Huge, lock);
    }
    host.run("ADD", "a", pod.path(), &configuration).result();
    for lock in &locks {
        let found = fs::metadata(lock).expect("a lock");
        assert_eq!((found.len(), found.mode() & 0o777), (1 << 30, 0o600));
    }
    host.run("DEL", "a", pod.path(), &configuration).silent();
    node.assert_restored(&before);
}

#[test]
fn a_state_directory_that_is_none_is_named_and_nothing_is_changed() {
    for odd in OddFile::ALL {
        if odd == OddFile::Directory {
            continue;
        }
        let host = Host::new(1);
        let node = &host.node;
        let mut configuration = node.configuration(&["eth1"]);
        let pod = node.pod("pod");
        let before = Snapshot::of(&node.host);
        let state = node.directory().join("odd");
        host.put(odd, &state);
        configuration["stateDir"] = json!(state);
        for command in ["ADD", "STATUS"] {
            let text = host
                .run(command, "a", pod.path(), &configuration)
                .failure()
                .text();
            let path = state.to_str().expect("text");
            assert!(text.contains(path), "{odd:?}, {command}: {text}");
        }
        // both verbs must end in time, whatever their results are
        host.run("DEL", "a", pod.path(), &configuration);
        configuration["cni.dev/valid-attachments"] = json!([]);
        host.run("GC", "", Path::new(""), &configuration);
        node.assert_restored(&before);
    }
}

#[test]
fn an_object_at_a_temporary_record_path_is_not_written_to() {
    for odd in OddFile::ALL {
        let host = Host::new(1);
        let node = &host.node;
        let configuration = node.configuration(&["eth1"]);
        let pod = node.pod("pod");
        let before = Snapshot::of(&node.host);
        let unfinished = node.record("net", "a").with_extension("json.new");
        host.put(odd, &unfinished);
        let added = host.run("ADD", "a", pod.path(), &configuration);
        if odd == OddFile::Directory {
            let text = added.failure().text();
            assert!(text.contains("it is a directory"), "{text}");
            fs::remove_dir_all(&unfinished).expect("removed");
        } else {
            added.result();
            let record = fs::metadata(node.record("net", "a")).expect("a record");
            assert!(record.is_file() && record.len() < 1 << 20, "{odd:?}");
        }
        host.run("DEL", "a", pod.path(), &configuration).silent();
        node.assert_restored(&before);
    }
}

#[test]
fn a_log_that_is_no_file_holds_up_no_pod() {
    for odd in [OddFile::Pipe, OddFile::Socket, OddFile::Directory] {
        let host = Host::new(1);
        let node = &host.node;
        let mut configuration = node.configuration(&["eth1"]);
        let pod = node.pod("pod");
        let log = node.directory().join("log");
        host.put(odd, &log);
        configuration["log"] = json!({"file": log});
        let added = host.run("ADD", "a", pod.path(), &configuration);
        added.result();
        assert!(added.stderr.contains("log.file"), "{odd:?}: {added}");
        host.run("DEL", "a", pod.path(), &configuration).silent();
    }
}

#[test]
fn files_with_pod_names_are_readable_by_root_only() {
    let host = Host::new(1);
    let node = &host.node;
    let configuration = node.configuration(&["eth1"]);
    let pod = node.pod("pod");
    host.run("ADD", "a", pod.path(), &configuration).result();
    let record = node.record("net", "a");
    for file in [
        record.with_extension("lock"),
        node.state().join("lock"),
        record,
    ] {
        let mode = fs::metadata(&file).expect("a file").mode();
        assert_eq!(mode & 0o777, 0o600, "{file:?}");
    }
    host.run("DEL", "a", pod.path(), &configuration).silent();
}

/// All entries below `directory` that have a mode, with their modes.
fn modes(directory: &Path, found: &mut Vec<(PathBuf, u32)>) {
    let own = fs::metadata(directory).expect("a directory").mode();
    found.push((directory.to_owned(), own & 0o7777));
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let entry = fs::symlink_metadata(&path).expect("an entry");
        match entry.is_dir() {
            true => modes(&path, found),
            // the notes of rdma-ipam are symbolic links without a mode
            false if entry.is_symlink() => {}
            false => found.push((path, entry.mode() & 0o7777)),
        }
    }
}

/// An operator or a hardened unit can start the runtime with another umask.
#[test]
fn modes_are_the_same_whatever_the_runtimes_umask_is() {
    let mut seen: Vec<Vec<u32>> = vec![];
    for umask in ["0", "0022", "0077", "0777"] {
        let node = Node::with_rails(1);
        let mut configuration = node.configuration(&["eth1"]);
        let leases = node.state().join("leases");
        configuration["ipam"] = json!({
            "type": "rdma-ipam", "dataDir": leases, "ranges": [[{"subnet": "192.0.2.0/24"}]],
        });
        let pod = node.pod("pod");
        let shell = ["-c", "umask $0; exec \"$@\"", umask].map(str::to_owned);
        let call = node.invoke("ADD", "a", pod.path()).input(&configuration);
        call.by(Path::new("/bin/sh"), shell.to_vec()).run().result();
        let mut found = vec![];
        modes(&node.state(), &mut found);
        found.sort();
        for (path, mode) in &found {
            assert_eq!(mode & 0o022, 0, "{umask}: {path:?} has {mode:o}");
            let is_usable = mode & 0o400 != 0 && (!path.is_dir() || mode & 0o100 != 0);
            assert!(is_usable, "{umask}: {path:?} has {mode:o}");
        }
        seen.push(found.into_iter().map(|(_, mode)| mode).collect());
        node.del(&configuration, "a", &pod);
    }
    assert!(seen.iter().all(|it| *it == seen[0]), "{seen:?}");
}

/// A user with write access to the state directory has created a hard link in it to a file that the plugin may write.
#[test]
fn a_hard_link_in_the_place_of_an_unfinished_record_is_not_written_to() {
    let host = Host::new(1);
    let node = &host.node;
    let configuration = node.configuration(&["eth1"]);
    let pod = node.pod("pod");
    let record = node.record("net", "a");
    let directory = record.parent().expect("a directory");
    fs::create_dir_all(directory).expect("made");
    let other = node.state().join("somebody-elses");
    fs::write(&other, "text").expect("written");
    fs::set_permissions(&other, Permissions::from_mode(0o644)).expect("set");
    for name in ["json.new", "lock"] {
        fs::hard_link(&other, record.with_extension(name)).expect("a link");
    }
    host.run("ADD", "a", pod.path(), &configuration).result();
    assert!(record.exists());
    host.run("DEL", "a", pod.path(), &configuration).silent();
    assert_eq!(fs::read_to_string(&other).expect("text"), "text");
    let mode = fs::metadata(&other).expect("a file").mode();
    assert_eq!(mode & 0o777, 0o644);
}

/// Root can read the files, whatever modes a restored backup or a hardening script has set.
#[test]
fn modes_that_nobody_can_use_keep_no_pod_from_its_end() {
    for mode in [0o000, 0o111, 0o7777] {
        let host = Host::new(1);
        let node = &host.node;
        let configuration = node.configuration(&["eth1"]);
        let pod = node.pod("pod");
        let before = Snapshot::of(&node.host);
        node.add(&configuration, "a", &pod);
        let record = node.record("net", "a");
        for path in [
            record.with_extension("lock"),
            node.state().join("lock"),
            record.parent().expect("a directory").to_owned(),
            node.state(),
            record,
        ] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        }
        host.run("DEL", "a", pod.path(), &configuration).silent();
        node.assert_restored(&before);
        host.run("ADD", "b", pod.path(), &configuration).result();
        host.run("DEL", "b", pod.path(), &configuration).silent();
        node.assert_restored(&before);
    }
}

#[test]
fn a_user_without_root_changes_nothing() {
    let host = Host::new(1);
    let node = &host.node;
    let configuration = node.configuration(&["eth1"]);
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    let before = Snapshot::of(&node.host);
    let program = node.directory().join("rdma-cni-of-all");
    fs::copy(rdma_cni(), &program).expect("copied");
    fs::set_permissions(node.directory(), Permissions::from_mode(0o755)).expect("set");
    for (command, container) in [("ADD", "b"), ("DEL", "a")] {
        let by_nobody = node
            .invoke(command, container, pod.path())
            .program(Path::new("/usr/bin/setpriv"))
            .argument("--reuid=65534")
            .argument("--regid=65534")
            .argument("--clear-groups")
            .argument(program.to_str().expect("text"));
        let text = by_nobody.input(&configuration).run().failure().text();
        assert!(
            text.contains("ermission denied") || text.contains("not permitted"),
            "{command}: {text}"
        );
    }
    before.assert_restored(&node.host);
    node.del(&configuration, "a", &pod);
}
