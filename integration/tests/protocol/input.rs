// SPDX-License-Identifier: Apache-2.0
//! The configuration on standard input.

use crate::untouched_node;
use integration::{Invocation, Node, Outcome, Snapshot};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::Path};

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
    // the message quotes a short and escaped part of the input
    let long = format!("[\"{}\"]", "\u{202e}\u{9b}".repeat(1 << 16));
    let outcome = node.invoke("ADD", "a", pod.path()).raw_input(&long).run();
    let text = outcome.failure().text();
    assert!(
        text.len() < 300 && text.contains("\\u202e\\u009b"),
        "{text}"
    );
    node.assert_restored(&before);
}

/// `rdma-cni` refuses a whole list, and prints the command that extracts an entry: an operator often has only the
/// list.
#[test]
fn a_whole_list_is_no_entry_of_it() {
    let (node, pod, before) = untouched_node();
    let entry = node.configuration(&["eth1"]);
    let list =
        json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}, entry]});
    for command in ["ADD", "DEL"] {
        let call = node.invoke(command, "a", pod.path()).input(&list);
        let text = call.run().error(7);
        assert!(
            text.contains("standard input is a whole CNI list"),
            "{text}"
        );
        assert!(
            text.contains("jq '{cniVersion, name} + .plugins[N]'"),
            "{text}"
        );
    }
    node.assert_restored(&before);
}

/// A field, an invalid value of it, and the text that the message must contain.
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
        ("rebindDriver", json!("always"), "always"),
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
        ("probe", json!("yes"), "yes"),
        ("probe", json!(true), "true"),
        ("podAnnotations", json!("rails"), "rails"),
        ("podAnnotations", json!(["vlan"]), "vlan"),
        ("podAnnotations", json!([7]), "7"),
        ("detect", json!("yes"), "yes"),
        ("detect", json!(1), "1"),
    ]
    .into_iter()
    .chain(wrong_settings())
    .collect()
}

/// Returns invalid values for the settings of a virtual function.
fn wrong_settings() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("vlan", json!(4095), "4095"),
        ("vlan", json!("100"), "100"),
        ("vlanQoS", json!(3), "3"),
        ("vlanProto", json!("802.1q"), "802.1q"),
        ("mac", json!("01:00:5e:00:00:01"), "01:00:5e:00:00:01"),
        ("mac", json!(5), "5"),
        ("min_tx_rate", json!("slow"), "slow"),
        ("max_tx_rate", json!(-1), "-1"),
        ("spoofchk", json!("yes"), "yes"),
        ("trust", json!(true), "true"),
        ("link_state", json!("up"), "up"),
        ("guid", json!("02:00:00:00:00:01"), "02:00:00:00:00:01"),
        ("guid", json!(1), "1"),
        ("ibKubernetesEnabled", json!("yes"), "yes"),
        ("pkey", json!("8001"), "8001"),
        ("pkey", json!(32769), "32769"),
        ("args", json!("text"), "text"),
        ("podArguments", json!("mac"), "mac"),
        ("podArguments", json!(["vlan"]), "vlan"),
    ]
}

/// Returns the fields in the reference's tables of the network configuration.
fn documented_fields() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference.md");
    let page = fs::read_to_string(page).expect("the reference");
    let mut fields = BTreeSet::new();
    for heading in [
        "## Network configuration\n",
        "### Settings of a virtual function\n",
    ] {
        let section = page.split_once(heading).expect(heading).1;
        let section = section.split("\n##").next().expect("a section");
        for line in section.lines().filter(|it| it.starts_with("| `")) {
            let cell = line.split('|').nth(1).expect("a cell");
            let names = cell.split('`').skip(1).step_by(2);
            fields.extend(names.map(|it| it.split('.').next().expect("a name").to_owned()));
        }
    }
    fields
}

/// `docs/troubleshooting.md` has a row for every error code.
#[test]
fn every_error_code_has_a_row_with_its_remedy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).expect("a file");
    let sources = read("cni/cni-protocol/src/code.rs") + &read("cni/rdma-cni/src/reply.rs");
    let values = sources.lines().filter_map(|it| it.split_once(": u32 = "));
    let codes: BTreeSet<&str> = values.map(|(_, it)| it.trim_end_matches(';')).collect();
    assert!(codes.len() > 15, "{codes:?}");
    let page = read("docs/troubleshooting.md");
    let (_, table) = page.split_once("## By error code").expect("a section");
    let cells = table
        .lines()
        .filter_map(|it| it.strip_prefix("| ")?.split(" | ").next());
    let rows: BTreeSet<&str> = cells.flat_map(|it| it.split(", ")).collect();
    let missing: Vec<_> = codes.difference(&rows).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_field_of_the_reference_has_a_wrong_value_here() {
    let fields = documented_fields();
    assert!(fields.len() > 30, "{fields:?}");
    let wrong: BTreeSet<_> = wrong_values().iter().map(|it| it.0.to_owned()).collect();
    let missing: Vec<_> = fields.difference(&wrong).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_wrong_value_is_reported_with_its_field_before_any_change() {
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
    node.assert_restored(&before);
}

/// Runs `call` with an empty `/var/lib`, in which the default state directory is.
fn with_an_empty_default(call: Invocation<'_>) -> Outcome {
    let script = "mount -t tmpfs none /var/lib && exec \"$0\"";
    let arguments = ["--mount", "sh", "-c", script].map(str::to_owned);
    call.by(Path::new("/usr/bin/unshare"), arguments.into())
        .run()
}

/// With an invalid `stateDir`, DEL cannot find the records, and succeeds with a log line. A DEL with the right
/// directory restores the devices.
#[test]
fn with_a_wrong_state_directory_del_leaves_the_record_to_a_verb_with_the_right_one() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let right = node.configuration(&["eth1"]);
    node.add(&right, "a", &pod);
    for (field, value, words) in wrong_values() {
        if field != "stateDir" {
            continue;
        }
        let mut wrong = right.clone();
        wrong[field] = value;
        let call = node.invoke("DEL", "a", pod.path()).input(&wrong);
        let outcome = with_an_empty_default(call);
        outcome.silent();
        let reported = ["stateDir", words].map(|it| outcome.stderr.contains(it));
        assert_eq!(reported, [true; 2], "{outcome}");
        assert!(node.record("net", "a").exists());
    }
    node.del(&right, "a", &pod);
    node.assert_restored(&before);
}

/// rdma-cni finds a network's records by its name: DEL does not ignore a wrong name.
#[test]
fn del_needs_the_networks_name() {
    let (node, pod, before) = untouched_node();
    for (field, value, words) in wrong_values() {
        if field != "name" {
            continue;
        }
        let mut configuration = node.configuration(&["eth1"]);
        configuration[field] = value;
        let call = node.invoke("DEL", "a", pod.path()).input(&configuration);
        let text = call.run().error(7);
        assert!(text.contains(words), "{text}");
    }
    node.assert_restored(&before);
}

/// A typing error in the list must not prevent the deletion of the node's pods: DEL and GC check only the fields
/// that they need. Without the network's name, they cannot find the records.
#[test]
fn del_and_gc_pass_over_a_wrong_value_that_they_do_not_need() {
    let node = Node::with_rails(1);
    let right = node.configuration(&["eth1"]);
    let before = Snapshot::of(&node.host);
    let wrong = wrong_values().into_iter();
    let wrong = wrong.filter(|(field, ..)| !["name", "stateDir"].contains(field));
    let versions = ["0.2.0", "1.2.0"].map(|it| ("cniVersion", json!(it), it));
    let both = json!({"type": "macvlan", "mode": "passthru"});
    let unsupported = ("child", both, "passthru");
    for (field, value, words) in wrong.chain(versions).chain([unsupported]) {
        let mut configuration = right.clone();
        configuration[field] = value;
        // DEL of a pod without devices
        let nothing = node.pod("nothing");
        let call = node.invoke("DEL", "b", nothing.path());
        let outcome = call.input(&configuration).run();
        assert!(outcome.status.success(), "DEL, {field}: {outcome}");
        // DEL reads this field only for pods with devices
        let is_reported = field == "smcUeid" || outcome.stderr.contains(words);
        assert!(is_reported, "DEL, {field}: {outcome}");
        let path = node.cni_path();
        configuration["cni.dev/valid-attachments"] = json!([]);
        let gc = node.bare().env("CNI_COMMAND", "GC").env("CNI_PATH", &path);
        let outcome = gc.input(&configuration).run();
        assert!(outcome.status.success(), "GC, {field}: {outcome}");
    }
    // DEL with a wrong value returns a pod's devices to the host
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
        node.assert_restored(&before);
        node.add(&right, "a", &pod);
        configuration["cni.dev/valid-attachments"] = json!([]);
        let path = node.cni_path();
        let gc = node.bare().env("CNI_COMMAND", "GC").env("CNI_PATH", &path);
        gc.input(&configuration).run().silent();
        node.assert_restored(&before);
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
    node.assert_restored(&before);
}

#[test]
fn an_unsupported_field_is_refused() {
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
    node.assert_restored(&before);
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
