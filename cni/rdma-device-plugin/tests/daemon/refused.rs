// SPDX-License-Identifier: Apache-2.0
//! Tests of a refused pod that the daemon must delete while it cannot reach the API server. Kubelet must get its
//! answers as usual. `integration/tests/cluster` tests the deletion with an API server.

use crate::{HCA, Running, SECOND, TWO, ids, program};
use integration::{
    Daemon, Machine,
    kubelet::{
        DeviceManager,
        pod_resources::{PodResourcesServer, pod},
    },
    stopwatch::Stopwatch,
};
use std::{net::TcpListener, process::Command, time::Duration};
use tonic::Code;

/// A node whose second NIC was allocated to a pod, and then got a character device with another number.
struct Node {
    node: Running,
    _pods: PodResourcesServer,
}

impl Node {
    #[track_caller]
    fn new(environment: &[(&str, &str)]) -> Self {
        let machine = Machine::with(&[crate::FIRST, SECOND]);
        machine.configure(TWO);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let pods = PodResourcesServer::start(&machine.path("kubelet/pod-resources/kubelet.sock"));
        let mut command: Command = program::command(&machine);
        command.args(["--metrics-address", "127.0.0.1:0"]);
        command.args(["--refused-pods", "delete", "--service-account-dir"]);
        command.arg(machine.path("account"));
        command.envs(environment.iter().copied());
        let daemon = Daemon::start(&mut command);
        let node = Running {
            daemon,
            kubelet,
            machine,
        };
        let node = node.listed("rdma/nic", 1);
        let given = node.kubelet.ask_for("rdma/nic", &[&ids(&[SECOND.address])]);
        given.expect("given");
        let id = [SECOND.address];
        let own = [("rdma/nic", id.as_slice())];
        pods.set_pods(&[pod("default", "trainer-0", &[&own])]);
        node.machine.renumber(&SECOND, SECOND.number, 7);
        Self { node, _pods: pods }
    }

    /// Lets kubelet try to start the container. The daemon must refuse without delay.
    #[track_caller]
    fn refuses(&self) {
        let at = Stopwatch::start();
        let nic = ids(&[SECOND.address]);
        let refused = self.node.kubelet.before_start("rdma/nic", &nic);
        assert_eq!(
            refused.expect_err("refused").code(),
            Code::FailedPrecondition
        );
        assert!(at.elapsed() < Duration::from_secs(2), "{:?}", at.elapsed());
    }
}

#[test]
fn without_an_api_server_kubelet_is_answered_and_the_log_reports_it_once() {
    let node = Node::new(&[]);
    for _ in 0..3 {
        node.refuses();
    }
    let words = "default/trainer-0 cannot start, and the daemon cannot delete it: the environment \
                 variable KUBERNETES_SERVICE_HOST, which kubelet sets in pods, is missing or wrong";
    node.node.daemon.wait_for_log(words);
    node.refuses();
    node.node.daemon.wait_for_log_times(
        "of default/trainer-0, container container0: must not start",
        4,
    );
    let metrics = node.node.daemon.get("/metrics");
    let failed = "rdma_device_plugin_refused_pods_total{resource=\"rdma/nic\",outcome=\"failed\"}";
    assert!(metrics.contains(failed), "{metrics}");
    assert_eq!(node.node.daemon.count(words), 1);
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
    node.refuses();
    // the daemon has read the missing token, and does not read a half-written one
    node.node.daemon.wait_for_log("the daemon cannot delete it");
    std::fs::create_dir(node.node.machine.path("account")).expect("a directory");
    node.node.machine.write("account/token", TOKEN);
    node.node.machine.write("account/ca.crt", "none");
    node.refuses();
    node.node.daemon.wait_for_log("has no certificate of a CA");
    node.node.machine.write("account/ca.crt", CA);
    node.refuses();
    let (connection, _) = listener.accept().expect("a request");
    for _ in 0..200 {
        node.refuses();
    }
    drop((connection, listener));
    node.node.daemon.wait_for_log("does not answer");
    let (ended, took) = node.node.daemon.end(nix::sys::signal::Signal::SIGTERM);
    assert!(ended.success() && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn without_the_switch_there_is_no_request_and_no_report() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    let refused = node.kubelet.before_start("rdma/hca", &ids(&["none"]));
    refused.expect_err("no such id");
    node.daemon
        .wait_for_log("a container with the ids none must not start");
    assert_eq!(node.daemon.count("cannot delete"), 0);
    let wrong = program::run(program::command(&node.machine).args(["--refused-pods", "remove"]));
    assert!(!wrong.status.success());
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        errors.contains("'remove' for '--refused-pods <keep|delete>'"),
        "{errors}"
    );
}

/// Token of a service account that names the node `rdma-1`.
pub(crate) const TOKEN: &str =
    "head.eyJrdWJlcm5ldGVzLmlvIjp7Im5vZGUiOnsibmFtZSI6InJkbWEtMSJ9fX0.sign";

/// Certificate of a CA whose key no longer exists.
pub(crate) const CA: &str = "\
-----BEGIN CERTIFICATE-----
MIIBcTCCARegAwIBAgIUbBwReh0mod95Hv32ylnwpNVCXZEwCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCY2EwIBcNMjYxMTIyMTA0NTAzWhgPMjEyNjEwMjkxMDQ1MDNa
MA0xCzAJBgNVBAMMAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE5uOPvnAP
S6+argtDOPF2Z/m+WRjA/Ab3cch4Kf2nA7bs8lk+XEbkMdKFwB2jz38Q/jVdTBUT
H93XQcv7NdC64KNTMFEwHQYDVR0OBBYEFDcqtmwHQmb/3Phl/Vk9mb7+E08yMB8G
A1UdIwQYMBaAFDcqtmwHQmb/3Phl/Vk9mb7+E08yMA8GA1UdEwEB/wQFMAMBAf8w
CgYIKoZIzj0EAwIDSAAwRQIgCn/ufECIaAMpu+oa9K70YF3eaRb97nvYa1fQryUm
224CIQCg0GFPkTcUt4v+7LrBbNPRYJItLrqRPXmmUIT24iqVeg==
-----END CERTIFICATE-----
";
