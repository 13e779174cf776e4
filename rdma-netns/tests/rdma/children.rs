// SPDX-License-Identifier: Apache-2.0
//! Tests of children: the packets that an ipvlan child receives, and names and indexes on the host.

use super::*;
use nix::libc;
use rdma_netns::{Child, IpvlanMode, MacvlanMode, Question, probe::Sign};

fn add(parent: &str, child: Child, name: &str, mtu: u32) -> Op {
    Op::AddChild {
        at: NetnsSide::Pod,
        parent: interface(parent),
        child,
        name: interface(name),
        mtu,
    }
}

const BRIDGE: Child = Child::Macvlan {
    mode: MacvlanMode::Bridge,
};
const IPVLAN: Child = Child::Ipvlan {
    mode: IpvlanMode::L2,
};

/// An ipvlan child has its parent's hardware address. So the answers to its IPv4 probes, by the other end of the veth
/// pair or by sibling children, arrive at the parent.
#[test]
fn an_ipvlan_child_hears_who_has_an_address() {
    let world = World::new("rdma-ipvlan-probe");
    let pod = world.pod();
    let execute = |op: Op| world.kernel.execute(&op, Some(&pod)).expect("done");
    execute(add("nic0", IPVLAN, "rdma0", 1500));
    let (at, link) = (NetnsSide::Pod, interface("rdma0"));
    execute(Op::Link {
        at,
        link,
        change: LinkChange::Up(true),
    });
    run("ip netns add rdma-ipvlan-sibling");
    run("ip link add link nic0 name sib0 netns rdma-ipvlan-sibling type ipvlan mode l2");
    for line in [
        "ip address add 10.1.0.1/24 dev nic1",
        "ip address add fd01::1/64 dev nic1 nodad",
        "ip -n rdma-ipvlan-sibling link set sib0 up",
        "ip -n rdma-ipvlan-sibling address add 10.1.0.2/24 dev sib0",
        "ip -n rdma-ipvlan-sibling address add fd01::2/64 dev sib0 nodad",
    ] {
        run(line);
    }
    let seen = world.kernel.observe(None).expect("a state");
    let parent = seen.host.link("nic0").expect("nic0").index;
    let ask = |address: &str| {
        let question = Question {
            link: interface("rdma0"),
            address: address.parse().expect("an address"),
            answered_at: Some(parent),
        };
        let probed = world.kernel.probe(&pod, &[question]).expect("a probe");
        let signs: Vec<Sign> = probed.conflicts.iter().map(|it| it.sign).collect();
        (address.to_owned(), signs)
    };
    for taken in ["10.1.0.1", "fd01::1", "10.1.0.2", "fd01::2"] {
        assert_eq!(ask(taken), (taken.to_owned(), vec![Sign::Has]));
    }
    for free in ["10.1.0.9", "fd01::9"] {
        assert_eq!(ask(free), (free.to_owned(), vec![]));
    }
    run("ip netns del rdma-ipvlan-sibling");
}

/// Linux before 6.15 searches on the host for the child's name.
#[test]
fn a_name_of_the_host_is_free_for_the_pod() {
    let world = World::new("rdma-same-name");
    let pod = world.pod();
    let execute = |op: Op| world.kernel.execute(&op, Some(&pod));
    execute(add("nic0", BRIDGE, "nic1", 1500)).expect("a child");
    let seen = world.kernel.observe(Some(&pod)).expect("a state");
    let namespace = seen.pod.expect("the pod");
    let child = namespace.link("nic1").expect("the child");
    assert_eq!(child.child, Some(BRIDGE));
    assert_eq!(seen.host.link("nic1").expect("nic1").child, None);
    let error = execute(add("nic0", BRIDGE, "nic1", 1500)).expect_err("taken");
    assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
    // a netdev that is made a second time may get another index
    let link = interface("nic1");
    let at = NetnsSide::Pod;
    execute(Op::Link {
        at,
        link,
        change: LinkChange::Remove,
    })
    .expect("removed");
    execute(add("nic0", BRIDGE, "nic1", 1500)).expect("a child");
}

/// The child's name exists on the host, so the crate chooses the child's index. Meanwhile another program makes
/// netdevs, which take indexes.
#[test]
fn a_number_that_another_netdev_gets_meanwhile_is_no_error() {
    use std::{io::Write as _, process::Stdio};
    let world = World::new("rdma-numbers");
    let pod = world.pod();
    let execute = |op: Op| world.kernel.execute(&op, Some(&pod));
    let mut others = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip");
    let mut lines = others.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || {
        for number in 0..300 {
            let line = format!("link add name other{number} link nic1 type macvlan\n");
            if lines.write_all(line.as_bytes()).is_err() {
                break;
            }
        }
    });
    let (link, at) = (interface("nic1"), NetnsSide::Pod);
    let mut rounds = 0;
    while others.try_wait().expect("our child").is_none() {
        execute(add("nic0", BRIDGE, "nic1", 1500)).expect("a child");
        let link = link.clone();
        execute(Op::Link {
            at,
            link,
            change: LinkChange::Remove,
        })
        .expect("removed");
        rounds += 1;
    }
    writer.join().expect("written");
    assert!(rounds >= 5, "{rounds} rounds are too few to tell anything");
}
