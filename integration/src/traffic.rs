// SPDX-License-Identifier: Apache-2.0
//! RDMA traffic between two pods by `rping`, perftest, `ucx_perftest` and the pingpong programs of rdma-core.

use crate::{Netns, netns, wait};
use std::{
    fs::File,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Time limit for a program under emulation.
const LIMIT: Duration = Duration::from_secs(240);

/// A pod's end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Network namespace of the pod.
    pub pod: &'a Netns,
    /// The RDMA device.
    pub rdma: &'a str,
    /// The pod's address.
    pub address: &'a str,
}

/// Runs `rping` from `client` to `server`. It sends five messages each way, and compares their contents.
#[track_caller]
pub fn rping(server: End<'_>, client: End<'_>) {
    let serving = serve_rping(server);
    ask_rping(client, server.address);
    serving.end();
}

/// Starts the server's end of [`rping`]. Returns when it listens.
#[track_caller]
pub fn serve_rping(server: End<'_>) -> Serving {
    let mut command = server.pod.command("rping");
    command.args(["-s", "-a", server.address, "-v", "-V", "-C", "5"]);
    Serving::start("rping", server.pod, command)
}

/// Runs the client's end of [`rping`].
#[track_caller]
pub fn ask_rping(client: End<'_>, server: &str) {
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = client.pod.command("rping");
    asking.args(["-c", "-a", server, "-I", client.address]);
    asking.args(["-v", "-V", "-C", "5"]);
    let client_end = Process::start(asking, &log.path().join("client"));
    let (status, output) = client_end.ended("rping's client");
    assert_rping_succeeded(status.code(), &output);
}

/// Asserts that the client of `rping -v -V -C 5` completed: it printed five messages, whose contents it had compared.
///
/// At its end `rping` closes the channel on which its other thread still waits for events. If that thread notices this
/// first, the process ends with 255 after a complete exchange (`cm_thread`, librdmacm/examples/rping.c).
#[track_caller]
pub(crate) fn assert_rping_succeeded(code: Option<i32>, output: &str) {
    let closed_early =
        code == Some(255) && output.contains("rdma_get_cm_event: Bad file descriptor");
    assert!(code == Some(0) || closed_early, "rping: {code:?}: {output}");
    assert_eq!(output.matches("ping data").count(), 5, "{output}");
}

/// Runs `ib_write_bw` from `client` to `server` with the GIDs of their addresses. The programs exchange their
/// parameters over TCP, with the server's IPv4 address `by_tcp`. Returns the average in MB/s.
#[track_caller]
pub fn write_bandwidth(server: End<'_>, client: End<'_>, by_tcp: &str) -> f64 {
    Write::new(server, client, by_tcp).start().bandwidth()
}

/// Sends 100 messages of 4 KiB (an atomic operation has 8 bytes) by perftest's `program` from `client` to `server`.
/// With `ib_read_bw` the data flow in the other direction. `program` may contain arguments, as in `ib_read_bw -q 30`.
/// The connection manager makes the connection, as iWARP requires. Returns the client's output.
#[track_caller]
pub fn by_connection_manager(program: &str, server: End<'_>, client: End<'_>) -> String {
    let serving = serve_by_connection_manager(program, server);
    let output = ask_by_connection_manager(program, client, server.address);
    serving.end();
    output
}

/// Starts the server's end of [`by_connection_manager`]. Returns when it listens.
#[track_caller]
pub fn serve_by_connection_manager(program: &str, server: End<'_>) -> Serving {
    Serving::start(program, server.pod, perftest(program, server))
}

/// Runs the client's end of [`by_connection_manager`]. Returns its output.
#[track_caller]
pub fn ask_by_connection_manager(program: &str, client: End<'_>, server: &str) -> String {
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = perftest(program, client);
    asking.arg(server);
    Process::start(asking, &log.path().join("client")).end(program)
}

/// Runs the programs like [`by_connection_manager`], and calls `fault` when the server listens. The client must fail.
/// Returns its output.
#[track_caller]
pub fn fails_by_connection_manager(
    program: &str,
    server: End<'_>,
    client: End<'_>,
    fault: impl FnOnce(),
) -> String {
    let _serving = serve_by_connection_manager(program, server);
    fault();
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = perftest(program, client);
    asking.arg(server.address);
    let (status, output) = Process::start(asking, &log.path().join("client")).ended(program);
    assert!(!status.success(), "{program}: {output}");
    output
}

/// Sends 100 messages of 4 KiB by UCX's `ucx_perftest` from `client` to `server`. UCX uses only the transport
/// `transport`.
#[track_caller]
pub fn ucx(transport: &str, server: End<'_>, client: End<'_>) {
    let serving = serve_ucx(transport, server);
    ask_ucx(transport, client, server.address);
    serving.end();
}

/// Starts the server's end of [`ucx`]. Returns when it listens.
#[track_caller]
pub fn serve_ucx(transport: &str, server: End<'_>) -> Serving {
    let command = ucx_perftest(transport, server);
    let listens = || server.pod.listens(13337);
    Serving::start_with("ucx_perftest", command, listens)
}

/// Runs the client's end of [`ucx`].
#[track_caller]
pub fn ask_ucx(transport: &str, client: End<'_>, server: &str) {
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = ucx_perftest(transport, client);
    asking.arg(server);
    Process::start(asking, &log.path().join("client")).end(transport);
}

fn ucx_perftest(transport: &str, end: End<'_>) -> Command {
    let mut command = end.pod.command("ucx_perftest");
    command.args(["-t", "tag_bw", "-s", "4096", "-n", "100", "-w", "5"]);
    let devices = format!("{}:1", end.rdma);
    command.envs([("UCX_TLS", transport), ("UCX_NET_DEVICES", &devices)]);
    command
}

/// Starts the server's end of `program`, `ibv_rc_pingpong` or `ibv_ud_pingpong`, with the GID at `index`. Returns when
/// the server listens. Both ends send 100 messages of 1 KiB, and compare the contents of received messages. They
/// exchange their parameters over TCP.
#[track_caller]
pub fn serve_pingpong(program: &str, server: End<'_>, index: u64) -> Serving {
    let listens = || server.pod.listens(18515);
    Serving::start_with(program, pingpong(program, server, index), listens)
}

/// Runs the client's end of [`serve_pingpong`].
#[track_caller]
pub fn ask_pingpong(program: &str, client: End<'_>, index: u64, server: &str) {
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = pingpong(program, client, index);
    asking.arg(server);
    Process::start(asking, &log.path().join("client")).end(program);
}

fn pingpong(program: &str, end: End<'_>, index: u64) -> Command {
    let mut command = end.pod.command(program);
    command.args(["-d", end.rdma, "-g", &index.to_string()]);
    command.args(["-s", "1024", "-n", "100", "-c"]);
    command
}

fn perftest(program: &str, end: End<'_>) -> Command {
    let mut words = program.split_whitespace();
    let mut command = end.pod.command(words.next().unwrap_or_default());
    command
        .args(words)
        .args(["-R", "-d", end.rdma, "-n", "100", "-F"]);
    // an atomic operation always has 8 bytes
    if !program.starts_with("ib_atomic") {
        command.args(["-s", "4096"]);
    }
    command
}

/// A listening server. Drop kills it.
pub struct Serving {
    what: String,
    process: Process,
    _log: TempDir,
}

impl Serving {
    #[track_caller]
    fn start(program: &str, pod: &Netns, command: Command) -> Self {
        Self::start_with(program, command, || listens(pod))
    }

    /// Returns when `listens` returns true.
    #[track_caller]
    fn start_with(program: &str, command: Command, listens: impl FnMut() -> bool) -> Self {
        let log = TempDir::new().expect("a directory for the output");
        let process = Process::start(command, &log.path().join("server"));
        wait::until(&format!("{program} listens"), listens);
        Self {
            what: format!("{program}'s server"),
            process,
            _log: log,
        }
    }

    /// Waits until the server succeeds.
    #[track_caller]
    pub fn end(self) {
        self.process.end(&self.what);
    }
}

/// Returns true if a process in `pod` listens for connections of the connection manager. The kernel lists an identifier
/// as listening before an iWARP driver listens on its TCP port (`rdma_listen()`, `drivers/infiniband/core/cma.c`).
#[track_caller]
pub fn listens(pod: &Netns) -> bool {
    let rdma = |words: &[&str]| {
        let mut command = Command::new("rdma");
        command.args(words);
        // runs on a thread in the namespace: `ip netns exec` would make mounts that are not needed
        pod.inside(|| netns::check(&mut command))
    };
    let ids = rdma(&["resource", "show", "cm_id"]);
    let is_iwarp = rdma(&["dev", "show"]).contains("node_type rnic");
    let mut listening = ids.lines().filter(|line| line.contains("LISTEN"));
    listening.any(|line| {
        // src-addr 10.0.0.1:7174
        let mut words = line.split_whitespace().skip_while(|it| *it != "src-addr");
        let port = words
            .nth(1)
            .and_then(|it| it.rsplit(':').next()?.parse().ok());
        !is_iwarp || port.is_some_and(|port| pod.listens(port))
    })
}

/// A run of `ib_write_bw`, with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    ends: [End<'a>; 2],
    by_tcp: &'a str,
    port: u16,
    count: u32,
    gids: Option<[usize; 2]>,
}

impl<'a> Write<'a> {
    /// Describes a run with the parameters of [`write_bandwidth`]: 100 writes of 4 KiB.
    pub fn new(server: End<'a>, client: End<'a>, by_tcp: &'a str) -> Self {
        Self {
            ends: [server, client],
            by_tcp,
            port: 18515,
            count: 100,
            gids: None,
        }
    }

    /// Sets the TCP port, for a second run in the same pod at the same time.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the number of writes of 4 KiB.
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets the GID indexes, the server's first. They replace the indexes of the addresses' GIDs.
    pub fn gids(mut self, server: usize, client: usize) -> Self {
        self.gids = Some([server, client]);
        self
    }

    /// Starts the server, waits until it listens, and starts the client.
    #[track_caller]
    pub fn start(self) -> Writing {
        let gids = self.gids.unwrap_or_else(|| self.ends.map(gid_index));
        let (port, count) = (self.port.to_string(), self.count.to_string());
        let log = TempDir::new().expect("a directory for the output");
        let command = |end: End<'_>, gid: usize| {
            let mut command = end.pod.command("ib_write_bw");
            let gid = gid.to_string();
            command.args(["-d", end.rdma, "-x", &gid, "-p", &port]);
            command.args(["-s", "4096", "-n", &count, "-F"]);
            command
        };
        let server = Process::start(command(self.ends[0], gids[0]), &log.path().join("server"));
        wait::until("ib_write_bw listens", || {
            self.ends[0].pod.listens(self.port)
        });
        let mut asking = command(self.ends[1], gids[1]);
        asking.arg(self.by_tcp);
        let client = Process::start(asking, &log.path().join("client"));
        Writing {
            server,
            client,
            _log: log,
        }
    }
}

/// A running `ib_write_bw`. Drop kills it.
pub struct Writing {
    server: Process,
    client: Process,
    _log: TempDir,
}

impl Writing {
    /// Waits until both ends succeed. Returns the average in MB/s. On a busy machine the average is sometimes 0
    /// although all data has arrived. So a test that requires traffic must use a counter instead.
    #[track_caller]
    pub fn bandwidth(self) -> f64 {
        let output = self.client.end("ib_write_bw's client");
        self.server.end("ib_write_bw's server");
        average(&output)
    }
}

/// Returns the average in MB/s from the output of perftest's client with messages of 4 KiB.
#[track_caller]
pub(crate) fn average(output: &str) -> f64 {
    // columns: bytes, iterations, peak, average, message rate
    let mut rows = output
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&"4096"));
    row.and_then(|row| row.get(3)?.parse().ok())
        .unwrap_or_else(|| panic!("no bandwidth was measured: {output}"))
}

/// Waits until the sysfs of the end's pod shows the end's address as a GID. Returns the GID's index.
#[track_caller]
pub fn gid_index(end: End<'_>) -> usize {
    gid_of(end.rdma, end.address, |script| {
        netns::check(end.pod.command("sh").args(["-c", script]))
    })
}

/// Returns the index like [`gid_index`]. `sh` runs a script and returns its output.
#[track_caller]
pub(crate) fn gid_of(rdma: &str, address: &str, sh: impl Fn(&str) -> String) -> usize {
    let gid = match address.parse().expect("an IP address") {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let script = format!("grep -r . /sys/class/infiniband/{rdma}/ports/1/gids/");
    let mut index = None;
    wait::until(&format!("{address} is a GID of {rdma}"), || {
        index = sh(&script).lines().find_map(|line| {
            let (path, text) = line.split_once(':')?;
            let shown: Ipv6Addr = text.parse().ok()?;
            let file = Path::new(path).file_name()?.to_str()?;
            (shown == gid).then(|| file.parse().ok()).flatten()
        });
        index.is_some()
    });
    index.expect("it was found")
}

/// A program with its output in a file. Drop kills it.
struct Process {
    child: Child,
    log: std::path::PathBuf,
}

impl Process {
    #[track_caller]
    fn start(mut command: Command, log: &Path) -> Self {
        let file = File::create(log).expect("a file for the output");
        let errors = file.try_clone().expect("a second handle");
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// Waits until the program succeeds. Returns its output.
    #[track_caller]
    fn end(self, what: &str) -> String {
        let (status, output) = self.ended(what);
        assert!(status.success(), "{what}: {status}: {output}");
        output
    }

    /// Waits for the program's end. Returns its exit status and output.
    #[track_caller]
    fn ended(mut self, what: &str) -> (ExitStatus, String) {
        let mut status = None;
        wait::within(LIMIT, || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        });
        let output = std::fs::read_to_string(&self.log).expect("its output");
        let status =
            status.unwrap_or_else(|| panic!("{what} did not end within {LIMIT:?}: {output}"));
        (status, output)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
