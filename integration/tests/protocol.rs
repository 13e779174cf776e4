// SPDX-License-Identifier: Apache-2.0
//! Environment, input and VERSION: what is wrong is told by its code and its name, before
//! anything is changed.

use integration::{Netns, Node, Snapshot};
use serde_json::{Value, json};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A node with one rail, and what its host is like before.
fn untouched_node() -> (Node, Netns, Snapshot) {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    (node, pod, before)
}

#[track_caller]
fn assert_untouched(node: &Node, before: &Snapshot) {
    before.assert_restored(&node.host);
    assert_eq!(
        node.records(),
        Vec::<std::path::PathBuf>::new(),
        "a record was left"
    );
}

#[test]
fn version_needs_no_input_and_nothing_but_the_command() {
    let node = Node::new();
    let answer = node.bare().env("CNI_COMMAND", "VERSION").run().result();
    assert_eq!(answer["supportedVersions"], json!(VERSIONS));
    assert!(VERSIONS.contains(&answer["cniVersion"].as_str().expect("a cniVersion")));
}

#[test]
fn version_answers_in_the_version_that_it_is_asked_in() {
    let node = Node::new();
    for version in VERSIONS {
        let input = json!({"cniVersion": version});
        let answer = node
            .bare()
            .env("CNI_COMMAND", "VERSION")
            .input(&input)
            .run()
            .result();
        assert_eq!(answer["cniVersion"], version);
        assert_eq!(answer["supportedVersions"], json!(VERSIONS));
    }
}

#[test]
fn people_are_told_the_version_of_the_program() {
    let node = Node::new();
    let outcome = node.bare().argument("--version").run();
    assert!(outcome.status.success(), "{outcome}");
    assert!(outcome.stdout.starts_with("rdma-cni 0."), "{outcome}");
}

#[test]
fn people_are_told_where_a_command_went() {
    let node = Node::new();
    for command in ["doctor", "smc"] {
        let outcome = node.bare().argument(command).argument("--help").run();
        assert_eq!(outcome.status.code(), Some(1), "{outcome}");
        let told = format!("rdma-cni {command} is now `rdma-device-plugin {command}`");
        assert!(outcome.stderr.starts_with(&told), "{outcome}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome}");
    }
}

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
    assert_untouched(&node, &before);
}

#[test]
fn input_that_is_no_json_object_cannot_be_decoded() {
    let (node, pod, before) = untouched_node();
    let cut = &node.configuration(&["eth1"]).to_string()[..60];
    for input in [
        "", " ", "{", "nonsense", cut, "[]", "\"text\"", "null", "{} {}",
    ] {
        for command in ["ADD", "DEL"] {
            let outcome = node.invoke(command, "a", pod.path()).raw_input(input).run();
            let failure = outcome.failure();
            assert_eq!(failure.code, 6, "{command} with {input:?}: {outcome}");
        }
    }
    assert_untouched(&node, &before);
}

#[test]
fn versions_that_are_not_spoken_are_incompatible() {
    let (node, pod, before) = untouched_node();
    let mut configuration = node.configuration(&["eth1"]);
    for version in ["0.1.0", "0.2.0", "0.3.2", "1.2.0", "2.0.0", "one"] {
        configuration["cniVersion"] = version.into();
        let text = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(1);
        assert!(text.contains(version) && text.contains("1.1.0"), "{text}");
    }
    configuration
        .as_object_mut()
        .expect("an object")
        .remove("cniVersion");
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(1);
    assert!(text.contains("0.1.0"), "no cniVersion means 0.1.0: {text}");
    assert_untouched(&node, &before);
}

/// A field, a value that it cannot have, and what of both has to be in the message.
fn wrong_values() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("name", json!(""), "name"),
        ("name", json!("../net"), "../net"),
        ("name", json!("a/b"), "a/b"),
        ("name", json!("-net"), "-net"),
        ("name", json!(5), "5"),
        ("deviceID", json!("eth1"), "eth1"),
        ("deviceID", json!("0000:3b:00"), "0000:3b:00"),
        ("deviceID", json!("0000:3b:00.8"), "0000:3b:00.8"),
        ("deviceID", json!("../0000:3b:00.1"), "../0000:3b:00.1"),
        ("deviceID", json!(["0000:3b:00.1"]), "0000:3b:00.1"),
        ("runtimeConfig", json!({"deviceID": "nonsense"}), "nonsense"),
        ("runtimeConfig", json!({"deviceID": 7}), "deviceID"),
        ("devices", json!("eth1"), "eth1"),
        ("devices", json!([]), "[]"),
        ("devices", json!(["eth1"]), "eth1"),
        ("devices", json!([{}]), "{}"),
        ("devices", json!([{"netdev": 1}]), "netdev"),
        ("devices", json!([{"nic": "eth1"}]), "nic"),
        ("devices", json!([{"netdev": "eth["}]), "eth["),
        ("devices", json!([{"linkType": "token-ring"}]), "token-ring"),
        ("mode", json!("steal"), "steal"),
        ("mode", json!(1), "1"),
        ("interfaceName", json!("a/b"), "a/b"),
        ("interfaceName", json!("rail:%d"), "rail:%d"),
        (
            "interfaceName",
            json!("sixteen-letters0"),
            "sixteen-letters0",
        ),
        (
            "interfaceName",
            json!("very-long-name%d"),
            "very-long-name%d",
        ),
        ("interfaceName", json!("rd ma0"), "rd ma0"),
        ("interfaceName", json!("r%d-%d"), "r%d-%d"),
        ("interfaceName", json!("rail%s"), "rail%s"),
        ("interfaceName", json!(".."), ".."),
        ("interfaceName", json!(""), "interfaceName"),
        ("resultIPs", json!("some"), "some"),
        ("requireRdma", json!("no"), "no"),
        ("ipam", json!("static"), "static"),
        ("ipam", json!({"type": "../../bin/sh"}), "../../bin/sh"),
        ("ipam", json!({"type": 3}), "3"),
        ("routing", json!([]), "[]"),
        ("routing", json!({"metric": -1}), "-1"),
        ("routing", json!({"metric": "low"}), "low"),
        (
            "routing",
            json!({"tableBase": 4294967296_u64}),
            "4294967296",
        ),
        ("ipv6", json!(true), "true"),
        ("ipv6", json!({"dad": "perhaps"}), "perhaps"),
        ("ipv6", json!({"acceptRA": "yes"}), "yes"),
        ("mtu", json!("9000"), "9000"),
        ("mtu", json!(0), "0"),
        ("mtu", json!(-1500), "-1500"),
        ("mtu", json!(1500.5), "1500.5"),
        ("mtu", json!(1_000_000), "1000000"),
        ("smcr", json!("maybe"), "maybe"),
        ("smcUeid", json!(5), "5"),
        ("stateDir", json!("state"), "state"),
        ("stateDir", json!({}), "{}"),
        ("log", json!("debug"), "debug"),
        ("log", json!({"level": "loud"}), "loud"),
        ("log", json!({"file": "relative.log"}), "relative.log"),
        ("child", json!({"type": "bridge"}), "bridge"),
        (
            "child",
            json!({"type": "macvlan", "mode": "nonsense"}),
            "nonsense",
        ),
        ("resources", json!("rdma/hca"), "rdma/hca"),
        ("resources", json!([1]), "1"),
        ("resources", json!([]), "[]"),
        ("resources", json!(["hca"]), "hca"),
        ("podResourcesSocket", json!(1), "1"),
        ("podResourcesSocket", json!("kubelet.sock"), "kubelet.sock"),
        ("prevResult", json!("text"), "text"),
    ]
}

#[test]
fn a_wrong_value_is_told_with_its_field_before_any_change() {
    let (node, pod, before) = untouched_node();
    let mut complaints = vec![];
    for (field, value, words) in wrong_values() {
        let mut configuration = node.configuration(&["eth1"]);
        configuration[field] = value.clone();
        let outcome = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run();
        if outcome.status.success() {
            complaints.push(format!("{field}: {value} was accepted"));
            node.del(&node.configuration(&["eth1"]), "a", &pod);
            continue;
        }
        let failure = outcome.failure();
        let text = failure.text();
        if failure.code != 7 || !text.contains(field) || !text.contains(words) {
            complaints.push(format!(
                "{field}: {value} gave code {} and {text:?}",
                failure.code
            ));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    assert_untouched(&node, &before);
}

/// One typing error in the list must not keep the node's pods from being deleted: DEL and GC read
/// what they need. Only without the network's name is it unknown whose records are meant.
#[test]
fn del_and_gc_pass_over_a_wrong_value_that_they_do_not_need() {
    let node = Node::with_rails(1);
    let right = node.configuration(&["eth1"]);
    let before = Snapshot::of(&node.host);
    let wrong = wrong_values().into_iter();
    let wrong = wrong.filter(|(field, ..)| !["name", "stateDir", "log"].contains(field));
    let versions = ["0.2.0", "1.2.0"].map(|it| ("cniVersion", json!(it), it));
    let both = json!({"type": "macvlan", "mode": "passthru"});
    let unsupported = ("child", both, "passthru");
    for (field, value, words) in wrong.chain(versions).chain([unsupported]) {
        let mut configuration = right.clone();
        configuration[field] = value;
        // of a pod without devices
        let nothing = node.pod("nothing");
        let call = node.invoke("DEL", "b", nothing.path());
        let outcome = call.input(&configuration).run();
        assert!(outcome.status.success(), "DEL, {field}: {outcome}");
        // which is looked at for pods that get devices only
        let is_told = field == "smcUeid" || outcome.stderr.contains(words);
        assert!(is_told, "DEL, {field}: {outcome}");
        let path = node.cni_path();
        configuration["cni.dev/valid-attachments"] = json!([]);
        let gc = node.bare().env("CNI_COMMAND", "GC").env("CNI_PATH", &path);
        let outcome = gc.input(&configuration).run();
        assert!(outcome.status.success(), "GC, {field}: {outcome}");
    }
    // and what a pod has returns to the host
    for (field, value) in [("mode", json!("shared")), ("ipam", json!("static"))] {
        let pod = node.pod("pod");
        node.add(&right, "a", &pod);
        let mut configuration = right.clone();
        configuration[field] = value;
        for command in ["CHECK", "STATUS"] {
            let call = node.invoke(command, "a", pod.path());
            call.input(&configuration).run().error(7);
        }
        node.del(&configuration, "a", &pod);
        assert_untouched(&node, &before);
        node.add(&right, "a", &pod);
        configuration["cni.dev/valid-attachments"] = json!([]);
        let path = node.cni_path();
        let gc = node.bare().env("CNI_COMMAND", "GC").env("CNI_PATH", &path);
        gc.input(&configuration).run().silent();
        assert_untouched(&node, &before);
    }
}

#[test]
fn a_network_without_a_name_or_devices_is_refused() {
    let (node, pod, before) = untouched_node();
    for field in ["name", "devices"] {
        let mut configuration = node.configuration(&["eth1"]);
        configuration
            .as_object_mut()
            .expect("an object")
            .remove(field);
        let text = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(7);
        assert!(text.contains(field), "{field} is not named in {text:?}");
    }
    assert_untouched(&node, &before);
}

#[test]
fn what_is_not_done_is_an_unsupported_field() {
    let (node, pod, before) = untouched_node();
    let child = |kind: &str, mode: &str| json!({ "type": kind, "mode": mode });
    for (field, value, words) in [
        (
            "child",
            child("macvlan", "passthru"),
            "child.mode: passthru",
        ),
        ("child", child("ipvlan", "l3"), "child.mode: l3"),
        ("child", child("ipvlan", "l3s"), "child.mode: l3s"),
    ] {
        let mut configuration = node.configuration(&["eth1"]);
        configuration[field] = value;
        let text = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(2);
        assert!(text.contains(words), "{text}");
    }
    assert_untouched(&node, &before);
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
    assert_untouched(&node, &before);
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

#[test]
fn the_hosts_own_namespace_is_refused_whatever_path_leads_there() {
    let (node, _pod, before) = untouched_node();
    let configuration = node.configuration(&["eth1"]);
    let link = node.directory().join("link-to-the-host");
    std::os::unix::fs::symlink(node.host.path(), &link).expect("a symbolic link");
    let paths = [
        node.host.path(),
        link.as_path(),
        "/proc/self/ns/net".as_ref(),
    ];
    for path in paths {
        let failure = node
            .invoke("ADD", "a", path)
            .input(&configuration)
            .run()
            .failure();
        let text = failure.text();
        assert!(
            text.contains("host") && text.contains("namespace"),
            "{path:?}: {text}"
        );
        assert_eq!(failure.code, 4, "{text}");
    }
    assert_untouched(&node, &before);
}

#[test]
fn what_is_no_namespace_is_refused() {
    let (node, _pod, before) = untouched_node();
    let configuration = node.configuration(&["eth1"]);
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
        let failure = node
            .invoke("ADD", "a", path)
            .input(&configuration)
            .run()
            .failure();
        let text = failure.text();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        assert!(
            text.contains(name),
            "the path is not named: {path:?}: {text}"
        );
        assert_eq!(failure.code, 4, "{path:?}: {text}");
    }
    assert_untouched(&node, &before);
}

#[test]
fn unknown_fields_and_arguments_are_ignored() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["somethingNew"] = json!({"deep": [1, 2]});
    configuration["args"] = json!({"cni": {"debug": true}});
    configuration["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": {"a": "b"}});
    let call = node.invoke("ADD", "a", pod.path()).input(&configuration);
    call.env("CNI_ARGS", "K8S_POD_NAME=p;Brand=New;IgnoreUnknown=true")
        .run()
        .result();
    assert!(pod.has_link("rdma0"));
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}
