// SPDX-License-Identifier: Apache-2.0
//! In the lab, eRDMA NICs that are allocated by claims (dynamic resource allocation), and the GIDs in the environment
//! of a pod's programs: `integration/lab/vm --tier erdma --monitor`, one test at a time. Driver and netdevs are real,
//! the functions are models. Kubelet and the API server are stand-ins.

use integration::{
    Qemu, Runtime, Snapshot,
    claimed::{ClaimNode, POD, attachment, nodes},
    daemon::rdma_device_plugin,
    erdma_functions::{ADDRESSES, Driver, ErdmaNode, FUNCTIONS, NIC_FUNCTIONS, NICS},
    lab::uverbs,
    slices::{attribute, devices},
    wait,
};
use serde_json::json;
use std::fs;

const RESOURCE: &str = "aliyun/erdma";

struct Scene {
    erdma: ErdmaNode,
    claims: ClaimNode,
    /// The names of the devices in the node's slices.
    names: [String; 2],
}

/// A device name such as `aliyun-erdma-0000-21-02-0`.
fn name(address: &str) -> String {
    format!("aliyun-erdma-{}", address.replace([':', '.'], "-"))
}

impl Scene {
    /// A node with a resource of `kind` that is allocated by claims. A pod has a claim for the device of the first NIC.
    #[track_caller]
    fn new(driver: Driver, mode: &str, kind: &str) -> Self {
        let erdma = ErdmaNode::new(driver, mode);
        let configuration = json!({
            "erdma": {"configureNICs": false},
            "resources": [{"name": RESOURCE, "kind": kind, "devices": [{"driver": "erdma"}]}],
        });
        // an RDMA device without a parent has the PCI address of its netdev's function
        let names = match driver {
            Driver::Kernel => NIC_FUNCTIONS.map(name),
            Driver::WithParent => FUNCTIONS.map(name),
        };
        let claims = ClaimNode::new(&erdma.node, configuration, &names[0]);
        Self {
            erdma,
            claims,
            names,
        }
    }

    #[track_caller]
    fn has_slices(&self, tainted: &[&String]) {
        self.claims.has_slices(&self.names, tainted);
    }

    fn runtime(&self) -> Runtime<'_> {
        self.claims.runtime(&self.erdma.node.host)
    }
}

#[test]
fn a_claimed_nic_goes_into_its_pod_and_the_container_has_its_device_files() {
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = Scene::new(driver, "exclusive", "exclusive");
        let host = &scene.erdma.node.host;
        let before = Snapshot::of(host);
        scene.has_slices(&[]);
        let slices = scene.claims.api.slices();
        for (nic, device) in scene.names.iter().enumerate() {
            let rdma = scene.erdma.erdma.rdma(nic);
            for (name, value) in [
                ("driver", json!({"string": "erdma"})),
                ("vendor", json!({"string": "1ded"})),
                ("rdmaDevice", json!({"string": rdma})),
                ("netdev", json!({"string": NICS[nic]})),
                ("mode", json!({"string": "exclusive"})),
                ("resource.kubernetes.io/numaNode", json!({"int": nic})),
            ] {
                let found = attribute(&slices, device, name);
                assert_eq!(found, value, "{driver:?}: {name} of {device}");
            }
        }

        let rdma = scene.erdma.erdma.rdma(0);
        let cdi = scene.claims.prepare();
        assert_eq!(scene.claims.prepared(), 1.0);
        let pod = scene.erdma.node.pod("pod");
        let list = scene.claims.list();
        let added = scene.runtime().add(&list, &attachment(&pod));
        added.unwrap_or_else(|outcome| panic!("{driver:?}: {outcome}"));
        assert_eq!(scene.erdma.erdma.rdma_in(host, 0), None);
        let given = scene.claims.given(&cdi).expect("a specification");
        let nodes = nodes(&given);
        let (own, _, minor) = uverbs(&rdma);
        assert!(nodes.contains(&(own, minor)), "{nodes:?}");
        assert_eq!(nodes.len(), 2, "{nodes:?}");
        assert!(nodes.iter().any(|it| it.0 == "rdma_cm"), "{nodes:?}");

        // the device is in the pod; the daemon finds its counters by the record of the attachment
        let labels = [("device", rdma.as_str())];
        wait::until("the page of metrics knows the device in the pod", || {
            let of = |name: &str| scene.claims.node.metric(name, &labels);
            of("rdma_device_healthy") == Some(1.0)
                && of("rdma_hw_tx_bytes_cnt_total").is_some()
                && of("rdma_device_counters_known") == Some(1.0)
        });
        let text = scene.claims.node.metrics();
        let line = text.lines().find(|it| {
            it.starts_with("rdma_device_info") && it.contains(&format!("device=\"{rdma}\""))
        });
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("driver=\"erdma\""), "{line}");

        let deleted = scene.runtime().del(&list, &attachment(&pod));
        deleted.unwrap_or_else(|outcome| panic!("{driver:?}: {outcome}"));
        scene.claims.unprepare();
        assert_eq!(scene.claims.given(&cdi), None);
        assert_eq!(scene.claims.prepared(), 0.0);
        scene.erdma.node.assert_restored(&before);
        scene.has_slices(&[]);
    }
}

#[test]
fn a_nic_without_carrier_or_driver_is_tainted() {
    let mut qemu = Qemu::monitor();
    for (driver, version) in [(Driver::Kernel, "v1alpha1"), (Driver::WithParent, "v1")] {
        let scene = Scene::new(driver, "exclusive", "exclusive");
        scene.has_slices(&[]);
        let mut health = scene.claims.kubelet.health(version);
        assert_eq!(health.report(), [] as [&str; 0]);
        qemu.set_link(1, false);
        scene.has_slices(&[&scene.names[1]]);
        let sick = health.until(|sick| !sick.is_empty());
        assert_eq!(sick.len(), 1, "{sick:?}");
        assert!(sick[0].contains(&scene.names[1]), "{sick:?}");
        qemu.set_link(1, true);
        scene.has_slices(&[]);
        health.until(<[String]>::is_empty);

        // the RDMA device of the NIC is missing, as after a failed probe
        fs::write("/sys/bus/pci/drivers/erdma/unbind", FUNCTIONS[0]).expect("unbound");
        wait::until("no new pod may have the NIC", || {
            let (all, tainted) = devices(&scene.claims.api.slices());
            let is_free = |it: &&String| it.ends_with(&scene.names[0]) && !tainted.contains(it);
            all.iter().filter(is_free).count() == 0 && all.contains(&scene.names[1])
        });
        fs::write("/sys/bus/pci/drivers/erdma/bind", FUNCTIONS[0]).expect("bound");
        scene.erdma.erdma.are_home();
        scene.has_slices(&[]);
    }
}

/// iWARP has no GIDs of addresses: no GID index is right or wrong.
#[test]
fn doctor_pod_explains_an_index_of_an_iwarp_device() {
    let scene = Scene::new(Driver::Kernel, "exclusive", "exclusive");
    scene.has_slices(&[]);
    let rdma = scene.erdma.erdma.rdma(0);
    scene.claims.prepare();
    let pod = scene.erdma.node.pod("pod");
    let list = scene.claims.list();
    let added = scene.runtime().add(&list, &attachment(&pod));
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    let state = scene.erdma.node.state();
    let line = format!(
        "{} doctor pod default/{POD} --gid-index 0 --state-dir {}",
        rdma_device_plugin().display(),
        state.display()
    );
    let output = scene.erdma.node.host.run(&line);
    println!("{output}");
    assert!(output.contains(&format!("{rdma} port 1")), "{output}");
    assert!(output.contains("iWARP"), "{output}");
    assert!(!output.contains("RoCE"), "{output}");
    let deleted = scene.runtime().del(&list, &attachment(&pod));
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    let addresses = scene.erdma.node.host.addresses(NICS[0]);
    assert!(
        addresses.contains(&format!("{}/24", ADDRESSES[0])),
        "{addresses:?}"
    );
}
