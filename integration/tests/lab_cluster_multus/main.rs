// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose pods get a virtual function by Multus:
//! `scripts/test --full lab cluster-multus`. The operator types the commands of `docs/drop-in.md`: rdma-cni of
//! k8snetworkplumbingwg is replaced by ours and put back, then sriov-network-device-plugin and sriov-cni too. The other
//! projects' programs, control plane, kubelet, container runtime and the daemon's image are real. The function is
//! igb's, which QEMU emulates, and its RDMA device is soft-RoCE.

mod peers;

use integration::{
    Cluster, Netns, Snapshot,
    cluster::claims::PODS,
    container_runtime::{Pod, TOOLS, installed::records, shared::links},
    control_plane::nodes::NODE,
    lab::{Function, Lab, NICS, uverbs, verbs_devices},
    pages::{self, Block},
    plugin::rdma_cni,
};
use peers::{DEVICE_PLUGIN, example, leases};
use std::fs;

const PAGE: &str = "docs/drop-in.md";
const RESOURCE: &str = "rdma/vf";

/// The name of the network in both examples, so that the pod's annotation need not change.
const NETWORK: &str = "sriov-rdma";

/// A user's pod with a controller, which replaces it after an eviction.
const POD: &str = "job-0";

/// The node's state between pods: the host's namespace, and the functions as their physical function reports them.
struct Between {
    host: Snapshot,
    functions: Vec<String>,
}

impl Between {
    #[track_caller]
    fn now(host: &Netns) -> Self {
        Self {
            host: Snapshot::of(host),
            functions: functions(host),
        }
    }
}

/// Returns the lines of `ip link show` about the functions of the first NIC.
#[track_caller]
fn functions(host: &Netns) -> Vec<String> {
    let text = host.ip(&format!("-d link show dev {}", NICS[0]));
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("vf "));
    lines.map(str::to_owned).collect()
}

/// Applies sriov-cni with rdma-cni behind it. sriov-cni 2.1.0 supports CNI up to 0.3.1.
#[track_caller]
fn chained(cluster: &Cluster<Lab>) {
    let text = example(
        "30-behind-sriov-cni.yaml",
        r#""ipam": { "type": "host-local", "subnet": "10.56.217.0/24" }"#,
        &[(r#""0.4.0""#, r#""0.3.1""#.to_owned())],
    );
    cluster.types(&format!("kubectl apply -f - <<'EOF'\n{text}\nEOF"));
}

/// Applies the network with only our plugin.
#[track_caller]
fn alone(cluster: &Cluster<Lab>) {
    let ipam = "\"ipam\": {\n            \"type\": \"rdma-ipam\",\n            \
                \"ranges\": [[{ \"subnet\": \"10.56.217.0/24\" }]]\n          }";
    let text = example(
        "20-vf.yaml",
        ipam,
        &[
            ("name: vf", format!("name: {NETWORK}")),
            (r#""name": "vf""#, format!(r#""name": "{NETWORK}""#)),
        ],
    );
    cluster.types(&format!("kubectl apply -f - <<'EOF'\n{text}\nEOF"));
}

#[track_caller]
fn job(cluster: &Cluster<Lab>) {
    cluster.types(&format!(
        "kubectl apply -f - <<'EOF'\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{ name: job }}\nspec:\n  \
         serviceName: job\n  selector: {{ matchLabels: {{ app: job }} }}\n  template:\n    metadata:\n      \
         labels: {{ app: job }}\n      annotations: {{ k8s.v1.cni.cncf.io/networks: {NETWORK} }}\n    spec:\n      \
         terminationGracePeriodSeconds: 1\n      containers:\n      - name: main\n        image: {TOOLS}\n        \
         command: [sleep, \"1000000\"]\n        resources: {{ limits: {{ {RESOURCE}: 1 }} }}\nEOF"
    ));
}

/// Asserts that the pod has the function as `net1`, its address from whereabouts, and its RDMA device.
#[track_caller]
fn has_all(cluster: &mut Cluster<Lab>, function: &Function, what: &str) -> Pod {
    let pod = cluster.pod(POD);
    let (netns, host) = (pod.netns(), Netns::own());
    assert_eq!(links(&netns), ["lo", "eth0", "net1"]);
    let addresses = netns.addresses("net1");
    let is_leased = |it: &String| it.starts_with("10.56.217.") && it.ends_with("/24");
    assert!(addresses.iter().any(is_leased), "{addresses:?}");
    assert_eq!(leases(cluster), [format!("default/{POD}")]);
    assert_eq!(verbs_devices(&netns), [function.rdma.as_str()]);
    assert!(!verbs_devices(&host).contains(&function.rdma));
    assert!(!host.has_link(&function.netdev));
    let nodes = pod.main().rdma_nodes();
    assert!(nodes.contains(&uverbs(&function.rdma)), "{nodes:?}");
    // igbvf reports the carrier a little after sriov-cni has set the netdev up
    let line = format!("ibv_devinfo -d {}", function.rdma);
    cluster.until("the port is active", |_| {
        pod.main().sh(&line).contains("PORT_ACTIVE")
    });
    cluster.report(what);
    pod
}

/// Ends the pod. Asserts that the function, its RDMA device and the address are free again.
#[track_caller]
fn ends(cluster: &mut Cluster<Lab>, function: &Function) {
    cluster.types("kubectl scale statefulset job --replicas=0");
    cluster.until("the pod is gone", |it| it.list(PODS).is_empty());
    let host = Netns::own();
    assert!(host.has_link(&function.netdev));
    assert!(verbs_devices(&host).contains(&function.rdma));
    assert_eq!(leases(cluster), [""; 0]);
    assert!(records().is_empty(), "{:?}", records());
}

/// Ends the pod like [`ends`], and asserts that the node is as it was between earlier pods.
#[track_caller]
fn ends_as(cluster: &mut Cluster<Lab>, function: &Function, between: &Between) {
    ends(cluster, function);
    let host = Netns::own();
    between.host.assert_restored(&host);
    assert_eq!(functions(&host), between.functions);
}

/// Starts the pod again, as its user does.
#[track_caller]
fn starts(cluster: &Cluster<Lab>) {
    cluster.types("kubectl scale statefulset job --replicas=1");
}

/// Types the commands of a block. The node's programs run in a directory with our plugins.
#[track_caller]
fn types(cluster: &Cluster<Lab>, block: &Block, names: &[(&str, &str)]) -> String {
    let mut output = String::new();
    for line in &block.lines {
        let names = names.iter();
        let line = names.fold(line.clone(), |line, (name, value)| {
            line.replace(name, value)
        });
        let is_remote = line.starts_with("kubectl ") || line.starts_with("helm ");
        let plugins = rdma_cni();
        let plugins = plugins.parent().expect("a directory").display();
        output += &match is_remote {
            true => cluster.types(&line),
            false => cluster.types(&format!("cd {plugins}; {line}")),
        };
    }
    output
}

/// The page's section about rdma-cni, with the same network and the same pod.
#[track_caller]
fn rdma_cni_is_replaced(cluster: &mut Cluster<Lab>, function: &Function, between: &Between) {
    let blocks = pages::shell(PAGE, "rdma-cni");
    let [
        check,
        leave,
        replace,
        verify,
        uncordon,
        drain,
        put_back,
        come_back,
        undo,
    ] = &blocks[..]
    else {
        panic!("nine blocks: {blocks:?}");
    };
    let theirs = fs::read("/opt/cni/bin/rdma").expect("the other plugin");
    let names = [("NODE", NODE), ("POD", POD)];
    let shown = types(cluster, check, &names);
    let (sriov, rdma) = (
        shown.find(r#""type": "sriov""#),
        shown.find(r#""type": "rdma""#),
    );
    assert!(sriov.is_some() && sriov < rdma, "{shown}");
    let other = types(cluster, verify, &names);
    types(cluster, leave, &names);
    types(cluster, replace, &names);
    let ours = types(cluster, verify, &names);
    assert_ne!(ours, other);
    assert_eq!(ours, format!("rdma-cni {}\n", env!("CARGO_PKG_VERSION")));
    let [uncordon, query] = [&uncordon.lines[..1], &uncordon.lines[1..]].map(|lines| Block {
        heading: uncordon.heading.clone(),
        lines: lines.to_vec(),
    });
    types(cluster, &uncordon, &names);
    has_all(
        cluster,
        function,
        "the pod runs by our rdma-cni behind sriov-cni",
    );
    assert_eq!(types(cluster, &query, &names).trim(), function.rdma);
    assert_eq!(records().len(), 1);
    ends_as(cluster, function, between);
    starts(cluster);
    has_all(cluster, function, "the pod runs again");

    for block in [drain, put_back, come_back] {
        types(cluster, block, &names);
    }
    has_all(cluster, function, "the pod runs by the other rdma-cni");
    types(cluster, undo, &names);
    cluster.types("kubectl -n kube-system rollout status ds/kube-rdma-cni-ds --timeout=5m");
    assert!(records().is_empty(), "{:?}", records());
    // the pod is ready while its container still copies the program
    cluster.until("the other rdma-cni is installed again", |_| {
        fs::read("/opt/cni/bin/rdma").expect("a plugin") == theirs
    });
}

/// The page's migration of the device plugin, and then an entry of our plugin instead of sriov-cni and rdma-cni.
#[track_caller]
fn all_is_replaced(cluster: &mut Cluster<Lab>, function: &Function, between: &Between) {
    let values = r#"--set-json config="$(cat config.json)""#;
    let names = [
        ("NAMESPACE", "kube-system"),
        ("VALUES", values),
        ("NAME", DEVICE_PLUGIN),
        ("NODE", NODE),
    ];
    let section = |cluster: &Cluster<Lab>, heading: &str| {
        let blocks = pages::shell(PAGE, heading);
        // omits a block that the page restricts to enableNonHostNetwork
        let blocks = blocks.iter();
        let blocks = blocks.filter(|it| !it.lines[0].starts_with("rdma-device-plugin "));
        blocks
            .map(|it| types(cluster, it, &names))
            .collect::<String>()
    };
    assert_eq!(section(cluster, "Check"), "");
    section(cluster, "Prepare");
    section(cluster, "Migrate a node");
    cluster.until("the node has our ids", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("1")
    });
    let shown = section(cluster, "Verify a node");
    assert!(shown.contains(r#""rdma/vf":"1""#), "{shown}");
    has_all(cluster, function, "the pod has a function of our daemon");
    ends_as(cluster, function, between);

    let plugins = rdma_cni();
    let plugins = plugins.parent().expect("a directory").display();
    cluster.types(&format!(
        "cp {plugins}/rdma-cni {plugins}/rdma-ipam /opt/cni/bin/"
    ));
    alone(cluster);
    starts(cluster);
    has_all(cluster, function, "the pod runs by our rdma-cni alone");
    ends_as(cluster, function, between);
    chained(cluster);
    starts(cluster);
    has_all(cluster, function, "the pod runs by sriov-cni and rdma-cni");

    section(cluster, "Undo a node");
    section(cluster, "Undo all");
    has_all(cluster, function, "the pod runs without our programs");
}

#[test]
fn a_node_goes_from_multus_with_sriov_cni_and_rdma_cni_to_ours_and_back() {
    let mut cluster = Cluster::with(|| Lab::new(1));
    let function = cluster.nics.functions[0][0].clone();
    let host = Netns::own();
    peers::install(&mut cluster);
    cluster.report("the other projects' programs are installed");
    cluster.until("the node has the other plugin's id", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("1")
    });
    let fresh = Between::now(&host);
    chained(&cluster);
    job(&cluster);
    has_all(
        &mut cluster,
        &function,
        "the pod runs by the other projects' programs",
    );
    ends(&mut cluster, &function);
    let between = Between::now(&host);
    let left = fresh.host.difference(&between.host);
    eprintln!(
        "the other projects' programs leave:\n{left}{:?}",
        between.functions
    );
    starts(&cluster);
    has_all(&mut cluster, &function, "the pod runs again");

    rdma_cni_is_replaced(&mut cluster, &function, &between);
    all_is_replaced(&mut cluster, &function, &between);
    ends_as(&mut cluster, &function, &between);
}
