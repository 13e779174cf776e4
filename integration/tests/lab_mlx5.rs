// SPDX-License-Identifier: Apache-2.0
//! In the lab, a ConnectX card of two functions under Debian's own `mlx5_core` and `mlx5_ib`:
//! `integration/lab/vm --tier mlx5`, one test at a time. Driver and kernel are real, the card is a model.

use integration::{
    Netns, Node, Snapshot,
    mlx5_card::{
        ADDRESSES, FUNCTIONS, MACS, Mlx5Card, NETDEVS, RDMA, are_healthy, configuration, directory,
        gids, has_ids, has_no_links, links, offered, offering, pods_with_children, read, sent,
        shared_configuration,
    },
    traffic::{self, End},
    wait,
};
use rdma_netns::linux::seconds_since_boot;
use serde_json::Value;
use std::{fs, time::Duration};

/// Warning of the driver in Linux 7.3, not in 6.12. An emulated CPU passes each write to a function by itself
/// (`mlx5_core_test_wc()`, `drivers/net/ethernet/mellanox/mlx5/core/wc.c`).
const NO_WRITE_COMBINING: &str = "Write combining is not supported";

/// Runs `rping`, and `ib_read_bw` with 30 queue pairs that read 100 times 4 KiB each. `netns` is the namespace of the
/// server's device.
#[track_caller]
fn passes(server: End<'_>, client: End<'_>, netns: &Netns) {
    traffic::rping(server, client);
    let before = sent(netns, server.rdma);
    traffic::by_connection_manager("ib_read_bw -q 30", server, client);
    let sent = sent(netns, server.rdma) - before;
    assert!(sent >= 30 * 100 * 4096, "{sent} bytes");
}

#[test]
fn a_device_is_below_its_function_and_its_port_follows_the_link() {
    let card = Mlx5Card::new("exclusive");
    for function in 0..2 {
        let (at, rdma) = (directory(function), RDMA[function]);
        let driver = fs::canonicalize(at.join("driver")).expect("a driver");
        assert!(driver.ends_with("drivers/mlx5_core"), "{driver:?}");
        let parent = fs::canonicalize(&at).expect("a function");
        let device = fs::canonicalize(format!("/sys/class/infiniband/{rdma}"));
        let device = device.expect("a device");
        assert_eq!(device, parent.join("infiniband").join(rdma));
        assert!(at.join("net").join(NETDEVS[function]).exists());
        assert_eq!(read(device.join("hca_type")), "MT4119");
        assert_eq!(read(device.join("ports/1/link_layer")), "Ethernet");
        assert!(device.join("ports/1/hw_counters/out_of_sequence").exists());
        let guid = MACS[function].replace("52:54:00:bb:00", "5054:00ff:febb:00");
        assert_eq!(
            read(device.join("node_guid")).replace(':', ""),
            guid.replace(':', "")
        );
    }
    let warnings = card.host.run("dmesg --level=emerg,alert,crit,err,warn");
    let is_drivers = |it: &&str| it.contains("mlx5_core") || it.contains("mlx5_ib");
    let warnings = warnings.lines().filter(is_drivers);
    let warnings: Vec<&str> = warnings
        .filter(|it| !it.contains(NO_WRITE_COMBINING))
        .collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    let guids = RDMA.map(|it| read(format!("/sys/class/infiniband/{it}/sys_image_guid")));
    assert_eq!(guids[0], guids[1], "both are one card");

    let node = card.node();
    // an address is a GID of RoCE v1 and of v2, and the firmware's table has both
    for (function, address) in (0..2).zip(["0a00:0001", "0a00:0002"]) {
        let gid = format!("0000:0000:0000:0000:0000:ffff:{address}");
        for kind in ["IB/RoCE v1", "RoCE v2"] {
            wait::until("the address is a GID", || {
                gids(&node.host, RDMA[function]).contains(&(gid.clone(), kind.to_owned()))
            });
        }
        let used = gids(&node.host, RDMA[function]).len();
        let status = card.status(function);
        assert!(
            status.contains(&format!("roce-addresses={used}")),
            "{used}: {status}"
        );
    }
    assert_eq!(card.order(&format!("link {} down", MACS[0])), "ok");
    card.has_state(&node.host, RDMA[0], "DOWN");
    card.has_state(&node.host, RDMA[1], "ACTIVE");
    assert_eq!(card.order("link all up"), "ok");
    card.has_state(&node.host, RDMA[0], "ACTIVE");

    let table = offered(&node, "exclusive");
    are_healthy(&table, NETDEVS);
    assert!(table.contains("rdma/hca  exclusive"), "{table}");
    for netdev in NETDEVS {
        node.host.ip(&format!("address flush dev {netdev}"));
        node.host.ip(&format!("link set dev {netdev} down"));
    }
}

#[test]
fn pods_get_netdev_and_device_and_the_host_is_as_before() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    for function in 0..2 {
        let configuration = configuration(&node, NETDEVS[function]);
        node.add(&configuration, &format!("c{function}"), &pods[function]);
        let shown = links(&pods[function]);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(shown[0]["ifname"], RDMA[function]);
        assert_eq!(shown[0]["netdev"], "rdma0");
        let address = format!("{}/24", ADDRESSES[function]);
        assert_eq!(pods[function].addresses("rdma0"), [address]);
        card.has_state(&pods[function], RDMA[function], "ACTIVE");
    }
    assert!(links(&node.host).is_empty());
    // the card's switch carries frames between the pods, also the fragments of a packet that is longer than the MTU
    for line in [
        format!("ping -c 3 -i 0.2 -W 20 {}", ADDRESSES[0]),
        format!("ping -c 3 -i 0.2 -W 20 -s 4000 {}", ADDRESSES[0]),
    ] {
        let output = pods[1].run(&line);
        assert!(output.contains("3 received"), "{output}");
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: RDMA[it],
        address: ADDRESSES[it],
    });
    passes(server, client, &pods[0]);
    // the data of an atomic operation is the former value, which the server sends
    for (program, from, least) in [
        ("ib_write_bw", 1, 100 * 4096),
        ("ib_send_bw", 1, 100 * 4096),
        ("ib_atomic_bw", 0, 100 * 8),
    ] {
        let before = sent(&pods[from], RDMA[from]);
        traffic::by_connection_manager(program, server, client);
        let sent = sent(&pods[from], RDMA[from]) - before;
        assert!(sent >= least, "{program}: {sent} bytes");
    }
    for (name, least) in [("rx_write_requests", 100), ("rx_read_requests", 30 * 100)] {
        let counters = format!("/sys/class/infiniband/{}/ports/1/hw_counters", RDMA[0]);
        let text = pods[0].run(&format!("cat {counters}/{name}"));
        let count: u64 = text.trim().parse().expect("a number");
        assert!(count >= least, "{name}: {count}");
    }

    // one pod gets its DEL while its namespace exists, the other after its namespace has ended
    node.del(&configuration(&node, NETDEVS[0]), "c0", &pods[0]);
    pods[1].die();
    wait::until("the kernel gave the RDMA device back", || {
        links(&node.host).len() == 2
    });
    node.del(&configuration(&node, NETDEVS[1]), "c1", &pods[1]);
    node.assert_restored(&before);
}

/// The driver reports the carrier from a work queue, after the kernel has reported the netdev up
/// (`mlx5e_update_carrier_work()`).
#[test]
fn a_moved_function_has_its_carrier_before_its_addresses_are_probed() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    let mut configuration = configuration(&node, NETDEVS[0]);
    configuration["ipam"] = shared_configuration(&node, NETDEVS[0])["ipam"].take();
    let outcome = node.invoke("ADD", "c", pod.path());
    let outcome = outcome.input(&configuration).run();
    outcome.result();
    assert!(!outcome.stderr.contains("not probed"), "{}", outcome.stderr);
    node.del(&configuration, "c", &pod);
    node.assert_restored(&before);
}

#[test]
fn a_bond_of_both_functions_is_one_device_that_pods_share() {
    is_one_device_that_pods_share("active-backup");
}

#[test]
#[ignore = "scripts/test --full: the same, in mode 802.3ad"]
fn a_bond_in_mode_802_3ad_is_one_device_that_pods_share() {
    is_one_device_that_pods_share("802.3ad");
}

fn is_one_device_that_pods_share(mode: &str) {
    let card = Mlx5Card::new("shared");
    let node = Node::on(Netns::own());
    card.bond(mode, "10.0.0.1/24");
    let shown = links(&node.host);
    assert_eq!(shown.len(), 1, "{shown:?}");
    for function in 0..2 {
        let status = card.status(function);
        // the first function of a card has the bond
        assert!(
            status.contains(&format!("bonded={}", function == 0)),
            "{status}"
        );
    }
    let table = offered(&node, "shared");
    for word in ["rdma/hca  shared, all", "mlx5_bond_0", "bond0", "healthy"] {
        assert!(table.contains(word), "{word}: {table}");
    }

    let before = Snapshot::of(&node.host);
    let configurations = ["bond0"; 2].map(|netdev| shared_configuration(&node, netdev));
    let (pods, addresses) = pods_with_children(&node, &configurations);
    for (pod, address) in pods.iter().zip(&addresses) {
        let octet: u8 = (address.strip_prefix("10.0.0."))
            .and_then(|it| it.parse().ok())
            .unwrap_or_else(|| panic!("{address}"));
        let gid = format!("0000:0000:0000:0000:0000:ffff:0a00:00{octet:02x}");
        for kind in ["IB/RoCE v1", "RoCE v2"] {
            let all = gids(pod, "mlx5_bond_0");
            assert!(all.contains(&(gid.clone(), kind.to_owned())), "{all:?}");
        }
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: "mlx5_bond_0",
        address: &addresses[it],
    });
    passes(server, client, &node.host);
    for (index, pod) in pods.iter().enumerate() {
        node.del(&configurations[index], &format!("c{index}"), pod);
    }
    node.assert_restored(&before);

    // the bond's port is active while one of its links is up
    assert_eq!(card.order(&format!("link {} down", MACS[0])), "ok");
    card.has_state(&node.host, "mlx5_bond_0", "ACTIVE");
    assert_eq!(card.order("link all down"), "ok");
    card.has_state(&node.host, "mlx5_bond_0", "DOWN");
    assert_eq!(card.order("link all up"), "ok");
    card.has_state(&node.host, "mlx5_bond_0", "ACTIVE");
    drop(pods);
    card.unbond();
    assert_eq!(links(&node.host).len(), 2);
}

/// The card's firmware reports an error. The driver's reporter `fw` has no recovery, so it stays in the state `error`
/// until the driver is loaded again.
#[test]
fn an_error_of_the_firmware_makes_its_nic_unhealthy() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let (kubelet, daemon) = offering(&node);
    let reporter = |state: u8| {
        let device = RDMA[0];
        format!(r#"rdma_nic_reporter_error{{device="{device}",reporter="fw"}} {state}"#)
    };
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains(&reporter(0)), "{metrics}");

    assert_eq!(card.order(&format!("syndrome {} 16", MACS[0])), "ok");
    // the driver checks the firmware's health every two seconds
    has_ids(&kubelet, "rdma/a", 0);
    let line = daemon.line(&format!("{} is unhealthy:", FUNCTIONS[0]));
    let reason = "devlink's reporter fw has an error without recovery (devlink health show \
                  pci/0000:21:01.0 reporter fw)";
    assert!(line.contains(reason), "{line}");
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains(&reporter(1)), "{metrics}");
    // the function's link is active, and the other function is healthy
    card.has_state(&node.host, RDMA[0], "ACTIVE");
    has_ids(&kubelet, "rdma/b", 1);
    drop(daemon);

    // a daemon that starts after the error reports it from the beginning
    let table = offered(&node, "exclusive");
    let line = table.lines().find(|line| line.contains("reporter fw"));
    assert!(line.is_some_and(|it| it.contains(FUNCTIONS[0])), "{table}");

    assert_eq!(card.order("syndrome all 0"), "ok");
    for netdev in NETDEVS {
        node.host.ip(&format!("address flush dev {netdev}"));
        node.host.ip(&format!("link set dev {netdev} down"));
    }
}

#[test]
#[ignore = "scripts/test --full: a driver that is bound anew"]
fn a_function_in_a_pod_whose_driver_is_unbound_is_gone_until_it_is_bound() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let (kubelet, daemon) = offering(&node);
    let pod = node.pod("pod");
    node.add(&configuration(&node, NETDEVS[0]), "c0", &pod);
    let driver = |file: &str| {
        let path = format!("/sys/bus/pci/drivers/mlx5_core/{file}");
        fs::write(path, FUNCTIONS[0]).expect("the driver's file");
    };
    driver("unbind");
    assert!(links(&pod).is_empty(), "{:?}", links(&pod));
    assert!(!pod.has_link("rdma0"));
    has_ids(&kubelet, "rdma/a", 0);
    node.del(&configuration(&node, NETDEVS[0]), "c0", &pod);
    driver("bind");
    card.are_home();
    has_ids(&kubelet, "rdma/a", 1);
    has_ids(&kubelet, "rdma/b", 1);
    drop(daemon);
}

/// UCX's transports over libibverbs (`_v`), and those that write to the card's queues directly (`_x`). The reliable
/// transports have a shared receive queue.
#[test]
#[ignore = "scripts/test --full: UCX"]
fn ucx_passes_messages_between_pods() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let pods = ["server", "client"].map(|label| node.pod(label));
    let configurations = NETDEVS.map(|netdev| configuration(&node, netdev));
    for it in 0..2 {
        node.add(&configurations[it], &format!("c{it}"), &pods[it]);
        card.has_state(&pods[it], RDMA[it], "ACTIVE");
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: RDMA[it],
        address: ADDRESSES[it],
    });
    for transport in ["rc_v", "ud_v", "rc_x", "ud_x"] {
        let before = sent(&pods[1], RDMA[1]);
        traffic::ucx(transport, server, client);
        let sent = sent(&pods[1], RDMA[1]) - before;
        assert!(sent >= 100 * 4096, "{transport}: {sent} bytes");
    }
    for it in 0..2 {
        node.del(&configurations[it], &format!("c{it}"), &pods[it]);
    }
}

#[test]
#[ignore = "scripts/test --full: a VLAN as parent"]
fn pods_share_a_vlan_of_a_bond() {
    let card = Mlx5Card::new("shared");
    let node = Node::on(Netns::own());
    card.bond("active-backup", "10.0.0.1/24");
    for line in [
        "link add link bond0 name bond0.100 type vlan id 100",
        "link set dev bond0.100 up",
        "address add 10.100.0.1/24 dev bond0.100",
    ] {
        node.host.ip(line);
    }
    let before = Snapshot::of(&node.host);
    let configurations = ["bond0.100"; 2].map(|netdev| shared_configuration(&node, netdev));
    let (pods, addresses) = pods_with_children(&node, &configurations);
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: "mlx5_bond_0",
        address: &addresses[it],
    });
    assert!(addresses[0].starts_with("10.100.0."), "{addresses:?}");
    passes(server, client, &node.host);
    for (index, pod) in pods.iter().enumerate() {
        node.del(&configurations[index], &format!("c{index}"), pod);
    }
    node.assert_restored(&before);
    drop(pods);
    node.host.ip("link del dev bond0.100");
    card.unbond();
}

#[test]
#[ignore = "scripts/test --full: a function that falls off its bus"]
fn a_function_in_a_pod_that_falls_off_its_bus_is_unhealthy_until_it_is_found_again() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let (kubelet, daemon) = offering(&node);
    let pod = node.pod("pod");
    let configuration = configuration(&node, NETDEVS[0]);
    node.add(&configuration, "c0", &pod);
    // sysfs of the host has this directory even while the netdev is in the pod, but without an entry
    let netdevs = fs::read_dir(directory(0).join("net")).expect("a directory");
    assert_eq!(netdevs.count(), 0);
    assert_eq!(card.order(&format!("unplug {}", MACS[0])), "ok");
    // the driver notices the loss within two seconds, removes netdev and RDMA device, and waits a minute for the
    // function; the driver of 5.10 removes only the RDMA device
    let keeps_netdev = node.host.run("uname -r").starts_with("5.10.");
    has_ids(&kubelet, "rdma/a", 0);
    let why = if keeps_netdev {
        ""
    } else {
        "it has no RDMA device"
    };
    daemon.wait_for_log(&format!("{} (in pod c0) is unhealthy: {why}", FUNCTIONS[0]));
    has_no_links(&pod);
    has_ids(&kubelet, "rdma/b", 1);
    card.has_state(&node.host, RDMA[1], "ACTIVE");
    // the driver stays bound
    assert!(directory(0).join("driver").exists());
    assert_eq!(pod.has_link("rdma0"), keeps_netdev);
    assert_eq!(directory(0).join("net").exists(), keeps_netdev);
    let del = || {
        let del = node.invoke("DEL", "c0", pod.path()).input(&configuration);
        wait::for_no_longer(Duration::from_secs(60), "DEL", || del.run())
    };
    let expected = if keeps_netdev {
        let [netdev, _] = NETDEVS;
        format!("{netdev} is back on the host, but not fully restored")
    } else {
        let expected = format!("{} is not back on the host: {}", NETDEVS[0], FUNCTIONS[0]);
        for _ in 0..2 {
            let message = del().error(107);
            assert!(message.contains(&expected), "{message}");
        }
        // DEL waits three minutes for the driver's recovery: the test sets the first failure to the machine's boot
        let record = &node.records()[0];
        let text = fs::read(record).expect("a record");
        let mut changed: Value = serde_json::from_slice(&text).expect("a record");
        changed["failedAt"] = 0.into();
        fs::write(record, changed.to_string()).expect("changed");
        let limit = Duration::from_secs(180);
        let has_passed = || seconds_since_boot() >= Some(limit.as_secs());
        assert!(wait::within(limit, has_passed), "not up for {limit:?}");
        format!("{} no longer exists: {}", NETDEVS[0], FUNCTIONS[0])
    };
    let last = del();
    last.silent();
    assert!(last.stderr.contains(&expected), "{last}");
    assert!(node.records().is_empty());
    // removes the function as the kernel does for a slot with hotplug
    fs::write(directory(0).join("remove"), "1").expect("removed");
    assert_eq!(card.order("plug all"), "ok");
    let rescan = || fs::write("/sys/bus/pci/rescan", "1").expect("found again");
    rescan();
    card.are_home();
    assert_eq!(links(&node.host).len(), 2);
    has_ids(&kubelet, "rdma/a", 1);
    has_ids(&kubelet, "rdma/b", 1);
    drop(daemon);
    // the next test's driver names RDMA devices in the order in which the bus found the functions
    for function in 0..2 {
        fs::write(directory(function).join("remove"), "1").expect("removed");
    }
    rescan();
    card.are_home();
}
