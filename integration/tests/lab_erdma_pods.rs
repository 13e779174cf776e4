// SPDX-License-Identifier: Apache-2.0
//! In the lab, pods with eRDMA NICs, with the kernel's own driver and with its variant that has a parent:
//! `integration/lab/vm --tier erdma`, one test at a time. Driver and user-space provider are real, the functions are
//! models.

use integration::{
    Snapshot,
    daemon::{doctor, rdma_device_plugin},
    erdma_functions::{
        ADDRESSES, Driver, ErdmaNode, NICS, are_active, counter, directory, links, macs, node_guid,
    },
    killed::{Around, Restorer, Sweep},
    plugin,
    traffic::{self, End},
    wait,
};
use serde_json::json;
use std::{collections::BTreeSet, fs, process::Command};

/// Asserts that `--check-config` lists both NICs, and that `doctor` finds both active.
#[track_caller]
fn are_both_offered(scene: &ErdmaNode) {
    let file = scene.node.directory().join("config.json");
    fs::write(&file, r#"{"erdma": {}}"#).expect("written");
    let mut check = Command::new(rdma_device_plugin());
    let check = check.arg("--config").arg(&file).arg("--check-config");
    let done = check.output().expect("the daemon's program");
    let table = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{done:?}");
    let line = table.lines().find(|line| line.starts_with("aliyun/erdma"));
    let line = line.unwrap_or_else(|| panic!("{table}"));
    assert!(line.contains("400"), "{table}");
    for (nic, netdev) in NICS.into_iter().enumerate() {
        let rdma = scene.erdma.rdma(nic);
        assert!(table.contains(&rdma), "{rdma}: {table}");
        assert!(table.contains(netdev), "{table}");
    }
    let configuration = json!({
        "type": "rdma-cni", "mode": "move", "devices": [{"driver": "erdma"}], "stateDir": scene.node.state(),
    });
    let (_, found) = doctor(&scene.node.host, &[configuration], &[]);
    let pairs = [0, 1].map(|nic| format!("{} ({})", scene.erdma.rdma(nic), NICS[nic]));
    let is_active =
        |line: &&str| line.contains("2 active: ") && pairs.iter().all(|it| line.contains(it));
    assert!(
        found.lines().any(|line| is_active(&line)),
        "{pairs:?}: {found}"
    );
    assert!(found.contains("ADD moves enp33s1, enp65s1"), "{found}");
    for wrong in [
        "without an RDMA device",
        "no driver is bound",
        "software devices",
    ] {
        assert!(!found.contains(wrong), "{found}");
    }
}

/// `--check-config` lists both devices, and `rdma-cni` moves the first into a pod, even while the first NIC's MAC
/// differs from the MAC in the node GUID.
#[track_caller]
fn both_are_offered(driver: Driver) {
    let scene = ErdmaNode::new(driver, "exclusive");
    are_both_offered(&scene);
    let change = |mac: &str| {
        scene
            .node
            .host
            .ip(&format!("link set dev {} address {mac}", NICS[0]))
    };
    let changed = "52:54:00:ee:00:99";
    let is_guid_of = |mac: &str| {
        let guid = fs::read_to_string(directory(&scene.erdma.rdma(0)).join("node_guid"));
        assert_eq!(guid.expect("a GUID").trim(), node_guid(mac));
    };
    change(changed);
    is_guid_of(&macs()[0]);
    are_both_offered(&scene);
    // the next load of the driver copies the changed MAC into the node GUID
    scene.erdma.unload();
    scene.erdma.load();
    scene.erdma.are_home();
    are_active(&scene.node.host);
    is_guid_of(changed);
    are_both_offered(&scene);
    change(&macs()[0]);
    is_guid_of(changed);
    are_both_offered(&scene);
    let before = Snapshot::of(&scene.node.host);
    let pod = scene.node.pod("pod");
    scene.node.add(&scene.configuration(0), "c", &pod);
    assert_eq!(links(&pod).len(), 1);
    scene.node.del(&scene.configuration(0), "c", &pod);
    scene.node.assert_restored(&before);
}

#[test]
fn both_devices_are_offered_without_a_parent() {
    both_are_offered(Driver::Kernel);
}

#[test]
fn both_devices_are_offered_with_a_parent() {
    both_are_offered(Driver::WithParent);
}

#[track_caller]
fn pods_have_their_devices(driver: Driver) {
    let scene = ErdmaNode::new(driver, "exclusive");
    let node = &scene.node;
    let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    for nic in 0..2 {
        let configuration = scene.configuration(nic);
        node.add(&configuration, &format!("c{nic}"), &pods[nic]);
        let shown = links(&pods[nic]);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(shown[0]["ifname"], devices[nic].as_str());
        assert_eq!(shown[0]["netdev"], "rdma0");
        assert_eq!(
            pods[nic].addresses("rdma0"),
            [format!("{}/24", ADDRESSES[nic])]
        );
    }
    assert!(links(&node.host).is_empty());
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: &devices[it],
        address: ADDRESSES[it],
    });
    traffic::rping(server, client);
    for (program, from, least) in [
        ("ib_write_bw", client, 100 * 4096),
        ("ib_read_bw -q 30", server, 30 * 100 * 4096),
        ("ib_send_bw", client, 100 * 4096),
        ("ib_atomic_bw", client, 100 * 8),
    ] {
        let before = counter(from.pod, from.rdma, "tx_bytes_cnt");
        traffic::by_connection_manager(program, server, client);
        let sent = counter(from.pod, from.rdma, "tx_bytes_cnt") - before;
        assert!(sent >= least, "{program}: {sent} bytes");
    }

    // one pod gets its DEL while its namespace exists, the other after its namespace has ended
    node.del(&scene.configuration(0), "c0", &pods[0]);
    pods[1].die();
    wait::until("the kernel gave the RDMA device back", || {
        links(&node.host).len() == 2
    });
    node.del(&scene.configuration(1), "c1", &pods[1]);
    node.assert_restored(&before);
}

#[test]
fn pods_have_devices_without_a_parent_and_the_host_is_as_before() {
    pods_have_their_devices(Driver::Kernel);
}

#[test]
fn pods_have_devices_with_a_parent_and_the_host_is_as_before() {
    pods_have_their_devices(Driver::WithParent);
}

/// In shared mode the netdev is in the pod. The RDMA device refers to this netdev, and stays on the node.
#[test]
fn pods_have_netdevs_and_data_in_shared_mode() {
    let scene = ErdmaNode::new(Driver::Kernel, "shared");
    let node = &scene.node;
    let before = Snapshot::of(&node.host);
    let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
    let pods = ["server", "client"].map(|label| node.pod(label));
    for (nic, pod) in pods.iter().enumerate() {
        node.add(&scene.configuration(nic), &format!("c{nic}"), pod);
        let of_host = links(&node.host);
        assert!(
            of_host
                .iter()
                .any(|it| it["ifname"] == devices[nic].as_str())
        );
        assert_eq!(pod.addresses("rdma0"), [format!("{}/24", ADDRESSES[nic])]);
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: &devices[it],
        address: ADDRESSES[it],
    });
    traffic::rping(server, client);
    let sent = || counter(&node.host, &devices[1], "tx_bytes_cnt");
    let earlier = sent();
    traffic::by_connection_manager("ib_write_bw", server, client);
    assert!(sent() - earlier >= 100 * 4096);
    for (nic, pod) in pods.iter().enumerate() {
        node.del(&scene.configuration(nic), &format!("c{nic}"), pod);
    }
    node.assert_restored(&before);
}

/// Kills `rdma-cni` at moves or at every change. The next verb restores netdev and RDMA device.
#[track_caller]
fn devices_return_after_a_kill(driver: Driver, around: Around) {
    let scene = ErdmaNode::new(driver, "exclusive");
    let sweep = Sweep {
        host: &scene.node.host,
        plugin: plugin::rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around,
        cni_path: plugin::DEBIAN_PLUGINS.into(),
        configuration: scene.configuration(0),
        before: Snapshot::of(&scene.node.host),
    };
    for (command, restorers) in [
        ("ADD", [Restorer::Del, Restorer::Add, Restorer::Gc]),
        ("DEL", [Restorer::Gc, Restorer::Del, Restorer::Add]),
    ] {
        let points = sweep.run(command, &restorers);
        println!("{command}: {points} points {around:?}");
        let least = match (around, command) {
            (Around::All, "ADD") => 9,
            (Around::All, _) => 6,
            _ => 3,
        };
        assert!(points >= least, "{command} had only {points} points");
    }
    drop(sweep);
    scene.erdma.are_home();
}

#[test]
fn devices_return_after_a_kill_around_every_move() {
    devices_return_after_a_kill(Driver::Kernel, Around::Moves);
}

#[test]
#[ignore = "scripts/test --full: every change, without a parent"]
fn devices_return_after_a_kill_at_every_change_without_a_parent() {
    devices_return_after_a_kill(Driver::Kernel, Around::All);
}

#[test]
#[ignore = "scripts/test --full: every change, with a parent"]
fn devices_return_after_a_kill_at_every_change_with_a_parent() {
    devices_return_after_a_kill(Driver::WithParent, Around::All);
}

#[test]
fn a_device_is_chosen_by_its_driver_and_shared_mode_gives_a_child() {
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = ErdmaNode::new(driver, "exclusive");
        let node = &scene.node;
        let before = Snapshot::of(&node.host);
        let pod = node.pod("pod");
        let mut configuration = scene.configuration(0);
        configuration["devices"] = json!([{"driver": "erdma"}]);
        let result = node.add(&configuration, "c", &pod);
        let shown = links(&pod);
        let netdevs = shown.iter().filter_map(|it| it["netdev"].as_str());
        let netdevs: BTreeSet<&str> = netdevs.collect();
        assert_eq!(netdevs, ["rdma0", "rdma1"].into(), "{driver:?} {result}");
        node.del(&configuration, "c", &pod);
        node.assert_restored(&before);
    }

    // each pod gets a child of a NIC; the RDMA devices stay on the host, and have a child's address as a GID only with
    // RoCE
    let scene = ErdmaNode::new(Driver::Kernel, "shared");
    let node = &scene.node;
    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
    for nic in 0..2 {
        let mut configuration = scene.configuration(nic);
        configuration["mode"] = "share".into();
        node.add(&configuration, &format!("c{nic}"), &pods[nic]);
        let of = |link: &serde_json::Value| link["ifname"] == devices[nic].as_str();
        assert!(links(&node.host).iter().any(of), "it stays");
        pods[nic].ip(&format!("address add 10.0.1.{}/24 dev rdma0", nic + 1));
    }
    wait::until("one child reaches the other", || {
        let mut ping = pods[1].command("ping");
        let output = ping.args(["-c", "1", "-W", "5", "10.0.1.1"]).output();
        output.expect("ping").status.success()
    });
    for (nic, pod) in pods.iter().enumerate() {
        let mut configuration = scene.configuration(nic);
        configuration["mode"] = "share".into();
        node.del(&configuration, &format!("c{nic}"), pod);
    }
    node.assert_restored(&before);
}
