// SPDX-License-Identifier: Apache-2.0
//! In the lab, the daemon on a node with eRDMA NICs and the kernel's own driver:
//! `integration/lab/vm --tier erdma --monitor`, one test at a time. Driver and user-space provider are real, the
//! functions are models.

use integration::{
    Daemon, Qemu, Snapshot,
    daemon::{doctor, rdma_device_plugin},
    erdma_functions::{
        Driver, ErdmaFunctions, ErdmaNode, FUNCTIONS, NIC_FUNCTIONS, NICS, directory, is_bound,
        macs, node_guid,
    },
    kubelet::{Allocation, AllocationRequest, node::Node},
    lab::{REPORT_LIMIT, uverbs},
    wait,
};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{fs, process::Command, thread, time::Duration};

const RESOURCE: &str = "aliyun/erdma";

/// A configuration with which the daemon does not configure the NICs.
const CONFIGURATION: &str = r#"{"erdma": {"configureNICs": false}}"#;

#[track_caller]
fn has_ids(node: &Node, nics: usize) {
    node.kubelet
        .wait_for(RESOURCE, &format!("ids of {nics} NICs"), |it| {
            it.healthy().len() == 200 * nics
        });
}

#[track_caller]
fn is_reported_unbound(daemon: &Daemon) {
    let function = FUNCTIONS[0];
    daemon.wait_for_log(&format!(
        "the eRDMA driver is not bound to {function}: the driver's probe waits"
    ));
    metric_has_problem(daemon, "unbound");
}

#[track_caller]
fn metric_has_problem(daemon: &Daemon, problem: &str) {
    let line = format!("rdma_erdma_driver_problem{{problem={problem:?}}} 1");
    wait::until("the metric has the problem", || {
        daemon.get("/metrics").contains(&line)
    });
}

#[test]
fn the_daemon_binds_a_function_whose_netdev_returns() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    let pod = erdma.load_with_a_netdev_away();
    let node = Node::start(CONFIGURATION);
    has_ids(&node, 1);
    is_reported_unbound(&node.daemon);
    assert!(!is_bound(FUNCTIONS[0]));
    let plugin = json!({"type": "rdma-cni", "devices": [{"driver": "erdma"}]});
    let (_, found) = doctor(&erdma.host, &[plugin], &[]);
    let words = format!(
        "no driver is bound to 1 function of eRDMA: {}",
        FUNCTIONS[0]
    );
    assert!(found.contains(&words), "{found}");
    drop(pod);
    erdma.are_home();
    has_ids(&node, 2);
}

/// The daemon binds the function of a restored netdev after `rdma-cni` has restored all its settings. The RDMA device
/// then appears again.
#[test]
fn the_daemon_binds_a_function_after_del_where_the_driver_was_loaded_anew_meanwhile() {
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = ErdmaNode::new(driver, "exclusive");
        let before = Snapshot::of(&scene.node.host);
        let node = Node::start_with_state(CONFIGURATION, &scene.node.state());
        has_ids(&node, 2);
        let pod = scene.node.pod("pod");
        let configuration = scene.configuration(0);
        scene.node.add(&configuration, "c", &pod);
        has_ids(&node, 2);
        // the driver must not make the node GUID from the pod's MAC
        pod.ip("link set dev rdma0 address 52:54:00:ee:00:77");
        scene.erdma.unload();
        scene.erdma.load();
        is_reported_unbound(&node.daemon);
        scene.node.del(&configuration, "c", &pod);
        scene.erdma.are_home();
        scene.node.assert_restored(&before);
        has_ids(&node, 2);
    }
}

/// The daemon binds a function although the other NIC's netdev is in a running pod, and does not enter this pod's
/// namespace.
#[test]
fn the_daemon_binds_a_function_while_another_pod_has_its_nic() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let node = Node::start_confined(CONFIGURATION, &scene.node.state());
    has_ids(&node, 2);
    let pods = ["first", "second"].map(|label| scene.node.pod(label));
    for (nic, pod) in pods.iter().enumerate() {
        scene
            .node
            .add(&scene.configuration(nic), &format!("c{nic}"), pod);
    }
    scene.erdma.unload();
    // after these reports, only the load of the driver makes the daemon observe the functions again
    metric_has_problem(&node.daemon, "not_loaded");
    for function in NIC_FUNCTIONS {
        node.daemon.wait_for_log(&format!("{function} (in pod"));
    }
    // no log line shows the end of the observation after the last report
    thread::sleep(Duration::from_secs(3));
    scene.erdma.load();
    is_reported_unbound(&node.daemon);
    for (nic, pod) in pods.iter().enumerate() {
        scene
            .node
            .del(&scene.configuration(nic), &format!("c{nic}"), pod);
        wait::until("the NIC has its RDMA device", || {
            scene.erdma.rdma_in(&scene.node.host, nic).is_some()
        });
    }
    assert_eq!(node.daemon.count("is gone or not visible"), 0);
}

/// A pod has ended, and its DEL has not run yet. The netdev is on the host with the pod's MAC, from which the driver
/// would make the node GUID. Therefore the daemon binds no function before DEL.
#[test]
fn the_daemon_binds_nothing_before_del_has_restored_every_netdev() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let node = Node::start_with_state(CONFIGURATION, &scene.node.state());
    has_ids(&node, 2);
    let pods = ["first", "second"].map(|label| scene.node.pod(label));
    for (nic, pod) in pods.iter().enumerate() {
        scene
            .node
            .add(&scene.configuration(nic), &format!("c{nic}"), pod);
    }
    let [first, second] = pods;
    second.ip("link set dev rdma0 address 52:54:00:ee:00:77");
    scene.erdma.unload();
    scene.erdma.load();
    is_reported_unbound(&node.daemon);
    second.die();
    wait::until("the netdev is on the host with the pod's MAC", || {
        scene
            .node
            .host
            .run("ip link show")
            .contains("52:54:00:ee:00:77")
    });
    scene.node.del(&scene.configuration(0), "c0", &first);
    assert!(
        !wait::within(Duration::from_secs(8), || FUNCTIONS
            .into_iter()
            .any(is_bound)),
        "a function is bound before the second pod's DEL"
    );
    node.daemon
        .wait_for_log("is on the host, and is not restored yet");
    scene.node.del(&scene.configuration(1), "c1", &second);
    scene.erdma.are_home();
    for (nic, mac) in macs().into_iter().enumerate() {
        let guid = directory(&scene.erdma.rdma(nic)).join("node_guid");
        let guid = fs::read_to_string(guid).expect("a GUID");
        assert_eq!(guid.trim(), node_guid(&mac));
    }
    assert!(scene.node.records().is_empty());
}

#[test]
fn a_function_that_was_unbound_by_hand_stays_unbound() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let stays = |daemon: &Daemon| {
        daemon.wait_for_log(&format!(
            "the eRDMA driver is not bound to {}: its probe is not deferred",
            FUNCTIONS[0]
        ));
        let again = wait::within(Duration::from_secs(5), || is_bound(FUNCTIONS[0]));
        assert!(!again, "somebody has unbound it");
    };
    let node = Node::start(CONFIGURATION);
    has_ids(&node, 2);
    fs::write("/sys/bus/pci/drivers/erdma/unbind", FUNCTIONS[0]).expect("unbound by hand");
    stays(&node.daemon);
    // a daemon that starts after the unbind does not bind the function either
    let (status, _) = node.end(Signal::SIGTERM);
    assert!(status.success(), "{status}");
    let node = Node::start(CONFIGURATION);
    stays(&node.daemon);
    fs::write("/sys/bus/pci/drivers/erdma/bind", FUNCTIONS[0]).expect("bound by hand");
    scene.erdma.are_home();
    has_ids(&node, 2);
}

/// `--check-config` prints the command that binds a function if the daemon cannot bind it. The `/sys` of a container
/// may differ from that of the node.
#[test]
fn functions_that_the_daemon_cannot_bind_are_reported_with_the_command() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    let pod = erdma.load_with_a_netdev_away();
    wait::until("the other function has its device", || {
        is_bound(FUNCTIONS[1])
    });
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("config.json");
    fs::write(&file, CONFIGURATION).expect("written");
    let checked = |change: &str| {
        let line = format!(
            "{change}; exec {} --check-config --config {}",
            rdma_device_plugin().display(),
            file.display()
        );
        let done = Command::new("unshare")
            .args(["-m", "sh", "-ec", &line])
            .output();
        let done = done.expect("unshare");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let bind = format!("echo {} >/sys/bus/pci/drivers/erdma/bind", FUNCTIONS[0]);
    let usual = checked(":");
    assert!(
        usual.contains("the daemon binds the driver when"),
        "{usual}"
    );
    for (change, words) in [
        (
            "mount --bind /sys/bus/pci/drivers /sys/bus/pci/drivers; \
             mount -o remount,bind,ro /sys/bus/pci/drivers",
            "Read-only file system",
        ),
        ("umount /sys/kernel/debug", "devices_deferred"),
    ] {
        let output = checked(change);
        assert!(output.contains(words) && output.contains(&bind), "{output}");
        assert!(
            !output.contains("the daemon binds the driver when"),
            "{output}"
        );
    }
    drop(pod);
    wait::until("the netdev is back", || erdma.host.has_link(NICS[0]));
    fs::write("/sys/bus/pci/drivers/erdma/bind", FUNCTIONS[0]).expect("bound by hand");
    erdma.are_home();
}

/// The names in `/dev/infiniband` that an allocation gives to a container.
fn device_files(given: &Allocation) -> Vec<String> {
    let paths = given.given.devices.iter().map(|it| &it.container_path);
    let mut names: Vec<String> = paths
        .filter_map(|it| Some(it.strip_prefix("/dev/infiniband/")?.to_owned()))
        .collect();
    names.sort();
    names
}

#[test]
fn a_container_has_the_device_files_of_its_numa_nodes_nic_or_of_all() {
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = ErdmaNode::new(driver, "exclusive");
        let files = [0, 1].map(|nic| uverbs(&scene.erdma.rdma(nic)).0);
        let node = Node::start(CONFIGURATION);
        has_ids(&node, 2);
        let known = node.kubelet.resource(RESOURCE).expect("it is known");
        for numa_node in [0, 1] {
            let on_node = known.devices.iter().filter(|it| {
                let nodes = it.topology.iter().flat_map(|it| &it.nodes);
                nodes.map(|it| it.id).eq([numa_node])
            });
            assert_eq!(on_node.count(), 200, "{driver:?}");
            let request =
                AllocationRequest::new("near", "main", RESOURCE, 1).on_numa_node(numa_node);
            let given = node.allocate(&request);
            let own = files[usize::try_from(numa_node).expect("a node")].clone();
            assert_eq!(
                device_files(&given),
                ["rdma_cm".to_owned(), own],
                "{driver:?}"
            );
            node.free("near");
        }
        let (status, _) = node.end(Signal::SIGTERM);
        assert!(status.success(), "{status}");

        let all = json!({
            "erdma": {"configureNICs": false},
            "resources": [{
                "name": RESOURCE, "kind": "perNic", "count": 200, "allocate": "all", "devices": [{"driver": "erdma"}],
            }],
        });
        let node = Node::start(&all.to_string());
        has_ids(&node, 2);
        let given = node.allocate(&AllocationRequest::new("all", "main", RESOURCE, 1));
        let mut every = files.to_vec();
        every.push("rdma_cm".to_owned());
        every.sort();
        assert_eq!(device_files(&given), every, "{driver:?}");
    }
}

#[test]
fn health_follows_the_carrier_and_metrics_have_the_drivers_counters() {
    let mut qemu = Qemu::monitor();
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = ErdmaNode::new(driver, "exclusive");
        let node = Node::start(CONFIGURATION);
        has_ids(&node, 2);
        for nic in 0..2 {
            let rdma = scene.erdma.rdma(nic);
            let labels = [("device", rdma.as_str())];
            let counters = ["rdma_hw_tx_bytes_cnt_total", "rdma_hw_rx_packets_cnt_total"];
            // the daemon gives each part of the page two seconds
            let has_all = || {
                let of = |name: &str| node.metric(name, &labels);
                counters.iter().all(|it| of(it).is_some())
                    && of("rdma_device_counters_known") == Some(1.0)
            };
            assert!(
                wait::within(wait::TIMEOUT, has_all),
                "{driver:?} {rdma}\n{}",
                node.metrics()
            );
        }
        let mode = [("which", "loaded"), ("mode", "default")];
        assert_eq!(node.metric("rdma_erdma_driver_mode", &mode), Some(1.0));

        let mut is_reported = |up: bool| {
            let ids = if up { 400 } else { 200 };
            qemu.set_link(1, up);
            let carrier = format!("/sys/class/net/{}/carrier", NICS[1]);
            wait::until("the carrier changes", || {
                fs::read_to_string(&carrier).is_ok_and(|it| (it.trim() == "1") == up)
            });
            node.kubelet.within(REPORT_LIMIT, RESOURCE, |it| {
                it.is_some_and(|it| it.healthy().len() == ids)
            })
        };
        assert!(is_reported(false), "{driver:?}: down");
        assert!(is_reported(true), "{driver:?}: up");
    }
}

/// The kernel's driver has one mode. The daemon loads the driver for this mode, and reports another configured mode as
/// a problem.
#[test]
fn the_daemon_loads_the_driver_and_reports_that_it_has_one_mode() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    scene.erdma.unload();
    let configuration = |mode: &str| {
        let erdma = json!({"configureNICs": false, "preferDriver": mode});
        json!({ "erdma": erdma }).to_string()
    };
    let node = Node::start(&configuration("default"));
    node.daemon
        .wait_for_log("the eRDMA driver is in mode default");
    has_ids(&node, 2);
    let labels = [("which", "loaded"), ("mode", "default")];
    assert_eq!(node.metric("rdma_erdma_driver_mode", &labels), Some(1.0));
    let (status, _) = node.end(Signal::SIGTERM);
    assert!(status.success(), "{status}");

    let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
    let node = Node::start(&configuration("compat"));
    has_ids(&node, 2);
    let line = node.daemon.line("the eRDMA driver has no mode compat");
    assert!(line.contains("no parameter compat_mode"), "{line}");
    let problem = [("problem", "one_mode")];
    wait::until("the metric reports it", || {
        node.metric("rdma_erdma_driver_problem", &problem) == Some(1.0)
    });
    assert_eq!(
        [0, 1].map(|nic| scene.erdma.rdma(nic)),
        devices,
        "it stays loaded"
    );
    let (status, _) = node.end(Signal::SIGTERM);
    assert!(status.success(), "{status}");

    // without a configured mode, the administrator loads the driver
    scene.erdma.unload();
    let node = Node::start(CONFIGURATION);
    node.daemon
        .wait_for_log("the eRDMA driver is not loaded: load it (modprobe erdma)");
}
