// SPDX-License-Identifier: Apache-2.0
//! Tests of the distinction between this project's entry and another program's entry of the same type in one list.

use crate::{
    FLANNEL, Node,
    keeping::{SOON, becomes, daemon},
};
use conflist::{Entry, List};
use daemon_conf as conf;
use integration::stopwatch;
use rdma_device_plugin::chain::{Chain, kept_entry::KeptEntry, record::Record};
use serde_json::{Map, json};
use std::{fs, thread};

const FILE: &str = "10-flannel.conflist";
const LIST: &str = "etc/cni/net.d/10-flannel.conflist";

/// A user's entry, in another layout than ours.
const THEIRS: &str = ",\n    { \"type\":\"rdma-cni\",\"mtu\" : 4200 }";

/// Adds the user's entry before or after our entry. Returns the list that has only the user's entry.
fn add_theirs(node: &Node, is_first: bool) -> String {
    let (before, after) = FLANNEL.split_at(FLANNEL.find("\n  ]").expect("the end of the plugins"));
    let text = node.read(LIST);
    let ours = text
        .strip_prefix(before)
        .and_then(|it| it.strip_suffix(after));
    let ours = ours.expect("our entry is the last");
    assert!(ours.contains("\"rdma-cni\""), "{ours}");
    let both = match is_first {
        true => format!("{before}{THEIRS}{ours}{after}"),
        false => format!("{before}{ours}{THEIRS}{after}"),
    };
    node.net(FILE, &both);
    format!("{before}{THEIRS}{after}")
}

#[test]
fn a_users_entry_beside_ours_stays_and_ours_is_removed() {
    let by_others = "with an entry that another program wrote";
    let stay = "the binaries stay: rdma-cni or rdma-ipam is still in 10-flannel.conflist";
    for is_first in [false, true] {
        let node = Node::with_list(FLANNEL);
        node.install();
        let theirs = add_theirs(&node, is_first);
        let output = node.uninstall();
        assert_eq!(node.read(LIST), theirs, "uninstall, {is_first}");
        assert!(output.contains(stay), "{output}");

        node.net(FILE, FLANNEL);
        node.install();
        let theirs = add_theirs(&node, is_first);
        let output = node.install();
        assert_eq!(node.read(LIST), theirs, "install, {is_first}");
        assert!(output.contains(by_others), "{output}");
        node.uninstall();
        assert_eq!(node.read(LIST), theirs, "install and uninstall, {is_first}");

        node.net(FILE, FLANNEL);
        node.install();
        let daemon = daemon(&node);
        becomes(&daemon, 200, "the runtime calls rdma-cni");
        let theirs = add_theirs(&node, is_first);
        becomes(&daemon, 200, by_others);
        thread::sleep(SOON);
        assert_eq!(node.read(LIST), theirs, "the daemon, {is_first}");
        // the daemon adds its entry again after the user has removed theirs
        node.net(FILE, FLANNEL);
        let is_back = || node.read(LIST).matches("\"rdma-cni\"").count() == 1;
        assert!(stopwatch::within(SOON, is_back));
        drop(daemon);
        node.uninstall();
        assert_eq!(node.read(LIST), FLANNEL);
    }
}

/// A failed change leaves an earlier entry in the list.
#[test]
fn our_entry_stays_ours_after_changes_that_failed() {
    let entry = |mtu: u32| {
        let fields = Map::from_iter([("mtu".to_owned(), json!(mtu))]);
        Entry::new(fields)
    };
    let mtu = |node: &Node| {
        let text = node.read(LIST);
        let list = List::parse(&text).expect("a list");
        list.own().expect("our entry")["mtu"].clone()
    };
    for is_updated in [true, false] {
        let node = Node::with_list(FLANNEL);
        node.program("rdma-cni", "ours");
        let mut record = Record::default();
        record.bin_dir = Some(node.path("opt/cni/bin"));
        record.write(&node.path("state")).expect("a record");
        let turn = |mtu: u32| {
            let chain = Chain {
                conf: conf::chain::Chain {
                    conf_dir: node.path("etc/cni/net.d"),
                    entry: entry(mtu),
                    ..conf::chain::Chain::default()
                },
                state_dir: node.path("state"),
                cni_cache: None,
                needs_kubelet: false,
            };
            chain.take(&mut vec![], &mut KeptEntry::default(), || None)
        };
        turn(1).expect("a turn");
        let in_the_way = node.path("etc/cni/net.d/.10-flannel.conflist.rdma-cni-new");
        fs::create_dir(&in_the_way).expect("made");
        for failed in 2..=4 {
            turn(failed).expect_err("it cannot be written");
        }
        fs::remove_dir(&in_the_way).expect("removed");
        assert_eq!(mtu(&node), 1);
        if is_updated {
            turn(5).expect("a turn");
            assert_eq!(mtu(&node), 5);
        }
        node.uninstall();
        assert_eq!(node.read(LIST), FLANNEL);
    }
}
