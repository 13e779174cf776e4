// SPDX-License-Identifier: Apache-2.0
//! SMC's settings: the pnet table and the largest number of links of each namespace, and the user EIDs of the node.

use crate::{Node, ops::*};
use rdma_netns::{
    Kernel, NetnsSide, Op,
    smc::{PnetEntry, PnetId, SmcState},
};

fn id(text: &str) -> PnetId {
    PnetId::try_from(text).expect("a pnet id")
}

fn netdev(pnet_id: &str, netdev: &str) -> PnetEntry {
    PnetEntry {
        name: id(pnet_id),
        netdev: Some(netdev.to_owned()),
        rdma: None,
    }
}

fn port(pnet_id: &str, device: &str, port: u8) -> PnetEntry {
    PnetEntry {
        name: id(pnet_id),
        netdev: None,
        rdma: Some((device.to_owned(), port)),
    }
}

fn add_entry(at: NetnsSide, entry: PnetEntry) -> Op {
    Op::AddPnet { at, entry }
}

fn remove_entries(at: NetnsSide, pnet_id: &str) -> Op {
    let id = id(pnet_id);
    Op::RemovePnet { at, id }
}

fn add_ueid(text: &str) -> Op {
    let ueid = text.to_owned();
    Op::AddUeid { ueid }
}

fn state(node: &Node<'_, impl Kernel>) -> SmcState {
    let state = node.kernel.smc(Some(node.pod)).expect("a state");
    state.expect("a kernel with SMC")
}

/// Each namespace has its own table of netdevs. All RDMA ports are in the host's table. An entry of a netdev and a port
/// becomes two entries (`smc_pnet_add()`, `net/smc/smc_pnet.c`).
pub fn each_namespace_has_a_table_and_the_host_has_the_ports(node: &Node<'_, impl Kernel>) {
    assert_eq!((state(node).host, state(node).pod), (vec![], vec![]));
    let both = PnetEntry {
        rdma: Some(("rxe0".to_owned(), 1)),
        ..netdev("A1", "nic0")
    };
    node.make(add_entry(HOST, both));
    node.make(add_entry(POD, netdev("B2", "eth0")));
    let seen = state(node);
    assert_eq!(seen.host, [netdev("A1", "nic0"), port("A1", "rxe0", 1)]);
    assert_eq!(seen.pod, [netdev("B2", "eth0")]);
    assert!(node.is_refused(add_entry(POD, port("B2", "rxe1", 1))));
    assert_eq!(state(node), seen);
}

/// The kernel accepts entries for netdevs and RDMA devices that do not exist. A port must be 1 or 2.
pub fn names_need_not_be_there(node: &Node<'_, impl Kernel>) {
    node.make(add_entry(HOST, netdev("A1", "nic9")));
    node.make(add_entry(HOST, port("A1", "rxe9", 2)));
    assert_eq!(
        state(node).host,
        [netdev("A1", "nic9"), port("A1", "rxe9", 2)]
    );
    for wrong in [0, 3] {
        assert!(node.is_refused(add_entry(HOST, port("A1", "rxe8", wrong))));
    }
}

/// The kernel refuses a second pnet id for a netdev or RDMA device. Adding an entry again is no error.
pub fn one_entry_per_netdev_and_per_device(node: &Node<'_, impl Kernel>) {
    for _ in 0..2 {
        node.make(add_entry(HOST, netdev("A1", "nic0")));
        node.make(add_entry(HOST, port("A1", "rxe0", 1)));
    }
    let seen = state(node);
    assert_eq!(seen.host.len(), 2);
    for other in [
        netdev("B2", "nic0"),
        port("B2", "rxe0", 1),
        port("A1", "rxe0", 2),
    ] {
        assert!(node.is_refused(add_entry(HOST, other)));
    }
    // both parts of an entry are added, or none: `rdma_netns` checks this, because the kernel would add one part
    let half = PnetEntry {
        rdma: Some(("rxe1".to_owned(), 1)),
        ..netdev("B2", "nic0")
    };
    assert!(node.is_refused(add_entry(HOST, half)));
    assert_eq!(state(node), seen);
}

/// Entries are names, and stay when netdev and RDMA device move.
pub fn an_entry_follows_neither_netdev_nor_device(node: &Node<'_, impl Kernel>) {
    node.make(add_entry(HOST, netdev("A1", "nic0")));
    node.make(add_entry(HOST, port("A1", "rxe0", 1)));
    let before = state(node).host;
    node.make(move_rdma("rxe0", HOST, POD));
    node.make(into_pod("nic0", "rdma0"));
    assert_eq!((state(node).host, state(node).pod), (before, vec![]));
}

/// Removing an id without entries is no error.
pub fn all_of_an_id_are_removed_in_one_namespace(node: &Node<'_, impl Kernel>) {
    for entry in [
        netdev("A1", "nic0"),
        netdev("A1", "nic1"),
        port("A1", "rxe0", 1),
        netdev("B2", "nic2"),
    ] {
        node.make(add_entry(HOST, entry));
    }
    node.make(add_entry(POD, netdev("A1", "nic0")));
    node.make(remove_entries(HOST, "A1"));
    node.make(remove_entries(HOST, "A1"));
    let seen = state(node);
    assert_eq!(seen.host, [netdev("B2", "nic2")]);
    assert_eq!(seen.pod, [netdev("A1", "nic0")]);
}

/// The node has at most `SMC_MAX_UEID` (4) user EIDs, of at most 32 characters each (`smc_clc_ueid_valid()`,
/// `net/smc/smc_clc.c`).
pub fn four_user_eids_for_the_whole_node(node: &Node<'_, impl Kernel>) {
    for number in 0..4 {
        node.make(add_ueid(&format!("EID{number}")));
    }
    node.make(add_ueid("EID0"));
    assert!(node.is_refused(add_ueid("EID4")));
    assert_eq!(state(node).ueids, ["EID0", "EID1", "EID2", "EID3"]);
    for _ in 0..2 {
        let ueid = "EID0".to_owned();
        node.make(Op::RemoveUeid { ueid });
    }
    for wrong in ["", "eid", "-EID", "E ID", &"E".repeat(33)] {
        assert!(node.is_refused(add_ueid(wrong)), "{wrong:?}");
    }
    node.make(add_ueid(&"E".repeat(32)));
    assert_eq!(state(node).ueids.len(), 4);
}

/// Each pod has its own maximum (`net.smc.smcr_max_links_per_lgr`).
pub fn max_links_are_the_pods(node: &Node<'_, impl Kernel>) {
    assert_eq!(state(node).max_links, Some(2));
    node.make(Op::SetMaxLinks { links: 1 });
    assert_eq!(state(node).max_links, Some(1));
    let host = node.kernel.smc(None).expect("a state");
    assert_eq!(host.expect("a kernel with SMC").max_links, None);
}
