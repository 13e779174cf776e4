// SPDX-License-Identifier: Apache-2.0
//! Tests the receiver on one end of a veth pair, with lldpd on the other end.

use integration::{Manager, Netns, wait};
use lldp::{Listener, Neighbour};
use nix::sched::{CloneFlags, setns};
use std::{collections::BTreeSet, fs::File, thread};

/// Returns the namespaces of a node and of a switch, with a veth pair between them.
fn cabled() -> (Netns, Netns) {
    let (node, switch) = (Netns::new("node"), Netns::new("switch"));
    cable(&node, &switch);
    (node, switch)
}

fn cable(node: &Netns, switch: &Netns) {
    node.ip(&format!(
        "link add ens1 type veth peer name swp1 netns {}",
        switch.name()
    ));
    node.ip("link set ens1 up");
    switch.ip("link set swp1 up");
}

/// Runs `work` in a thread whose network namespace is `netns`.
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(netns.path()).expect("the namespace");
    let run = || {
        setns(file, CloneFlags::CLONE_NEWNET).expect("entered");
        work()
    };
    thread::scope(|scope| scope.spawn(run).join()).expect("no panic")
}

const ENS1: &[&str] = &["ens1"];

#[track_caller]
fn follow(listener: &mut Listener, netdevs: &[&str]) -> usize {
    listener
        .follow(&netdevs.iter().copied().collect::<BTreeSet<_>>())
        .len()
}

/// Waits until `ens1` has received the frame of a neighbour for which `is` returns true.
#[track_caller]
fn receives(listener: &mut Listener, what: &str, is: impl Fn(&Neighbour) -> bool) {
    wait::until(what, || {
        // the daemon also calls `follow` repeatedly, which must not close a bound socket
        assert_eq!(follow(listener, ENS1), 0);
        let received = listener.receive();
        assert!(received.iter().all(|(netdev, _)| netdev == "ens1"));
        received.iter().any(|(_, it)| is(it))
    });
}

#[test]
fn frames_of_lldpd_and_its_end_are_received_and_nothing_is_sent() {
    let (node, switch) = cabled();
    let sent = || node.run("cat /sys/class/net/ens1/statistics/tx_packets");
    node.run("sysctl -q -w net.ipv6.conf.ens1.disable_ipv6=1");
    let before = sent();
    let lldpd = Manager::lldpd(&switch, "leaf1", 2);
    inside(&node, || {
        let mut listener = Listener::new().expect("a listener");
        assert_eq!(follow(&mut listener, ENS1), 0);
        receives(&mut listener, "leaf1", |it| {
            (it.switch(), it.port(), it.ttl) == ("leaf1", "swp1", 2)
        });
        lldpd.run("pkill lldpd");
        receives(&mut listener, "the end", |it| {
            it.ttl == 0 && it.port() == "swp1"
        });
    });
    assert_eq!(sent(), before);
}

#[test]
fn a_netdev_that_is_down_for_a_while_or_made_again_receives_again() {
    let (node, switch) = cabled();
    let _lldpd = Manager::lldpd(&switch, "leaf1", 4);
    inside(&node, || {
        let mut listener = Listener::new().expect("a listener");
        assert_eq!(follow(&mut listener, ENS1), 0);
        let is_leaf = |it: &Neighbour| it.switch() == "leaf1" && it.ttl > 0;
        receives(&mut listener, "leaf1", is_leaf);
        node.ip("link set ens1 down");
        // reads the socket's error `ENETDOWN`
        listener.receive();
        node.ip("link set ens1 up");
        receives(&mut listener, "leaf1 behind the netdev that is up", is_leaf);
        node.ip("link del ens1");
        assert_eq!(follow(&mut listener, ENS1), 1, "there is none");
        cable(&node, &switch);
        assert_eq!(follow(&mut listener, ENS1), 0);
        receives(&mut listener, "leaf1 behind the new netdev", is_leaf);
        assert_eq!(follow(&mut listener, &[]), 0);
        let lasted = std::time::Duration::from_secs(3);
        assert!(
            !wait::within(lasted, || !listener.receive().is_empty()),
            "it is left"
        );
    });
}

#[test]
fn a_netdev_that_was_in_a_pod_receives_again() {
    let (node, switch) = cabled();
    let pod = Netns::new("pod");
    let _lldpd = Manager::lldpd(&switch, "leaf1", 4);
    inside(&node, || {
        let mut listener = Listener::new().expect("a listener");
        assert_eq!(follow(&mut listener, ENS1), 0);
        let is_leaf = |it: &Neighbour| it.switch() == "leaf1" && it.ttl > 0;
        receives(&mut listener, "leaf1", is_leaf);
        node.ip(&format!("link set ens1 netns {}", pod.name()));
        // the daemon may learn of the move only after the netdev has returned
        pod.ip(&format!("link set ens1 netns {}", node.name()));
        node.ip("link set ens1 up");
        assert_eq!(follow(&mut listener, ENS1), 0);
        receives(&mut listener, "leaf1 after its return", is_leaf);
    });
}
