// SPDX-License-Identifier: Apache-2.0
//! In the lab, unconfigured eRDMA NICs with the kernel's own driver: `integration/lab/vm --tier erdma`, one test at a
//! time. Driver and netdevs are real, the functions are models. The daemon queries a stand-in for the metadata service
//! on loopback.

use integration::{
    Daemon, ErdmaNics, MetadataService, Netns, Snapshot,
    daemon::rdma_device_plugin,
    erdma_functions::{Driver, ErdmaFunctions, FUNCTIONS, NIC_FUNCTIONS, NICS},
    erdma_nics::{ADDRESSES, GATEWAY, mac},
    kubelet::node::Node,
    metadata::{BlackHole, nic_path},
    udev, wait,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};
use tempfile::TempDir;

/// A node with a NIC of its own, `eth0`, and with both eRDMA NICs down and without addresses.
struct Scene {
    nics: ErdmaNics,
    erdma: ErdmaFunctions,
    state: TempDir,
    /// The namespace with the other end of `eth0`, which must exist as long as the node.
    _switch: Netns,
}

/// A daemon, and a stand-in for kubelet.
struct Running<'a> {
    scene: &'a Scene,
    node: Node,
}

impl Scene {
    #[track_caller]
    fn new() -> Self {
        Self::with(Driver::Kernel)
    }

    #[track_caller]
    fn with(driver: Driver) -> Self {
        let erdma = ErdmaFunctions::new(driver, "exclusive");
        let nics = ErdmaNics::of(&erdma, MetadataService::new());
        let host = &nics.host;
        let switch = Netns::new("vswitch");
        let at = switch.name();
        host.ip(&format!("link add eth0 type veth peer name p0 netns {at}"));
        switch.ip("link set p0 up");
        switch.ip(&format!("address add {GATEWAY}/24 dev p0"));
        host.ip("link set eth0 up");
        host.ip("address add 10.0.0.5/24 dev eth0");
        host.ip(&format!("route add default via {GATEWAY} dev eth0"));
        Self {
            nics,
            erdma,
            state: tempfile::tempdir().expect("a directory"),
            _switch: switch,
        }
    }

    fn configuration(&self, base: &str) -> Value {
        json!({
            "erdma": {"metadata": base},
        })
    }

    /// Starts the daemon with the metadata service at `base`.
    #[track_caller]
    fn start(&self, base: &str) -> Running<'_> {
        let configuration = self.configuration(base).to_string();
        let node = Node::start_with_state(&configuration, self.state.path());
        Running { scene: self, node }
    }

    fn release(&self) -> Output {
        let file = self.state.path().join("config.json");
        let configuration = self.configuration(&self.nics.service.base());
        fs::write(&file, configuration.to_string()).expect("written");
        let mut command = Command::new(rdma_device_plugin());
        command.arg("--release").arg("--config").arg(&file);
        command.arg("--state-dir").arg(self.state.path());
        command.output().expect("the daemon's program")
    }

    #[track_caller]
    fn is_configured(&self) {
        self.nics.are_configured();
        for nic in NICS {
            assert_eq!(self.nics.filter(nic), "2");
        }
        assert_eq!(self.leaves_by("8.8.8.8"), "eth0");
        assert_eq!(self.leaves_by("10.0.0.99"), "eth0");
    }

    /// Returns the netdev of the route for the node's own packets to `destination`.
    fn leaves_by(&self, destination: &str) -> String {
        let routes = self.nics.host.show(&format!("-4 route get {destination}"));
        routes[0]["dev"].as_str().expect("a netdev").to_owned()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for name in ["eth0", "bond9"] {
            let mut ip = Command::new("ip");
            let _ = ip.args(["link", "delete", name]).output();
        }
    }
}

impl Running<'_> {
    fn daemon(&self) -> &Daemon {
        &self.node.daemon
    }

    /// Waits until the log has reported the addresses of both NICs, and until both NICs have their configuration.
    #[track_caller]
    fn wait_for_report(&self) {
        for (rail, nic) in NICS.into_iter().enumerate() {
            let ip = ADDRESSES[rail];
            self.daemon().wait_for_log(&format!(
                "{}: {nic} has {ip}/24",
                self.scene.erdma.rdma(rail)
            ));
        }
        self.scene.is_configured();
    }

    #[track_caller]
    fn end(self) {
        let (status, _) = self.node.end(Signal::SIGTERM);
        assert!(status.success(), "{status}");
    }
}

#[test]
fn bare_nics_get_what_the_cloud_reports_and_release_takes_it_back() {
    bare_nics_are_brought_up_and_released(Driver::Kernel);
}

#[test]
#[ignore = "scripts/test --full: without a parent it is every run's"]
fn bare_nics_with_a_parent_get_what_the_cloud_reports_and_release_takes_it_back() {
    bare_nics_are_brought_up_and_released(Driver::WithParent);
}

#[track_caller]
fn bare_nics_are_brought_up_and_released(driver: Driver) {
    let scene = Scene::with(driver);
    let before = Snapshot::of(&scene.nics.host);
    let running = scene.start(&scene.nics.service.base());
    running.wait_for_report();
    let requests = scene.nics.service.requests();
    let count = requests.len();
    assert_eq!(requests[0], "PUT /latest/api/token");
    // the daemon repeats a request whose answer is late
    let mut distinct = requests.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), 8, "{requests:?}");
    let configured = Snapshot::of(&scene.nics.host);

    // a flap: routes are lost, and return with their metrics
    scene
        .nics
        .host
        .ip(&format!("link set dev {} down", NICS[0]));
    scene.nics.host.ip(&format!("link set dev {} up", NICS[0]));
    scene.is_configured();
    configured.assert_restored(&scene.nics.host);
    let requests = scene.nics.service.requests();
    assert_eq!(requests.len(), count, "the daemon asks again: {requests:?}");

    // `--release` is refused while a daemon runs, which would configure the NICs again
    let refused = scene.release();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && words.contains("is running"),
        "{words}"
    );
    running.end();

    // a second run, in which the service does not respond
    let again = scene.start("http://127.0.0.1:9");
    again.wait_for_report();
    configured.assert_restored(&scene.nics.host);
    again.end();

    let released = scene.release();
    let words = String::from_utf8_lossy(&released.stdout).into_owned();
    assert!(released.status.success(), "{words} {released:?}");
    for nic in NICS {
        assert!(words.contains(&format!("{nic}: released")), "{words}");
    }
    before.assert_restored(&scene.nics.host);
    assert!(scene.release().status.success());
    before.assert_restored(&scene.nics.host);
}

/// While the service misbehaves, the daemon logs `expected` and changes nothing. The daemon brings the NICs up when the
/// service behaves again.
fn comes_round(misbehave: impl FnOnce(&MetadataService), expected: &str) {
    let scene = Scene::new();
    let before = Snapshot::of(&scene.nics.host);
    misbehave(&scene.nics.service);
    let running = scene.start(&scene.nics.service.base());
    let waits = format!("{}: not ready yet", scene.erdma.rdma(0));
    let line = running.daemon().line(&waits);
    assert!(line.contains(expected), "{line}");
    before.assert_restored(&scene.nics.host);
    scene.nics.service.behave(|behaviour| {
        behaviour.status = None;
        behaviour.delay = Duration::ZERO;
        behaviour.raw.clear();
    });
    running.wait_for_report();
    let count = running.daemon().count(&format!("{waits}: the metadata"));
    assert_eq!(count, 1, "the message is logged once");
    running.end();
    assert!(scene.release().status.success());
    before.assert_restored(&scene.nics.host);
}

#[test]
fn a_service_that_answers_500_is_waited_for() {
    let misbehave = |service: &MetadataService| service.behave(|it| it.status = Some(500));
    comes_round(misbehave, "answers 500");
}

#[test]
#[ignore = "scripts/test --full: the daemon's tests without the lab show it"]
fn a_service_that_is_slow_is_waited_for() {
    let slow = Duration::from_secs(3600);
    let misbehave = |service: &MetadataService| service.behave(|it| it.delay = slow);
    comes_round(misbehave, "not answered");
}

#[test]
#[ignore = "scripts/test --full: the daemon's tests without the lab show it"]
fn garbage_is_waited_out() {
    let misbehave = |service: &MetadataService| {
        for nic in NICS {
            let raw = b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n<html>10.0.0.6<".to_vec();
            let path = nic_path(&mac(nic), "primary-ip-address");
            service.behave(|it| drop(it.raw.insert(path, raw)));
        }
    };
    comes_round(misbehave, "<html>10.0.0.6<");
}

#[test]
fn a_service_that_is_not_there_keeps_nothing_else_from_working() {
    let scene = Scene::new();
    let before = Snapshot::of(&scene.nics.host);
    let hole = BlackHole::new();
    for (base, reason) in [
        (hole.base(), "no connection within 1s"),
        ("http://127.0.0.1:9".to_owned(), "refused"),
    ] {
        let running = scene.start(&base);
        let line = running
            .daemon()
            .line(&format!("{}: not ready yet", scene.erdma.rdma(1)));
        assert!(line.contains(reason), "{line}");
        let kubelet = &running.node.kubelet;
        kubelet.wait_for("aliyun/erdma", "ids of both NICs", |it| {
            it.devices.len() == 400
        });
        before.assert_restored(&scene.nics.host);
        running.end();
    }
}

#[test]
fn conflicts_are_reported_and_what_is_configured_is_left_alone() {
    let scene = Scene::new();
    scene
        .nics
        .host
        .ip(&format!("address add {}/32 dev eth0", ADDRESSES[0]));
    scene
        .nics
        .host
        .ip("link add bond9 type bond mode active-backup miimon 50");
    scene
        .nics
        .host
        .ip(&format!("link set dev {} master bond9", NICS[1]));
    let before = Snapshot::of(&scene.nics.host);
    let running = scene.start(&scene.nics.service.base());
    let line = running
        .daemon()
        .line(&format!("{}: not configured: ", scene.erdma.rdma(0)));
    assert!(line.contains("10.0.0.6 is already on eth0"), "{line}");
    running.daemon().wait_for_log(&format!(
        "{}: left alone: {} is a port of bond9",
        scene.erdma.rdma(1),
        NICS[1]
    ));
    before.assert_restored(&scene.nics.host);
    running.end();

    // removed from the bond, and configured by the administrator
    scene
        .nics
        .host
        .ip(&format!("link set dev {} nomaster", NICS[1]));
    scene
        .nics
        .host
        .ip(&format!("address add 10.0.0.77/24 dev {}", NICS[1]));
    scene
        .nics
        .host
        .ip(&format!("address del {}/32 dev eth0", ADDRESSES[0]));
    let running = scene.start(&scene.nics.service.base());
    running.daemon().wait_for_log(&format!(
        "{}: left alone: {} has 10.0.0.77/24 already",
        scene.erdma.rdma(1),
        NICS[1]
    ));
    running.daemon().wait_for_log(&format!(
        "{}: {} has 10.0.0.6/24",
        scene.erdma.rdma(0),
        NICS[0]
    ));
    running.end();
    assert!(scene.release().status.success());
    assert_eq!(scene.nics.host.addresses(NICS[1]), ["10.0.0.77/24"]);
}

#[test]
fn a_nic_in_the_middle_of_dhcp_and_the_primary_one_are_left_alone() {
    let scene = Scene::new();
    scene.nics.service.set_primary(Some(&mac(NICS[1])));
    scene.nics.host.ip(&format!("link set dev {} up", NICS[0]));
    let is_bare = || {
        for nic in NICS {
            assert_eq!(scene.nics.routes(nic), [], "{nic}");
            assert_eq!(scene.nics.host.link(nic).expect("a NIC")["mtu"], 1500);
        }
        assert_eq!(
            scene.nics.host.link(NICS[1]).expect("it")["operstate"],
            "DOWN"
        );
    };
    let running = scene.start(&scene.nics.service.base());
    let line = running
        .daemon()
        .line(&format!("{}: not ready yet: ", scene.erdma.rdma(0)));
    assert!(line.contains("up without an address"), "{line}");
    let line = running
        .daemon()
        .line(&format!("{}: left alone: ", scene.erdma.rdma(1)));
    assert!(line.contains("the instance's primary NIC"), "{line}");
    is_bare();
    let address = |verb: &str| format!("address {verb} 10.0.0.77/24 dev {}", NICS[0]);
    scene.nics.host.ip(&address("add"));
    let message = format!(
        "{}: left alone: {} has 10.0.0.77/24 already",
        scene.erdma.rdma(0),
        NICS[0]
    );
    running.daemon().wait_for_log(&message);
    scene.nics.host.ip(&address("del"));
    running.end();
    is_bare();
}

/// Both drivers of a NIC are bound again: `erdma`, and the driver of the netdev, which creates a new netdev.
#[test]
fn a_nic_whose_drivers_are_bound_anew_gets_it_all_again() {
    let scene = Scene::new();
    let running = scene.start(&scene.nics.service.base());
    running.wait_for_report();
    let configured = Snapshot::of(&scene.nics.host);
    let driver = |name: &str, file: &str, function: &str| {
        let path: PathBuf = ["/sys/bus/pci/drivers", name, file].iter().collect();
        fs::write(path, function).expect("the driver's file");
    };
    driver("erdma", "unbind", FUNCTIONS[1]);
    running.daemon().wait_for_log(&format!(
        "the eRDMA driver is not bound to {}: its probe is not deferred",
        FUNCTIONS[1]
    ));
    driver("erdma", "bind", FUNCTIONS[1]);
    scene.erdma.are_home();
    scene.is_configured();

    // the kernel does not remove the netdev's function while erdma is loaded
    scene.erdma.unload();
    driver("virtio-pci", "unbind", NIC_FUNCTIONS[1]);
    wait::until("the NIC is gone", || !scene.nics.host.has_link(NICS[1]));
    driver("virtio-pci", "bind", NIC_FUNCTIONS[1]);
    wait::until("the NIC is back", || scene.nics.host.has_link(NICS[1]));
    udev::settle(&scene.nics.host);
    scene
        .nics
        .host
        .set_sysctl(&format!("ipv4/conf/{}/rp_filter", NICS[1]), "1");
    for key in ["dad_transmits", "router_solicitation_delay"] {
        let key = format!("ipv6/conf/{}/{key}", NICS[1]);
        scene.nics.host.set_sysctl(&key, "0");
    }
    scene.erdma.load();
    scene.erdma.are_home();
    scene.is_configured();
    configured.assert_restored(&scene.nics.host);
    running.end();
    assert!(scene.release().status.success());
}
