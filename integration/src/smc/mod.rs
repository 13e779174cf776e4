// SPDX-License-Identifier: Apache-2.0
//! Connections over SMC or TCP between two namespaces by `smc-peer`. Both ends compare every byte.

mod one_cpu;
pub mod pods;

use one_cpu::First;
pub use one_cpu::{OneCpu, schedule};

use crate::{Netns, daemon::rdma_device_plugin};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// Time limit under emulation for everything except an exchange.
const LIMIT: Duration = Duration::from_secs(240);

/// Kind of an end's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// `AF_SMC`
    Smc,
    /// `AF_INET` or `AF_INET6` with `IPPROTO_SMC` (Linux 6.11).
    IpProtoSmc,
    /// Plain TCP.
    Tcp,
}

impl Socket {
    fn option(self) -> Option<&'static str> {
        match self {
            Self::Smc => None,
            Self::IpProtoSmc => Some("--ipproto"),
            Self::Tcp => Some("--tcp"),
        }
    }
}

/// The program, made by `SmcPeer(env!("CARGO_BIN_EXE_smc-peer").into())`.
#[derive(Clone, Debug)]
pub struct SmcPeer(pub PathBuf);

/// A connection of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Duration of `connect`.
    pub took: Duration,
    /// Address of the client's end.
    pub local: SocketAddr,
    /// Number of bytes that each end sends.
    pub bytes: u64,
}

/// A running server. Drop kills it.
#[derive(Debug)]
pub struct Server {
    process: Process,
    address: SocketAddr,
}

/// A client with its connections. Drop kills it.
#[derive(Debug)]
pub struct Client {
    process: Process,
    connected: Vec<Connected>,
}

/// Runs `rdma-device-plugin smc` with these arguments, which must succeed. Returns its output.
#[track_caller]
pub fn read_out(words: &[&str]) -> String {
    let output = Command::new(rdma_device_plugin())
        .arg("smc")
        .args(words)
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    assert_eq!(errors, "");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the pod's state by `rdma-device-plugin smc --json`.
#[track_caller]
pub fn shown(pod: &Netns) -> Value {
    serde_json::from_str(&read_out(&["--json", pod.name()])).expect("JSON")
}

/// Returns the pod's connections that are open in both directions.
#[track_caller]
pub fn active(pod: &Netns) -> Vec<Value> {
    let mut connections = shown(pod)["connections"].take();
    let connections = connections.as_array_mut().expect("a list");
    connections.retain(|it| it["state"] == "ACTIVE");
    std::mem::take(connections)
}

impl SmcPeer {
    /// Starts a server in `netns` that listens at `address`, such as `10.0.0.1:7000`. Port 0 means any
    /// free port.
    #[track_caller]
    pub fn serve(&self, netns: &Netns, socket: Socket, address: &str) -> Server {
        self.serve_with(netns, socket, &[address])
    }

    /// Starts a server like [`Self::serve`]. The server keeps its ends open after clients have closed
    /// theirs.
    #[track_caller]
    pub fn serve_and_hold(&self, netns: &Netns, socket: Socket, address: &str) -> Server {
        self.serve_with(netns, socket, &["--hold", address])
    }

    #[track_caller]
    fn serve_with(&self, netns: &Netns, socket: Socket, words: &[&str]) -> Server {
        let mut process = Process::start(self, netns, "server", socket.option(), words);
        let listening = process.event("listening", LIMIT);
        Server {
            address: parse(&listening["address"]),
            process,
        }
    }

    /// Starts a client in `netns` with connections to `server`, which stay open. `work` is the number of connections,
    /// and the number of bytes that each of them carries in each direction. Waits for all bytes, at most `limit`.
    #[track_caller]
    pub fn connect(
        &self,
        netns: &Netns,
        socket: Socket,
        server: SocketAddr,
        work: (usize, u64),
        limit: Duration,
    ) -> Client {
        let mut client = self.open(netns, socket, server, work);
        client.has_exchanged(limit);
        client
    }

    /// Starts a client like [`Self::connect`], but returns as soon as the client has its connections.
    #[track_caller]
    fn open(
        &self,
        netns: &Netns,
        socket: Socket,
        server: SocketAddr,
        (count, bytes): (usize, u64),
    ) -> Client {
        let (connections, size) = (count.to_string(), bytes.to_string());
        let address = server.to_string();
        let words = [
            "--connections",
            &connections,
            "--bytes",
            &size,
            "--hold",
            &address,
        ];
        let one = (socket != Socket::Tcp).then(|| (OneCpu::begin(), First::begin()));
        let mut process = Process::start(self, netns, "client", socket.option(), &words);
        let connected = (0..count).map(|_| {
            let event = process.event("connected", LIMIT);
            Connected {
                took: Duration::from_micros(event["microseconds"].as_u64().expect("a number")),
                local: parse(&event["local"]),
                bytes,
            }
        });
        let connected = connected.collect();
        drop(one);
        Client { process, connected }
    }
}

impl Server {
    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Sends SIGKILL to the server.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Ends the server. Panics if any received byte was wrong.
    #[track_caller]
    pub fn end(self) {
        self.process.end();
    }
}

impl Client {
    /// Returns the client's open connections.
    pub fn connected(&self) -> &[Connected] {
        &self.connected
    }

    /// Waits until all bytes have been exchanged, for at most `limit`.
    #[track_caller]
    fn has_exchanged(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        for Connected { bytes, .. } in &self.connected {
            let left = end.saturating_duration_since(Instant::now());
            assert_eq!(self.process.event("equal", left)["bytes"], *bytes);
        }
    }

    /// Returns the client's process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Sends SIGKILL to the client.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Closes the connections.
    #[track_caller]
    pub fn end(self) {
        self.process.end();
    }
}

#[track_caller]
fn parse(address: &Value) -> SocketAddr {
    let text = address.as_str().expect("an address");
    text.parse().expect("an address")
}

/// `smc-peer` and its output. Drop kills the program.
#[derive(Debug)]
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    events: Receiver<String>,
    received: Vec<String>,
}

impl Process {
    #[track_caller]
    fn start(
        SmcPeer(program): &SmcPeer,
        netns: &Netns,
        role: &str,
        option: Option<&str>,
        words: &[&str],
    ) -> Self {
        let mut command = netns.command(program);
        command.arg(role).args(option).args(words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, events) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            events,
            received: vec![],
        }
    }

    /// Returns the next event called `name`. Panics if the event `failed` precedes it.
    #[track_caller]
    fn event(&mut self, name: &str, limit: Duration) -> Value {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = match self.events.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("not {name:?} within {limit:?}, only {:#?}", self.received)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    panic!("ended ({status:?}) before {name:?}: {:#?}", self.received)
                }
            };
            self.received.push(line.clone());
            let event: Value = serde_json::from_str(&line).expect("JSON");
            assert_ne!(event["event"], "failed", "{:#?}", self.received);
            if event["event"] == name {
                return event;
            }
        }
    }

    #[track_caller]
    fn end(mut self) {
        drop(self.stdin.take());
        let mut status = None;
        crate::wait::within(LIMIT, || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        });
        let Some(status) = status else {
            self.received.extend(self.events.try_iter());
            panic!("did not end: {:#?}", self.received);
        };
        // the thread that reads the events may still add the last ones
        self.received.extend(self.events.iter());
        assert!(status.success(), "{status}: {:#?}", self.received);
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
