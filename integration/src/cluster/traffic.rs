// SPDX-License-Identifier: Apache-2.0
//! RDMA between two pods on any nodes, run as a user does: `rping` and `ib_read_bw` with `kubectl exec`.

use super::Cluster;
use crate::{
    container_runtime::traffic::{PERFTEST_LISTENS, RPING_LISTENS, between},
    control_plane::succeeded,
    netns::parse_list,
    nics,
    traffic::{assert_rping_succeeded, average, gid_of},
};
use std::process::Output;

/// Returns the IPv6 address that a pod of the namespace `default` has on a rail.
#[track_caller]
pub fn address(cluster: &Cluster, pod: &str, rail: usize) -> String {
    address_of(cluster, pod, "-6", &format!("rdma{rail}"))
}

/// Returns the address of a pod's interface in a family, `-4` or `-6`.
#[track_caller]
pub fn address_of(cluster: &Cluster, pod: &str, family: &str, interface: &str) -> String {
    let line = format!("ip {family} -json address show scope global dev {interface}");
    let netdev = parse_list(&output_of(cluster, pod, &line)).swap_remove(0);
    let address = netdev["addr_info"][0]["local"].as_str();
    let address =
        address.unwrap_or_else(|| panic!("{pod} has no address on {interface}: {netdev}"));
    address.to_owned()
}

/// Runs `rping` from the second pod to the first pod's IPv6 address on a rail. It sends five messages each way,
/// and compares their contents. Returns the address.
#[track_caller]
pub fn rping(cluster: &Cluster, [server, client]: [&str; 2], rail: usize) -> String {
    let to = address(cluster, server, rail);
    rping_to(cluster, [server, client], &to);
    to
}

/// Does the same as the function [`rping`], to the first pod's address `to`.
#[track_caller]
pub fn rping_to(cluster: &Cluster, [server, client]: [&str; 2], to: &str) {
    let lines = [
        (server, format!("rping -s -a {to} -v -V -C 5")),
        (client, format!("rping -c -a {to} -v -V -C 5")),
    ];
    let output = exec_both(cluster, lines, RPING_LISTENS);
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert_rping_succeeded(output.status.code(), &format!("{stdout}{stderr}"));
}

/// Waits until the pod's sysfs shows its address on a rail as a GID. Returns the GID's index.
#[track_caller]
pub fn gid_index(cluster: &Cluster, pod: &str, rail: usize) -> usize {
    let address = address(cluster, pod, rail);
    gid_of(&nics::rdma(rail), &address, |script| {
        let script = script.replace('\'', r"'\''");
        output_of(cluster, pod, &format!("sh -c '{script}'"))
    })
}

/// Runs `ib_read_bw` with `pairs` queue pairs on a rail. Each makes 20 reads of 4 KiB, which take an emulated
/// machine some seconds. Returns the average in MB/s.
#[track_caller]
pub fn read_bandwidth(
    cluster: &Cluster,
    [server, client]: [&str; 2],
    rail: usize,
    pairs: usize,
) -> f64 {
    let asks = |pod: &str| {
        let (rdma, gid) = (nics::rdma(rail), gid_index(cluster, pod, rail));
        format!("ib_read_bw -q {pairs} -d {rdma} -x {gid} -s 4096 -n 20 -F")
    };
    // the programs exchange their parameters by TCP beforehand
    let object = cluster.get(&format!("/api/v1/namespaces/default/pods/{server}"));
    let by_tcp = object["status"]["podIP"].as_str().expect("an address");
    let lines = [
        (server, asks(server)),
        (client, format!("{} {by_tcp}", asks(client))),
    ];
    let output = exec_both(cluster, lines, PERFTEST_LISTENS);
    let text = succeeded("ib_read_bw", output);
    let header = text.lines().position(|it| it.contains("BW average"));
    let figures = text.lines().nth(header.expect("a table") + 1);
    let figures: Vec<&str> = figures.expect("figures").split_whitespace().collect();
    let reads = (20 * pairs).to_string();
    assert_eq!(figures[..2], ["4096", reads.as_str()], "{text}");
    average(&text)
}

/// Runs the server's command in its pod by `kubectl exec`, and the client's command when the server listens. The
/// server's command must succeed. Returns the client's output.
#[track_caller]
fn exec_both(
    cluster: &Cluster,
    [(server, serving), (client, asking)]: [(&str, String); 2],
    listens: (&str, &str),
) -> Output {
    between(
        |question| output_of(cluster, server, question),
        listens,
        || cluster.types(&exec(server, &serving)),
        || cluster.tries(&exec(client, &asking)),
    )
}

fn exec(pod: &str, line: &str) -> String {
    format!("kubectl exec {pod} -- {line}")
}

/// Runs a program in the pod. The program must succeed. Returns its output.
#[track_caller]
fn output_of(cluster: &Cluster, pod: &str, line: &str) -> String {
    let line = exec(pod, line);
    succeeded(&line, cluster.plane.try_shell(&line))
}
