// SPDX-License-Identifier: Apache-2.0
//! CNI's variables.

use crate::untouched_node;
use integration::{Node, Snapshot};
use serde_json::json;
use std::{fs, path::Path};

#[test]
fn every_missing_variable_is_named() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];
    let not_netns = ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"];
    let cases: [(&str, &[&str]); 5] = [
        ("ADD", &all),
        ("CHECK", &all),
        ("DEL", &not_netns),
        ("GC", &["CNI_PATH"]),
        ("STATUS", &["CNI_PATH"]),
    ];
    for (command, required) in cases {
        let mut call = node
            .invoke(command, "a", pod.path())
            .input(&node.configuration(&["eth1"]));
        for name in all {
            call = call.without(name);
        }
        let text = call.run().error(4);
        for name in required {
            assert!(
                text.contains(name),
                "{command}: {name} is not named in {text:?}"
            );
        }
        for name in required {
            let call = node.invoke(command, "a", pod.path()).without(name);
            let text = call.input(&node.configuration(&["eth1"])).run().error(4);
            assert!(
                text.contains(name),
                "{command}: {name} is not named in {text:?}"
            );
            for other in all.iter().filter(|other| *other != name) {
                assert!(
                    !text.contains(other),
                    "{command}: {other} is there, yet named in {text:?}"
                );
            }
        }
    }
}

#[test]
fn a_missing_or_unknown_command_is_an_environment_error() {
    let (node, pod, before) = untouched_node();
    let configuration = node.configuration(&["eth1"]);
    let text = node
        .invoke("ADD", "a", pod.path())
        .without("CNI_COMMAND")
        .input(&configuration)
        .run()
        .error(4);
    assert!(text.contains("CNI_COMMAND"), "{text}");
    for command in ["add", "EXPLODE", " ADD"] {
        let text = node
            .invoke(command, "a", pod.path())
            .input(&configuration)
            .run()
            .error(4);
        assert!(
            text.contains("CNI_COMMAND") && text.contains(command),
            "{text}"
        );
    }
    node.assert_restored(&before);
}

#[test]
fn names_of_interfaces_and_containers_are_checked() {
    let (node, pod, before) = untouched_node();
    let configuration = node.configuration(&["eth1"]);
    let interfaces = ["sixteen-letters0", ".", "..", "a/b", "a:b", "a b", "a\tb"];
    let containers = ["../escape", "a/b", "-a", ".a", "_a", "a b", "a@b", "ä"];
    let cases = interfaces
        .map(|value| ("CNI_IFNAME", value))
        .into_iter()
        .chain(containers.map(|value| ("CNI_CONTAINERID", value)));
    for (variable, value) in cases {
        for command in ["ADD", "DEL", "CHECK"] {
            let call = node.invoke(command, "a", pod.path()).env(variable, value);
            let text = call.input(&configuration).run().error(4);
            assert!(
                text.contains(variable),
                "{command}, {variable}={value:?}: {text}"
            );
        }
    }
    node.assert_restored(&before);
}

#[test]
fn long_and_upper_case_container_ids_are_fine() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    let long = "0f".repeat(64);
    for container in ["A", "Pod_1.b-C", long.as_str()] {
        let pod = node.pod("pod");
        node.add(&configuration, container, &pod);
        assert!(pod.has_link("rdma0"), "{container}");
        node.del(&configuration, container, &pod);
        before.assert_restored(&node.host);
    }
}

/// The pod's name contains an attacker's text, in place of all texts that others choose: names of processes and
/// netdevs, output of programs. Kubelet never passes such a name.
#[test]
fn no_line_of_the_log_is_forged_by_what_others_are_called() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let file = node.directory().join("log");
    let mut configuration = node.configuration(&["eth1"]);
    configuration["log"] = json!({"level": "debug", "file": file});
    let name = "a\nrdma-cni[1]: ADD: error: forged\u{1b}[2J\u{7}\u{2028}";
    let args = format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
    for command in ["ADD", "DEL"] {
        let call = node.invoke(command, "a", pod.path()).env("CNI_ARGS", &args);
        let outcome = call.input(&configuration).run();
        assert!(outcome.status.success(), "{outcome}");
        let kept = fs::read_to_string(&file).expect("a log");
        for log in [&outcome.stderr, &kept] {
            assert!(log.contains("forged"), "{log:?}");
            for line in log.lines() {
                assert!(!line.starts_with("rdma-cni[1]"), "{log:?}");
                let steers = |it: char| it.is_control() || it == '\u{2028}';
                assert!(!line.contains(steers), "{line:?}");
            }
        }
    }
}

/// Returns the message with which ADD refuses a namespace at `path`.
#[track_caller]
fn refused(node: &Node, path: &Path) -> String {
    let failure = node
        .invoke("ADD", "a", path)
        .input(&node.configuration(&["eth1"]))
        .run()
        .failure();
    let text = failure.text();
    assert_eq!(failure.code, 4, "{path:?}: {text}");
    text
}

#[test]
fn the_hosts_own_namespace_is_refused_whatever_path_leads_there() {
    let (node, _pod, before) = untouched_node();
    let link = node.directory().join("link-to-the-host");
    std::os::unix::fs::symlink(node.host.path(), &link).expect("a symbolic link");
    let paths = [
        node.host.path(),
        link.as_path(),
        "/proc/self/ns/net".as_ref(),
    ];
    for path in paths {
        let text = refused(&node, path);
        assert!(
            text.contains("host") && text.contains("namespace"),
            "{path:?}: {text}"
        );
    }
    node.assert_restored(&before);
}

#[test]
fn a_path_that_is_no_namespace_is_refused() {
    let (node, _pod, before) = untouched_node();
    let file = node.directory().join("a-file");
    std::fs::write(&file, "text").expect("a file");
    let missing = node.directory().join("nothing-here");
    let paths = [
        file.as_path(),
        missing.as_path(),
        node.directory(),
        "/proc/self/ns/uts".as_ref(),
    ];
    for path in paths {
        let text = refused(&node, path);
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        assert!(
            text.contains(name),
            "the path is not named: {path:?}: {text}"
        );
    }
    node.assert_restored(&before);
}
