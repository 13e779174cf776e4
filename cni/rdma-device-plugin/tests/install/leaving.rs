// SPDX-License-Identifier: Apache-2.0
//! Tests of `uninstall` while pods have devices, after pods ended without `rdma-cni`, and with other
//! directories than at the installation.

use crate::{FLANNEL, Node, refused, text_of};
use integration::Netns;
use rdma_netns::{Kernel, Linux, Pod};
use serde_json::{Value, json};
use std::{fs, path::Path};

const RECORD: &str = "state/attachments/cbr0/c1@eth0.json";

/// Writes the record of a pod that `rdma-cni` attached. The pod's namespace is `netns`.
fn attach(node: &Node, netns: &Netns, below: &str) {
    let kernel = Linux::new();
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rdma-cni/tests/plans");
    let mut record = cases::read(&plans.join("cases/detach-from-pod.json"))["record"].take();
    let pod = kernel.open_pod(netns.path()).expect("the namespace");
    record["bootId"] = kernel.boot_id().expect("the boot").into();
    record["key"] = json!({"network": "cbr0", "container": "c1", "interface": "eth0"});
    record["pod"] = "ml/trainer-0".into();
    record["netns"] = netns.path().to_str().into();
    record["netnsId"] = serde_json::to_value(pod.id()).expect("JSON");
    fs::create_dir_all(node.path(below).parent().expect("a directory")).expect("made");
    node.machine.write(below, &record.to_string());
}

/// Writes a plugin for `install`. The plugin writes its environment and input into a file, and then runs `does`.
fn plugin(node: &Node, does: &str) {
    let called = node.path("called");
    let script = format!(
        "#!/bin/sh\n[ $CNI_COMMAND != VERSION ] || exec echo '{{\"supportedVersions\":[]}}'\n(env | grep CNI_ | sort; cat) > {called:?}\nrecord={:?}\n{does}\n",
        node.path(RECORD)
    );
    node.machine.write("new/rdma-cni", &script);
}

/// A pod with a prepared claim cannot end without the daemon: kubelet waits for Unprepare.
#[test]
fn prepared_claims_keep_it_from_being_taken_away() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "");
    node.install();
    let claim = include_str!("../../../dra/tests/records/one-vf.json");
    let uid = "0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11";
    fs::create_dir(node.path("state/claims")).expect("made");
    node.machine
        .write(&format!("state/claims/{uid}.json"), claim);
    let before = node.seen();
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("nothing was changed: these claims are prepared")
            && error.contains("default/a"),
        "{error}"
    );
    assert_eq!(node.seen(), before);
    node.machine
        .write(&format!("state/claims/{uid}.json"), "damaged");
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("an unreadable one") && error.contains(uid),
        "{error}"
    );
    text_of(&node.run("uninstall", &["--force"]));
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
}

#[test]
fn pods_with_devices_are_not_left_behind() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "rm $record");
    node.install();
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    let before = node.seen();
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("nothing was changed: these pods have devices"),
        "{error}"
    );
    assert!(error.contains("ml/trainer-0"), "{error}");
    assert_eq!(node.seen(), before);
    let text = text_of(&node.run("uninstall", &["--force"]));
    assert!(
        text.contains("the binaries stay, because devices of these pods are not back on the host: ml/trainer-0"),
        "{text}"
    );
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
    assert!(!node.path("called").exists(), "a pod that lives was ended");
    // the list has no rdma-cni when the runtime ends the pod, so only the next `uninstall` restores the devices
    netns.die();
    let text = node.uninstall();
    assert!(
        text.contains("ml/trainer-0: it has ended, and its devices are restored"),
        "{text}"
    );
    let bin = node.path("opt/cni/bin");
    let called = node.read("called");
    let (environment, conf) = called.split_once('{').expect("a configuration");
    assert_eq!(
        environment,
        format!(
            "CNI_COMMAND=DEL\nCNI_CONTAINERID=c1\nCNI_IFNAME=eth0\nCNI_PATH={}\n",
            bin.display()
        )
    );
    let conf: Value = serde_json::from_str(&format!("{{{conf}")).expect("JSON");
    let state = node.path("state");
    let expected = json!({
        "cniVersion": "1.0.0", "name": "cbr0", "type": "rdma-cni", "stateDir": state,
    });
    assert_eq!(conf, expected);
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
    assert!(!node.path("state/install.json").exists());
}

/// The record of the installation still exists. Without its field `withdrawn`, the daemon would add the entry again a
/// moment later.
#[test]
fn a_daemon_does_not_undo_what_is_forced() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let daemon = crate::keeping::daemon(&node);
    crate::keeping::becomes(&daemon, 200, "the runtime calls rdma-cni");
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    text_of(&node.run("uninstall", &["--force"]));
    let list = || node.read("etc/cni/net.d/10-flannel.conflist");
    let withdrawn = "uninstall removed it from the chain";
    crate::keeping::becomes(&daemon, 503, withdrawn);
    std::thread::sleep(crate::keeping::SOON);
    assert_eq!(list(), FLANNEL);
    // the network program and the daemon start again
    node.net("10-flannel.conflist", FLANNEL);
    drop(daemon);
    let daemon = crate::keeping::daemon(&node);
    crate::keeping::becomes(&daemon, 503, withdrawn);
    assert_eq!(list(), FLANNEL);
    // only `install` adds the entry again
    node.install();
    assert_ne!(list(), FLANNEL);
    crate::keeping::becomes(&daemon, 200, "the runtime calls rdma-cni");
}

#[test]
fn failures_to_restore_are_reported_and_the_plugin_stays_for_them() {
    let node = Node::with_list(FLANNEL);
    plugin(
        &node,
        "echo '{\"code\": 7, \"msg\": \"eth2 is nowhere\"}'; exit 1",
    );
    node.install();
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    netns.die();
    let before = node.seen();
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("nothing was changed: these pods ended without a DEL of rdma-cni"),
        "{error}"
    );
    assert!(error.contains("ml/trainer-0: "), "{error}");
    assert!(error.contains("eth2 is nowhere"), "{error}");
    assert_eq!(node.seen(), before);
    text_of(&node.run("uninstall", &["--force"]));
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
}

#[test]
fn a_pod_that_is_started_meanwhile_keeps_the_plugin() {
    let node = Node::with_list(FLANNEL);
    plugin(
        &node,
        "mv $record.later ${record%c1@eth0.json}c2@eth0.json; rm $record",
    );
    node.install();
    let (dies, lives) = (Netns::new("leaving"), Netns::new("leaving"));
    attach(&node, &dies, RECORD);
    let later = format!("{RECORD}.later");
    attach(&node, &lives, &later);
    let record = node.read(&later);
    let another = record
        .replace("\"c1\"", "\"c2\"")
        .replace("trainer-0", "trainer-1");
    node.machine.write(&later, &another);
    dies.die();
    let output = node.run("uninstall", &[]);
    let error = refused(&output);
    assert!(
        error.contains("and the binaries stay: these pods got devices meanwhile: ml/trainer-1"),
        "{error}"
    );
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
}

#[test]
fn in_a_container_nothing_is_restored_as_leases_are_elsewhere() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "rm $record");
    node.install();
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    netns.die();
    let before = node.seen();
    let error = refused(&node.uninstall_in_container());
    let sentence = "ml/trainer-0: the devices can only be restored on the node itself";
    assert!(error.contains(sentence), "{error}");
    assert_eq!(node.seen(), before);
    assert!(!node.path("called").exists());
}

#[test]
fn uninstall_waits_for_a_signal_after_its_work() {
    let node = Node::with_list(FLANNEL);
    node.install();
    for _ in 0..2 {
        let mut uninstall = node.staying();
        uninstall.finishes();
        assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
        uninstall.runs();
        // a late init container runs `install` again
        node.install();
        uninstall.finishes();
        assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
        assert!(!node.path("opt/cni/bin/rdma-cni").exists());
        uninstall.end();
    }
}

/// If the daemon writes labels for node-feature-discovery, `uninstall` removes them last.
#[test]
fn labels_of_the_node_go_with_the_rest() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "rm $record");
    let features = node.path("features.d");
    let file = features.join("rdma-device-plugin");
    let features = ["--node-features", features.to_str().expect("a path")];
    fs::create_dir(features[1]).expect("made");
    fs::write(&file, "feature.node.kubernetes.io/rdma-nics.count=8\n").expect("written");
    node.install();
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    refused(&node.run("uninstall", &features));
    assert!(file.exists(), "a pod has devices");
    netns.die();
    let check = || {
        let words = [&["--check"][..], &features].concat();
        node.run("uninstall", &words).status.success()
    };
    assert!(!check());
    let text = text_of(&node.run("uninstall", &features));
    assert!(text.ends_with(&format!("{file:?}: removed\n")), "{text}");
    assert!(!file.exists() && check());
    // `uninstall` also removes labels if nothing else was installed on the node
    fs::write(&file, "").expect("written");
    assert!(!check());
    text_of(&node.run("uninstall", &features));
    assert!(!file.exists() && check());
}

/// `uninstall` removes the report of the fabric watch, and the unfinished report of a watch that was killed.
#[test]
fn the_report_of_the_fabric_watch_goes_with_the_rest() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "");
    node.install();
    fs::create_dir(node.path("state/fabric")).expect("made");
    for name in ["rails.json", ".rails.json.new"] {
        node.machine.write(&format!("state/fabric/{name}"), "{}");
    }
    text_of(&node.run("uninstall", &[]));
    assert!(!node.path("state/fabric").exists());
}

/// `uninstall` also removes the device information for Multus last: the state directory has the list of
/// these files.
#[test]
fn device_information_goes_with_the_rest() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "rm $record");
    let file = node.path("devinfo/dp/rdma-vf-0000:3b:00.2-device.json");
    fs::create_dir_all(file.parent().expect("a directory")).expect("made");
    node.install();
    let record = json!({"files": [file]}).to_string();
    node.machine.write("state/device-info.json", &record);
    fs::write(&file, "{}").expect("written");
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    refused(&node.run("uninstall", &[]));
    assert!(file.exists(), "a pod has devices");
    netns.die();
    let check = || node.run("uninstall", &["--check"]).status.success();
    assert!(!check());
    let text = text_of(&node.run("uninstall", &[]));
    let removed = "device information: 1 files removed\n";
    assert!(text.ends_with(removed), "{text}");
    assert!(!file.exists() && check());
}

#[test]
fn uninstall_retries_until_its_work_is_done() {
    let node = Node::with_list(FLANNEL);
    plugin(&node, "rm $record");
    let check = |is_done: bool| {
        let output = node.run("uninstall", &["--check"]);
        assert_eq!(output.status.success(), is_done, "{output:?}");
    };
    check(true);
    node.install();
    check(false);
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    let mut uninstall = node.staying();
    let first = uninstall.error().expect("a sentence");
    assert!(first.contains("these pods have devices"), "{first}");
    assert!(first.contains("ml/trainer-0"), "{first}");
    uninstall.runs();
    check(false);
    netns.die();
    uninstall.finishes();
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    check(true);
    uninstall.end();
    assert_eq!(uninstall.error(), None, "uninstall reports the error once");

    // `uninstall --stay` ends at once after a signal, also while it waits
    node.install();
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    let mut uninstall = node.staying();
    uninstall.error().expect("a sentence");
    uninstall.end();
}

/// Runs the built plugin. The record of the pod has no rails.
#[test]
fn rdma_cni_itself_forgets_a_pod_that_ended() {
    let node = Node::with_list(FLANNEL);
    fs::copy(integration::plugin::rdma_cni(), node.path("new/rdma-cni")).expect("a program");
    node.install();
    let netns = Netns::new("leaving");
    attach(&node, &netns, RECORD);
    let mut record: Value = serde_json::from_str(&node.read(RECORD)).expect("JSON");
    record["rails"] = json!([]);
    node.machine.write(RECORD, &record.to_string());
    netns.die();
    let text = node.uninstall();
    assert!(text.contains("its devices are restored"), "{text}");
    assert!(!node.path(RECORD).exists());
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
}

#[test]
fn an_unreadable_record_may_be_a_pods() {
    for (text, why) in [("{", "EOF"), ("{\"format\": 99}", "its format is 99")] {
        let node = Node::with_list(FLANNEL);
        node.install();
        fs::create_dir_all(node.path("state/attachments/cbr0")).expect("a directory");
        node.machine.write(RECORD, text);
        let before = node.seen();
        let error = refused(&node.run("uninstall", &[]));
        assert!(
            error.contains("container c1 (eth0 of network cbr0)"),
            "{error}"
        );
        assert!(error.contains(why), "{error}");
        assert_eq!(node.seen(), before);
    }
}

#[test]
fn the_plugins_own_state_directory_is_read() {
    let node = Node::with_list(FLANNEL);
    node.machine.write(
        "etc/chain.yaml",
        "resources: [{name: rdma/hca, kind: shared}]\nchain: {plugin: {stateDir: /absent}}\n",
    );
    let (conf, new) = (node.path("etc/chain.yaml"), node.path("new"));
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let arguments = ["--from", &path(&new), "--config", &path(&conf)];
    let error = refused(&node.run("install", &arguments));
    assert!(
        error.contains("chain.plugin.stateDir is \"/absent\""),
        "{error}"
    );
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
    // a daemon with another state directory has run since
    node.install();
    let other = path(&node.path("other"));
    let record = node.read("state/install.json");
    let state = path(&node.path("state"));
    let with = record.replace(&format!("{state:?}"), &format!("{other:?}"));
    assert_ne!(record, with);
    node.machine.write("state/install.json", &with);
    let netns = Netns::new("leaving");
    attach(&node, &netns, "other/attachments/cbr0/c1@eth0.json");
    let error = refused(&node.run("uninstall", &[]));
    assert!(error.contains("these pods have devices"), "{error}");
}

#[test]
fn uninstall_removes_the_entry_from_its_own_list() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let before = node.seen();
    fs::create_dir_all(node.path("other")).expect("made");
    let (bin, conf) = (node.path("opt/cni/bin"), node.path("etc/cni/net.d"));
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let (other, state) = (path(&node.path("other")), path(&node.path("state")));
    let run = |arguments: &[&str]| {
        let mut command = node.bare(arguments[0]);
        let command = command.args(["--state-dir", &state]).args(&arguments[1..]);
        command.output().expect("it runs")
    };
    let new = path(&node.path("new"));
    for (flag, was) in [("--cni-bin-dir", &bin), ("--cni-conf-dir", &conf)] {
        for verb in [&["uninstall"][..], &["install", "--from", &new]] {
            let error = refused(&run(&[verb, &[flag, &other]].concat()));
            let sentence = format!("installed with {was:?}, and {flag} is {other:?} now");
            assert!(error.contains(&sentence), "{error}");
            assert_eq!(node.seen(), before);
        }
    }
    // the mounted directory may differ from the directory at the installation
    let list = node.path("etc/cni/net.d/10-flannel.conflist");
    let aside = node.path("other/10-flannel.conflist");
    fs::rename(&list, &aside).expect("moved");
    let error = refused(&run(&["uninstall"]));
    assert!(
        error.contains("rdma-cni was added to 10-flannel.conflist, and"),
        "{error}"
    );
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
    fs::rename(&aside, &list).expect("moved");
    // without the option, `install` uses the directory of the last installation
    let text = text_of(&run(&["install", "--from", &new]));
    assert!(text.ends_with(", as before\n"), "{text}");
    text_of(&run(&["uninstall"]));
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
    // the network program removed its list
    node.install();
    fs::remove_file(&list).expect("removed");
    text_of(&run(&["uninstall", "--force"]));
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
}
