// SPDX-License-Identifier: Apache-2.0
//! Tests of the daemon while it cannot report rails, because no API server is usable. All other functions must work as
//! usual. `integration/tests/cluster` tests the reports themselves.

use crate::{
    FIRST, HCA, Running, SECOND, ids,
    program::{command, run},
    refused::{CA, TOKEN},
};
use integration::{
    Daemon, Machine,
    kubelet::{
        DeviceManager,
        pod_resources::{PodResourcesServer, pod},
    },
    stopwatch::Stopwatch,
    wait,
};
use nix::sys::signal::Signal;
use std::{net::TcpListener, thread, time::Duration};

/// Longest time until the daemon ends, if it does not wait for the API server. A request to the API server has a limit
/// of 10 s.
const NOT_WAITED: Duration = Duration::from_secs(8);

/// A node with one pod. The daemon makes all kinds of reports.
struct Node {
    node: Running,
    _pods: PodResourcesServer,
}

impl Node {
    #[track_caller]
    fn new(environment: &[(&str, &str)]) -> Self {
        let machine = Machine::with(&[FIRST, SECOND]);
        machine.configure(HCA);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let pods = PodResourcesServer::start(&machine.path("kubelet/pod-resources/kubelet.sock"));
        let mut command = command(&machine);
        command.args(["--metrics-address", "127.0.0.1:0"]);
        command.args(["--report", "events,node-condition"]);
        command
            .arg("--service-account-dir")
            .arg(machine.path("account"));
        command.envs(environment.iter().copied());
        let daemon = Daemon::start(&mut command);
        let node = Running {
            daemon,
            kubelet,
            machine,
        };
        let node = node.listed("rdma/hca", 1000);
        let given = node.kubelet.ask_for("rdma/hca", &[&ids(&["0"])]);
        given.expect("given");
        pods.set_pods(&[pod("default", "trainer-0", &[&[("rdma/hca", &["0"])]])]);
        Self { node, _pods: pods }
    }

    /// Removes a NIC from its bus.
    fn loses_a_rail(&self) {
        self.node.machine.unplug(&SECOND);
        self.node.daemon.signal(Signal::SIGHUP);
    }
}

#[test]
fn without_an_api_server_the_log_reports_it_once() {
    let node = Node::new(&[]);
    let daemon = &node.node.daemon;
    let why = "the environment variable KUBERNETES_SERVICE_HOST, which kubelet sets in pods, is missing or wrong";
    let condition = format!("the node's condition RdmaRailsMissing is not written: {why}");
    daemon.wait_for_log(&condition);
    node.loses_a_rail();
    let events = format!("cannot report lost and recovered rails to pods: {why}");
    daemon.wait_for_log(&events);
    // the daemon retries after one second, and then after two
    thread::sleep(Duration::from_millis(3500));
    assert_eq!((daemon.count(&condition), daemon.count(&events)), (1, 1));
    node.node.has("rdma/hca", 1000);
}

#[test]
fn an_api_server_that_does_not_answer_delays_nothing() {
    // a server that accepts connections, and never answers
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it").port().to_string();
    let node = Node::new(&[
        ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
        ("KUBERNETES_SERVICE_PORT", &port),
    ]);
    std::fs::create_dir(node.node.machine.path("account")).expect("a directory");
    node.node.machine.write("account/ca.crt", CA);
    node.node.machine.write("account/token", TOKEN);
    listener.set_nonblocking(true).expect("set");
    let mut connection = None;
    wait::until("a request", || {
        connection = listener.accept().ok();
        connection.is_some()
    });
    node.loses_a_rail();
    let at = Stopwatch::start();
    let kubelet = &node.node.kubelet;
    kubelet
        .before_start("rdma/hca", &ids(&["0"]))
        .expect_err("a NIC of it is gone");
    kubelet.ask_for("rdma/hca", &[&ids(&["1"])]).expect("given");
    assert!(at.elapsed() < NOT_WAITED, "{:?}", at.elapsed());
    let (ended, took) = node.node.daemon.end(Signal::SIGTERM);
    assert!(ended.success() && took < NOT_WAITED, "{took:?}");
}

#[test]
fn without_the_option_there_is_no_request_and_no_report() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    node.machine.unplug(&SECOND);
    node.daemon.signal(Signal::SIGHUP);
    wait::until("it has seen that", || {
        node.daemon
            .get("/metrics")
            .contains("devices_present{resource=\"rdma/hca\"} 1")
    });
    assert_eq!(node.daemon.count("RdmaRailsMissing"), 0);
    assert_eq!(node.daemon.count("cannot report"), 0);
    let wrong = run(command(&node.machine).args(["--report", "events,labels"]));
    assert!(!wrong.status.success());
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        errors.contains("'labels' for '--report <events,node-condition>'"),
        "{errors}"
    );
}
