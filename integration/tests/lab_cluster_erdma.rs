// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node with unconfigured eRDMA NICs, under the kernel's own driver: `scripts/test
//! --full lab cluster-erdma`. Control plane, kubelet, container runtime, the daemon's image, driver and provider are
//! real. The functions are models, and the metadata service is a stand-in.

use integration::{
    Cluster, ErdmaNics, Netns, Snapshot,
    cluster::claims::{DAEMONS, PLACES, PODS, end, remove},
    container_runtime::{
        Pod, TOOLS,
        installed::{Files, records, root},
    },
    control_plane::nodes::NODE,
    daemon::rdma_device_plugin,
    erdma_functions::{Driver, ErdmaFunctions, NICS},
    lab::uverbs,
};
use serde_json::{Value, json};
use std::{fs, process::Command};

const RESOURCE: &str = "aliyun/erdma";
const MANIFEST: &str = "conf/manifests/erdma.yaml";

/// Words of the manifest about the driver. The lab adds its own behind them.
const DRIVER: &str = "\"preferDriver\": \"default\",";

/// The machine's NICs. The driver is unloaded last.
struct Nics {
    nics: ErdmaNics,
    erdma: ErdmaFunctions,
}

impl Nics {
    #[track_caller]
    fn new() -> Self {
        let erdma = ErdmaFunctions::new(Driver::Kernel, "shared");
        let nics = ErdmaNics::of(&erdma);
        Self { nics, erdma }
    }
}

/// The manifest, for the lab's metadata service.
#[track_caller]
fn manifest(service: &str) -> String {
    let text = fs::read_to_string(root().join(MANIFEST)).expect("a manifest");
    assert_eq!(text.matches(DRIVER).count(), 1, "{MANIFEST}");
    text.replace(DRIVER, &format!("{DRIVER} \"metadata\": \"{service}\","))
}

fn pod(name: &str) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"], "resources": {"limits": {RESOURCE: 1}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The RDMA device of which the pod's container has the device file, which is `uverbs0` and `rdma_cm` alone.
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
    let files = Files::below(&PLACES);
    let before = Snapshot::of(&host);
    let devices = [0, 1].map(|nic| cluster.nics.erdma.rdma(nic));
    cluster.types(&format!(
        "kubectl label node {NODE} aliyun.accelerator/rdma=true"
    ));
    let manifest = manifest(&cluster.nics.nics.service.base());
    cluster.types(&format!(
        "kubectl apply --server-side -f - <<'EOF'\n{manifest}\nEOF"
    ));
    cluster.until("the node has ids", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("400")
    });
    cluster.nics.nics.are_configured();
    for nic in NICS {
        // a container cannot set it, as the page says
        assert_eq!(cluster.nics.nics.filter(nic), "1");
    }
    cluster.says("the NICs have what the metadata service says");

    let names = ["a", "b"];
    for name in names {
        cluster.make(PODS, &pod(name));
    }
    for name in names {
        let pod = cluster.pod(name);
        let device = device_of(&pod, &devices);
        // Debian's provider opens it by that file
        let said = pod.main().sh(&format!("ibv_devinfo -d {device}"));
        assert!(said.contains("PORT_ACTIVE"), "{said}");
        assert!(said.contains("iWARP"), "{said}");
        let others = devices.iter().filter(|it| **it != device);
        for other in others {
            let ran = pod.main().try_sh(&format!("ibv_devinfo -d {other}"));
            assert_ne!(ran.code, 0, "{}", ran.said);
        }
    }
    cluster.says("each pod has one NIC's device");
    end(&mut cluster, &names);
    assert!(records().is_empty(), "{:?}", records());

    remove(&mut cluster, MANIFEST);
    cluster.until("the daemon is gone", |it| {
        it.look_at_all(DAEMONS).is_empty()
    });
    cluster.until("the node has no ids any more", |it| {
        it.allocatable(RESOURCE).is_none_or(|count| count == "0")
    });
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    // what the daemon has set stays for the node's own programs, until it is taken back on the node
    let mut release = Command::new(rdma_device_plugin());
    let released = release.arg("--release").output().expect("it runs");
    let words = String::from_utf8_lossy(&released.stdout).into_owned();
    for nic in NICS {
        assert!(words.contains(&format!("{nic}: released")), "{words}");
    }
    before.assert_restored(&host);
}
