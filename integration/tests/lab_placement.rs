// SPDX-License-Identifier: Apache-2.0
//! In the lab, the location of the entry of `rdma-cni` with `chain.placement: auto`:
//! `integration/lab/vm --tier full --shared --memory 4096`, on containerd 2 and CRI-O. The daemon chooses the location
//! by the calls of the runtime.

use integration::{
    Snapshot,
    container_runtime::{
        InstalledNode,
        installed::{Files, LEFT, LIST, PLACES, UNINSTALLED, primary, records},
        manifest::Manifest,
        shared::{HCA, IDS, has_all_rails},
    },
    wait,
};
use std::fs;

/// The location of the entry with `auto` if the runtime reads the directory.
const IN_DIRECTORY: &str = "/etc/cni/net.d/pods/99-rdma-cni.conf";

/// Number of pods that start and end before the test regards the entry's location as final.
const PODS: usize = 3;

/// Returns true if the list is as its owner wrote it, and the entry is in the directory.
fn has_moved() -> bool {
    let entry = fs::read_to_string(IN_DIRECTORY).unwrap_or_default();
    let list = fs::read_to_string(LIST).expect("the list");
    list == primary("pods") && entry.contains("rdma-cni") && !entry.contains("detect")
}

/// Asserts that the entry is in the list, and that the directory has an entry that only records its calls.
#[track_caller]
fn stays_in_the_list() {
    let list = fs::read_to_string(LIST).expect("the list");
    assert!(list.contains("rdma-cni"), "{list}");
    let detects = fs::read_to_string(IN_DIRECTORY).expect("an entry that detects");
    assert!(detects.contains("detect"), "{detects}");
}

#[test]
fn with_auto_the_entry_is_where_this_runtime_reads_it() {
    let node = InstalledNode::new();
    let before = Files::below(&PLACES);
    let manifest = Manifest::read("conf/manifests/lingjun.yaml").with_chain("placement", "auto");
    let (daemon, _) = node.daemon(&manifest, "daemon");
    node.kubelet
        .wait_for(HCA, "its ids", |it| it.healthy().len() == IDS);
    let stays = node.pod("stays");
    let network = Snapshot::of(&node.nics.host);
    let moves = node.runtime.engine().reads_directories();
    for number in 0..PODS {
        let pod = node.pod(&format!("pod-{number}"));
        has_all_rails(&pod);
        node.remove(pod);
        if moves {
            wait::until("the entry is in the network's directory", has_moved);
        } else {
            stays_in_the_list();
        }
        assert_eq!(records().len(), 1);
        network.assert_restored(&node.nics.host);
    }
    has_all_rails(&stays);
    node.remove(stays);
    if !moves {
        stays_in_the_list();
    }
    assert!(records().is_empty(), "{:?}", records());
    daemon.remove();
    let uninstall = Manifest::read("conf/manifests/uninstall.yaml");
    let (uninstall, _) = node.daemon_pod(&uninstall, "uninstall");
    let done = uninstall.wait_for_log(UNINSTALLED);
    done.expect("no pod has devices any more");
    uninstall.remove();
    Files::below(&PLACES).assert_as(&before, &LEFT);
}
