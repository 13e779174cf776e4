// SPDX-License-Identifier: Apache-2.0
//! In the lab, faults of the eRDMA fabric and of a function, with the kernel's own driver:
//! `integration/lab/vm --tier erdma --monitor`, one test at a time. Driver and user-space provider are real, the
//! functions and the fabric are models.

use integration::{
    Netns, Outcome, Snapshot,
    erdma_fabric::ErdmaFabric,
    erdma_functions::{ADDRESSES, Driver, ErdmaNode, FUNCTIONS, counter, links, macs},
    kubelet::node::Node,
    traffic::{self, End},
    wait,
};
use std::{fs, time::Duration};

const RESOURCE: &str = "aliyun/erdma";

/// A configuration with which the daemon does not configure the NICs.
const CONFIGURATION: &str = r#"{"erdma": {"configureNICs": false}}"#;

/// Time that a verb may take: the driver aborts a command after 15 s (`ERDMA_CMDQ_TIMEOUT_MS`).
const LIMIT: Duration = Duration::from_secs(25);

/// Time that the daemon may take for an answer that needs no command of the driver.
const SOON: Duration = Duration::from_secs(10);

/// Runs `work` with two pods after `rdma-cni` moved a NIC into each pod. Then asserts that the host's state is
/// restored.
#[track_caller]
fn with_pods(work: impl FnOnce(End<'_>, End<'_>)) {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let node = &scene.node;
    let before = Snapshot::of(&node.host);
    let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
    let pods = ["server", "client"].map(|label| node.pod(label));
    for (nic, pod) in pods.iter().enumerate() {
        node.add(&scene.configuration(nic), &format!("c{nic}"), pod);
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: &devices[it],
        address: ADDRESSES[it],
    });
    work(server, client);
    for (nic, pod) in pods.iter().enumerate() {
        node.del(&scene.configuration(nic), &format!("c{nic}"), pod);
    }
    node.assert_restored(&before);
}

#[test]
fn data_arrive_over_a_fabric_that_loses_messages() {
    with_pods(|server, client| {
        let mut fabric = ErdmaFabric::new();
        let lost = || -> u64 {
            let of = |end: End<'_>| counter(end.pod, end.rdma, "tx_disable_drop_cnt");
            of(server) + of(client)
        };
        let before = lost();
        fabric.order("loss all 20");
        traffic::rping(server, client);
        for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            traffic::by_connection_manager(program, server, client);
        }
        let lost = lost() - before;
        println!("{lost} messages were lost");
        assert!(lost >= 20, "{lost}");
    });
}

#[test]
fn a_message_arrives_as_late_as_the_fabric_delays_it() {
    with_pods(|server, client| {
        let mut fabric = ErdmaFabric::new();
        fabric.order("delay all 20");
        let output = traffic::by_connection_manager("ib_send_lat", server, client);
        // bytes, iterations, the shortest time in microseconds
        let mut rows = output.lines().map(str::split_whitespace);
        let row = rows.find_map(|mut row| (row.next() == Some("4096")).then(|| row.nth(1)));
        let shortest: f64 = row
            .flatten()
            .and_then(|it| it.parse().ok())
            .unwrap_or_else(|| panic!("{output}"));
        println!("the shortest time is {shortest} us");
        assert!(shortest >= 20_000.0, "{output}");
    });
}

#[test]
fn a_link_that_is_down_ends_a_connection_and_the_next_one_has_data() {
    with_pods(|server, client| {
        let mut fabric = ErdmaFabric::new();
        fabric.order("no-answer 500");
        let down = format!("link {} down", macs()[0]);
        let failed = traffic::fails_by_connection_manager("ib_write_bw", server, client, || {
            fabric.order(&down)
        });
        // IBV_WC_RETRY_EXC_ERR
        assert!(failed.contains("status 12"), "{failed}");
        fabric.order("link all up");
        traffic::by_connection_manager("ib_write_bw", server, client);
    });
}

#[track_caller]
fn has_ids(node: &Node, nics: usize) {
    let what = format!("ids of {nics} NICs");
    node.kubelet
        .wait_for(RESOURCE, &what, |it| it.healthy().len() == 200 * nics);
}

#[track_caller]
fn verb(scene: &ErdmaNode, verb: &str, nic: usize, pod: &Netns) -> Outcome {
    let call = scene.node.invoke(verb, &format!("c{nic}"), pod.path());
    let configuration = scene.configuration(nic);
    wait::for_no_longer(LIMIT, &format!("{verb} of NIC {nic}"), || {
        call.input(&configuration).run()
    })
}

#[test]
fn verbs_and_the_daemon_go_on_when_a_function_in_a_pod_falls_off_its_bus() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let before = Snapshot::of(&scene.node.host);
    let mut fabric = ErdmaFabric::new();
    let node = Node::start_with_state(CONFIGURATION, &scene.node.state());
    has_ids(&node, 2);
    let [pod, other] = ["pod", "other"].map(|label| scene.node.pod(label));
    let rdma = scene.erdma.rdma(0);
    verb(&scene, "ADD", 0, &pod).result();
    fabric.order(&format!("unplug {}", macs()[0]));

    // the driver waits 15 s for the answer to the first command, and the metrics page must not wait for it
    wait::for_no_longer(SOON, "/metrics", || node.metrics());
    let others = scene.erdma.rdma(1);
    let has_counters = || {
        let labels = [("device", others.as_str())];
        node.metric("rdma_hw_tx_bytes_cnt_total", &labels).is_some()
    };
    assert!(
        wait::within(wait::TIMEOUT, has_counters),
        "{}",
        node.metrics()
    );
    // the driver reports the port as active
    let here = [("device", rdma.as_str())];
    assert_eq!(node.metric("rdma_device_healthy", &here), Some(1.0));
    let answer = wait::for_no_longer(SOON, "/healthz", || node.daemon.get("/healthz"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    verb(&scene, "ADD", 1, &other).result();
    verb(&scene, "DEL", 1, &other).silent();
    verb(&scene, "DEL", 0, &pod).silent();
    assert!(scene.node.records().is_empty());

    fabric.order("plug all");
    for file in ["unbind", "bind"] {
        let file = format!("/sys/bus/pci/drivers/erdma/{file}");
        fs::write(&file, FUNCTIONS[0]).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    scene.erdma.are_home();
    has_ids(&node, 2);
    scene.node.assert_restored(&before);
}

#[test]
fn a_function_that_is_removed_is_not_offered_and_its_netdev_comes_home_from_the_pod() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let before = Snapshot::of(&scene.node.host);
    let node = Node::start_with_state(CONFIGURATION, &scene.node.state());
    let remove = || {
        let file = format!("/sys/bus/pci/devices/{}/remove", FUNCTIONS[0]);
        fs::write(file, "1").expect("removed");
    };
    let find = || {
        fs::write("/sys/bus/pci/rescan", "1").expect("found again");
        scene.erdma.are_home();
    };
    has_ids(&node, 2);
    remove();
    has_ids(&node, 1);
    find();
    has_ids(&node, 2);

    let pod = scene.node.pod("pod");
    verb(&scene, "ADD", 0, &pod).result();
    remove();
    assert!(links(&pod).is_empty(), "{:?}", links(&pod));
    verb(&scene, "DEL", 0, &pod).silent();
    assert!(scene.node.records().is_empty());
    find();
    has_ids(&node, 2);
    scene.node.assert_restored(&before);
}
