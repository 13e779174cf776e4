// SPDX-License-Identifier: Apache-2.0
//! Tests that after a successful GC its removals, and the removals of earlier GCs, are on disk.

use super::node::{Node, call};
use cni_protocol::Input;
use rdma_ipam::store::{Change, Disk, RealDisk};
use rdma_netns::Linux;
use serde_json::{Value, json};
use std::{cell::RefCell, fs, io, path::PathBuf, process::ExitCode};

/// A disk that fails to sync, or that records the synced directories.
#[derive(Debug)]
struct Syncs {
    fails: bool,
    made: RefCell<Vec<PathBuf>>,
}

impl Disk for Syncs {
    fn make(&self, change: &Change) -> io::Result<()> {
        if let Change::Sync(path) = change {
            if self.fails {
                return Err(io::Error::from_raw_os_error(nix::libc::EIO));
            }
            self.made.borrow_mut().push(path.clone());
        }
        RealDisk.make(change)
    }
}

/// Runs GC in this process. Returns its result (null if GC succeeds) and the synced directories.
fn gc(conf: &Value, fails: bool) -> (Value, Vec<PathBuf>) {
    let environment = [("CNI_COMMAND", "GC"), ("CNI_PATH", "/x")];
    let input = Input {
        arguments: vec![],
        environment: environment
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    };
    let disk = Syncs {
        fails,
        made: RefCell::default(),
    };
    let mut output = vec![];
    let text = conf.to_string();
    let mut stdin = text.as_bytes();
    let code = rdma_ipam::run(input, &mut stdin, &mut output, &disk, &Linux::new());
    let answer = serde_json::from_slice(&output).unwrap_or_default();
    assert_eq!(code == ExitCode::SUCCESS, output.is_empty(), "{answer}");
    (answer, disk.made.take())
}

#[test]
fn a_gc_that_is_repeated_syncs_what_one_before_it_took_away() {
    let node = Node::new();
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["log"] = json!({"level": "off"});
    call("ADD", "a", &conf).result();
    conf["cni.dev/valid-attachments"] = json!([]);
    let (answer, _) = gc(&conf, true);
    assert_eq!(answer["code"], 5, "{answer}");
    assert_eq!(node.leases(), [""; 0]);
    assert_eq!(node.notes(), [""; 0]);
    // after a power loss at this point, both leases would exist again
    let (answer, synced) = gc(&conf, false);
    assert_eq!(answer, Value::Null);
    let attachments = node.leases_dir().join("rdma-ipam/attachments");
    assert_eq!(synced, [attachments, node.leases_dir()]);
}

/// Only host-local has run on the node.
#[test]
fn a_gc_without_directories_of_its_own_succeeds() {
    let node = Node::new();
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["cni.dev/valid-attachments"] = json!([]);
    node.write("10.77.0.9", "gone\r\neth0");
    assert_eq!(gc(&conf, false), (Value::Null, vec![node.leases_dir()]));
    assert_eq!(node.leases(), [""; 0]);
    assert!(!node.leases_dir().join("rdma-ipam").exists());
}

#[test]
fn others_need_not_wait_for_the_disk_of_a_gc() {
    #[derive(Debug)]
    struct Looks(PathBuf);
    impl Disk for Looks {
        fn make(&self, change: &Change) -> io::Result<()> {
            let is_swept = fs::read_dir(&self.0).is_ok_and(|mut it| {
                it.all(|entry| entry.is_ok_and(|it| it.file_name() != *"10.77.0.9"))
            });
            if is_swept && matches!(change, Change::Sync(_)) {
                let lock = fs::File::open(self.0.join("lock")).expect("the lock");
                lock.try_lock().expect("nobody has it");
            }
            RealDisk.make(change)
        }
    }
    let node = Node::new();
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["cni.dev/valid-attachments"] = json!([]);
    node.write("10.77.0.9", "gone\r\neth0");
    let environment = [("CNI_COMMAND", "GC"), ("CNI_PATH", "/x")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let text = conf.to_string();
    let lock_deadline = cni_protocol::lock::LockDeadline::of_verb();
    let system: (&dyn Disk, _) = (&Looks(node.leases_dir()), &Linux::new());
    rdma_ipam::call(environment.into(), text.as_bytes(), system, lock_deadline)
        .expect("it succeeds");
}
