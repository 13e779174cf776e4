// SPDX-License-Identifier: Apache-2.0
//! In the lab, a resource in exclusive mode: `integration/lab/vm --tier full --exclusive`, one test at a time. A
//! stand-in for kubelet allocates a virtual function, and ADD moves the function into the pod.

use integration::{
    Attachment, Conflist, Netns, Runtime, Snapshot,
    kubelet::{Allocation, AllocationRequest, node::Node},
    lab::{self, Function, Lab, NICS, REPORT_LIMIT, uverbs},
    wait,
};
use std::{fs, os::linux::fs::MetadataExt, path::Path};

/// A configuration in the format of sriov-network-device-plugin, for igbvf's functions.
const RESOURCE_LIST: &str = r#"{"resourceList": [{
    "resourcePrefix": "lab", "resourceName": "vf",
    "selectors": {"isRdma": true, "drivers": ["igbvf"]}
}]}"#;

/// A configuration of the same resource in the daemon's own format, with CDI names.
const BY_CDI: &str = r#"
resources:
- name: lab/vf
  kind: exclusive
  devices: [{driver: igbvf}]
cdi: true
"#;

const VF: &str = "lab/vf";

const NAMES: [&str; 2] = ["one", "two"];

struct Scene {
    lab: Lab,
    node: Node,
}

impl Scene {
    /// Creates two virtual functions on each NIC, and advertises all of them.
    #[track_caller]
    fn new(configuration: &str) -> Self {
        let lab = Lab::new(2);
        lab.give_addresses();
        let node = Node::start(configuration);
        node.kubelet
            .wait_for(VF, "four functions", |it| it.healthy().len() == 4);
        Self { lab, node }
    }

    fn runtime(&self) -> Runtime<'_> {
        let cache = self.node.path("cache");
        Runtime::new(&self.lab.host, &self.node.cni_path(), &cache)
    }

    fn list(&self) -> Conflist {
        Conflist::new("1.1.0", vec![self.node.chain(&[VF])])
    }

    fn attachment(&self, pod: &str, netns: &Netns) -> Attachment {
        Attachment::new(&format!("sandbox-{pod}"), netns.path(), "eth0").of_pod("default", pod)
    }

    /// Runs ADD for the sandbox of `pod`, which has its allocation. The pod's containers may start afterwards.
    #[track_caller]
    fn add(&self, pod: &str) -> Netns {
        let netns = self.lab.pod(pod);
        let added = self
            .runtime()
            .add(&self.list(), &self.attachment(pod, &netns));
        added.unwrap_or_else(|outcome| panic!("{outcome}"));
        self.node.may_start(pod);
        netns
    }

    #[track_caller]
    fn delete(&self, pod: &str, netns: &Netns) {
        let deleted = self
            .runtime()
            .del(&self.list(), &self.attachment(pod, netns));
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        self.node.free(pod);
    }

    /// The function with this PCI address.
    #[track_caller]
    fn function(&self, id: &str) -> &Function {
        let mut functions = self.lab.functions.iter().flatten();
        let found = functions.find(|function| function.pci == id);
        found.unwrap_or_else(|| panic!("there is no function {id}"))
    }

    /// Allocates the pod's function of a NIC to a container of `pod`.
    #[track_caller]
    fn one(&self, pod: usize, nic: usize, container: &str) -> Allocation {
        let id = self.lab.functions[nic][pod].pci.clone();
        let request = AllocationRequest::new(NAMES[pod], container, VF, 1).reusing(&[id]);
        self.node.allocate(&request)
    }

    /// A pod has the function of `uverbs1`, and another function has the lower number.
    #[track_caller]
    fn with_a_lower_number(&self) -> (Function, Function, Allocation) {
        let [lowest, function] = ["uverbs0", "uverbs1"].map(|name| self.lab.numbered(name));
        let request = AllocationRequest::new("one", "main", VF, 1)
            .reusing(std::slice::from_ref(&function.pci));
        let given = self.node.allocate(&request);
        (lowest, function, given)
    }
}

/// Device numbers (major, minor) of the file `name` in `/dev/infiniband`.
#[track_caller]
fn node(name: &str) -> (u64, u64) {
    let path = Path::new("/dev/infiniband").join(name);
    let metadata = fs::metadata(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let number = metadata.st_rdev();
    (
        nix::libc::major(number).into(),
        nix::libc::minor(number).into(),
    )
}

/// Asserts that the metrics contain the counters of a device inside a pod, labelled with the pod's container.
#[track_caller]
fn held_by(scene: &Scene, given: &Allocation) {
    let rdma = &scene.function(&given.ids[0]).rdma;
    let labels = [
        ("device", rdma.as_str()),
        ("namespace", "default"),
        ("pod", &given.pod.1),
        ("container", &given.container),
    ];
    // the daemon gives each part of the page two seconds
    let has_all = || {
        let of = |name: &str, labels: &[(&str, &str)]| scene.node.metric(name, labels);
        of("rdma_device_holder", &labels) == Some(1.0)
            && of("rdma_hw_sent_pkts_total", &labels).is_some()
            && of("rdma_device_counters_known", &[("device", rdma)]) == Some(1.0)
    };
    assert!(
        wait::within(wait::TIMEOUT, has_all),
        "{labels:?}\n{}",
        scene.node.metrics()
    );
}

#[test]
fn a_container_gets_the_right_node_though_the_move_renumbered_it() {
    let scene = Scene::new(BY_CDI);
    let (lowest, function, given) = scene.with_a_lower_number();
    assert_eq!(given.ids, [function.pci.as_str()]);
    assert!(given.given.devices.is_empty(), "paths besides CDI names");
    let names: Vec<&str> = given.given.cdi_devices.iter().map(|it| &*it.name).collect();
    let own = format!("rdma-device-plugin/rdma={}", function.pci);
    assert_eq!(names, [own.as_str(), "rdma-device-plugin/rdma=rdma_cm"]);
    let granted = uverbs(&function.rdma);
    assert_eq!(
        scene.node.cdi_nodes(&function.pci),
        std::slice::from_ref(&granted)
    );

    // another device is removed between Allocate and ADD: the moved device gets the lowest free number
    scene
        .lab
        .host
        .run(&format!("rdma link delete {}", lowest.rdma));
    let netns = scene.add("one");
    let now = uverbs(&function.rdma);
    assert_eq!(now.0, "uverbs0", "the move did not renumber it");
    assert_eq!(
        scene.node.cdi_nodes(&function.pci),
        std::slice::from_ref(&now)
    );
    assert_eq!(node(&now.0), (now.1, now.2), "/dev was not put right");
    // a new device gets the path that the container had at Allocate
    scene.lab.host.run(&format!(
        "rdma link add {} type rxe netdev {}",
        lowest.rdma, lowest.netdev
    ));
    wait::until("udev made the node", || {
        Path::new("/dev/infiniband").join(&granted.0).exists()
    });
    assert_eq!(uverbs(&lowest.rdma).0, granted.0, "another device's number");
    assert_eq!(node(&granted.0), (granted.1, granted.2));
    scene.node.may_start("one");
    lab::open_verbs(&netns, &function.rdma);
    // the daemon sees the new device, and writes its correct entry as well
    wait::until("the daemon wrote the new device's entry", || {
        let nodes = scene.node.cdi_nodes_if_there(&lowest.pci);
        nodes.is_some_and(|it| it == [uverbs(&lowest.rdma)])
    });
    assert_eq!(scene.node.cdi_nodes(&function.pci), [now]);
    scene.delete("one", &netns);
    assert_eq!(
        scene.node.cdi_nodes(&function.pci),
        [uverbs(&function.rdma)]
    );
}

#[test]
fn a_path_that_would_lead_to_another_device_fails_the_pod() {
    let scene = Scene::new(RESOURCE_LIST);
    let (lowest, _, given) = scene.with_a_lower_number();
    let paths: Vec<&str> = given
        .given
        .devices
        .iter()
        .map(|it| &*it.host_path)
        .collect();
    assert!(paths.contains(&"/dev/infiniband/uverbs1"), "{paths:?}");
    scene
        .lab
        .host
        .run(&format!("rdma link delete {}", lowest.rdma));
    let netns = scene.lab.pod("one");
    let before = Snapshot::of(&scene.lab.host);
    let attachment = scene.attachment("one", &netns);
    let refused = scene.runtime().add(&scene.list(), &attachment);
    let text = refused.expect_err("a wrong device was given").error(106);
    assert!(text.contains("uverbs1") && text.contains("cdi"), "{text}");
    before.assert_restored(&scene.lab.host);
    // kubelet's check before the start of the container sees the new number, too
    let response = scene.node.kubelet.before_start(VF, &given.ids);
    let error = response.expect_err("a wrong device would be given");
    assert!(error.message().contains("uverbs1"), "{error:?}");
}

#[test]
fn functions_come_and_go_while_the_daemon_runs() {
    let scene = Scene::new(RESOURCE_LIST);
    let kubelet = &scene.node.kubelet;
    let number = Path::new("/sys/class/net")
        .join(NICS[1])
        .join("device/sriov_numvfs");
    fs::write(&number, "0").expect("the functions are taken away");
    let gone = kubelet.within(REPORT_LIMIT, VF, |it| {
        it.is_some_and(|it| it.devices.len() == 2)
    });
    assert!(gone, "{:?}", kubelet.resource(VF));
    fs::write(&number, "1").expect("a function is made");
    let netdev = format!("{}v0", NICS[1]);
    wait::until("udev has named the function", || {
        Path::new("/sys/class/net").join(&netdev).exists()
    });
    scene.lab.host.ip(&format!("link set dev {netdev} up"));
    scene.lab.host.run(&format!(
        "rdma link add r_{netdev} type rxe netdev {netdev}"
    ));
    let there = kubelet.within(REPORT_LIMIT, VF, |it| {
        it.is_some_and(|it| it.devices.len() == 3)
    });
    assert!(there, "{:?}", kubelet.resource(VF));
    // the carrier of the new function appears later
    wait::until("the new function has carrier", || {
        let state = format!("/sys/class/infiniband/r_{netdev}/ports/1/state");
        fs::read_to_string(state).is_ok_and(|it| it.contains("ACTIVE"))
    });
    let come = kubelet.within(REPORT_LIMIT, VF, |it| {
        it.is_some_and(|it| it.healthy().len() == 3)
    });
    assert!(come, "{:?}", kubelet.resource(VF));
}

#[test]
fn health_and_counters_of_a_device_inside_a_pod_are_known() {
    let scene = Scene::new(RESOURCE_LIST);
    let before = Snapshot::of(&scene.lab.host);
    let given = scene.one(0, 0, "main");
    let netns = scene.add("one");
    let kubelet = &scene.node.kubelet;
    let id = given.ids[0].as_str();
    assert_eq!(
        given.given.envs.get("PCIDEVICE_LAB_VF"),
        Some(&given.ids[0])
    );
    // a function in its pod, or on the way there, is advertised as before
    let known = kubelet.resource(VF).expect("it is registered");
    assert_eq!(known.healthy().len(), 4, "{:?}", known.devices);
    assert_eq!(known.lists, 1, "kubelet got another list");
    wait::until("it is healthy in the pod", || {
        lab::open_verbs(&netns, &scene.function(id).rdma);
        kubelet
            .resource(VF)
            .is_some_and(|it| it.healthy().contains(id))
    });
    held_by(&scene, &given);
    // the function's carrier follows that of its physical function
    let nic = NICS[0];
    scene.lab.host.ip(&format!("link set dev {nic} down"));
    wait::until("the function has lost its carrier", || {
        netns
            .show("link show dev eth0")
            .iter()
            .any(|link| link["operstate"] == "DOWN")
    });
    let is_reported = kubelet.within(REPORT_LIMIT, VF, |it| {
        it.is_some_and(|it| !it.healthy().contains(id))
    });
    assert!(is_reported, "{:?}", kubelet.resource(VF));
    scene.lab.host.ip(&format!("link set dev {nic} up"));
    wait::until("the function has its carrier again", || {
        netns
            .show("link show dev eth0")
            .iter()
            .any(|link| link["operstate"] == "UP")
    });
    let is_reported = kubelet.within(REPORT_LIMIT, VF, |it| {
        it.is_some_and(|it| it.healthy().contains(id))
    });
    assert!(is_reported, "{:?}", kubelet.resource(VF));
    // igb reports no hardware address of a virtual function while the function is reset. The reset has ended when the
    // function has carrier
    wait::until("the NIC's other function has its carrier, too", || {
        let known = kubelet.resource(VF);
        known.is_some_and(|it| it.healthy().len() == 4)
    });
    scene.delete("one", &netns);
    before.assert_restored(&scene.lab.host);
}
