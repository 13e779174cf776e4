// SPDX-License-Identifier: Apache-2.0
//! RDMA between containers: `rping` (connection manager) and `ib_read_bw` (verbs), run in them.

use super::{Container, pod::succeeded};
use crate::{
    traffic::{assert_rping_succeeded, average, gid_of},
    wait,
};
use std::{thread, time::Duration};

/// Limit until a server's program listens: by `kubectl exec` it starts late.
const LIMIT: Duration = Duration::from_secs(240);

/// Command and output that show that `rping` listens.
pub(crate) const RPING_LISTENS: (&str, &str) = ("rdma resource show cm_id", "LISTEN");

/// Command and output that show that a program of perftest listens.
pub(crate) const PERFTEST_LISTENS: (&str, &str) = ("ss -Hltn", ":18515 ");

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Container of the programs.
    pub container: &'a Container,
    /// The RDMA device.
    pub rdma: &'a str,
    /// The pod's address.
    pub address: &'a str,
}

/// `rping` from `client` to `server`: five messages each way, and their contents compared.
#[track_caller]
pub fn rping(server: End<'_>, client: End<'_>) {
    let (to, from) = (server.address, client.address);
    let serving = format!("rping -s -a {to} -v -V -C 5");
    let asking = format!("rping -c -a {to} -I {from} -v -V -C 5");
    let ran = between(
        |question| server.container.sh(question),
        RPING_LISTENS,
        || server.container.sh(&serving),
        || client.container.try_sh(&asking),
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
    let (serving, asking) = (line(server), format!("{} {by_tcp}", line(client)));
    let ran = between(
        |question| server.container.sh(question),
        PERFTEST_LISTENS,
        || server.container.sh(&serving),
        || client.container.try_sh(&asking),
    );
    average(&succeeded(ran, &asking))
}

/// Index of the GID that the end's address is, as its container's sysfs has it; waits for it.
#[track_caller]
pub fn gid_index(end: End<'_>) -> usize {
    gid_of(end.rdma, end.address, |script| end.container.sh(script))
}

/// Serves, and asks as soon as `question`, which `look` runs beside the server, shows `answer`. What came of asking;
/// `serve` must end without a panic.
#[track_caller]
pub(crate) fn between<S: Send, A>(
    look: impl Fn(&str) -> String,
    (question, answer): (&str, &str),
    serve: impl FnOnce() -> S + Send,
    ask: impl FnOnce() -> A,
) -> A {
    thread::scope(|scope| {
        let served = scope.spawn(serve);
        let listens = wait::within(LIMIT, || {
            // each observation starts a program, which takes CPU time from the server
            thread::sleep(Duration::from_millis(200));
            // in the container: resources are shown to their own pid namespace only
            look(question).contains(answer) || served.is_finished()
        });
        assert!(listens, "not within {LIMIT:?}: {question} shows {answer:?}");
        let came = ask();
        served.join().expect("the server succeeded");
        came
    })
}
