// SPDX-License-Identifier: Apache-2.0
//! Changes that a pod with `NET_ADMIN` makes to its rail. DEL ends those that the host can detect. The tests use real
//! namespaces, and netdevs of the types that this kernel has (veth, macvlan, bridge).

use integration::{Netns, Node, Snapshot, wait};
use rdma_netns::{
    InterfaceName, Kernel, Link, LinkChange, LinkFlag, LinkSetting, Linux, NetnsSide, Op,
};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Output, Stdio},
};

#[track_caller]
fn index(netns: &Netns, name: &str) -> u64 {
    let link = netns.link(name);
    let link = link.unwrap_or_else(|| panic!("no {name} in {netns:?}"));
    link["ifindex"].as_u64().expect("an index")
}

/// Runs DEL of `rails` while another netdev of the pod has the index of `eth1`. Asserts that this netdev stays in the
/// pod, and that the log and the file that `doctor` reads (`given-up/eth1.json`) report that `eth1` is gone.
#[track_caller]
fn is_gone(node: &Node, pod: &Netns, rails: &Value) {
    let deleted = node.invoke("DEL", "a", pod.path()).input(rails).run();
    assert!(deleted.status.success(), "{deleted}");
    assert!(
        !node.host.has_link("eth1"),
        "the pod's netdev has the name of the host's: {}",
        node.host.ip("-d link show dev eth1")
    );
    assert!(pod.has_link("rdma0"), "the pod's own netdev was taken");
    let message = "eth1 is gone: its pod deleted it";
    assert!(deleted.stderr.contains(message), "{deleted}");
    let note = node.state().join("given-up/eth1.json");
    let note = fs::read_to_string(note).expect("a note that eth1 is gone");
    assert!(note.contains(message), "{note}");
    assert!(node.records().is_empty(), "the record stayed");
}

/// A veth whose other end is in the pod. On the host it would carry the host's traffic to the pod.
#[test]
fn a_veth_of_the_pod_in_the_place_of_its_rail_is_not_taken_to_the_host() {
    let node = Node::with_rails(1);
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let pod = node.pod("pod");
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    let index = index(&pod, "rdma0");
    pod.ip("link del dev rdma0");
    pod.ip(&format!(
        "link add name rdma0 index {index} type veth peer name tap index 90"
    ));
    is_gone(&node, &pod, &rails);
}

/// The veth's other end is in a namespace that the pod created, and has the index of the rail's peer.
#[test]
fn a_veth_into_a_namespace_of_the_pods_own_is_not_taken_to_the_host() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let nested = Netns::new("nested");
    let rails = node.configuration(&["eth1"]);
    let other = index(&node.switch, "to-eth1");
    node.add(&rails, "a", &pod);
    let index = index(&pod, "rdma0");
    pod.ip("link del dev rdma0");
    pod.ip(&format!(
        "link add name rdma0 index {index} type veth peer name tap index {other} netns {}",
        nested.name()
    ));
    is_gone(&node, &pod, &rails);
}

/// A macvlan of the pod's `eth0`. This `eth0` has the index that the rail's lower netdev has on the host.
#[test]
fn a_macvlan_of_the_pods_own_netdev_is_not_taken_to_the_host() {
    let node = Node::with_macvlan();
    let pod = node.pod("pod");
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    let (rail, lower) = (index(&pod, "rdma0"), index(&node.host, "nic0"));
    pod.ip("link del dev rdma0");
    pod.ip(&format!(
        "link add name eth0 index {lower} type veth peer name tap index 90"
    ));
    pod.ip(&format!(
        "link add link eth0 name rdma0 index {rail} type macvlan mode bridge"
    ));
    is_gone(&node, &pod, &rails);
}

/// After a rail has left the pod, the pod's next netdev can get the rail's index.
#[test]
fn a_netdev_of_the_pod_with_another_rails_index_ends_with_del() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1", "eth2"]);
    node.add(&rails, "a", &pod);
    let index = index(&pod, "rdma1");
    let host = node.host.name();
    pod.ip(&format!("link set dev rdma1 netns {host} name y1"));
    pod.ip(&format!(
        "link add link rdma0 name rdma1 index {index} type macvlan mode passthru"
    ));
    pod.ip("link set dev rdma1 up");
    let deleted = node.invoke("DEL", "a", pod.path()).input(&rails).run();
    deleted.silent();
    assert!(!pod.has_link("rdma1"), "{}", pod.ip("link show"));
    before.assert_restored(&node.host);
}

/// The pod itself moves its rail to the host, with another name and address.
#[test]
fn a_rail_that_the_pod_moved_to_the_host_comes_home_under_any_name_and_address() {
    for node in [Node::with_rails(1), Node::with_macvlan()] {
        let before = Snapshot::of(&node.host);
        let pod = node.pod("pod");
        let rails = node.configuration(&["eth1"]);
        node.add(&rails, "a", &pod);
        pod.ip("link set dev rdma0 address 02:00:00:00:66:12");
        pod.ip(&format!(
            "link set dev rdma0 netns {} name y12",
            node.host.name()
        ));
        let deleted = node.invoke("DEL", "a", pod.path()).input(&rails).run();
        deleted.silent();
        before.assert_restored(&node.host);
        assert!(node.records().is_empty(), "the record stayed");
    }
}

/// The pod's namespace exists longer than DEL. If DEL did not remove the netdevs on the rail, a process in the
/// namespace would receive the next pod's frames and send its own.
#[test]
fn a_netdev_of_the_pod_on_its_rail_ends_with_del() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1", "eth2"]);
    node.add(&rails, "a", &pod);
    pod.ip("link add name own0 type veth peer name own1");
    for line in [
        "link add link rdma0 name upper0 type macvlan mode bridge",
        "link add link rdma0 name upper1 type macvtap mode bridge",
        "link add link upper0 name upper2 type macvlan mode bridge",
        "link add link rdma1 name upper3 type macvlan mode passthru",
        "link add link own0 name kept0 type macvlan mode bridge",
        "link set dev upper0 up",
    ] {
        pod.ip(line);
    }
    let deleted = node.invoke("DEL", "a", pod.path()).input(&rails).run();
    deleted.silent();
    let message = "removing the pod's netdevs on its rails (4, first upper0)";
    assert!(deleted.stderr.contains(message), "{deleted}");
    for upper in ["upper0", "upper1", "upper2", "upper3"] {
        assert!(!pod.has_link(upper), "{upper}: {}", pod.ip("link show"));
    }
    assert!(
        pod.has_link("kept0"),
        "it lies on a netdev of the pod's own"
    );
    before.assert_restored(&node.host);
}

/// A pod can move its rail to the host itself. DEL then removes the pod's netdevs on this rail.
#[test]
fn a_netdev_of_the_pod_on_a_rail_that_it_moved_itself_ends_with_del() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    pod.ip("link add link rdma0 name upper0 type macvlan mode bridge");
    pod.ip(&format!("link set dev rdma0 netns {}", node.host.name()));
    node.del(&rails, "a", &pod);
    assert!(!pod.has_link("upper0"), "{}", pod.ip("link show"));
    before.assert_restored(&node.host);
}

/// The host cannot detect this netdev (`docs/security.md`, "Netdevs that the host cannot detect"). The test fails if a
/// kernel shows the netdev. DEL must then remove or report the netdev.
#[test]
fn a_netdev_in_a_namespace_of_the_pods_own_cannot_be_seen_on_the_host() {
    let node = Node::with_rails(1);
    let (pod, nested) = (node.pod("pod"), Netns::new("nested"));
    let before = Snapshot::of(&node.host);
    let addresses = |host: &Netns| host.run("bridge fdb show dev eth1");
    let known = addresses(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    let target = nested.name();
    pod.ip(&format!(
        "link add link rdma0 name upper0 netns {target} type macvlan mode bridge"
    ));
    nested.ip("link set dev upper0 up");
    node.del(&rails, "a", &pod);
    assert_eq!(
        index(&node.host, "eth1"),
        nested.link("upper0").expect("it lives")["link_index"]
    );
    before.assert_restored(&node.host);
    assert_eq!(addresses(&node.host), known);
    let names = node.host.run("ls /sys/class/net/eth1");
    assert!(
        names.contains("ifindex") && !names.contains("upper_"),
        "{names}"
    );
    // only a probe with `passthru` shows that a macvlan is on `eth1`: the kernel refuses the probe; without a macvlan,
    // the probe adds a netdev to the node
    let probe = "link add link eth1 name probe type macvlan mode passthru";
    assert!(!node.host.ip_succeeds(probe));
    nested.ip("link del dev upper0");
    assert!(node.host.ip_succeeds(probe));
}

/// A pod with `CAP_NET_ADMIN` creates a macvlan of the host's NIC by `link-netnsid 0`, the id of the host's namespace
/// in the pod's. The pod's namespace has this id because the other end of `eth0` is on the host (`rtnl_newlink()`,
/// `net/core/rtnetlink.c`). ADD then refuses the NIC. This test fails on a kernel that refuses the macvlan.
#[test]
fn a_pod_without_a_user_namespace_makes_a_macvlan_of_a_nic_of_the_host() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let macvlan = with_eth0(&node, pod.name());
    let by = |capabilities: &str| {
        let bounding = format!("--bounding-set=-all{capabilities}");
        let mut command = pod.command("setpriv");
        let command = command.args(["--inh-caps=-all", &bounding]);
        let done = command.args(macvlan.split(' ')).output();
        done.expect("it starts")
    };
    is_forbidden(&by(""));
    let done = by(",+net_admin");
    assert!(done.status.success(), "{done:?}");
    let rails = node.configuration(&["eth1"]);
    let added = node.invoke("ADD", "a", pod.path()).input(&rails).run();
    let message = added.error(102);
    let words = "eth1 is not moved into a pod: spy of this pod lies on it";
    assert!(message.contains(words), "{message}");
}

/// The kernel refuses this macvlan to a pod with a user namespace, as with `hostUsers: false`.
#[test]
fn a_pod_with_a_user_namespace_makes_no_macvlan_of_a_nic_of_the_host() {
    let node = Node::with_rails(1);
    // the process ends when its input ends
    let mut pod = Command::new("unshare");
    pod.args(["--user", "--map-root-user", "--net", "cat"]);
    let mut pod = pod.stdin(Stdio::piped()).spawn().expect("it starts");
    let id = pod.id().to_string();
    let namespaces = |of: &str| {
        let user = fs::read_link(format!("/proc/{of}/ns/user")).ok();
        (user, fs::read_link(format!("/proc/{of}/ns/net")).ok())
    };
    let own = namespaces("self");
    wait::until("the pod has its namespaces", || {
        let (user, net) = namespaces(&id);
        user != own.0 && net != own.1
    });
    let inside = |line: &str| {
        let mut command = Command::new("nsenter");
        let command = command.args(["--user", "--net", "--preserve-credentials", "--target", &id]);
        let done = command.args(line.split(' ')).output();
        done.expect("it starts")
    };
    let macvlan = with_eth0(&node, &id);
    is_forbidden(&inside(&macvlan));
    let own = inside("ip link add link eth0 name own type macvlan mode bridge");
    assert!(own.status.success(), "it has the right in its own: {own:?}");
    drop(pod.stdin.take());
    pod.wait().expect("it ends");
}

/// Gives the pod in `netns`, a name or a process, an `eth0` whose other end is on the host. Returns the command that
/// creates a macvlan of the host's `eth1` in the pod.
#[track_caller]
fn with_eth0(node: &Node, netns: &str) -> String {
    node.host
        .ip("link add name to-pod type veth peer name peer");
    node.host
        .ip(&format!("link set dev peer netns {netns} name eth0"));
    let nic = index(&node.host, "eth1");
    format!("ip link add link if{nic} link-netnsid 0 name spy type macvlan mode bridge")
}

/// Asserts that the kernel refused the command (EPERM).
#[track_caller]
fn is_forbidden(done: &Output) {
    let why = String::from_utf8_lossy(&done.stderr);
    let is_it = !done.status.success() && why.contains("Operation not permitted");
    assert!(is_it, "{done:?}");
}

/// The kernel removes the rail from the pod's bridge with the move.
#[test]
fn a_bridge_of_the_pod_releases_its_rail() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    pod.ip("link add name br0 type bridge");
    pod.ip("link set dev rdma0 master br0");
    pod.ip("link set dev br0 up");
    node.del(&rails, "a", &pod);
    assert!(pod.has_link("br0"), "it is the pod's");
    before.assert_restored(&node.host);
}

/// The test sets the numbers and flags by netlink, because the host's iproute2 does not support all of them.
#[test]
fn every_number_and_flag_that_a_pod_can_set_is_restored() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = seen(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    let link: InterfaceName = "rdma0".try_into().expect("a name");
    let mut ops = vec![];
    for (setting, value) in &before.settings {
        if *setting == LinkSetting::Xdp {
            // this setting is a BPF program, and not a number: `hostile_world` tests it
            continue;
        }
        let (at, link) = (NetnsSide::Host, link.clone());
        ops.push(Op::Link {
            at,
            link,
            change: LinkChange::Setting(*setting, if *value == 0 { 1 } else { value / 2 }),
        });
    }
    for flag in LinkFlag::ALL {
        let (at, link, on) = (NetnsSide::Host, link.clone(), !before.has(flag));
        ops.push(Op::Link {
            at,
            link,
            change: LinkChange::Flag(flag, on),
        });
    }
    inside(&pod, || {
        let kernel = Linux::new();
        for op in &ops {
            kernel.execute(op, None).expect("the pod may");
        }
    });
    node.del(&rails, "a", &pod);
    let after = seen(&node.host);
    assert_eq!(
        (after.settings, after.flags),
        (before.settings, before.flags)
    );
}

/// An alternative name or alias that is not UTF-8 does not remain on the host, where other programs could fail to read
/// it.
#[test]
fn names_that_are_no_utf_8_do_not_stay() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    script(
        &pod,
        "ip link property add dev rdma0 altname $(printf 'x\\377y')",
    );
    script(&pod, "ip link set dev rdma0 alias $(printf 'x\\377y')");
    node.del(&rails, "a", &pod);
    before.assert_restored(&node.host);
}

/// The kernel drops queueing disciplines, neighbours and multicast addresses at a move (`__dev_change_net_namespace()`,
/// `net/core/dev.c`).
#[test]
fn queueing_neighbours_and_multicast_addresses_of_the_pod_do_not_stay() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let state = |netns: &Netns, link: &str| {
        [
            netns.run(&format!("tc qdisc show dev {link}")),
            netns.ip(&format!("neigh show dev {link} nud permanent")),
            netns.run(&format!("bridge fdb show dev {link}")),
        ]
    };
    let before = state(&node.host, "eth1");
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    for line in [
        "tc qdisc add dev rdma0 clsact",
        "tc qdisc replace dev rdma0 root pfifo limit 5",
        "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev rdma0 nud permanent",
        "ip maddress add 33:33:00:00:12:34 dev rdma0",
        "bridge fdb add 01:00:5e:00:00:33 dev rdma0 self",
    ] {
        pod.run(line);
    }
    for (before, changed) in before.iter().zip(state(&pod, "rdma0")) {
        assert_ne!(*before, changed);
    }
    node.del(&rails, "a", &pod);
    wait::until("nothing of the pod's stays", || {
        state(&node.host, "eth1") == before
    });
}

/// ADD names the host's settings that the move drops and DEL does not restore. DEL restores a route's realm.
#[test]
fn add_reports_host_settings_that_a_move_drops() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    for line in [
        "ip address add 10.0.0.1/24 dev eth1",
        "ip route add 192.0.2.0/24 via 10.0.0.2 realms 3/7",
        "tc qdisc replace dev eth1 root pfifo limit 5",
        "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth1 nud permanent",
        "ip neigh add fd00::9 lladdr 02:00:00:00:00:09 dev eth1 nud permanent",
        "ip route add multicast 239.1.0.0/16 dev eth1",
        "ip -6 route add anycast fd00:9::/64 dev eth1",
    ] {
        node.host.run(line);
    }
    let realm = || node.host.ip("route show 192.0.2.0/24");
    let before = realm();
    assert!(before.contains("realms 3/7"), "{before}");
    let rails = node.configuration(&["eth1"]);
    let added = node.invoke("ADD", "a", pod.path()).input(&rails).run();
    assert!(added.status.success(), "{added}");
    let words = "eth1 loses qdisc pfifo, permanent neighbour 10.0.0.9, permanent neighbour fd00::9, multicast route \
                 to 239.1.0.0/16, anycast route to fd00:9::/64 permanently in the move";
    assert!(added.stderr.contains(words), "{added}");
    node.del(&rails, "a", &pod);
    assert_eq!(realm(), before);
    let again = node.invoke("ADD", "a", pod.path()).input(&rails).run();
    assert!(!again.stderr.contains("permanently in the move"), "{again}");
    node.del(&rails, "a", &pod);
}

#[track_caller]
fn script(netns: &Netns, line: &str) {
    let status = netns.command("sh").args(["-c", line]).status();
    assert!(status.expect("a shell").success(), "{line}");
}

/// The netdev `eth1` of `host`, as the kernel reports it.
#[track_caller]
fn seen(host: &Netns) -> Link {
    let observed = inside(host, || Linux::new().observe(None)).expect("a state");
    observed.host.link("eth1").expect("eth1").clone()
}

/// Runs `work` on a thread in `netns`, and returns its result.
#[track_caller]
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    let netns = rdma_netns::netns::Netns::open(netns.path()).expect("a namespace");
    netns.run(work).expect("a thread")
}
