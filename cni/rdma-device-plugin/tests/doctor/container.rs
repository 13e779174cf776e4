// SPDX-License-Identifier: Apache-2.0
//! Tests of the program in a container, which sees only the mounted files of the node.

use super::{PROGRAM, RECORDS, Root, joined, run};
use doctor::facts::{Facts, Unseen};
use integration::Netns;
use std::{fs, os::unix::fs::symlink};

/// Directories of the machine's libraries, because this program is not a static binary.
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "lib64"];

/// Files of a node that the DaemonSet's pod sees, and the program in this pod.
struct Container<'a> {
    host: &'a Netns,
    root: &'a Root,
    own_processes: bool,
}

impl<'a> Container<'a> {
    fn of(host: &'a Netns, root: &'a Root, own_processes: bool) -> Self {
        for hidden in ["lib", "proc"] {
            fs::remove_dir_all(root.path(hidden)).expect("removed");
        }
        for directory in ["proc", "sys", "usr/bin", "run/netns"]
            .iter()
            .chain(&LIBRARIES)
        {
            fs::create_dir_all(root.path(directory)).expect("made");
        }
        fs::copy(PROGRAM, root.path("usr/bin/rdma-device-plugin")).expect("copied");
        Self {
            host,
            root,
            own_processes,
        }
    }

    fn doctor(&self, words: &[&str]) -> (i32, String, String) {
        let bind = LIBRARIES
            .map(|it| format!("mount --bind /{it} {it} && "))
            .concat();
        let script = format!(
            "cd {:?} && {bind} mount --bind /sys sys && mount --rbind /run/netns run/netns && \
             mount -t proc proc proc && \
             exec chroot . /usr/bin/rdma-device-plugin doctor \"$@\"",
            self.root.0.path()
        );
        let mut command = self.host.command("unshare");
        command.arg("--mount");
        if self.own_processes {
            command.args(["--pid", "--fork"]);
        }
        command.args(["sh", "-c", &script, "sh"]).args(words);
        run(command)
    }

    fn unseen(&self) -> Vec<Unseen> {
        let (_, facts, _) = self.doctor(&["--facts"]);
        let facts: Facts = serde_json::from_str(&facts).expect("facts");
        facts.unseen
    }
}

/// Runs the program as in the DaemonSet's pod, where it sees only the mounted files of the node. In one run, the
/// program is process 1. In the other run, as with `hostPID`, process 1 is the node's.
#[test]
fn a_containers_missing_files_are_not_reported_as_the_nodes() {
    for own_processes in [true, false] {
        let (host, pods) = (Netns::new("doctor"), ["pod", "other"].map(Netns::new));
        let root = Root::new();
        root.record("web", pods[0].path(), true);
        root.record("db", pods[1].path(), true);
        // a runtime can record the namespace below /var/run, or in another directory; the container mounts only
        // /run/netns
        for (id, place) in [("web", "/var/run/netns/"), ("db", "/run/runtime/netns/")] {
            let record = root.path(&format!("{RECORDS}/{id}@eth0.json"));
            let text = fs::read_to_string(&record).expect("the record");
            let moved = text.replace("\"/run/netns/", &format!("\"{place}"));
            assert_ne!(moved, text);
            fs::write(&record, moved).expect("written");
        }
        // the link's target exists on the node, and not in the container
        let bridge = root.path("opt/cni/bin/bridge");
        fs::remove_file(&bridge).expect("removed");
        symlink("/usr/libexec/cni/bridge", bridge).expect("a link");
        let container = Container::of(&host, &root, own_processes);
        let (_, output, errors) = container.doctor(&[]);
        assert_eq!(errors, "", "{output}");
        let output = joined(&output);
        for right in [
            "10-pods.conflist (network pods) calls rdma-cni",
            "2 attachments",
        ] {
            assert!(output.contains(right), "{output}");
        }
        for wrong in [
            "no socket of containerd",
            "after the next boot",
            "another network namespace",
            "default/web",
            "default/db",
            "its pod is gone",
            "there is no /opt/cni/bin/bridge",
        ] {
            assert!(!output.contains(wrong), "{output}");
        }
        let unseen = container.unseen();
        let why = |what: &str| {
            let unseen = unseen.iter().find(|it| it.what.contains(what));
            unseen.map(|it| it.why.as_str()).unwrap_or_default()
        };
        for what in ["modules", "at boot", "udev", "leases", "container runtimes"] {
            assert!(
                why(what).starts_with("not visible from here: "),
                "{unseen:?}"
            );
        }
        assert_eq!(why("network configuration"), "");
        assert_eq!(
            why("which pods are running"),
            "not visible from here: /run/runtime/netns"
        );
    }
}

/// The runtime reads the link's target, so the report does not propose to remove the link.
#[test]
fn a_network_file_that_leads_out_of_the_container_is_not_judged() {
    let host = Netns::new("doctor");
    let root = Root::new();
    let link = root.path("etc/cni/net.d/05-net.conflist");
    symlink("/opt/net/05-net.conflist", link).expect("a link");
    let container = Container::of(&host, &root, true);
    let (_, output, _) = container.doctor(&[]);
    assert!(!output.contains("or remove it"), "{output}");
    let unseen = container.unseen();
    let is_it = |it: &Unseen| it.what == "the network configuration" && it.why.contains("05-net");
    assert!(unseen.iter().any(is_it), "{unseen:?}");
}
