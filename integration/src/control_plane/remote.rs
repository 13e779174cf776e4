// SPDX-License-Identifier: Apache-2.0
//! Access to the control plane for tests in a node of the lab. The control plane runs outside of the node
//! ([`super::server`]).

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

/// Environment variable that names the directory of keys and certificates in the node.
pub(super) const PKI: &str = "RDMA_LAB_PKI";

/// Time limit for an answer. Commands of an operator wait for up to ten minutes.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A control plane that has only this test's nodes.
#[derive(Debug)]
pub struct RemoteControlPlane {
    pki: PathBuf,
    /// Copies of the programs on a tmpfs: the kernel reads them often.
    programs: TempDir,
}

impl RemoteControlPlane {
    /// Connects to a control plane by the node's NIC. Returns when pods can be created. The first node gets a new
    /// control plane, except after it has booted again.
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

    /// Returns the path of the program that contains all programs of Kubernetes.
    pub fn program(&self) -> PathBuf {
        self.programs.path().join("kubernetes")
    }

    /// Returns the path of the file `name` among the certificates and kubeconfigs.
    pub fn pki(&self, name: &str) -> String {
        self.pki.join(name).display().to_string()
    }

    /// Runs a line in an operator's shell. The line may fail.
    pub fn try_shell(&self, line: &str) -> Output {
        question(Question::Shell(line.to_owned())).into()
    }

    /// Returns the API server's answer to an administrator's `GET PATH`. Returns `None` without an answer, and for an
    /// error.
    pub fn ask(&self, path: &str) -> Option<String> {
        let (is_done, answer) = self.request("GET", path, "");
        is_done.then_some(answer)
    }

    /// Sends the API server a request with a JSON body. Returns true if it succeeded, and the answer.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (bool, String) {
        let [method, path, body] = [method, path, body].map(str::to_owned);
        let answer = question(Question::Api { method, path, body });
        (answer.is_done(), answer.into_output())
    }

    /// Ends the API server by `signal`, and starts it again. Returns when it is ready.
    #[track_caller]
    pub fn restart_api_server(&mut self, signal: Signal) {
        change(Change::RestartApiServer(signal as i32));
    }

    /// Cuts the power of a node: its machine is killed.
    #[track_caller]
    pub fn power_off(&mut self, node: Member) {
        change(Change::PowerOff(node.number));
    }

    /// Asserts that the control plane's programs and all nodes whose power was not cut run. `yet` is the state for
    /// which the caller waits.
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
        eprintln!("{}", question(Question::LastErrors).into_output());
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
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&serde_json::to_vec(request)?)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
