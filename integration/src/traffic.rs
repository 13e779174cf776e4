// SPDX-License-Identifier: Apache-2.0
//! RDMA traffic between two pods: `rping` (connection manager) and `ib_write_bw` (verbs).

use crate::{Netns, netns, wait};
use std::{
    fs::File,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Limit for a client under emulation.
const LIMIT: Duration = Duration::from_secs(240);

/// A pod's end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Namespace of the pod.
    pub pod: &'a Netns,
    /// The RDMA device.
    pub rdma: &'a str,
    /// The pod's address.
    pub address: &'a str,
}

/// `rping` from `client` to `server`: five messages each way, and their contents compared.
#[track_caller]
pub fn rping(server: End<'_>, client: End<'_>) {
    let serving = serve_rping(server);
    ask_rping(client, server.address);
    serving.end();
}

/// The server's end of [`rping`], which listens.
#[track_caller]
pub fn serve_rping(server: End<'_>) -> Serving {
    let mut command = server.pod.command("rping");
    command.args(["-s", "-a", server.address, "-v", "-V", "-C", "5"]);
    Serving::start("rping", server.pod, command)
}

/// The client's end of [`rping`].
#[track_caller]
pub fn ask_rping(client: End<'_>, server: &str) {
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = client.pod.command("rping");
    asking.args(["-c", "-a", server, "-I", client.address]);
    asking.args(["-v", "-V", "-C", "5"]);
    let client_end = Process::start(asking, &log.path().join("client"));
    let (status, said) = client_end.ended("rping's client");
    assert_rping_succeeded(status.code(), &said);
}

/// Asserts that the client of `rping -v -V -C 5` completed: five messages each way, each printed after a comparison of
/// its contents.
///
/// At its end `rping` closes the channel on which its other thread still waits for events. If that thread is faster,
/// the process ends with 255 after a complete exchange (`cm_thread`, librdmacm/examples/rping.c).
#[track_caller]
pub(crate) fn assert_rping_succeeded(code: Option<i32>, said: &str) {
    let closed_early = code == Some(255) && said.contains("rdma_get_cm_event: Bad file descriptor");
    assert!(code == Some(0) || closed_early, "rping: {code:?}: {said}");
    assert_eq!(said.matches("ping data").count(), 5, "{said}");
}

/// `ib_write_bw` from `client` to `server` with the GIDs of their addresses. What is
/// exchanged beforehand goes over TCP to `by_tcp`, the server's IPv4 address. Returns the
/// average, MB/s.
#[track_caller]
pub fn write_bandwidth(server: End<'_>, client: End<'_>, by_tcp: &str) -> f64 {
    Write::new(server, client, by_tcp).start().bandwidth()
}

/// 100 messages of 4 KiB by perftest's `program`, with arguments of its own as `ib_read_bw -q 30`, from `client` to
/// `server` or, with `ib_read_bw`, the other way. The connection manager makes the connection, as iWARP needs it. What
/// the client printed.
#[track_caller]
pub fn by_connection_manager(program: &str, server: End<'_>, client: End<'_>) -> String {
    let serving = serve_by_connection_manager(program, server);
    let said = ask_by_connection_manager(program, client, server.address);
    serving.end();
    said
}

/// The server's end of [`by_connection_manager`], which listens.
#[track_caller]
pub fn serve_by_connection_manager(program: &str, server: End<'_>) -> Serving {
    Serving::start(program, server.pod, perftest(program, server))
}

/// The client's end of [`by_connection_manager`].
#[track_caller]
pub fn ask_by_connection_manager(program: &str, client: End<'_>, server: &str) -> String {
    let log = TempDir::new().expect("a directory for the output");
    let mut asking = perftest(program, client);
    asking.arg(server);
    Process::start(asking, &log.path().join("client")).end(program)
}

/// [`by_connection_manager`] that `fault` interrupts when the server listens. The client has to fail: what it printed.
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
    let (status, said) = Process::start(asking, &log.path().join("client")).ended(program);
    assert!(!status.success(), "{program}: {said}");
    said
}

fn perftest(program: &str, end: End<'_>) -> Command {
    let mut words = program.split_whitespace();
    let mut command = end.pod.command(words.next().unwrap_or_default());
    command
        .args(words)
        .args(["-R", "-d", end.rdma, "-n", "100", "-F"]);
    // an atomic operation has 8 bytes
    if !program.starts_with("ib_atomic") {
        command.args(["-s", "4096"]);
    }
    command
}

/// A server of the connection manager, which listens; killed on drop.
pub struct Serving {
    what: String,
    process: Process,
    _log: TempDir,
}

impl Serving {
    #[track_caller]
    fn start(program: &str, pod: &Netns, command: Command) -> Self {
        let log = TempDir::new().expect("a directory for the output");
        let process = Process::start(command, &log.path().join("server"));
        wait::until(&format!("{program} listens"), || listens(pod));
        Self {
            what: format!("{program}'s server"),
            process,
            _log: log,
        }
    }

    /// Waits for its success.
    #[track_caller]
    pub fn end(self) {
        self.process.end(&self.what);
    }
}

/// Returns true if a process in `pod` waits for connections of the connection manager.
#[track_caller]
fn listens(pod: &Netns) -> bool {
    let mut rdma = Command::new("rdma");
    let rdma = rdma.args(["resource", "show", "cm_id"]);
    // from a thread inside, as `ip netns exec` mounts more than this needs
    pod.inside(|| netns::check(rdma)).contains("LISTEN")
}

/// Run of `ib_write_bw`, described in detail.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    ends: [End<'a>; 2],
    by_tcp: &'a str,
    port: u16,
    count: u32,
    gids: Option<[usize; 2]>,
}

impl<'a> Write<'a> {
    /// Makes a run as [`write_bandwidth`] does: 100 writes of 4 KiB.
    pub fn new(server: End<'a>, client: End<'a>, by_tcp: &'a str) -> Self {
        Self {
            ends: [server, client],
            by_tcp,
            port: 18515,
            count: 100,
            gids: None,
        }
    }

    /// Another TCP port: for a second run in the same pod at the same time.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the number of writes of 4 KiB.
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// These GID indices, the server's first, instead of those of the addresses.
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

/// An `ib_write_bw` at work; killed on drop.
pub struct Writing {
    server: Process,
    client: Process,
    _log: TempDir,
}

impl Writing {
    /// Waits for its success; the average, MB/s. That is 0 sometimes on a machine with much
    /// to do, all data being there: a proof of traffic is a counter, not this.
    #[track_caller]
    pub fn bandwidth(self) -> f64 {
        let said = self.client.end("ib_write_bw's client");
        self.server.end("ib_write_bw's server");
        average(&said)
    }
}

/// The average, MB/s, in what perftest's client said of messages of 4 KiB.
#[track_caller]
pub(crate) fn average(said: &str) -> f64 {
    // bytes, iterations, peak, average, message rate
    let mut rows = said
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&"4096"));
    row.and_then(|row| row.get(3)?.parse().ok())
        .unwrap_or_else(|| panic!("no bandwidth was measured: {said}"))
}

/// Index of the GID that `end`'s address is, as its pod's sysfs has it; waits for it.
#[track_caller]
pub fn gid_index(end: End<'_>) -> usize {
    gid_of(end.rdma, end.address, |script| {
        netns::check(end.pod.command("sh").args(["-c", script]))
    })
}

/// Does the same as `gid_index`, with `sh`, which runs a script and returns its output.
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

/// A program with its output in a file; killed on drop.
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

    /// Waits for its success; its output.
    #[track_caller]
    fn end(self, what: &str) -> String {
        let (status, said) = self.ended(what);
        assert!(status.success(), "{what}: {status}: {said}");
        said
    }

    /// Waits for the program's end. Returns its exit status and output.
    #[track_caller]
    fn ended(mut self, what: &str) -> (ExitStatus, String) {
        let mut status = None;
        wait::within(LIMIT, || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        });
        let said = std::fs::read_to_string(&self.log).expect("its output");
        let status =
            status.unwrap_or_else(|| panic!("{what} did not end within {LIMIT:?}: {said}"));
        (status, said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
