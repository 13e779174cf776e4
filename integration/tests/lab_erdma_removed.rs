// SPDX-License-Identifier: Apache-2.0
//! In the lab, a NIC whose netdev's PCI function is being removed:
//! `integration/lab/vm --tier erdma --expect 'unregister_netdevice: waiting'`, one test at a time. The kernel's eRDMA
//! driver has a reference to the netdev until the driver is unloaded, and the removal waits for the unload. Driver and
//! user-space provider are real, the functions are models.

use integration::{
    Netns, Snapshot,
    daemon::rdma_device_plugin,
    erdma_functions::{Driver, ErdmaNode, NIC_FUNCTIONS, NICS, links},
    kubelet::node::Node,
    traffic, wait,
};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Child, Command},
    time::Duration,
};

/// Time that a verb may take: `rdma-cni` waits 10 s for the devices of a namespace that ends.
const LIMIT: Duration = Duration::from_secs(25);

/// Time that a command of the daemon's program may take.
const SOON: Duration = Duration::from_secs(10);

const RESOURCE: &str = "aliyun/erdma";

/// The removal of the PCI function of the first NIC's netdev.
struct Removal(Child);

impl Removal {
    /// Starts the removal. Returns when the netdev is no longer visible in `place`.
    #[track_caller]
    fn begin(place: &Netns, netdev: &str) -> Self {
        let file = format!("/sys/bus/pci/devices/{}/remove", NIC_FUNCTIONS[0]);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo 1 >{file}")]);
        let removal = Self(command.spawn().expect("sh"));
        wait::until("the netdev is seen no more", || !place.has_link(netdev));
        removal
    }

    fn is_pending(&mut self) -> bool {
        self.0.try_wait().expect("our own child").is_none()
    }

    /// Unloads the driver, and waits until the removal has ended.
    #[track_caller]
    fn end(mut self, scene: &ErdmaNode) {
        assert!(self.is_pending(), "it waits for the driver");
        scene.erdma.unload();
        wait::until("the function is removed", || !self.is_pending());
    }
}

#[track_caller]
fn is_found_again(scene: &ErdmaNode) {
    fs::write("/sys/bus/pci/rescan", "1").expect("found again");
    wait::until("udev has named the NIC", || {
        scene.erdma.host.has_link(NICS[0])
    });
    scene.erdma.load();
    scene.erdma.are_home();
}

#[track_caller]
fn output_of(host: &Netns, arguments: &[&str]) -> String {
    let program = rdma_device_plugin();
    let mut command = host.command("timeout");
    command
        .arg(SOON.as_secs().to_string())
        .arg(program)
        .args(arguments);
    let done = command.output().expect("timeout");
    assert_ne!(
        done.status.code(),
        Some(124),
        "{arguments:?} takes longer than {SOON:?}"
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn verb(
    scene: &ErdmaNode,
    verb: &str,
    nic: usize,
    container: &str,
    pod: &Netns,
) -> integration::Outcome {
    let invocation = scene.node.invoke(verb, container, pod.path());
    let configuration: Value = scene.configuration(nic);
    wait::for_no_longer(LIMIT, &format!("{verb} of {container}"), || {
        invocation.input(&configuration).run()
    })
}

#[test]
fn other_nics_and_the_daemon_go_on_while_a_free_nic_is_removed() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let node = Node::start_with_state(
        r#"{"erdma": {"configureNICs": false}}"#,
        &scene.node.state(),
    );
    let has_ids = |nics: usize| {
        node.kubelet
            .wait_for(RESOURCE, &format!("ids of {nics} NICs"), |it| {
                it.healthy().len() == 200 * nics
            });
    };
    has_ids(2);
    let [pod, other, third] = ["pod", "other", "third"].map(|label| scene.node.pod(label));
    verb(&scene, "ADD", 1, "c1", &pod).result();

    let mut removal = Removal::begin(&scene.node.host, NICS[0]);
    // no pod can get the NIC that is being removed
    let refused = verb(&scene, "ADD", 0, "c0", &other);
    refused.error(100);
    verb(&scene, "DEL", 0, "c0", &other).silent();
    // the other NIC is not affected
    verb(&scene, "DEL", 1, "c1", &pod).silent();
    verb(&scene, "ADD", 1, "c2", &third).result();
    verb(&scene, "DEL", 1, "c2", &third).silent();
    wait::for_no_longer(SOON, "/healthz", || {
        let answer = node.daemon.get("/healthz");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
    has_ids(1);
    let file = scene.node.directory().join("config.json");
    fs::write(
        &file,
        json!({"erdma": {"configureNICs": false}}).to_string(),
    )
    .expect("written");
    let file = file.to_string_lossy().into_owned();
    let table = wait::for_no_longer(SOON, "--check-config", || {
        output_of(&scene.node.host, &["--config", &file, "--check-config"])
    });
    println!("{table}");
    assert!(table.contains(NICS[1]), "{table}");
    let found = wait::for_no_longer(SOON, "doctor", || output_of(&scene.node.host, &["doctor"]));
    println!("{found}");
    assert!(found.contains(NICS[1]), "{found}");
    assert!(removal.is_pending(), "all this was meanwhile");

    removal.end(&scene);
    is_found_again(&scene);
    scene.node.host.ip(&format!("link set dev {} up", NICS[0]));
    has_ids(2);
}

#[test]
fn del_of_a_removed_nic_ends_and_succeeds_when_the_driver_is_gone() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let before = Snapshot::of(&scene.node.host);
    let [pod, other] = ["pod", "other"].map(|label| scene.node.pod(label));
    let mut configuration = scene.configuration(0);
    configuration["prevResult"] = verb(&scene, "ADD", 0, "c0", &pod).result();
    let mut removal = Removal::begin(&pod, "rdma0");
    let check = wait::for_no_longer(LIMIT, "CHECK", || {
        let check = scene.node.invoke("CHECK", "c0", pod.path());
        check.input(&configuration).run()
    });
    assert!(!check.status.success(), "{check}");
    println!("{check}");
    let del = verb(&scene, "DEL", 0, "c0", &pod).error(107);
    assert!(del.contains(NICS[0]), "{del}");
    // the devices in the record delay no other pod
    verb(&scene, "ADD", 1, "c1", &other).result();
    verb(&scene, "DEL", 1, "c1", &other).silent();
    assert!(removal.is_pending(), "all this was meanwhile");

    removal.end(&scene);
    verb(&scene, "DEL", 0, "c0", &pod).silent();
    assert!(scene.node.records().is_empty());
    is_found_again(&scene);
    let host = &scene.node.host;
    for key in ["dad_transmits", "router_solicitation_delay"] {
        host.set_sysctl(&format!("ipv6/conf/{}/{key}", NICS[0]), "0");
    }
    host.ip(&format!("link set dev {} up", NICS[0]));
    host.ip(&format!("address add 10.0.0.1/24 dev {}", NICS[0]));
    wait::until("both ports are active", || {
        links(host).iter().all(|link| link["state"] == "ACTIVE")
    });
    before.assert_restored(host);
}

/// The kernel keeps both devices in a namespace that ended while one of its processes listens.
#[test]
fn del_of_a_namespace_that_a_listener_keeps_ends_and_succeeds_when_the_listener_is_gone() {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let before = Snapshot::of(&scene.node.host);
    let pod = scene.node.pod("pod");
    verb(&scene, "ADD", 0, "c0", &pod).result();
    let mut rping = pod.command("rping");
    rping.args(["-s", "-a", "10.0.0.1"]);
    let mut listener = rping.spawn().expect("rping");
    wait::until("rping listens", || traffic::listens(&pod));
    let other = scene.node.pod("other");
    pod.die();
    let del = verb(&scene, "DEL", 0, "c0", &pod);
    let error = del.error(107);
    assert!(error.contains("namespace alive"), "{error}");
    assert_eq!(scene.node.records().len(), 1, "the record stays");
    // no pod can get this NIC, and a pod can get the other NIC
    verb(&scene, "ADD", 0, "c2", &other).error(101);
    verb(&scene, "ADD", 1, "c1", &other).result();
    verb(&scene, "DEL", 1, "c1", &other).silent();
    listener.kill().expect("a signal sent");
    listener.wait().expect("a status");
    wait::until("the RDMA device is back", || {
        links(&scene.node.host).len() == 2
    });
    verb(&scene, "DEL", 0, "c0", &pod).silent();
    scene.node.assert_restored(&before);
}
