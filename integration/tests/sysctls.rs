// SPDX-License-Identifier: Apache-2.0
//! A move to a pod and back keeps the netdev's host settings below `/proc/sys/net`, and changes no setting of another
//! netdev.

use integration::{
    Netns, Node, Snapshot,
    killed::{Around, Restorer, Sweep},
    plugin::rdma_cni,
    wait,
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt,
        socket, sockopt,
    },
};
use std::{
    collections::BTreeMap,
    net::{Ipv6Addr, SocketAddrV6},
    os::fd::AsRawFd,
};

const DIRECTORIES: [&str; 4] = ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"];

/// Settings that the test does not change: the first removes all addresses, the second is the netdev's MTU, and the
/// third can be read only after it was set (docs/security.md names it).
const LEFT_ALONE: [&str; 3] = [
    "ipv6/conf/disable_ipv6",
    "ipv6/conf/mtu",
    "ipv6/conf/stable_secret",
];

/// The readable settings of `eth1` in `netns`, by table and name, without [`LEFT_ALONE`].
fn settings(netns: &Netns) -> BTreeMap<String, String> {
    let files = DIRECTORIES.map(|it| format!("/proc/sys/net/{it}/eth1"));
    let mut command = netns.command("grep");
    let output = command.args(["-r", ""]).args(files).output();
    let text = String::from_utf8(output.expect("it starts").stdout).expect("UTF-8");
    let setting = |line: &str| {
        let (file, value) = line.split_once(':').expect("a value");
        let key = file.replace("/proc/sys/net/", "").replace("eth1/", "");
        (key, value.to_owned())
    };
    let all = text.lines().map(setting);
    all.filter(|(key, _)| !LEFT_ALONE.contains(&&**key))
        .collect()
}

/// Sets each number in a file of its arguments to another value. The kernel refuses some values, and rounds times.
const CHANGE: &str = r#"
for file; do
    before=$(<"$file")
    for other in $((before + 1)) $((before + 5000)) $((before / 2)); do
        { echo "$other" >"$file"; } 2>/dev/null || continue
        [[ $(<"$file") == "$before" ]] || break
    done
done
true
"#;

#[test]
fn each_setting_of_a_netdev_survives_a_move() {
    let node = Node::with_rails(1);
    let defaults = settings(&node.host);
    let numbers = defaults.iter().filter(|(_, it)| it.parse::<i64>().is_ok());
    let files = numbers.map(|(key, _)| {
        let (directory, name) = key.rsplit_once('/').expect("a name");
        format!("/proc/sys/net/{directory}/eth1/{name}")
    });
    let mut change = node.host.command("bash");
    change.args(["-c", CHANGE, "bash"]).args(files);
    assert!(change.status().expect("it starts").success());
    let before = settings(&node.host);
    let changed = before.iter().filter(|(key, it)| defaults[*key] != **it);
    let changed = changed.count();
    assert!(changed > 100, "{changed} settings could be changed");

    let pod = node.pod("pod");
    let configuration = node.configuration(&["eth1"]);
    node.add(&configuration, "a", &pod);
    node.del(&configuration, "a", &pod);
    let after = settings(&node.host);
    let lost: Vec<String> = before
        .iter()
        .filter(|(key, value)| after.get(*key) != Some(value))
        .map(|(key, value)| format!("{key}: {value} is now {:?}", after.get(key)))
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Sends a router advertisement by `link` of `netns`, whose router has a lifetime of 1800 s (RFC 4861, section 4.2).
fn advertise(netns: &Netns, link: &str) {
    let index = netns.link(link).expect("a netdev")["ifindex"].as_u64();
    let index = u32::try_from(index.expect("an index")).expect("a small one");
    let send = || {
        let kind = (SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6);
        let socket = socket(AddressFamily::Inet6, kind.0, kind.1, kind.2)?;
        setsockopt(&socket, sockopt::Ipv6MulticastHops, &255)?;
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let all_nodes = SockaddrIn6::from(SocketAddrV6::new(all_nodes, 0, 0, index));
        let lifetime = 1800_u16.to_be_bytes();
        let message = [&[134, 0, 0, 0, 64, 0][..], &lifetime, &[0; 8]].concat();
        sendto(socket.as_raw_fd(), &message, &all_nodes, MsgFlags::empty())
    };
    let netns = rdma_netns::netns::Netns::open(netns.path()).expect("a namespace");
    let sent = netns.run(send).expect("a thread inside");
    // EADDRNOTAVAIL until duplicate address detection of the sender's own address has ended
    assert!(
        matches!(sent, Ok(_) | Err(Errno::EADDRNOTAVAIL)),
        "{sent:?}"
    );
}

/// The number of default routes by `eth2` that the kernel created from router advertisements.
fn advertised(node: &Node) -> usize {
    let routes = node.host.show("-6 route show default dev eth2 proto ra");
    routes.len()
}

/// A node whose rail `eth1` forwards packets, and which has a default router on `eth2`.
fn with_default_router() -> Node {
    let node = Node::with_rails(2);
    node.host.set_sysctl("ipv6/conf/eth1/forwarding", "1");
    wait::until("eth2 has a default router", || {
        advertise(&node.switch, "br0");
        advertised(&node) == 1
    });
    node
}

/// When forwarding is switched on for a netdev, the kernel drops the default routers of the whole namespace. ADD and
/// DEL must keep those of other netdevs.
#[test]
fn a_netdev_that_forwards_costs_no_other_its_default_router() {
    let node = with_default_router();
    let before = Snapshot::of(&node.host);
    let (pod, configuration) = (node.pod("pod"), node.configuration(&["eth1"]));
    node.add(&configuration, "a", &pod);
    assert_eq!(advertised(&node), 1, "ADD has taken it");
    node.del(&configuration, "a", &pod);
    assert_eq!(advertised(&node), 1, "DEL has taken it");
    assert_eq!(node.host.sysctl("ipv6/conf/eth1/forwarding"), "1");
    assert_eq!(node.host.sysctl("ipv6/conf/eth2/accept_ra"), "1");
    before.assert_restored(&node.host);
}

#[test]
fn a_kill_costs_no_netdev_its_default_router() {
    let node = with_default_router();
    let sweep = Sweep {
        host: &node.host,
        plugin: rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around: Around::All,
        cni_path: node.cni_path(),
        configuration: node.configuration(&["eth1"]),
        before: Snapshot::of(&node.host),
    };
    let points = sweep.run("DEL", &[Restorer::Del, Restorer::Gc, Restorer::Add]);
    assert!(points > 4, "DEL had only {points} operations");
    assert_eq!(advertised(&node), 1);
    assert_eq!(node.host.sysctl("ipv6/conf/eth2/accept_ra"), "1");
    assert!(node.records().is_empty(), "{:?}", node.records());
}
