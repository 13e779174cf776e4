// SPDX-License-Identifier: Apache-2.0
//! RDMA between containers: `rping` (connection manager) and `ib_read_bw` (verbs), run in them.

use super::Container;
use crate::{
    traffic::{average, gid_of, rping_client},
    wait,
};
use std::thread;

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Where programs run.
    pub container: &'a Container,
    /// The RDMA device.
    pub rdma: &'a str,
    /// Its address.
    pub address: &'a str,
}

/// `rping` from `client` to `server`: five messages each way, and their contents compared.
#[track_caller]
pub fn rping(server: End<'_>, client: End<'_>) {
    let (to, from) = (server.address, client.address);
    let said = between(
        [
            (server, format!("rping -s -a {to} -v -V -C 5")),
            (client, rping_client(to, Some(from))),
        ],
        ("rdma resource show cm_id", "LISTEN"),
    );
    assert_eq!(said.matches("ping data").count(), 5, "{said}");
}

/// `ib_read_bw` with `pairs` queue pairs and the GIDs of the ends' addresses; what is exchanged
/// beforehand goes over TCP to `by_tcp`. The average, MB/s.
#[track_caller]
pub fn read_bandwidth(server: End<'_>, client: End<'_>, by_tcp: &str, pairs: usize) -> f64 {
    let line = |end: End<'_>| {
        let gid = gid_index(end);
        format!(
            "ib_read_bw -d {} -x {gid} -q {pairs} -s 4096 -n 20 -F",
            end.rdma
        )
    };
    let asking = format!("{} {by_tcp}", line(client));
    let said = between(
        [(server, line(server)), (client, asking)],
        ("ss -Hltn", ":18515 "),
    );
    average(&said)
}

/// Index of the GID that the end's address is, as its container's sysfs has it; waits for it.
#[track_caller]
pub fn gid_index(end: End<'_>) -> usize {
    gid_of(end.rdma, end.address, |script| end.container.sh(script))
}

/// Runs the server's line, and when `question` in its network shows `answer`, the client's. Both
/// must succeed; what the client said.
#[track_caller]
fn between(lines: [(End<'_>, String); 2], (question, answer): (&str, &str)) -> String {
    let [(server, serving), (client, asking)] = lines;
    thread::scope(|scope| {
        let served = scope.spawn(|| server.container.sh(&serving));
        wait::until(&format!("{serving} listens"), || {
            // in the container: resources are shown to their own pid namespace only
            server.container.sh(question).contains(answer) || served.is_finished()
        });
        let said = client.container.sh(&asking);
        served.join().expect("the server succeeded");
        said
    })
}
