// SPDX-License-Identifier: Apache-2.0
//! RDMA between containers: `rping` (connection manager) and `ib_read_bw` (verbs), run in them.

use super::{Container, cri::Ran, pod::succeeded};
use crate::{
    traffic::{assert_rping_succeeded, average, gid_of},
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
    let ran = between(
        [
            (server, format!("rping -s -a {to} -v -V -C 5")),
            (client, format!("rping -c -a {to} -I {from} -v -V -C 5")),
        ],
        ("rdma resource show cm_id", "LISTEN"),
    );
    assert_rping_succeeded(Some(ran.code), &ran.said);
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
    let ran = between(
        [(server, line(server)), (client, asking.clone())],
        ("ss -Hltn", ":18515 "),
    );
    average(&succeeded(ran, &asking))
}

/// Index of the GID that the end's address is, as its container's sysfs has it; waits for it.
#[track_caller]
pub fn gid_index(end: End<'_>) -> usize {
    gid_of(end.rdma, end.address, |script| end.container.sh(script))
}

/// Runs the server's line, which must succeed, and when `question` in its network shows `answer`, the client's; what
/// that did.
#[track_caller]
fn between(lines: [(End<'_>, String); 2], (question, answer): (&str, &str)) -> Ran {
    let [(server, serving), (client, asking)] = lines;
    thread::scope(|scope| {
        let served = scope.spawn(|| server.container.sh(&serving));
        wait::until(&format!("{serving} listens"), || {
            // in the container: resources are shown to their own pid namespace only
            server.container.sh(question).contains(answer) || served.is_finished()
        });
        let ran = client.container.try_sh(&asking);
        served.join().expect("the server succeeded");
        ran
    })
}
