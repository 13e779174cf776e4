// SPDX-License-Identifier: Apache-2.0
//! Stops ADD and DEL before each of their changes of the disk, as if they were killed.

use super::node::{Node, call};
use cni_protocol::Input;
use rdma_ipam::store::{Change, Disk, RealDisk};
use rdma_netns::Linux;
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    fs, io,
    process::ExitCode,
};

/// A disk that makes `left` changes and then no more, as if the process had been killed.
#[derive(Debug)]
struct Stopping {
    left: Cell<usize>,
    /// True if a write that is not made leaves half of its content in the file.
    torn: Cell<bool>,
    made: RefCell<Vec<Change>>,
}

impl Stopping {
    fn after(left: usize, torn: bool) -> Self {
        Self {
            left: Cell::new(left),
            torn: Cell::new(torn),
            made: RefCell::default(),
        }
    }
}

impl Disk for Stopping {
    fn make(&self, change: &Change) -> io::Result<()> {
        if self.left.get() == 0 {
            if let (true, Change::Write { path, content, .. }) = (self.torn.take(), change) {
                fs::write(path, &content[..content.len() / 2])?;
            }
            return Err(io::Error::other("killed"));
        }
        self.left.set(self.left.get() - 1);
        self.made.borrow_mut().push(change.clone());
        RealDisk.make(change)
    }
}

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0";

/// Runs a verb for the attachment (`a`, `eth0`) in this process.
fn run(command: &str, conf: &Value, disk: &Stopping) -> (bool, Value) {
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "a"),
        ("CNI_NETNS", "/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/x"),
        ("CNI_ARGS", ARGS),
    ];
    let input = Input {
        arguments: vec![],
        environment: environment
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    };
    let mut output = vec![];
    let text = conf.to_string();
    let code = rdma_ipam::run(
        input,
        &mut text.as_bytes(),
        &mut output,
        disk,
        &Linux::new(),
    );
    let answer = serde_json::from_slice(&output).unwrap_or_default();
    (code == ExitCode::SUCCESS, answer)
}

fn conf(node: &Node, strategy: &str) -> Value {
    let mut conf = node.conf(json!({
        "strategy": strategy,
        "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
    }));
    conf["log"] = json!({"level": "off"});
    conf
}

/// Asserts that each lease is complete and belongs to an attachment.
fn assert_whole(node: &Node, when: &str) {
    for lease in node.leases() {
        let content = fs::read_to_string(node.leases_dir().join(&lease)).unwrap();
        assert!(
            ["a\r\neth0", "b\r\neth0"].contains(&&*content),
            "{lease}, {when}: {content:?}"
        );
    }
}

/// The calls after the verb was killed.
#[derive(Clone, Copy, Debug)]
enum Then {
    Del,
    AddAgain,
    Gc,
    HostLocalDel,
    OtherPodFirst,
}

fn recover(node: &Node, conf: &Value, then: Then, when: &str) {
    let a = |command: &str| call(command, "a", conf).env("CNI_ARGS", ARGS);
    match then {
        Then::Del => a("DEL").ok(),
        Then::AddAgain => {
            let outcome = a("ADD").run();
            assert_eq!(node.leases().len(), 2, "{when}: {outcome:?}");
            assert!(
                outcome.success || outcome.stdout.contains("\"code\":100"),
                "{outcome:?}"
            );
            a("CHECK").ok();
            a("DEL").ok();
        }
        Then::Gc => {
            let mut conf = conf.clone();
            conf["cni.dev/valid-attachments"] = json!([]);
            call("GC", "", &conf).ok();
        }
        Then::HostLocalDel => {
            assert!(a("DEL").host_local().run().success);
            assert_eq!(node.leases(), [""; 0], "{when}");
            a("DEL").ok();
        }
        Then::OtherPodFirst => {
            // attachment `b` gets those of `a`'s addresses that are free
            let free: Vec<String> = ["10.77.0.2", "fd77::2"]
                .iter()
                .map(ToString::to_string)
                .filter(|ip| !node.leases().contains(ip))
                .collect();
            let mut conf_with_ips = conf.clone();
            conf_with_ips["runtimeConfig"] = json!({"ips": free});
            let theirs = call("ADD", "b", &conf_with_ips).addresses();
            assert_whole(node, when);
            a("DEL").ok();
            assert_eq!(node.leases().len(), 2, "{when}: b keeps {theirs:?}");
            call("CHECK", "b", conf).ok();
            call("DEL", "b", conf).ok();
        }
    }
    assert_eq!(node.leases(), [""; 0], "{when}");
    assert_eq!(node.notes(), [""; 0], "{when}");
    // the attachment can get addresses again
    a("ADD").result();
    a("DEL").ok();
}

const ALL: [Then; 5] = [
    Then::Del,
    Then::AddAgain,
    Then::Gc,
    Then::HostLocalDel,
    Then::OtherPodFirst,
];

#[test]
fn an_add_stopped_anywhere_loses_nothing() {
    for (strategy, torn) in [
        ("sequential", false),
        ("sequential", true),
        ("stable", true),
    ] {
        for then in ALL {
            for left in 0.. {
                let node = Node::new();
                let conf = conf(&node, strategy);
                let disk = Stopping::after(left, torn);
                let (added, answer) = run("ADD", &conf, &disk);
                if added && disk.left.get() > 0 {
                    assert!(left > 10, "{left} changes: something is not counted");
                    break;
                }
                let when = format!("{strategy}, torn {torn}, {then:?}, {left} changes: {answer}");
                assert_whole(&node, &when);
                recover(&node, &conf, then, &when);
            }
        }
    }
}

#[test]
fn a_del_stopped_anywhere_is_repeated() {
    for then in ALL {
        for left in 0.. {
            let node = Node::new();
            let conf = conf(&node, "sequential");
            call("ADD", "a", &conf).result();
            let disk = Stopping::after(left, false);
            let (gone, _) = run("DEL", &conf, &disk);
            if gone && disk.left.get() > 0 {
                assert_eq!(left, 5);
                break;
            }
            let when = format!("{then:?}, {left} changes");
            assert_whole(&node, &when);
            recover(&node, &conf, then, &when);
        }
    }
}

#[test]
fn a_lost_note_loses_no_lease() {
    // a power loss may remove changes that were not synced
    let node = Node::new();
    let conf = conf(&node, "sequential");
    call("ADD", "a", &conf).result();
    fs::remove_dir_all(node.leases_dir().join("rdma-ipam")).unwrap();
    call("CHECK", "a", &conf).ok();
    call("DEL", "a", &conf).ok();
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn the_order_of_changes() {
    let node = Node::new();
    let conf = conf(&node, "sequential");
    let directory = node.leases_dir();
    for notes in ["attachments", "conflicts"] {
        std::fs::create_dir_all(directory.join("rdma-ipam").join(notes)).unwrap();
    }
    let changes = |command: &str| -> Vec<String> {
        let disk = Stopping::after(usize::MAX, false);
        assert!(run(command, &conf, &disk).0);
        let relative = |change: &Change| {
            let path = change.path().strip_prefix(&directory).unwrap();
            let synced = match change {
                Change::Write { durable: true, .. } => ", synced",
                _ => "",
            };
            let words = format!("{} {}{synced}", change.verb(), path.display());
            let process = format!(".{}.", std::process::id());
            words.trim_end().replace(&process, ".PID.")
        };
        let made = disk.made.borrow();
        // some removals are of files that a killed process may have left
        made.iter().map(relative).collect()
    };
    assert_eq!(
        changes("ADD"),
        [
            "remove rdma-ipam/a@eth0.PID.new",
            "write rdma-ipam/a@eth0.PID.new, synced",
            "create rdma-ipam/attachments/a@eth0",
            "create 10.77.0.2",
            "create fd77::2",
            "remove rdma-ipam/pointer.new",
            "write rdma-ipam/pointer.new",
            "write last_reserved_ip.0",
            "remove rdma-ipam/pointer.new",
            "write rdma-ipam/pointer.new",
            "write last_reserved_ip.1",
            "remove rdma-ipam/a@eth0.PID.new",
            "sync rdma-ipam/attachments",
            "sync",
        ]
    );
    assert_eq!(
        changes("DEL"),
        [
            "remove 10.77.0.2",
            "remove fd77::2",
            "remove rdma-ipam/attachments/a@eth0",
            "sync",
        ]
    );
}
