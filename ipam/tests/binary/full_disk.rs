// SPDX-License-Identifier: Apache-2.0
//! Tests of DEL, CHECK and GC on a full disk. They need no new file, so they work if only host-local has used the
//! network's directory.

use super::node::{Node, call};
use cni_protocol::lock::LockDeadline;
use rdma_ipam::store::{Change, Disk, RealDisk};
use rdma_netns::Linux;
use serde_json::{Value, json};
use std::{fs, io};

/// A disk on which no process can make a file.
#[derive(Debug)]
struct Full;

impl Disk for Full {
    fn make(&self, change: &Change) -> io::Result<()> {
        match change {
            Change::MakeDirectory(_)
            | Change::Write { .. }
            | Change::Note { .. }
            | Change::Link { .. } => Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)),
            Change::Rename { .. } | Change::Remove(_) | Change::Sync(_) => RealDisk.make(change),
        }
    }
}

/// Runs a verb for the attachment (`a`, `eth0`) in this process, on a full disk. Returns the error, or null.
fn run(command: &str, conf: &Value) -> Value {
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "a"),
        ("CNI_NETNS", "/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/x"),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let text = conf.to_string();
    let system: (&dyn Disk, _) = (&Full, &Linux::new());
    let lock_deadline = LockDeadline::of_verb();
    let called = rdma_ipam::call(environment.into(), text.as_bytes(), system, lock_deadline);
    let error = called.err().unwrap_or_default();
    serde_json::from_slice(&error).unwrap_or_default()
}

fn conf(node: &Node) -> Value {
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["log"] = json!({"level": "off"});
    conf["cni.dev/valid-attachments"] = json!([]);
    conf
}

#[test]
fn host_locals_lease_goes() {
    for command in ["DEL", "GC"] {
        let node = Node::new();
        let conf = conf(&node);
        node.write("10.77.0.9", "a\r\neth0");
        assert_eq!(run("CHECK", &conf), Value::Null, "{command}");
        assert_eq!(run(command, &conf), Value::Null, "{command}");
        assert_eq!(node.leases(), [""; 0], "{command}");
        assert!(!node.leases_dir().join("rdma-ipam").exists(), "{command}");
    }
}

/// The network's directory has the plugin's own directories in the second case.
#[test]
fn a_conflict_that_cannot_be_noted_keeps_no_lease() {
    for has_own in [false, true] {
        let node = Node::new();
        let mut conf = conf(&node);
        if has_own {
            call("ADD", "b", &conf).result();
        }
        node.write("10.77.0.9", "a\r\neth0");
        conf["conflicts"] = json!(["10.77.0.9"]);
        assert_eq!(run("DEL", &conf), Value::Null, "{has_own}");
        assert!(!node.leases().contains(&"10.77.0.9".into()), "{has_own}");
    }
}

#[test]
fn a_conflict_of_host_locals_lease_is_noted_where_there_is_room() {
    let node = Node::new();
    let mut conf = conf(&node);
    node.write("10.77.0.9", "a\r\neth0");
    conf["conflicts"] = json!(["10.77.0.9"]);
    call("DEL", "a", &conf).ok();
    assert_eq!(node.leases(), [""; 0]);
    let note = node.leases_dir().join("rdma-ipam/conflicts/10.77.0.9");
    fs::read_link(note).expect("the note");
}
