// SPDX-License-Identifier: Apache-2.0
//! An operator with two nodes follows the page for RoCE with IPv4: the page's commands, those of "Verify", two pods
//! with the page's container fields, and "Removal" of the chart. The bonds' IPv4 addresses are below `.50`, as the page
//! says.

use super::{FIRST, PAGE, PODS, SECOND, fabric, gone, has_all, have_ids};
use integration::{
    Cluster,
    cluster::traffic,
    container_runtime::{TOOLS, installed::records},
    control_plane::nodes::{self, Member},
    pages::{self, Block},
    verify::is_a_table_of_two_rails,
};

const ROCE: &str = "docs/get-started/roce-ipv4.md";

/// The pods of conf/examples/verify.yaml.
const VERIFY: [&str; 2] = ["rdma-verify-0", "rdma-verify-1"];

/// The last byte of the first pod address in each prefix, according to the page's `rangeStart`.
const RANGE_START: u8 = 50;

pub(super) fn is_walked(cluster: &mut Cluster) {
    for line in commands(pages::blocks(ROCE)) {
        for line in of_each_node(&line) {
            cluster.types(&line);
        }
    }
    is_verified(cluster);
    let pods = have_addresses_and_rdma(cluster);
    fabric::is_watched(cluster, &pods);
    gone(cluster, &pods.map(|it| it.0));
    is_removed(cluster);
}

/// The lines that begin with `kubectl` or `helm`.
fn commands(blocks: Vec<Block>) -> Vec<String> {
    let lines = blocks.into_iter().flat_map(|it| it.lines);
    lines
        .filter(|it| it.starts_with("kubectl ") || it.starts_with("helm "))
        .collect()
}

/// Returns the line, once for each node if the line contains `NODE`.
fn of_each_node(line: &str) -> Vec<String> {
    match line.contains("NODE") {
        true => nodes::ALL.map(|it| line.replace("NODE", it.name)).into(),
        false => vec![line.to_owned()],
    }
}

/// Types the commands of "Verify", and deletes the pods of its example. Asserts that each node had one of the pods, and
/// that the first pod's table has a time for each rail.
fn is_verified(cluster: &mut Cluster) {
    let mut table = String::new();
    for line in pages::commands(PAGE, "Verify", "kubectl") {
        if line.contains(" get node ") {
            have_ids(cluster, has_all);
        }
        for line in of_each_node(&line) {
            table = cluster.types(&line);
        }
    }
    let nodes = VERIFY.map(|name| {
        let pod = cluster.get(&format!("{PODS}/{name}"));
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    });
    assert_ne!(nodes[0], nodes[1], "one pod on each node");
    let [own, other] = nodes.map(|it| it.expect("a node"));
    is_a_table_of_two_rails(&table, &own, &other);
    cluster.types("kubectl delete -f conf/examples/verify.yaml");
    cluster.report("verified");
}

/// Starts a pod on each node with the page's container fields, and returns both pods. Each pod has one IPv4 address in
/// each rail's prefix. No node and no other pod has this address, and RDMA reaches it.
fn have_addresses_and_rdma(cluster: &mut Cluster) -> [(&'static str, [String; 2]); 2] {
    let mut blocks = pages::blocks(ROCE);
    blocks.retain(|it| it.lines[0].starts_with("resources:"));
    let [Block { lines, .. }] = &blocks[..] else {
        panic!("one block: {blocks:?}");
    };
    let fields = lines.join("\n    ");
    let pods = [("job-0", FIRST), ("job-1", SECOND)];
    for (name, Member { name: node, .. }) in pods {
        cluster.types(&format!(
            "kubectl apply -f - <<'EOF'\napiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  \
             nodeSelector: {{ kubernetes.io/hostname: {node} }}\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
             - name: job\n    image: {TOOLS}\n    command: [sleep, \"1000000\"]\n    {fields}\nEOF"
        ));
    }
    cluster.types("kubectl wait --for=condition=Ready pod/job-0 pod/job-1 --timeout=5m");
    let addresses = [0, 1].map(|rail| {
        let [first, second] = pods.map(|(name, _)| {
            let address = traffic::address_of(cluster, name, "-4", &format!("rdma{rail}"));
            let host = address.strip_prefix(&format!("10.20.{rail}."));
            let host: u8 = host.expect(&address).parse().expect("a number");
            assert!(host >= RANGE_START, "{name}: {address}");
            address
        });
        assert_ne!(first, second);
        traffic::rping_to(cluster, ["job-0", "job-1"], &first);
        traffic::rping_to(cluster, ["job-1", "job-0"], &second);
        [first, second]
    });
    cluster.report("pods have addresses and RDMA by the page");
    let [[first, second], [first_too, second_too]] = addresses;
    [
        (pods[0].0, [first, first_too]),
        (pods[1].0, [second, second_too]),
    ]
}

/// Types the commands of the chart's "Removal".
fn is_removed(cluster: &mut Cluster) {
    for line in pages::commands(PAGE, "Removal", "helm") {
        cluster.types(&line);
    }
    have_ids(cluster, |count| count.is_null() || count == "0");
    assert!(records().is_empty(), "{:?}", records());
    cluster.report("the chart is removed");
}
