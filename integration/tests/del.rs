// SPDX-License-Identifier: Apache-2.0
//! DEL can be repeated, is valid at any time, and does not fail because an object no longer exists.

use integration::{Netns, Node, Snapshot, ipam, wait};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// A node with one rail that has an address, its configuration with the stand-in IPAM plugin, and a snapshot of the
/// host before the first ADD.
fn node_with_ipam() -> (Node, Value, Snapshot) {
    let node = Node::with_rails(1);
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.0.0.7/24"}]}));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    let before = Snapshot::of(&node.host);
    (node, configuration, before)
}

#[test]
fn twice_is_as_good_as_once() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    for _ in 0..3 {
        node.del(&configuration, "a", &pod);
        node.assert_restored(&before);
    }
}

#[test]
fn without_an_add_it_changes_nothing_and_still_gives_addresses_back() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    node.del(&configuration, "never-added", &pod);
    node.assert_restored(&before);
    node.invoke("DEL", "never-added", Path::new(""))
        .input(&configuration)
        .run()
        .silent();
    node.assert_restored(&before);
    let calls = node.ipam.calls();
    assert!(
        calls
            .iter()
            .any(|call| call.command == "DEL" && call.container == "never-added"),
        "the IPAM plugin may hold an address of an ADD that we know nothing of: {calls:?}"
    );
}

#[test]
fn an_empty_or_missing_namespace_does_not_keep_the_netdev_from_the_host() {
    let (node, configuration, before) = node_with_ipam();
    for netns in ["", "/run/netns/no-such-namespace", "/no/such/directory/x"] {
        let pod = node.pod("pod");
        node.add(&configuration, "a", &pod);
        node.invoke("DEL", "a", Path::new(netns))
            .input(&configuration)
            .run()
            .silent();
        node.assert_restored(&before);
        assert_eq!(
            node.ipam.interfaces("DEL").last().map(String::as_str),
            Some("rdma0")
        );
    }
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    let call = node.invoke("DEL", "a", pod.path()).without("CNI_NETNS");
    call.input(&configuration).run().silent();
    node.assert_restored(&before);
}

#[test]
fn del_needs_no_previous_result() {
    let (node, configuration, before) = node_with_ipam();
    for previous in [
        json!({"cniVersion": "1.1.0"}),
        json!({"interfaces": [{"name": "other"}]}),
    ] {
        let pod = node.pod("pod");
        node.add(&configuration, "a", &pod);
        let mut with_previous = configuration.clone();
        with_previous["prevResult"] = previous;
        node.del(&with_previous, "a", &pod);
        node.assert_restored(&before);
    }
}

#[test]
fn the_record_counts_and_not_a_configuration_that_has_changed() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    let mut changed = node.configuration(&["something-else"]);
    changed["interfaceName"] = "other%d".into();
    node.del(&changed, "a", &pod);
    node.assert_restored(&before);
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0"]);
}

#[test]
fn a_pod_that_died_with_its_veth_can_be_deleted() {
    let (node, configuration, _) = node_with_ipam();
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    pod.die();
    wait::until("the kernel destroyed the veth", || {
        !node.switch.has_link("to-eth1")
    });
    let outcome = node
        .invoke("DEL", "a", pod.path())
        .input(&configuration)
        .run();
    outcome.silent();
    assert!(
        outcome.stderr.contains("eth1"),
        "that a netdev is gone is worth a word: {outcome}"
    );
    assert_eq!(
        node.ipam.interfaces("DEL"),
        ["rdma0"],
        "its address was not given back"
    );
    assert!(node.records().is_empty(), "its record was left");
    node.del(&configuration, "a", &pod);
}

#[test]
fn another_namespace_at_the_same_path_is_left_alone() {
    let (node, configuration, _) = node_with_ipam();
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    let path = pod.path().to_owned();
    pod.die();
    wait::until("the kernel destroyed the veth", || {
        !node.switch.has_link("to-eth1")
    });
    // A new namespace with the old name, which contains a netdev with the old name.
    let successor = Netns::new("successor");
    fs::write(&path, "").expect("a mount point");
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(
        Some(successor.path()),
        &path,
        None::<&str>,
        bind,
        None::<&str>,
    )
    .expect("a bind mount");
    successor.ip("link add name rdma0 type veth peer name rdma0-peer");
    let before = Snapshot::of(&successor);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&successor);
    assert!(node.records().is_empty());
}

#[test]
fn a_record_that_cannot_be_read_does_not_block_for_ever() {
    let (node, configuration, _) = node_with_ipam();
    for (container, keep) in [("empty", 0), ("half", 300), ("all-but-the-end", 9999)] {
        let pod = node.pod("pod");
        node.add(&configuration, container, &pod);
        let record = node.record("net", container);
        let mut text = fs::read_to_string(&record).expect("the record");
        text.truncate(keep.min(text.len() - 2));
        fs::write(&record, text).expect("the record can be spoilt");
        let outcome = node
            .invoke("DEL", container, pod.path())
            .input(&configuration)
            .run();
        outcome.silent();
        assert!(
            outcome.stderr.contains(container),
            "it is not reported: {outcome}"
        );
        node.del(&configuration, container, &pod);
        assert!(node.records().is_empty(), "{:?}", node.records());
        let given_back = node
            .ipam
            .calls()
            .into_iter()
            .filter(|call| call.command == "DEL");
        assert!(
            given_back
                .into_iter()
                .any(|call| call.container == container),
            "IPAM DEL"
        );
        // The next pod gets the rail. If the kernel deleted the netdev with the pod's namespace, the test creates it
        // again.
        drop(pod);
        wait::until("the pod's netdevs are gone", || {
            node.host.has_link("eth1") || !node.switch.has_link("to-eth1")
        });
        if !node.host.has_link("eth1") {
            node.add_rail("eth1");
        }
    }
}

#[test]
fn rubbish_beside_the_records_disturbs_nobody() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    let directory = node.state().join("attachments/net");
    fs::create_dir_all(&directory).expect("the network's directory");
    for (name, text) in [
        ("rubbish", "x"),
        ("other@eth0.json", "not JSON"),
        ("third@eth0.json", "{}"),
        ("no-interface.json", "{}"),
        ("old@eth0.json.new", "{"),
    ] {
        fs::write(directory.join(name), text).expect("rubbish");
    }
    node.add(&configuration, "a", &pod);
    assert!(pod.has_link("rdma0"));
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
    assert!(!node.record("net", "a").exists());
}

#[test]
fn a_taken_host_name_is_an_error_that_leaves_the_pod_intact() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    let in_pod = Snapshot::of(&pod);
    node.host
        .ip("link add name eth1 type veth peer name usurper");
    let text = node
        .invoke("DEL", "a", pod.path())
        .input(&configuration)
        .run()
        .error(107);
    assert!(text.contains("eth1"), "the name is not reported: {text}");
    in_pod.assert_restored(&pod);
    assert!(
        node.record("net", "a").exists(),
        "the record is needed for the next try"
    );
    node.host.ip("link del dev eth1");
    node.del(&configuration, "a", &pod);
    node.assert_restored(&before);
}

#[test]
fn an_ipam_plugin_that_fails_is_called_again_and_the_netdev_is_restored_meanwhile() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    node.ipam.fail("DEL", 11, "the lease database is away");
    let text = node
        .invoke("DEL", "a", pod.path())
        .input(&configuration)
        .run()
        .error(104);
    assert!(text.contains("the lease database is away"), "{text}");
    before.assert_restored(&node.host);
    node.ipam.recover("DEL");
    node.del(&configuration, "a", &pod);
    node.assert_restored(&before);
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0", "rdma0"]);
}

#[test]
fn a_pod_can_be_added_again_after_its_del() {
    let (node, configuration, before) = node_with_ipam();
    let pod = node.pod("pod");
    for _ in 0..3 {
        node.add(&configuration, "a", &pod);
        assert_eq!(pod.addresses("rdma0"), ["10.0.0.7/24"]);
        node.del(&configuration, "a", &pod);
        node.assert_restored(&before);
    }
}

/// Returns the output of `rdma-device-plugin doctor`, which warns of netdevs that returned without a setting.
fn doctor(node: &Node) -> String {
    let mut doctor = node.host.command(integration::daemon::rdma_device_plugin());
    let doctor = doctor.args(["doctor", "--state-dir"]).arg(node.state());
    let output = doctor.output().expect("it can be started");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// DEL of a pod whose `netdev` cannot get back all its settings, because of the commands `meanwhile`. The log names the
/// missing setting `lacks`, and doctor names it until the commands `cure` have run. All this happens twice, because a
/// repaired netdev must behave like any other.
#[track_caller]
fn given_up(set_up: &[&str], netdev: &str, meanwhile: &[&str], (lacks, cure): (&str, &[&str])) {
    let node = Node::with_rails(1);
    for line in set_up {
        node.host.ip(line);
    }
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&[netdev]);
    for _ in 0..2 {
        let pod = node.pod("pod");
        node.add(&configuration, "a", &pod);
        for line in meanwhile {
            node.host.ip(line);
        }
        let call = node.invoke("DEL", "a", pod.path()).input(&configuration);
        let outcome = call.run();
        outcome.silent();
        assert!(outcome.stderr.contains(lacks), "{outcome}");
        assert!(node.records().is_empty(), "a record was left");
        assert!(node.host.has_link(netdev), "{netdev} is not restored");
        let output = doctor(&node);
        assert_eq!(output.matches(lacks).count(), 1, "{output}");
        for line in cure {
            node.host.ip(line);
        }
        before.assert_restored(&node.host);
        let output = doctor(&node);
        assert!(!output.contains(lacks), "it is right again: {output}");
    }
}

#[test]
fn an_alternative_name_that_another_netdev_has_by_now_keeps_nothing_in_the_pod() {
    given_up(
        &[
            "link add name other type bridge",
            "link property add dev eth1 altname cloud1 altname cloud2",
            "address add 192.0.2.5/24 dev eth1",
        ],
        "eth1",
        &["link property add dev other altname cloud1"],
        (
            "altname cloud1",
            &[
                "link property del dev other altname cloud1",
                "link property del dev eth1 altname cloud2",
                "link property add dev eth1 altname cloud1 altname cloud2",
            ],
        ),
    );
}

#[test]
fn a_gateway_that_is_the_hosts_own_by_now_keeps_nothing_in_the_pod() {
    given_up(
        &[
            "address add 192.0.2.5/24 dev eth1",
            "-6 address add fd00:9::5/64 dev eth1 nodad",
            "-6 route add fd00:20::/48 via fd00:9::1 dev eth1",
            "-6 route add fd00:30::/48 via fd00:9::2 dev eth1",
        ],
        "eth1",
        &["-6 address add fd00:9::1/128 dev lo nodad"],
        (
            "fd00:20::/48 via fd00:9::1",
            &[
                "-6 address del fd00:9::1/128 dev lo",
                "-6 route add fd00:20::/48 via fd00:9::1 dev eth1",
            ],
        ),
    );
}

#[test]
fn an_mtu_that_the_lower_device_does_not_bear_any_more_keeps_nothing_in_the_pod() {
    given_up(
        &[
            "link set dev eth1 mtu 9000",
            "link add name nic0 link eth1 type macvlan",
            "link set dev nic0 up",
            "address add 192.0.2.5/24 dev nic0",
        ],
        "nic0",
        &["link set dev eth1 mtu 1500"],
        (
            "mtu 9000",
            &["link set dev eth1 mtu 9000", "link set dev nic0 mtu 9000"],
        ),
    );
}

/// A pod with `CAP_NET_ADMIN` may have as many routes as its memory permits. A program that reads all routes at once
/// needs as much memory.
#[test]
fn a_pods_many_routes_take_no_memory() {
    /// Memory limit in bytes: three times the memory that DEL needs, and less than a third of the size of these routes.
    const LIMIT: u32 = 32 << 20;
    let (node, mut configuration, before) = node_with_ipam();
    for mode in ["move", "share"] {
        configuration["mode"] = json!(mode);
        let pod = node.pod("pod");
        node.add(&configuration, "a", &pod);
        pod.ip("link set dev lo up");
        let places = |count: u32| (0..count).map(|it| [it >> 16, it >> 8 & 255, it & 255]);
        let ipv4 = places(200_000).map(|[a, b, c]| format!("route add 11.{a}.{b}.{c}/32 dev lo"));
        let ipv6 = places(50_000)
            .map(|[_, b, c]| format!("route add 2001:db8:{b:x}:{c:x}::/64 dev lo metric 7"));
        pod.ip_batch(&ipv4.chain(ipv6).collect::<Vec<_>>());
        let limit = ["--as", &LIMIT.to_string()].map(str::to_owned);
        node.invoke("DEL", "a", pod.path())
            .input(&configuration)
            .by(Path::new("/usr/bin/prlimit"), vec![limit.join("=")])
            .run()
            .silent();
        node.assert_restored(&before);
    }
}

/// A rail is back on the host, and the other rail of the record is not. Neither DEL nor verbs of another pod change the
/// settings that the rail's next owner has chosen.
#[test]
fn a_rail_that_is_home_is_left_to_its_next_owner() {
    let node = Node::with_rails(3);
    let configuration = node.configuration(&["eth1", "eth2"]);
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    node.host
        .ip("link add name eth2 type veth peer name usurper");
    let fails = || {
        let deletion = node.invoke("DEL", "a", pod.path()).input(&configuration);
        let text = deletion.run().error(107);
        assert!(text.contains("eth2"), "{text}");
    };
    fails();
    for line in [
        "link set dev eth1 down",
        "link set dev eth1 name storage0",
        "link set dev storage0 mtu 1400 up",
        "address add 10.9.9.9/24 dev storage0",
        "route add 10.99.0.0/16 via 10.9.9.1",
    ] {
        node.host.ip(line);
    }
    let owned = Snapshot::of(&node.host);
    fails();
    owned.assert_restored(&node.host);
    let (other, third) = (node.pod("other"), node.configuration(&["eth3"]));
    node.add(&third, "b", &other);
    node.del(&third, "b", &other);
    owned.assert_restored(&node.host);
    node.host.ip("link del dev eth2");
    node.del(&configuration, "a", &pod);
    assert!(node.host.has_link("eth2") && node.host.has_link("storage0"));
    assert!(node.records().is_empty());
}

/// A pod can move its netdev to a namespace that no host program can see, and back.
#[test]
fn a_netdev_that_is_nowhere_is_not_left_to_others() {
    let node = Node::with_rails(2);
    node.host
        .ip("link add name mv1 link eth1 type macvlan mode bridge");
    let configuration = node.configuration(&["mv1", "eth2"]);
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    let hidden = Netns::new("hidden");
    pod.ip(&format!("link set dev rdma0 netns {}", hidden.name()));
    node.host
        .ip("link add name eth2 type veth peer name usurper");
    let deletion = node.invoke("DEL", "a", pod.path()).input(&configuration);
    deletion.run().error(107);
    hidden.ip(&format!("link set dev rdma0 netns {}", pod.name()));
    node.host.ip("link del dev eth2");
    node.del(&configuration, "a", &pod);
    assert!(node.host.has_link("mv1") && node.records().is_empty());
}

#[test]
fn a_guess_does_not_take_the_place_of_a_record_that_cannot_be_read() {
    let node = Node::with_rails(2);
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    let pod = node.pod("pod");
    configuration["prevResult"] = node.add(&configuration, "a", &pod);
    let record = node.record("net", "a");
    let mut text = fs::read(&record).expect("a record");
    text.truncate(2000);
    fs::write(&record, &text).expect("a file");
    let index = pod.link("rdma1").expect("a rail")["ifindex"].clone();
    let names = ["rdma1".to_owned(), format!("dev{index}")];
    for (number, name) in names.iter().enumerate() {
        node.host.ip(&format!(
            "link add name {name} type veth peer name usurper{number}"
        ));
    }
    let deletion = node.invoke("DEL", "a", pod.path()).input(&configuration);
    deletion.run().error(107);
    assert!(pod.has_link("rdma1") && !pod.has_link("rdma0"));
    let left = fs::read(&record).expect("a record");
    assert_eq!(left, text, "{}", String::from_utf8_lossy(&left));
    for name in names {
        node.host.ip(&format!("link del dev {name}"));
    }
    node.del(&configuration, "a", &pod);
    let aside = fs::read(record.with_extension("corrupt")).expect("it is kept");
    assert_eq!(aside, text);
    assert!(!pod.has_link("rdma1") && node.records().is_empty());
}
