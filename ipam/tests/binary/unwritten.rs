// SPDX-License-Identifier: Apache-2.0
//! Tests of ADD whose result cannot be written, or whose leases cannot be made or synced. Its error says whether the
//! addresses are free again.

use super::node::{Node, call};
use cni_protocol::{Input, lock::LockDeadline};
use rdma_ipam::store::{Change, Disk, RealDisk};
use rdma_netns::Linux;
use serde_json::{Value, json};
use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
};

/// The failure that begins when ADD writes its result, or at an earlier sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    Removals,
    Syncs,
}

/// A disk on which ADD's changes fail from some moment on.
#[derive(Debug)]
struct Breaking {
    broken: Cell<Broken>,
    /// True: the failure `then` begins when ADD writes the result. False: an earlier sync fails, and `then` begins at
    /// this sync.
    settles: bool,
    then: Broken,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(nix::libc::EIO)
}

impl Disk for Breaking {
    fn make(&self, change: &Change) -> io::Result<()> {
        match (change, self.broken.get()) {
            (Change::Remove(path), Broken::Removals) if path.ends_with("10.77.0.2") => Err(eio()),
            (Change::Sync(_), Broken::Syncs) => Err(eio()),
            (Change::Sync(path), _) if path.ends_with("attachments") && !self.settles => {
                self.broken.set(self.then);
                Err(eio())
            }
            _ => RealDisk.make(change),
        }
    }
}

/// An output whose first write, of the result, fails if `disk.settles` is true. Later writes, of the error, succeed.
struct Output<'a> {
    disk: &'a Breaking,
    has_failed: bool,
    text: Vec<u8>,
}

impl Write for Output<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if !self.has_failed && self.disk.settles {
            self.has_failed = true;
            self.disk.broken.set(self.disk.then);
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.text.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the environment of an ADD of the attachment (`a`, `eth0`).
fn environment(args: &str) -> BTreeMap<String, String> {
    let environment = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "a"),
        ("CNI_NETNS", "/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/x"),
        ("CNI_ARGS", args),
    ];
    environment
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// Returns code and message of the error `output`.
fn error(output: &[u8]) -> (u64, String) {
    let answer: Value = serde_json::from_slice(output).expect("one JSON object");
    let message = answer["msg"].as_str().expect("a sentence").to_owned();
    (answer["code"].as_u64().expect("a number"), message)
}

fn add(node: &Node, settles: bool, then: Broken) -> (u64, String) {
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["log"] = json!({"level": "off"});
    let input = Input {
        arguments: vec![],
        environment: environment("IP=10.77.0.2"),
    };
    let disk = Breaking {
        broken: Cell::new(Broken::Nothing),
        settles,
        then,
    };
    let mut output = Output {
        disk: &disk,
        has_failed: false,
        text: vec![],
    };
    let text = conf.to_string();
    let mut stdin = text.as_bytes();
    let code = rdma_ipam::run(input, &mut stdin, &mut output, &disk, &Linux::new());
    assert_eq!(code, ExitCode::FAILURE);
    error(&output.text)
}

#[test]
fn addresses_are_called_given_back_only_where_they_are() {
    let node = Node::new();
    let directory = node.leases_dir();
    let unwritten = "cannot write the answer to standard output: broken pipe";
    let unsynced = format!(
        "cannot sync {:?}: Input/output error (os error 5); ipam.dataDir must be a directory that can be written",
        directory.join("rdma-ipam/attachments")
    );
    let held = "DEL or GC will release 10.77.0.2, because ADD could not";
    let remedy =
        "Input/output error (os error 5); ipam.dataDir must be a directory that can be written";
    for (settles, cause) in [(true, unwritten), (false, &unsynced)] {
        for (then, outcome, left) in [
            (
                Broken::Nothing,
                "the addresses are released".to_owned(),
                false,
            ),
            (
                Broken::Removals,
                format!(
                    "{held}: cannot remove {:?}: {remedy}",
                    directory.join("10.77.0.2")
                ),
                true,
            ),
            // the addresses are free, but a power loss now would restore their leases
            (
                Broken::Syncs,
                format!("{held}: cannot sync {directory:?}: {remedy}"),
                false,
            ),
        ] {
            let code = if outcome.starts_with(held) { 102 } else { 5 };
            assert_eq!(
                add(&node, settles, then),
                (code, format!("{cause}; {outcome}"))
            );
            assert_eq!(!node.leases().is_empty(), left, "{then:?}");
            call("DEL", "a", &node.conf(json!({}))).ok();
            assert_eq!(node.leases(), [""; 0]);
        }
    }
}

/// A disk that cannot make the second lease of an ADD, and cannot remove the file named `kept`.
#[derive(Debug)]
struct HalfWay {
    kept: &'static str,
}

impl Disk for HalfWay {
    fn make(&self, change: &Change) -> io::Result<()> {
        match change {
            Change::Link { to, .. } if to.ends_with("fd77::2") => Err(eio()),
            Change::Remove(path) if path.ends_with(self.kept) => Err(eio()),
            change => RealDisk.make(change),
        }
    }
}

#[test]
fn a_half_made_reservation_is_called_released_only_if_it_is() {
    let node = Node::new();
    let mut conf =
        node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}));
    conf["log"] = json!({"level": "off"});
    let directory = node.leases_dir();
    let remedy =
        "Input/output error (os error 5); ipam.dataDir must be a directory that can be written";
    let cause = format!("cannot create {:?}: {remedy}", directory.join("fd77::2"));
    let held = format!(
        "{cause}; DEL or GC will release 10.77.0.2, because ADD could not: cannot remove {:?}: {remedy}",
        directory.join("10.77.0.2")
    );
    for (kept, expected, left) in [
        ("none", (5, &cause), &[][..]),
        ("10.77.0.2", (102, &held), &["10.77.0.2"]),
        // a note without leases holds no address
        ("a@eth0", (5, &cause), &[]),
    ] {
        let text = conf.to_string();
        let system: (&dyn Disk, _) = (&HalfWay { kept }, &Linux::new());
        let environment = environment("IgnoreUnknown=1");
        let lock_deadline = LockDeadline::of_verb();
        let added = rdma_ipam::call(environment, text.as_bytes(), system, lock_deadline);
        let (code, message) = error(&added.expect_err("a failed ADD"));
        assert_eq!((code, &message), expected, "{kept}");
        assert_eq!(node.leases(), left, "{kept}");
        call("DEL", "a", &conf).ok();
        assert_eq!((node.leases(), node.notes()), (vec![], vec![]), "{kept}");
    }
}
