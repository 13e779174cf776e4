//! SIGKILL after every operation of ADD and of DEL: the next DEL, ADD or GC brings the
//! host back. With veths; with RDMA devices it is a test of the lab.

use integration::{
    Node, Snapshot,
    killed::{Healer, Sweep},
    plugin::rdma_cni,
};

fn sweep(node: &Node) -> Sweep<'_> {
    for line in [
        "address add 192.0.2.5/24 dev eth1",
        "address add 2001:db8:5::5/64 dev eth1 nodad",
        "route add 198.51.100.0/24 via 192.0.2.1 dev eth1 metric 120",
        "link set dev eth2 mtu 1400",
        "link property add dev eth2 altname second-rail",
    ] {
        node.host.ip(line);
    }
    Sweep {
        host: &node.host,
        plugin: rdma_cni(),
        killed: env!("CARGO_BIN_EXE_rdma-cni-killed").into(),
        cni_path: node.cni_path(),
        configuration: node.configuration(&["eth1", "eth2"]),
        before: Snapshot::of(&node.host),
    }
}

#[track_caller]
fn assert_healed(command: &str, healer: Healer) {
    let node = Node::with_rails(2);
    let operations = sweep(&node).run(command, &[healer]);
    assert!(operations > 6, "{command} had only {operations} operations");
    assert!(
        node.records().is_empty(),
        "records were left: {:?}",
        node.records()
    );
}

#[test]
fn a_del_heals_a_killed_add() {
    assert_healed("ADD", Healer::Del);
}

#[test]
fn an_add_heals_a_killed_add() {
    assert_healed("ADD", Healer::Add);
}

#[test]
fn gc_heals_a_killed_add() {
    assert_healed("ADD", Healer::Gc);
}

#[test]
fn a_del_heals_a_killed_del() {
    assert_healed("DEL", Healer::Del);
}

#[test]
fn an_add_heals_a_killed_del() {
    assert_healed("DEL", Healer::Add);
}

#[test]
fn gc_heals_a_killed_del() {
    assert_healed("DEL", Healer::Gc);
}
