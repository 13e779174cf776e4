// SPDX-License-Identifier: Apache-2.0
//! A control plane as the tests in a node of the lab reach it: it runs outside ([`super::server`]).

use super::{
    ADDRESS,
    messages::{Answer, Change, PORT, Question, Request},
    nodes::{FIRST, Member},
    program,
};
use crate::power;
use nix::sys::signal::Signal;
use std::{
    env, fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    process::Output,
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Names the directory of the keys and certificates that the node finds there.
pub(super) const PKI: &str = "RDMA_LAB_PKI";

/// Limit for an answer: an operator's commands wait for ten minutes.
const PATIENCE: Duration = Duration::from_secs(900);

/// Control plane that has had no nodes but those of this test.
#[derive(Debug)]
pub struct RemoteControlPlane {
    pki: PathBuf,
    /// Programs on a tmpfs: they are read often.
    programs: TempDir,
}

impl RemoteControlPlane {
    /// Takes one, by the node's NIC; comes back when pods can be made. The first node's is one that has seen no node
    /// yet, unless the node has booted again.
    #[track_caller]
    pub fn reached() -> Self {
        let pki = env::var_os(PKI).map(PathBuf::from);
        let pki = pki.unwrap_or_else(|| panic!("{PKI} is not set: scripts/test lab cluster"));
        let programs = TempDir::with_prefix_in("kubernetes.", "/run").expect("a directory");
        fs::copy(program(), programs.path().join("kubernetes")).expect("the program");
        change(match Member::this() {
            FIRST if !power::is_on_again() => Change::Fresh,
            _ => Change::AssertRuns("a node joins".to_owned()),
        });
        Self { pki, programs }
    }

    /// The program that is all of Kubernetes'.
    pub fn program(&self) -> PathBuf {
        self.programs.path().join("kubernetes")
    }

    /// The file `name` of the certificates and kubeconfigs.
    pub fn pki(&self, name: &str) -> String {
        self.pki.join(name).display().to_string()
    }

    /// Runs a command line as an operator's shell does, also one that fails.
    pub fn try_shell(&self, line: &str) -> Output {
        question(Question::Shell(line.to_owned())).into()
    }

    /// Returns the API server's answer to an administrator's `GET PATH`. None: no answer, or an error.
    pub fn ask(&self, path: &str) -> Option<String> {
        let (is_done, answer) = self.request("GET", path, "");
        is_done.then_some(answer)
    }

    /// Sends the API server a request with a JSON body. Returns whether it succeeded, and its answer.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (bool, String) {
        let [method, path, body] = [method, path, body].map(str::to_owned);
        let answer = question(Question::Api { method, path, body });
        (answer.is_done(), answer.said())
    }

    /// The API server ends by `signal` and starts again; comes back when it is ready.
    #[track_caller]
    pub fn restart_api_server(&mut self, signal: Signal) {
        change(Change::RestartApiServer(signal as i32));
    }

    /// A node loses power: its machine is killed.
    #[track_caller]
    pub fn power_off(&mut self, node: Member) {
        change(Change::PowerOff(node.number));
    }

    /// Asserts that the control plane's programs run, and all nodes that have power. The caller waits for `yet`.
    #[track_caller]
    pub fn assert_runs(&mut self, yet: &str) {
        change(Change::AssertRuns(yet.to_owned()));
    }
}

impl Drop for RemoteControlPlane {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for what in ["get daemonsets,pods -A -o wide", "get events -A"] {
            let line = format!("kubectl {what}");
            let shown = self.try_shell(&line);
            eprintln!("{line}:\n{}", String::from_utf8_lossy(&shown.stdout));
        }
        eprintln!("{}", question(Question::LastErrors).said());
    }
}

#[track_caller]
fn change(change: Change) {
    let output = Output::from(ask(&Request::Change(change)));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

fn question(question: Question) -> Answer {
    ask(&Request::Question(question))
}

fn ask(request: &Request) -> Answer {
    let answer = try_to_ask(request);
    answer.unwrap_or_else(|error| {
        let why = format!("the control plane's server: {error}");
        Answer::not_done(String::new(), why)
    })
}

fn try_to_ask(request: &Request) -> io::Result<Answer> {
    let mut stream = TcpStream::connect((ADDRESS, PORT))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(request)?)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
