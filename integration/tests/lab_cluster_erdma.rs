// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node with unconfigured eRDMA NICs and the kernel's own driver:
//! `scripts/test --full lab cluster-erdma`. Control plane, kubelet, container runtime, the daemon's image, driver and
//! user-space provider are real. The functions are models. The metadata service is a stand-in at the real address. The
//! operator types the commands of the page for eRDMA.

use integration::{
    Cluster, ErdmaNics, MetadataService, Netns, Snapshot,
    cluster::claims::{DAEMONS, PLACES, PODS, end, remove},
    container_runtime::{
        Pod, TOOLS,
        installed::{Files, records},
    },
    control_plane::nodes::NODE,
    daemon::rdma_device_plugin,
    erdma_functions::{Driver, ErdmaFunctions, NICS},
    lab::uverbs,
    pages,
};
use serde_json::{Value, json};
use std::{net::Ipv4Addr, process::Command};

const RESOURCE: &str = "aliyun/erdma";
const MANIFEST: &str = "conf/manifests/erdma.yaml";
const PAGE: &str = "docs/get-started/erdma.md";

/// The address of the cloud's metadata service.
const METADATA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);

/// The machine's NICs. The driver is unloaded last, on drop.
struct Nics {
    nics: ErdmaNics,
    erdma: ErdmaFunctions,
}

impl Nics {
    #[track_caller]
    fn new() -> Self {
        let erdma = ErdmaFunctions::new(Driver::Kernel, "shared");
        Netns::own().ip(&format!("address add {METADATA}/32 dev lo"));
        let nics = ErdmaNics::of(&erdma, MetadataService::at(METADATA, 80));
        Self { nics, erdma }
    }
}

/// Types the commands of the page's manifest, and those of "Verify" before the first pod.
fn installed_by_the_page(cluster: &mut Cluster<Nics>) {
    let blocks = pages::blocks(PAGE);
    let block = blocks.iter().find(|it| {
        let last = it.lines.last();
        last.is_some_and(|it| it.ends_with(MANIFEST))
    });
    for line in &block.expect("the manifest's commands").lines {
        cluster.types(&line.replace("NODE", NODE));
    }
    cluster.until("the node has ids", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("400")
    });
    let lines = pages::commands("docs/deploy.md", "Verify", "kubectl");
    let mut shown = String::new();
    for line in lines.iter().take_while(|it| !it.contains("examples/")) {
        shown = cluster.types(&line.replace("NODE", NODE));
    }
    assert!(shown.contains("\"aliyun/erdma\":\"400\""), "{shown}");
}

fn pod(name: &str) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"], "resources": {"limits": {RESOURCE: 1}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The RDMA device whose device file the pod's container has. Asserts that the container has only this file and
/// `rdma_cm`.
#[track_caller]
fn device_of(pod: &Pod, devices: &[String; 2]) -> String {
    let nodes = pod.main().rdma_nodes();
    let names: Vec<&str> = nodes.iter().map(|it| it.0.as_str()).collect();
    let given = devices.iter().find(|it| nodes.contains(&uverbs(it)));
    let given = given.unwrap_or_else(|| panic!("{nodes:?}"));
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    assert!(names.contains(&"rdma_cm"), "{nodes:?}");
    given.clone()
}

#[test]
fn kubelet_gives_pods_the_devices_of_nics_that_the_daemon_brings_up() {
    let mut cluster = Cluster::with(Nics::new);
    let host = Netns::own();
    // the page sets this in /etc/sysctl.d
    host.set_sysctl("ipv4/conf/all/rp_filter", "2");
    let files = Files::below(&PLACES);
    let before = Snapshot::of(&host);
    let devices = [0, 1].map(|nic| cluster.nics.erdma.rdma(nic));
    installed_by_the_page(&mut cluster);
    cluster.nics.nics.are_configured();
    for nic in NICS {
        // a container cannot set the sysctl, as the page says
        assert_eq!(cluster.nics.nics.filter(nic), "1");
    }
    cluster.report("the NICs have what the metadata service reports");

    let names = ["a", "b"];
    for name in names {
        cluster.make(PODS, &pod(name));
    }
    for name in names {
        let pod = cluster.pod(name);
        let device = device_of(&pod, &devices);
        // Debian's user-space provider opens the device by this file
        let output = pod.main().sh(&format!("ibv_devinfo -d {device}"));
        assert!(output.contains("PORT_ACTIVE"), "{output}");
        assert!(output.contains("iWARP"), "{output}");
        let others = devices.iter().filter(|it| **it != device);
        for other in others {
            let ran = pod.main().try_sh(&format!("ibv_devinfo -d {other}"));
            assert_ne!(ran.code, 0, "{}", ran.output);
        }
    }
    cluster.report("each pod has one NIC's device");
    end(&mut cluster, &names);
    assert!(records().is_empty(), "{:?}", records());

    remove(&mut cluster, MANIFEST);
    cluster.until("the daemon is gone", |it| it.list(DAEMONS).is_empty());
    cluster.until("the node has no ids any more", |it| {
        it.allocatable(RESOURCE).is_none_or(|count| count == "0")
    });
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    // the NICs keep the daemon's settings for the node's own programs until `--release` is run on the node
    let mut release = Command::new(rdma_device_plugin());
    let released = release.arg("--release").output().expect("it runs");
    let words = String::from_utf8_lossy(&released.stdout).into_owned();
    for nic in NICS {
        assert!(words.contains(&format!("{nic}: released")), "{words}");
    }
    before.assert_restored(&host);
}
