// SPDX-License-Identifier: Apache-2.0
//! Tests of `kubectl rdma` with a script in place of `kubectl`. The script records its arguments and answers from
//! files. The tests check the requests and their flags, and which objects remain.

use integration::stopwatch::Stopwatch;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Script in place of `kubectl`. It selects its answer by the first two arguments after the user's flags.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>asked
while [ "${1#--}" != "$1" ]; do shift; done
case "$1 $2" in
"get pods") cat daemons.json ;;
"get events") echo "{}" ;;
"get pod") [ -e "$3.json" ] && cat "$3.json" || { echo "noise"; echo "no pod $3"; exit 1; } >&2 ;;
"exec "*)
  [ ! -e lingers ] || sleep 20 >/dev/null &
  [ ! -e hangs ] || exec sleep 600; cat facts.json; exit 1 ;;
"create "*) while [ -e waits ]; do sleep 0.1; done; cat >created.json; cat rdma-ping-x.json ;;
"logs "*) echo 'fd00::7: 5 sent, 5 answered' ;;
esac
"#;

/// Arguments with which `kubectl rdma` deletes its pod.
const DELETE: &str = "delete pod rdma-ping-x --namespace rdma --wait=false --request-timeout=30s";

struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().expect("a directory"));
        desk.write("kubectl", KUBECTL);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(desk.path().join("kubectl"), mode).expect("a mode");
        let program = env!("CARGO_BIN_EXE_rdma-device-plugin");
        symlink(program, desk.path().join("kubectl-rdma")).expect("a link");
        let daemon = json!({
            "metadata": {"namespace": "rdma", "name": "ds-x", "uid": "u-1"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "rdma-device-plugin", "image": "it:1"}]},
        });
        desk.json("daemons", &json!({"items": [daemon]}));
        for name in ["a", "b"] {
            let spec = json!({"nodeName": "node-1"});
            desk.json(
                name,
                &json!({"metadata": {"namespace": "team", "name": name}, "spec": spec}),
            );
        }
        desk.json(
            "facts",
            &json!({"version": env!("CARGO_PKG_VERSION"), "records": [record("team/b")]}),
        );
        desk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect("written");
    }

    fn json(&self, name: &str, object: &Value) {
        self.write(&format!("{name}.json"), &object.to_string());
    }

    /// Sets the status of the pod that sends the requests.
    fn pings(&self, phase: &str, container: Value) {
        let status = json!({"phase": phase, "containerStatuses": [{"state": container}]});
        self.json(
            "rdma-ping-x",
            &json!({"metadata": {"name": "rdma-ping-x"}, "status": status}),
        );
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(self.path().join("kubectl-rdma"));
        let path = format!("{}:/usr/bin:/bin", self.path().display());
        command.args(line.split(' ')).env("PATH", path);
        command
    }

    fn types(&self, line: &str) -> (Option<i32>, String, String) {
        let output = self.command(line).output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    /// Returns the arguments of all calls of `kubectl` so far.
    fn calls(&self) -> Vec<String> {
        let lines = fs::read_to_string(self.path().join("asked")).expect("lines");
        lines.lines().map(str::to_owned).collect()
    }
}

/// Returns the record of a pod with one rail, as in the output of `doctor --facts`.
fn record(pod: &str) -> Value {
    let given = json!({"addresses": [{"ip": "fd00::7", "prefix": 64}], "routes": [], "rules": []});
    let rails = json!([{"podName": "rdma0", "given": given}]);
    let attachment = json!({
        "format": 8, "phase": "attached", "bootId": "this", "pod": pod, "rails": rails,
        "key": {"network": "pods", "container": "c1", "interface": "eth0"},
        "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
        "rdmaMode": "shared", "dad": "off", "acceptRa": false, "config": {},
    });
    json!({"good": {"attachment": attachment, "lives": true}})
}

#[test]
fn a_pod_pings_with_the_users_flags_and_is_deleted() {
    let desk = Desk::new();
    desk.pings("Failed", json!({"terminated": {"exitCode": 3}}));
    let (code, output, errors) = desk.types("ping a b --context=one -n team -- --count 5");
    assert_eq!((code, errors.as_str()), (Some(3), ""));
    assert_eq!(output, "fd00::7: 5 sent, 5 answered\n");
    let created = fs::read_to_string(desk.path().join("created.json")).expect("a pod");
    let created: Value = serde_json::from_str(&created).expect("JSON");
    let arguments = json!(["ping", "--pod", "team/a", "fd00::7", "--count", "5"]);
    assert_eq!(created["spec"]["containers"][0]["args"], arguments);
    let flags = "--context=one --namespace=team";
    assert_eq!(
        desk.calls(),
        [
            format!(
                "{flags} get pods --all-namespaces --selector app.kubernetes.io/name=rdma-device-plugin -o json"
            ),
            format!("{flags} get pod a -o json"),
            format!("{flags} get pod b -o json"),
            format!(
                "{flags} exec --namespace rdma ds-x --container rdma-device-plugin -- rdma-device-plugin doctor --facts"
            ),
            format!("{flags} create --namespace rdma --filename - -o json --request-timeout=30s"),
            format!("{flags} get pod rdma-ping-x --namespace rdma --request-timeout=30s -o json"),
            format!("{flags} logs rdma-ping-x --namespace rdma --request-timeout=30s"),
            format!("{flags} {DELETE}"),
        ]
    );
}

#[test]
fn a_pod_that_cannot_start_is_reported_and_deleted() {
    let desk = Desk::new();
    desk.pings("Pending", json!({"waiting": {"reason": "ErrImagePull"}}));
    let (code, output, errors) = desk.types("ping node-1 192.0.2.1");
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert_eq!(
        errors,
        "kubectl-rdma: pod rdma/rdma-ping-x has no result: ErrImagePull\n"
    );
    let last = desk.calls().pop();
    assert!(last.is_some_and(|it| it.starts_with("delete pod rdma-ping-x ")));
}

#[test]
fn a_failure_is_one_sentence() {
    let desk = Desk::new();
    for (line, expected) in [
        (
            "ping a other/nobody",
            "kubectl get pod nobody --namespace other -o json: no pod nobody",
        ),
        (
            "doctor nobody",
            "nobody is neither a node with a daemon nor a pod: kubectl get pod nobody -o json: no pod nobody",
        ),
        (
            "ping a a",
            "pod team/a has no rails: `kubectl rdma doctor team/a` shows the reason",
        ),
    ] {
        let (code, output, errors) = desk.types(line);
        assert_eq!((code, output.as_str()), (Some(1), ""), "{line}");
        assert_eq!(errors, format!("kubectl-rdma: {expected}\n"));
    }
    desk.json("facts", &json!({"version": "9.8.7", "newer": true}));
    let (_, _, errors) = desk.types("ping a b");
    let begin = format!(
        "kubectl-rdma: cannot read the answer of the daemon on node node-1 (the daemon has release 9.8.7, this \
         program has release {}: use one release for both): unknown field `newer`",
        env!("CARGO_PKG_VERSION")
    );
    assert!(errors.starts_with(&begin), "{errors}");
    fs::remove_file(desk.path().join("kubectl")).expect("removed");
    let mut command = Command::new(desk.path().join("kubectl-rdma"));
    let output = command
        .arg("pods")
        .env("PATH", desk.path())
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.starts_with("kubectl-rdma: kubectl is not in PATH"),
        "{errors}"
    );
}

#[test]
fn a_daemon_that_does_not_answer_is_given_up() {
    let desk = Desk::new();
    desk.write("hangs", "");
    desk.json("nodes", &json!({"items": []}));
    let silent = "kubectl-rdma: pod rdma/ds-x, the daemon on node node-1, has not answered in 1 seconds: read its log, or \
                  give it more time with --timeout\n";
    let (code, output, errors) = desk.types("pods --timeout 1");
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(errors.ends_with(silent), "{errors}");
    let (code, output, errors) = desk.types("doctor a --timeout 1");
    assert_eq!((code, output.as_str(), &*errors), (Some(1), "", silent));
    // a child process of `kubectl`, such as a credential plugin, keeps the pipe for errors open
    desk.write("lingers", "");
    let begin = Stopwatch::start();
    let (code, _, errors) = desk.types("pods --timeout 1");
    assert_eq!(code, Some(1));
    assert!(errors.ends_with(silent), "{errors}");
    fs::remove_file(desk.path().join("hangs")).expect("removed");
    let (code, _, errors) = desk.types("pods --timeout 30");
    assert_eq!(code, Some(0), "{errors}");
    assert!(begin.elapsed() < Duration::from_secs(15));
    fs::remove_file(desk.path().join("lingers")).expect("removed");
    // the daemon's answer arrives within the time limit
    let (code, _, errors) = desk.types("doctor a --timeout 30");
    assert_eq!((code, errors.as_str()), (Some(1), ""));
}

#[test]
fn an_interrupt_deletes_the_pod() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let desk = Desk::new();
        desk.pings("Running", json!({"running": {}}));
        let mut child = desk
            .command("ping node-1 192.0.2.1")
            .spawn()
            .expect("it runs");
        let is_waited_for = |it: &String| it.starts_with("get pod rdma-ping-x");
        while !desk.path().join("asked").exists() || !desk.calls().iter().any(is_waited_for) {
            thread::sleep(Duration::from_millis(10));
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        kill(pid, signal).expect("sent");
        assert_eq!(child.wait().expect("its end").code(), Some(code));
        assert!(
            desk.calls().iter().any(|it| it == DELETE),
            "{:?}",
            desk.calls()
        );
    }
}

#[test]
fn an_interrupt_waits_for_the_pod_and_a_second_one_does_not() {
    for is_again in [false, true] {
        let desk = Desk::new();
        desk.pings("Running", json!({"running": {}}));
        desk.write("waits", "");
        let mut command = desk.command("ping node-1 192.0.2.1");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
        let is_made = |it: &String| it.starts_with("create ");
        while !desk.path().join("asked").exists() || !desk.calls().iter().any(is_made) {
            thread::sleep(Duration::from_millis(10));
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        kill(pid, Signal::SIGHUP).expect("sent");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("a line");
        assert_eq!(
            line,
            "kubectl-rdma: deleting the pod; after another Ctrl-C the pod may run for up to 10 minutes\n"
        );
        match is_again {
            true => kill(pid, Signal::SIGINT).expect("sent"),
            false => fs::remove_file(desk.path().join("waits")).expect("removed"),
        }
        assert_eq!(child.wait().expect("its end").code(), Some(129));
        assert_eq!(desk.calls().iter().any(|it| it == DELETE), !is_again);
    }
}
