// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose virtual functions dranet allocates by claims:
//! `scripts/test --full lab cluster-dranet`. The operator types the commands of `docs/drop-in.md`, from the check to
//! the undo of the migration. dranet's program and objects, control plane, kubelet, containerd with NRI, the daemon's
//! image, mlx5_core and its user-space provider are real. The functions are models.

use integration::{
    Cluster, Netns, Snapshot,
    cluster::{
        claims::{CLAIMS, PLACES, PODS},
        migration::{Migration, PAGE},
    },
    container_runtime::{
        TOOLS,
        installed::{Files, records, root},
    },
    lab::uverbs,
    mlx5_card::{ADDRESSES, Mlx5Card, RDMA, VIRTUAL_FUNCTIONS, VIRTUAL_NETDEVS, links},
    slices,
};
use serde_json::{Value, json};
use std::{env, fs, path::Path};

/// Environment variable with the directory of dranet's program and objects (`integration/runtimes/build dranet`).
const PROGRAMS: &str = "RDMA_DRANET";

const DRANET: &str = "dra.net";
const OURS: &str = "hca.rdma";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The function that the user's pod gets. The other function stays on the host.
const USED: usize = 1;

/// Attributes of dranet for which the page names an attribute of ours that has the same value.
const EQUAL: [(&str, &str); 5] = [
    ("dra.net/ifName", "netdev"),
    ("dra.net/mac", "hardwareAddress"),
    ("dra.net/mtu", "mtu"),
    ("dra.net/pciAddress", "resource.kubernetes.io/pciBusID"),
    ("dra.net/numaNode", "resource.kubernetes.io/numaNode"),
];

/// Other attributes of dranet on the page, of a virtual function whose physical function is in another machine. Each
/// has its value, our attribute, and the value of that attribute.
const DIFFERENT: [(&str, &str, &str, &str); 2] = [
    ("dra.net/encapsulation", "ether", "linkLayer", "ethernet"),
    (
        "dra.net/pciVendor",
        "Mellanox Technologies",
        "vendor",
        "15b3",
    ),
];

/// The functions, with their addresses.
struct Functions {
    card: Mlx5Card,
}

impl Functions {
    fn new() -> Self {
        let card = Mlx5Card::new("exclusive");
        for function in 0..2 {
            card.host
                .ip(&format!("link set dev {} up", VIRTUAL_NETDEVS[function]));
            card.host.ip(&address(function));
            card.has_state(&card.host, RDMA[function], "ACTIVE");
        }
        Self { card }
    }
}

/// Returns the arguments of `ip` by which the operator gives a function its host address.
fn address(function: usize) -> String {
    let (netdev, address) = (VIRTUAL_NETDEVS[function], ADDRESSES[function]);
    format!("address add {address}/24 dev {netdev}")
}

/// Applies dranet's own objects. The program comes from the node and not from dranet's image. An option keeps dranet
/// from searching for a metadata service, which a machine of the lab does not have.
fn dranet(cluster: &Cluster<Functions>, name: &str) {
    let programs = env::var(PROGRAMS).expect(PROGRAMS);
    let read = |file: &str| fs::read_to_string(Path::new(&programs).join(file)).expect(file);
    let manifest = read("install.yaml");
    let image = "image: registry.k8s.io/networking/dranet:stable\n";
    let node = "        - --hostname-override=$(NODE_NAME)\n";
    let (mounts, volumes) = ("        volumeMounts:\n", "      volumes:\n");
    for text in [name, image, node, mounts, volumes] {
        assert!(manifest.contains(text), "{text}: {manifest}");
    }
    let manifest = manifest
        .replace(image, &format!("image: {TOOLS}\n"))
        .replace(
            node,
            &format!("{node}        - --cloud-provider-hint=NONE\n"),
        )
        .replace(
            mounts,
            &format!("{mounts}        - {{ name: program, mountPath: /dranet }}\n"),
        )
        .replace(
            volumes,
            &format!(
                "{volumes}      - {{ name: program, hostPath: {{ path: {programs}/dranet }} }}\n"
            ),
        );
    apply(cluster, &manifest);
    apply(cluster, &read("deviceclass.yaml"));
    cluster.types(&format!(
        "kubectl -n kube-system rollout status ds/{name} --timeout=5m"
    ));
}

fn apply(cluster: &Cluster<Functions>, objects: &str) {
    cluster.types(&format!("kubectl apply -f - <<'EOF'\n{objects}\nEOF"));
}

/// Returns the slices of a driver.
fn slices_of(cluster: &Cluster<Functions>, driver: &str) -> Vec<Value> {
    let mut slices = cluster.list(SLICES);
    slices.retain(|it| it["spec"]["driver"] == driver);
    slices
}

/// Returns the device of a driver that has the PCI address.
fn device(slices: &[Value], attribute: &str, pci: &str) -> Option<Value> {
    let devices = slices
        .iter()
        .flat_map(|it| it["spec"]["devices"].as_array());
    let is_it = |it: &&Value| it["attributes"][attribute]["string"] == pci;
    devices.flatten().find(is_it).cloned()
}

/// The requests of a claim of dranet.
fn theirs() -> String {
    format!(
        "requests:\n- name: nic\n  exactly:\n    deviceClassName: dra.net\n    selectors:\n    - cel:\n        \
         expression: device.attributes[\"dra.net\"].ifName == \"{}\"\n",
        VIRTUAL_NETDEVS[USED]
    )
}

/// The requests of the page's claim, for this machine's netdev.
fn ours() -> String {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page");
    let mut blocks = page.split("```yaml\n").skip(1);
    let block = blocks.find(|it| it.starts_with("requests:"));
    let block = block.and_then(|it| it.split("```").next());
    let block = block.expect("the page's claim");
    assert!(block.contains("ens1f0v2"), "{block}");
    block.replace("ens1f0v2", VIRTUAL_NETDEVS[USED])
}

/// Replaces the user's claim template, as the page says. A template cannot be changed.
fn claim(cluster: &Cluster<Functions>, requests: &str) {
    let requests = requests.trim().replace('\n', "\n      ");
    cluster.types(&format!(
        "kubectl replace --force -f - <<'EOF'\napiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\n\
         metadata: {{ name: nic }}\nspec:\n  spec:\n    devices:\n      {requests}\nEOF"
    ));
}

/// A user's pod with a controller, which replaces it after an eviction.
fn job(cluster: &Cluster<Functions>) {
    apply(
        cluster,
        &format!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{ name: job }}\nspec:\n  serviceName: job\n  \
             selector: {{ matchLabels: {{ app: job }} }}\n  template:\n    metadata: {{ labels: {{ app: job }} }}\n    \
             spec:\n      terminationGracePeriodSeconds: 1\n      \
             resourceClaims: [{{ name: nic, resourceClaimTemplateName: nic }}]\n      containers:\n      \
             - name: main\n        image: {TOOLS}\n        command: [sleep, \"1000000\"]\n        \
             resources: {{ claims: [{{ name: nic }}] }}"
        ),
    );
}

/// Asserts that the user's pod has the function as `netdev` with the host's address, and the RDMA device, and that the
/// user-space provider opens the RDMA device.
#[track_caller]
fn has_function(cluster: &mut Cluster<Functions>, netdev: &str) {
    let pod = cluster.pod("job-0");
    let netns = pod.netns();
    let shown = links(&netns);
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert_eq!(shown[0]["ifname"], RDMA[USED]);
    assert_eq!(shown[0]["netdev"], netdev);
    cluster.nics.card.has_state(&netns, RDMA[USED], "ACTIVE");
    let addresses = netns.addresses(netdev);
    let expected = format!("{}/24", ADDRESSES[USED]);
    assert!(addresses.contains(&expected), "{addresses:?}");
    let nodes = pod.main().rdma_nodes();
    assert!(nodes.contains(&uverbs(RDMA[USED])), "{nodes:?}");
    let shown = pod.main().sh(&format!("ibv_devinfo -d {}", RDMA[USED]));
    assert!(shown.contains("PORT_ACTIVE"), "{shown}");
    let names: Vec<&String> = nodes.iter().map(|it| &it.0).collect();
    eprintln!("{netdev}: {addresses:?}, {names:?}");
}

#[test]
fn a_node_goes_from_dranet_to_our_claims_and_back() {
    let mut cluster = Cluster::with(Functions::new);
    let host = Netns::own();
    let page = Migration::new("dranet", true);
    let (netdev, pci) = (VIRTUAL_NETDEVS[USED], VIRTUAL_FUNCTIONS[USED]);

    dranet(&cluster, &page.name);
    let mut published = None;
    cluster.until("dranet publishes the function", |it| {
        published = device(&slices_of(it, DRANET), "dra.net/pciAddress", pci);
        (published.as_ref())
            .is_some_and(|it| it["attributes"]["dra.net/ifName"]["string"] == netdev)
    });
    let published = published.expect("a device");
    eprintln!("dranet: {published:#}");
    let files = Files::below(&PLACES);
    claim(&cluster, &theirs());
    job(&cluster);
    has_function(&mut cluster, netdev);
    cluster.report("a pod has the function by dranet");

    assert_eq!(page.types(&cluster, "Check"), "");
    page.types(&cluster, "Prepare");
    has_function(&mut cluster, netdev);
    cluster.report("dranet was restarted, the pod has the function");
    page.types(&cluster, "Migrate a node");
    cluster.nics.card.are_home();
    // as the page says, dranet does not restore addresses
    assert!(!host.addresses(netdev).iter().any(|it| it.contains('.')));
    cluster.types(&format!("ip {}", address(USED)));
    cluster.until("kubelet has deleted dranet's slices", |it| {
        slices_of(it, DRANET).is_empty()
    });
    let mut mine = None;
    cluster.until("the daemon publishes the address", |it| {
        mine = device(&slices_of(it, OURS), "resource.kubernetes.io/pciBusID", pci);
        (mine.as_ref()).is_some_and(|it| it["attributes"]["ipv4Address"].is_object())
    });
    let mine = mine.expect("a device");
    eprintln!("ours: {mine:#}");
    for (there, here) in EQUAL {
        let (there, here) = (&published["attributes"][there], &mine["attributes"][here]);
        assert!(there.is_object() && there == here, "{there} {here}");
    }
    for (there, value, here, ours) in DIFFERENT {
        assert_eq!(published["attributes"][there], json!({"string": value}));
        assert_eq!(mine["attributes"][here], json!({"string": ours}));
    }
    let before = Snapshot::of(&host);
    claim(&cluster, &ours());
    cluster.types("kubectl delete pod job-0");
    let shown = page.types(&cluster, "Verify a node");
    assert!(shown.contains(OURS), "{shown}");
    has_function(&mut cluster, "rdma0");
    cluster.report("the pod has the function by ours");

    page.types(&cluster, "Undo a node");
    page.types(&cluster, "Undo all");
    cluster.nics.card.are_home();
    assert!(records().is_empty(), "{:?}", records());
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    before.assert_restored(&host);
    cluster.report("the host is restored");

    claim(&cluster, &theirs());
    cluster.types("kubectl delete pod job-0");
    has_function(&mut cluster, netdev);
    cluster.report("the pod has the function by dranet again");
    cluster.types("kubectl delete statefulset job");
    cluster.until("the pod and its claim are gone", |it| {
        it.list(PODS).is_empty() && it.list(CLAIMS).is_empty()
    });
    cluster.nics.card.are_home();
    assert_eq!(slices::devices(&slices_of(&cluster, OURS)).0, [""; 0]);
}
