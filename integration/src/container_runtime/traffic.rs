// SPDX-License-Identifier: Apache-2.0
//! RDMA between containers, by programs in them: `rping` (connection manager) and `ib_read_bw` (verbs).

use super::{Container, pod::succeeded};
use crate::{
    traffic::{assert_rping_succeeded, average, gid_of},
    wait,
};
use std::{thread, time::Duration};

/// Time limit until a server's program listens. With `kubectl exec` the program starts late.
const LIMIT: Duration = Duration::from_secs(240);

/// Command that shows whether `rping` listens, and the text that its output then contains.
pub(crate) const RPING_LISTENS: (&str, &str) = ("rdma resource show cm_id", "LISTEN");

/// Command that shows whether a program of perftest listens, and the text that its output then contains.
pub(crate) const PERFTEST_LISTENS: (&str, &str) = ("ss -Hltn", ":18515 ");

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Container in which the programs run.
    pub container: &'a Container,
    /// The RDMA device.
    pub rdma: &'a str,
    /// The pod's address.
    pub address: &'a str,
}

/// Runs `rping` from `client` to `server`. It sends five messages each way, and compares their contents.
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
    assert_rping_succeeded(Some(ran.code), &ran.output);
}

/// Runs `ib_read_bw` with `pairs` queue pairs and the GIDs of both ends' addresses. The programs exchange their
/// parameters over TCP, with the address `by_tcp`. Returns the average in MB/s.
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

/// Waits until the sysfs of the end's container shows the end's address as a GID. Returns the GID's index.
#[track_caller]
pub fn gid_index(end: End<'_>) -> usize {
    gid_of(end.rdma, end.address, |script| end.container.sh(script))
}

/// Runs `serve` in a thread. Runs `ask` as soon as the output of the command `question`, which `read` runs, contains
/// `answer`, or `serve` has ended. Returns the result of `ask`. `serve` must end without a panic.
#[track_caller]
pub(crate) fn between<S: Send, A>(
    read: impl Fn(&str) -> String,
    (question, answer): (&str, &str),
    serve: impl FnOnce() -> S + Send,
    ask: impl FnOnce() -> A,
) -> A {
    thread::scope(|scope| {
        let served = scope.spawn(serve);
        let listens = wait::within(LIMIT, || {
            // each call starts a program, which takes CPU time from the server
            thread::sleep(Duration::from_millis(200));
            // runs in the container, because the kernel shows resources only in their own PID namespace
            read(question).contains(answer) || served.is_finished()
        });
        assert!(listens, "not within {LIMIT:?}: {question} shows {answer:?}");
        let came = ask();
        served.join().expect("the server succeeded");
        came
    })
}
