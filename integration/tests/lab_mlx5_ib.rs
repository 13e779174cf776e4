// SPDX-License-Identifier: Apache-2.0
//! In the lab, InfiniBand ports under Debian's own `mlx5_core`, `mlx5_ib` and `ib_ipoib`: `integration/lab/vm --tier
//! mlx5 --infiniband`, one test at a time. Drivers and kernel are real; card, subnet and subnet administrator are a
//! model.

use integration::{
    Netns, Node, Snapshot,
    claimed::{ClaimNode, attachment, nodes},
    killed::{Around, Restorer, Sweep},
    lab::uverbs,
    mlx5_card::{
        ADDRESSES, FUNCTIONS, IPOIB, MACS, Mlx5Card, RDMA, are_healthy, configuration, directory,
        links, offered, read, shared_configuration,
    },
    pinged::pinged,
    plugin,
    slices::attribute,
    traffic::{self, End},
    wait,
};
use serde_json::json;

const GUIDS: [&str; 2] = ["5054:00ff:febb:0001", "5054:00ff:febb:0002"];

/// Waits until a netdev has a carrier: it has joined the broadcast group of its partition.
#[track_caller]
fn has_carrier(netns: &Netns, netdev: &str) {
    wait::until("the netdev has a carrier", || {
        netns.link(netdev).is_some_and(|it| it["operstate"] == "UP")
    });
}

/// A node with both netdevs up and addressed.
#[track_caller]
fn addressed(card: &Mlx5Card) -> Node {
    let node = card.node();
    for netdev in IPOIB {
        has_carrier(&node.host, netdev);
    }
    node
}

/// Sends three echo requests. Asserts that the peer answers all of them.
#[track_caller]
fn ping(from: &Netns, options: &str, address: &str) {
    let output = from.run(&format!("ping -c 3 -i 0.2 -W 5 {options} {address}"));
    assert!(output.contains("3 received"), "{output}");
}

/// Pings the rail at `address` by `rdma-device-plugin ping`: the kernel requests the path from the subnet
/// administrator. Asserts that the peer answers both requests.
#[track_caller]
fn is_answered(from: &Netns, address: &str) {
    let (code, pair) = pinged(from, address, "10");
    assert_eq!((code, &pair["answered"]), (0, &2.into()), "{pair}");
}

#[test]
fn a_port_is_infiniband_and_its_netdev_has_a_carrier() {
    let card = Mlx5Card::new("exclusive");
    let node = addressed(&card);
    for function in 0..2 {
        let device = directory(function).join("infiniband").join(RDMA[function]);
        let port = device.join("ports/1");
        let gid = format!("fe80:0000:0000:0000:{}", GUIDS[function]);
        for (file, value) in [
            ("link_layer", "InfiniBand"),
            ("state", "4: ACTIVE"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("sm_lid", "0x1"),
            ("lid", ["0x2", "0x3"][function]),
            ("pkeys/0", "0xffff"),
            ("pkeys/1", "0x8001"),
            ("pkeys/2", "0x0000"),
            ("gids/0", &gid),
        ] {
            assert_eq!(read(port.join(file)), value, "{file}");
        }
        assert_eq!(read(device.join("node_guid")), GUIDS[function]);
        assert_eq!(read(device.join("sys_image_guid")), GUIDS[0], "one card");
        let netdev = node.host.link(IPOIB[function]).expect("a netdev");
        assert_eq!(netdev["link_type"], "infiniband");
        // the MTU of the broadcast group, without IPoIB's header of 4 bytes
        assert_eq!(netdev["mtu"], 2044);
        let address = netdev["address"].as_str().expect("an address");
        let guid = GUIDS[function].replace(':', "");
        assert!(address.replace(':', "").ends_with(&guid), "{address}");
    }
    assert_eq!(links(&node.host)[0]["subnet_prefix"], "fe80:0000:0000:0000");

    are_healthy(&offered(&node, "exclusive"), IPOIB);

    assert_eq!(card.order(&format!("link {} down", MACS[0])), "ok");
    card.has_state(&node.host, RDMA[0], "DOWN");
    card.has_state(&node.host, RDMA[1], "ACTIVE");
    assert_eq!(card.order("link all up"), "ok");
    card.has_state(&node.host, RDMA[0], "ACTIVE");
    has_carrier(&node.host, IPOIB[0]);
}

#[test]
fn pods_get_netdev_and_device_and_the_host_is_as_before() {
    let card = Mlx5Card::new("exclusive");
    let node = addressed(&card);
    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    for function in 0..2 {
        let configuration = configuration(&node, IPOIB[function]);
        node.add(&configuration, &format!("c{function}"), &pods[function]);
        let shown = links(&pods[function]);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(shown[0]["ifname"], RDMA[function]);
        let address = format!("{}/24", ADDRESSES[function]);
        assert_eq!(pods[function].addresses("rdma0"), [address]);
        card.has_state(&pods[function], RDMA[function], "ACTIVE");
        has_carrier(&pods[function], "rdma0");
    }
    assert!(links(&node.host).is_empty());
    for options in ["", "-s 4000"] {
        ping(&pods[1], options, ADDRESSES[0]);
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: RDMA[it],
        address: ADDRESSES[it],
    });
    traffic::rping(server, client);
    is_answered(&pods[1], ADDRESSES[0]);
    traffic::by_connection_manager("ib_read_bw -q 30", server, client);

    // one pod gets its DEL while its namespace exists, the other after its namespace has ended
    node.del(&configuration(&node, IPOIB[0]), "c0", &pods[0]);
    pods[1].die();
    wait::until("the kernel gave the RDMA device back", || {
        links(&node.host).len() == 2
    });
    node.del(&configuration(&node, IPOIB[1]), "c1", &pods[1]);
    node.assert_restored(&before);
}

#[test]
fn pods_share_ports_by_children_in_a_partition() {
    let card = Mlx5Card::new("shared");
    let node = addressed(&card);
    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    let configurations = [0, 1].map(|function: usize| {
        let mut configuration = shared_configuration(&node, IPOIB[function]);
        configuration["pkey"] = "0x8001".into();
        configuration
    });
    let addresses = [0, 1].map(|it: usize| {
        node.add(&configurations[it], &format!("c{it}"), &pods[it]);
        let child = pods[it].link("rdma0").expect("a child");
        assert_eq!(child["linkinfo"]["info_kind"], "ipoib", "{child}");
        assert_eq!(child["linkinfo"]["info_data"]["key"], "0x8001", "{child}");
        has_carrier(&pods[it], "rdma0");
        let address = pods[it].addresses("rdma0")[0].clone();
        address.split('/').next().unwrap_or_default().to_owned()
    });
    ping(&pods[1], "", &addresses[0]);
    // the node's netdev is in the default partition, which is another network
    let mut ping = node.host.command("ping");
    ping.args(["-c", "1", "-W", "2", "-I", IPOIB[1], &addresses[0]]);
    assert!(!ping.output().expect("ping").status.success());
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: RDMA[it],
        address: &addresses[it],
    });
    traffic::rping(server, client);
    is_answered(&pods[1], &addresses[0]);
    // ADD refuses a partition that the port is not in
    let mut other = configurations[0].clone();
    other["pkey"] = "0x8002".into();
    let refused = node.pod("other");
    let add = node.invoke("ADD", "c9", refused.path()).input(&other);
    let message = add.run().error(7);
    assert!(message.contains("0x8001"), "{message}");
    for it in 0..2 {
        node.del(&configurations[it], &format!("c{it}"), &pods[it]);
    }
    node.assert_restored(&before);
}

/// The move of the RDMA device replaces the netdev by a new netdev. A killed call leaves the old or the new netdev.
#[test]
fn devices_return_after_a_kill_at_each_change() {
    let card = Mlx5Card::new("exclusive");
    let node = addressed(&card);
    let sweep = Sweep {
        host: &node.host,
        plugin: plugin::rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around: Around::All,
        cni_path: plugin::DEBIAN_PLUGINS.into(),
        configuration: configuration(&node, IPOIB[0]),
        before: Snapshot::of(&node.host),
    };
    for (command, restorers, least) in [
        ("ADD", [Restorer::Del, Restorer::Add, Restorer::Gc], 9),
        ("DEL", [Restorer::Gc, Restorer::Del, Restorer::Add], 6),
    ] {
        let points = sweep.run(command, &restorers);
        println!("{command}: {points} points");
        assert!(points >= least, "{command} had only {points} points");
    }
    has_carrier(&node.host, IPOIB[0]);
}

#[test]
fn a_claimed_port_goes_into_its_pod_and_the_container_has_its_device_files() {
    let card = Mlx5Card::new("exclusive");
    let node = addressed(&card);
    let before = Snapshot::of(&node.host);
    let names = FUNCTIONS.map(|it| format!("rdma-ib-{}", it.replace([':', '.'], "-")));
    let configuration = json!({"resources": [{"name": "rdma/ib", "kind": "exclusive"}]});
    let claims = ClaimNode::new(&node, configuration, &names[0]);
    claims.has_slices(&names, &[]);
    for function in 0..2 {
        for (name, value) in [
            ("driver", "mlx5_core"),
            ("linkLayer", "infiniband"),
            ("rdmaDevice", RDMA[function]),
            ("netdev", IPOIB[function]),
        ] {
            let found = attribute(&claims.api.slices(), &names[function], name);
            assert_eq!(found, json!({"string": value}), "{name} of {function}");
        }
    }

    let cdi = claims.prepare();
    assert_eq!(claims.prepared(), 1.0);
    let pod = node.pod("pod");
    let list = claims.list();
    let added = claims.runtime(&node.host).add(&list, &attachment(&pod));
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    assert_eq!(links(&pod)[0]["ifname"], RDMA[0]);
    has_carrier(&pod, "eth0");
    ping(&pod, "", ADDRESSES[1]);
    let nodes = nodes(&claims.given(&cdi).expect("a specification"));
    let (own, _, minor) = uverbs(RDMA[0]);
    assert!(nodes.contains(&(own, minor)), "{nodes:?}");
    assert!(nodes.iter().any(|it| it.0 == "rdma_cm"), "{nodes:?}");

    let deleted = claims.runtime(&node.host).del(&list, &attachment(&pod));
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    claims.unprepare();
    assert_eq!(claims.given(&cdi), None);
    assert_eq!(claims.prepared(), 0.0);
    node.assert_restored(&before);
    claims.has_slices(&names, &[]);
}
