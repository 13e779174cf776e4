// SPDX-License-Identifier: Apache-2.0
//! Tests of late writes to a replaced file, which the daemon cannot copy to the new file at once.

use crate::{FLANNEL, Node};
use conflist::List;
use daemon_conf as conf;
use rdma_device_plugin::chain::{Chain, file::Held, kept_entry::KeptEntry, record::Record};
use std::{
    fs::{self, OpenOptions},
    io::Write,
};

const FILE: &str = "etc/cni/net.d/10-flannel.conflist";

/// Adds `rdma-cni` to the list. A program that opened the list before then writes `text`.
fn written_late(text: &str) -> (Node, Chain, Vec<Held>) {
    let node = Node::with_list(FLANNEL);
    let chain = Chain {
        conf: conf::chain::Chain {
            conf_dir: node.path("etc/cni/net.d"),
            ..conf::chain::Chain::default()
        },
        state_dir: node.path("state"),
        cni_cache: None,
        needs_kubelet: false,
    };
    node.program("rdma-cni", "ours");
    let mut record = Record::default();
    record.bin_dir = Some(node.path("opt/cni/bin"));
    record.write(&chain.state_dir).expect("a record");
    let path = node.path(FILE);
    let mut late = OpenOptions::new().write(true).open(&path).expect("opened");
    let mut held = vec![];
    let turn = chain
        .take(&mut held, &mut KeptEntry::default(), || None)
        .expect("a turn");
    held.extend(turn.held);
    assert_ne!(node.read(FILE), FLANNEL);
    late.set_len(0).expect("cut");
    late.write_all(text.as_bytes()).expect("written");
    (node, chain, held)
}

#[test]
fn an_entry_written_late_counts() {
    let (node, chain, mut held) = written_late(&FLANNEL.replace("cbr0", "late"));
    let in_the_way = node.path("etc/cni/net.d/.10-flannel.conflist.rdma-cni-new");
    fs::create_dir(&in_the_way).expect("made");
    chain
        .take(&mut held, &mut KeptEntry::default(), || None)
        .expect_err("it cannot be written");
    fs::remove_dir(&in_the_way).expect("removed");
    chain
        .take(&mut held, &mut KeptEntry::default(), || None)
        .expect("a turn");
    let text = node.read(FILE);
    let list = List::parse(&text).expect("a list");
    assert_eq!(list.name(), "late");
    assert!(list.ours().is_some());
}

/// `scripts/crash daemon_writes` kills a daemon in this state: the list is written, and its temporary copy still
/// exists.
#[test]
fn the_copy_of_a_daemon_that_was_killed_goes_at_the_next_turn() {
    let (node, chain, mut held) = written_late(FLANNEL);
    let copy = node.path("etc/cni/net.d/.10-flannel.conflist.rdma-cni-new");
    fs::write(&copy, FLANNEL).expect("written");
    let others = node.path("etc/cni/net.d/.20-other.conflist.rdma-cni-new");
    fs::write(&others, FLANNEL).expect("written");
    chain
        .take(&mut held, &mut KeptEntry::default(), || None)
        .expect("a turn");
    assert!(!copy.exists());
    assert!(others.exists(), "no list of the record has it");
    let text = node.read(FILE);
    let list = List::parse(&text).expect("a list");
    assert!(list.ours().is_some());
}

#[test]
fn a_list_without_our_entry_counts() {
    let text = FLANNEL.replace("portmap", "rdma-cni");
    let (node, chain, mut held) = written_late(&text);
    chain
        .take(&mut held, &mut KeptEntry::default(), || None)
        .expect("a turn");
    assert_eq!(node.read(FILE), text);
}
