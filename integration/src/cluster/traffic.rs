// SPDX-License-Identifier: Apache-2.0
//! RDMA between two pods as a user starts it: `rping` and `ib_read_bw` by `kubectl exec`.

use super::Cluster;
use crate::{
    container_runtime::{
        Pod,
        shared::address,
        traffic::{End, gid_index},
    },
    control_plane::succeeded,
    nics,
    traffic::{assert_rping_succeeded, average},
    wait,
};
use std::{process::Output, thread, time::Duration};

/// As long as `kubectl exec` may take until its program runs.
const LIMIT: Duration = Duration::from_secs(60);

/// `rping` from the second pod to the first one's IPv6 address on a rail, which is returned: five messages each
/// way, and their contents compared.
#[track_caller]
pub fn rping(cluster: &Cluster, [server, client]: [&Pod; 2], rail: usize) -> String {
    let to = address(&server.netns(), rail, true);
    let lines = [
        (server, format!("rping -s -a {to} -v -V -C 5")),
        (client, format!("rping -c -a {to} -v -V -C 5")),
    ];
    let output = between(cluster, lines, ("rdma resource show cm_id", "LISTEN"));
    let [said, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert_rping_succeeded(output.status.code(), &format!("{said}{errors}"));
    to
}

/// `ib_read_bw` with `pairs` queue pairs on a rail, and 20 reads of 4 KiB each: as much as an emulated
/// machine reads in seconds. The average, MB/s.
#[track_caller]
pub fn read_bandwidth(
    cluster: &Cluster,
    [server, client]: [&Pod; 2],
    rail: usize,
    pairs: usize,
) -> f64 {
    let asks = |pod: &Pod| {
        let (rdma, address) = (nics::rdma(rail), address(&pod.netns(), rail, true));
        let end = End {
            container: pod.main(),
            rdma: &rdma,
            address: &address,
        };
        let gid = gid_index(end);
        format!("ib_read_bw -q {pairs} -d {rdma} -x {gid} -s 4096 -n 20 -F")
    };
    // what is exchanged beforehand goes by TCP
    let by_tcp = &server.addresses()[0];
    let lines = [
        (server, asks(server)),
        (client, format!("{} {by_tcp}", asks(client))),
    ];
    let output = between(cluster, lines, ("ss -Hltn", ":18515 "));
    let said = succeeded("ib_read_bw", output);
    let header = said.lines().position(|it| it.contains("BW average"));
    let figures = said.lines().nth(header.expect("a table") + 1);
    let figures: Vec<&str> = figures.expect("figures").split_whitespace().collect();
    let reads = (20 * pairs).to_string();
    assert_eq!(figures[..2], ["4096", reads.as_str()], "{said}");
    average(&said)
}

/// Runs the first line in its pod, which must succeed, and when `question` there shows `answer`, the second one, by
/// `kubectl exec`; what became of that.
#[track_caller]
fn between(
    cluster: &Cluster,
    [(server, serving), (client, asking)]: [(&Pod, String); 2],
    (question, answer): (&str, &str),
) -> Output {
    let exec = |pod: &Pod, line: &str| format!("kubectl exec {} -- {line}", pod.name);
    thread::scope(|scope| {
        let served = scope.spawn(|| cluster.types(&exec(server, &serving)));
        let listens = wait::within(LIMIT, || {
            thread::sleep(Duration::from_millis(300));
            server.main().sh(question).contains(answer) || served.is_finished()
        });
        assert!(listens, "not within {LIMIT:?}: {serving} listens");
        let output = cluster.tries(&exec(client, &asking));
        served.join().expect("the server succeeded");
        output
    })
}
