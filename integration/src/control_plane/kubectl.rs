// SPDX-License-Identifier: Apache-2.0
//! An operator's requests to the API server by `kubectl`, and a test's own requests, which need less CPU time.

use super::{ADDRESS, ControlPlane, GC, HELM, PORT};
use crate::{Machine, Netns, daemon::rdma_device_plugin, wait};
use serde_json::Value;
use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::{fs::symlink, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

impl ControlPlane {
    /// Returns the API server's network namespace. Processes in this namespace reach the API server.
    pub fn netns(&self) -> Netns {
        Netns::existing(self.site.netns().path())
    }

    /// Returns the command of `program` in the API server's network namespace.
    pub fn command(&self, program: &Path) -> Command {
        self.site.netns().command(program)
    }

    /// Returns the command of the daemon of `machine`. It accesses the API server as a pod does, with the token and the
    /// CA in the directory `account` of the machine `account`.
    pub fn daemon(&self, machine: &Machine, account: &Machine) -> Command {
        let mut command = self.command(&rdma_device_plugin());
        machine.arguments(&mut command);
        let (host, port) = self.address();
        command.env("KUBERNETES_SERVICE_HOST", host);
        command.env("KUBERNETES_SERVICE_PORT", port.to_string());
        command.arg("--config").arg(machine.path("etc/config.json"));
        command.args(["--metrics-address", "127.0.0.1:9102"]);
        command.arg("--service-account-dir");
        command.arg(account.path("account"));
        command
    }

    /// Returns the API server's address and port, as pods of a cluster have them in their environment.
    pub fn address(&self) -> (&'static str, u16) {
        (ADDRESS, PORT)
    }

    /// Returns the API server's CA as PEM.
    pub fn ca(&self) -> String {
        fs::read_to_string(self.pki("ca.crt")).expect("a certificate")
    }

    /// Runs `kubectl LINE` with `token` as the only credential.
    pub fn kubectl_as(&self, token: &str, line: &str) -> Output {
        let mut command = self.site.netns().command(&self.program);
        command.arg("kubectl").args(line.split_whitespace());
        let (host, port) = self.address();
        command.args([
            "--token",
            token,
            "--server",
            &format!("https://{host}:{port}"),
        ]);
        command.args(["--certificate-authority", &self.pki("ca.crt")]);
        command
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", self.directory.path());
        command.output().expect("kubectl runs")
    }

    /// Runs `kubectl LINE`, split at white space, as an administrator.
    pub fn try_kubectl(&self, line: &str) -> Output {
        self.kubectl_with(line, "")
    }

    /// Runs `kubectl LINE`, which must succeed. Returns its output.
    #[track_caller]
    pub fn kubectl(&self, line: &str) -> String {
        self.apply(line, "")
    }

    /// Runs `kubectl LINE` with `input` on its standard input. It must succeed. Returns its output.
    #[track_caller]
    pub fn apply(&self, line: &str, input: &str) -> String {
        succeeded(&format!("kubectl {line}"), self.kubectl_with(line, input))
    }

    /// Runs `kubectl LINE` with `input` on its standard input.
    pub fn kubectl_with(&self, line: &str, input: &str) -> Output {
        let mut command = self.site.netns().command(&self.program);
        command.arg("kubectl").args(line.split_whitespace());
        self.as_administrator(&mut command);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("its standard input");
        // a program that reads no input may end before this write
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    /// Runs a line in an operator's shell, which has the plugin `kubectl rdma`. The line must succeed. Returns its
    /// output.
    #[track_caller]
    pub fn shell(&self, line: &str) -> String {
        succeeded(line, self.try_shell(line))
    }

    /// Runs a line like [`Self::shell`]. The line may fail.
    #[track_caller]
    pub fn try_shell(&self, line: &str) -> Output {
        let helm = env::var_os(HELM).map(PathBuf::from);
        let programs = [Some(&self.program), helm.as_ref()].into_iter().flatten();
        let mut path = format!("{}:", self.directory.path().display());
        if line.starts_with("kubectl rdma ") {
            // an earlier call may have made the link
            let _ = symlink(
                rdma_device_plugin(),
                self.directory.path().join("kubectl-rdma"),
            );
        }
        for directory in programs.filter_map(|it| it.parent()) {
            path.push_str(&format!("{}:", directory.display()));
        }
        path.push_str(&env::var("PATH").unwrap_or_default());
        let mut command = self.site.netns().command("sh");
        command.args(["-e", "-c", line]).current_dir(&self.desk);
        command.env("PATH", path);
        command.stdin(Stdio::null());
        let output = self.as_administrator(&mut command).output();
        output.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Returns the API server's answer to an administrator's `GET PATH`. Returns `None` without an answer, and for an
    /// error. A `kubectl` would take seconds to start in an emulated machine.
    pub fn ask(&self, path: &str) -> Option<String> {
        let (is_done, answer) = self.request("GET", path, "").ok()?;
        is_done.then_some(answer)
    }

    /// Sends the API server a request with a JSON body, which is a merge patch if `method` is `PATCH`. Returns true if
    /// the request succeeded, and the answer.
    ///
    /// # Errors
    /// The API server does not answer.
    pub fn request(&self, method: &str, path: &str, body: &str) -> io::Result<(bool, String)> {
        let mut stream = UnixStream::connect(self.proxy())?;
        stream.set_read_timeout(Some(wait::TIMEOUT))?;
        let length = body.len();
        let media_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        // HTTP/1.0: the answer ends with the connection
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {media_type}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, response_body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.split(' ').nth(1).unwrap_or_default();
        Ok((status.starts_with('2'), response_body.to_owned()))
    }

    /// Sends a request like [`Self::request`], which must succeed. Returns the answer.
    #[track_caller]
    pub(super) fn succeeds(&self, method: &str, path: &str, body: &str) -> String {
        let answer = self.request(method, path, body);
        let (is_done, answer) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!(is_done, "{method} {path}: {answer}");
        answer
    }

    fn as_administrator<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("KUBECONFIG", self.pki("admin.conf"));
        command.env(GC.0, GC.1);
        // a separate directory, because kubectl caches the cluster's list of API resources in it
        command.env("HOME", self.directory.path())
    }

    /// Returns the objects of `kubectl get WHAT`. Reads objects that tests often wait for without a new `kubectl`: they
    /// have all fields, and the elements of a list have no `kind`.
    #[track_caller]
    pub fn get(&self, what: &str) -> Vec<Value> {
        let text = match path_of(what) {
            Some(path) => self.succeeds("GET", &path, ""),
            None => self.kubectl(&format!("get {what} -o json")),
        };
        let mut list: Value = serde_json::from_str(&text).expect("JSON");
        // `get_mut`: indexing would add `items` to an object that is no list
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => vec![list],
        }
    }
}

/// Returns the path below which the API server has the objects of `kubectl get WHAT`, if tests often wait for them.
fn path_of(what: &str) -> Option<String> {
    let words: Vec<&str> = what.split([' ', '/']).collect();
    Some(match words[..] {
        ["node", name] => format!("/api/v1/nodes/{name}"),
        ["pods", "-A"] => "/api/v1/pods".into(),
        ["pods", "-n", namespace] => format!("/api/v1/namespaces/{namespace}/pods"),
        ["-n", namespace, "ds", name] => {
            format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
        }
        _ => return None,
    })
}

/// Returns the output of a command line that must succeed.
#[track_caller]
pub(crate) fn succeeded(line: &str, output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("programs print UTF-8")
}
