// SPDX-License-Identifier: Apache-2.0
//! Tests of `install` and `uninstall`: the list, the binaries, and the errors.

use crate::{FLANNEL, Node, SOCKET, TERWAY, refused, text_of};
use inotify::{Inotify, WatchMask};
use serde_json::{Value, json};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

const LIST: &str = "etc/cni/net.d/10-flannel.conflist";

fn types(node: &Node, file: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(&node.read(file)).expect("JSON");
    let plugins = value["plugins"].as_array().expect("plugins").iter();
    plugins
        .map(|it| it["type"].as_str().expect("a type").to_owned())
        .collect()
}

pub(crate) fn age(node: &Node, file: &str) {
    let file = fs::File::options()
        .write(true)
        .open(node.path(file))
        .expect("a file");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, 123);
    file.set_modified(long_ago).expect("older");
}

#[test]
fn install_and_uninstall_leave_every_byte_mode_owner_and_time() {
    for (file, text, mode) in [
        ("10-flannel.conflist", FLANNEL, 0o644),
        ("10-terway.conf", TERWAY, 0o600),
        (
            "10-users.conflist",
            &*FLANNEL.replace("portmap", "rdma-cni"),
            0o640,
        ),
        (
            "10-drop-in.conflist",
            &*FLANNEL.replace("portmap", "rdma"),
            0o640,
        ),
    ] {
        let node = Node::new();
        node.net(file, text);
        let path = node.path("etc/cni/net.d").join(file);
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        std::os::unix::fs::chown(&path, Some(7), Some(7)).expect("an owner");
        age(&node, &format!("etc/cni/net.d/{file}"));
        node.net("README", "mind the gap");
        let before = node.seen();
        node.install();
        assert!(node.path("opt/cni/bin/rdma-cni").exists());
        let found = fs::metadata(&path).expect("it");
        assert_eq!((found.mode() & 0o7777, found.uid()), (mode, 7), "{file}");
        let took = node.run("uninstall", &[]);
        if text.contains("\"rdma") {
            // the binaries must stay while the operator's own list names them
            assert!(
                text_of(&took).contains("the binaries stay: rdma-cni or rdma-ipam is still in"),
                "{took:?}"
            );
            assert_eq!(node.seen().get(&path), before.get(&path), "{file}");
            continue;
        }
        text_of(&took);
        assert_eq!(node.seen(), before, "{file}");
    }
}

#[test]
fn the_list_calls_ours_last_with_the_configured_fields() {
    let node = Node::with_list(FLANNEL);
    let text = node.install();
    assert!(text.contains("rdma-cni\": written\n"), "{text}");
    assert!(text.contains("rdma-ipam\": written\n"), "{text}");
    assert!(text.contains("10-flannel.conflist\": written\n"), "{text}");
    let calls = "the runtime calls rdma-cni for network cbr0 (10-flannel.conflist)\n";
    assert!(text.ends_with(calls), "{text}");
    assert_eq!(types(&node, LIST), ["flannel", "portmap", "rdma-cni"]);
    let mode = fs::metadata(node.path("opt/cni/bin/rdma-cni"))
        .expect("it")
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    // `install` with another configuration replaces the entry
    node.machine.write(
        "etc/chain.yaml",
        "resources: [{name: rdma/hca, kind: shared}]\nchain:\n  confDir: /absent\n  plugin:\n    \
         ipam: {type: rdma-ipam, from: parent}\n",
    );
    let (conf, new) = (node.path("etc/chain.yaml"), node.path("new"));
    let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    text_of(&node.run(
        "install",
        &["--from", &path(&new), "--config", &path(&conf)],
    ));
    assert_eq!(types(&node, LIST), ["flannel", "portmap", "rdma-cni"]);
    let value: Value = serde_json::from_str(&node.read(LIST)).expect("JSON");
    let expected = json!({
        "type": "rdma-cni",
        "ipam": {"type": "rdma-ipam", "from": "parent"},
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
        "stateDir": node.path("state"),
        "podResourcesSocket": node.path(SOCKET),
    });
    assert_eq!(value["plugins"][2], expected);
    node.uninstall();
    assert_eq!(node.read(LIST), FLANNEL);
}

#[test]
fn a_configuration_without_a_chain_is_reported_as_defaults() {
    let node = Node::with_list(FLANNEL);
    node.machine.configure(r#"{"mode": "hca"}"#);
    let (conf, new) = (node.path("etc/config.json"), node.path("new"));
    let mut command = node.command("install", &[]);
    command.arg("--from").arg(new).arg("--config").arg(&conf);
    let text = text_of(&command.output().expect("it runs"));
    let sentence = format!(
        "{conf:?} has no chain, so install uses the defaults: it adds rdma-cni without further fields to a list in \
         {:?}, by containerd's rules; ",
        node.path("etc/cni/net.d")
    );
    assert!(text.starts_with(&sentence), "{text}");
    node.machine
        .configure(r#"{"mode": "hca", "chain": {"confDir": "/absent"}}"#);
    let text = text_of(&command.output().expect("it runs"));
    assert!(!text.contains("has no chain"), "{text}");
    assert!(!node.install().contains("has no chain"));
}

/// containerd ignores files that appear. It reads its configuration again when a file is written,
/// removed or renamed away.
#[test]
fn containerd_hears_of_the_new_list() {
    for (file, text) in [("10-flannel.conflist", FLANNEL), ("10-terway.conf", TERWAY)] {
        let node = Node::new();
        node.net(file, text);
        let mut inotify = Inotify::init().expect("inotify");
        let mask = WatchMask::MOVED_FROM | WatchMask::DELETE;
        let directory = node.path("etc/cni/net.d");
        inotify.watches().add(&directory, mask).expect("watched");
        for step in ["install", "uninstall"] {
            match step {
                "install" => node.install(),
                _ => node.uninstall(),
            };
            // each step must cause an event after which containerd reads its configuration again
            let mut buffer = [0; 4096];
            let events = inotify.read_events(&mut buffer).expect("events");
            assert!(events.count() > 0, "{file}: {step}");
        }
    }
}

/// Another program's entry needs the binaries.
#[test]
fn uninstall_waits_although_the_binaries_stay() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let list = "etc/cni/net.d/10-flannel.conflist";
    let changed = node
        .read(list)
        .replace("\"rdma-cni\",", "\"rdma-cni\", \"mtu\": 4200,");
    node.net("10-flannel.conflist", &changed);
    let mut uninstall = node.staying();
    let stays = "the binaries stay: rdma-cni or rdma-ipam is still in 10-flannel.conflist";
    uninstall.wait_for_log(|line| line.starts_with(stays));
    assert_eq!(uninstall.line().as_deref(), Some("waiting for SIGTERM"));
    // the network program writes its file again
    node.net("10-flannel.conflist", FLANNEL);
    uninstall.finishes();
    uninstall.end();
}

/// `rdma-ipam` can be the IPAM plugin of another plugin.
#[test]
fn the_ipam_plugin_of_another_list_stays() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let list = FLANNEL.replace(
        "\"type\": \"flannel\"",
        "\"type\": \"bridge\", \"ipam\": {\"type\": \"rdma-ipam\"}",
    );
    node.net("20-storage.conflist", &list.replace("cbr0", "storage"));
    let output = node.uninstall();
    assert!(
        output.contains("rdma-cni or rdma-ipam is still in 20-storage.conflist"),
        "{output}"
    );
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    assert!(node.path("opt/cni/bin/rdma-ipam").exists());
}

#[test]
fn a_users_changes_in_our_entry_stay() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let text = node.read(LIST);
    let changed = text.replace("\"rdma-cni\",", "\"rdma-cni\", \"mtu\": 4200,");
    assert_ne!(text, changed);
    node.net("10-flannel.conflist", &changed);
    let output = node.install();
    assert!(
        output.ends_with(", with an entry that another program wrote, as before\n"),
        "{output}"
    );
    assert_eq!(node.read(LIST), changed);
    assert!(!node.path("etc/cni/net.d/cbr0").exists());
    let output = node.uninstall();
    assert!(
        output.contains("the binaries stay: rdma-cni or rdma-ipam is still in 10-flannel.conflist")
    );
    assert_eq!(node.read(LIST), changed);
    // the network program writes its file again, and `install` adds the entry again
    node.net("10-flannel.conflist", FLANNEL);
    node.install();
    assert_eq!(types(&node, LIST), ["flannel", "portmap", "rdma-cni"]);
    node.uninstall();
    assert_eq!(node.read(LIST), FLANNEL);
}

#[test]
fn a_second_install_changes_nothing_and_reports_it() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let before = node.seen();
    let inode = fs::metadata(node.path(LIST)).expect("it").ino();
    let text = node.install();
    assert_eq!(text.matches("already installed\n").count(), 2, "{text}");
    assert!(
        text.ends_with("(10-flannel.conflist), as before\n"),
        "{text}"
    );
    assert_eq!(node.seen(), before);
    assert_eq!(fs::metadata(node.path(LIST)).expect("it").ino(), inode);
}

#[test]
fn without_a_network_the_binaries_are_there_and_nothing_is_wrong() {
    let node = Node::new();
    let text = node.install();
    assert!(
        text.contains("there is no network configuration yet"),
        "{text}"
    );
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
    // repeat without the directory of the lists
    fs::remove_dir(node.path("etc/cni/net.d")).expect("removed");
    assert!(
        node.install()
            .contains("there is no network configuration yet")
    );
    assert!(!node.path("etc/cni/net.d").exists());
    node.uninstall();
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
    assert!(
        node.uninstall()
            .starts_with("nothing was installed on this node")
    );
    assert!(!node.path("state").exists());
}

#[test]
fn an_impossible_install_is_one_sentence_and_changes_no_list() {
    let (old, broken) = (FLANNEL.replace("0.3.1", "0.2.0"), &FLANNEL[..60]);
    let cases = [
        (
            old.as_str(),
            "rdma-device-plugin does not change 10-flannel.conflist: cniVersion is 0.2.0; rdma-cni supports",
        ),
        (broken, "the runtime cannot use 10-flannel.conflist:"),
        ("// {}", "the runtime cannot use 10-flannel.conflist"),
        (
            "{\"name\":\"n\",\"plugins\":[]}",
            "plugins must have at least one plugin",
        ),
    ];
    let new = |node: &Node| node.path("new").to_str().expect("a path").to_owned();
    for (text, sentence) in cases {
        let node = Node::with_list(text);
        let error = refused(&node.run("install", &["--from", &new(&node)]));
        assert!(error.contains(sentence), "{error}");
        assert_eq!(node.read(LIST), text);
        node.uninstall();
        assert!(!node.path("opt/cni/bin/rdma-cni").exists());
    }
    let node = Node::new();
    node.machine.write("list", FLANNEL);
    symlink(node.path("list"), node.path(LIST)).expect("a link");
    let error = refused(&node.run("install", &["--from", &new(&node)]));
    assert!(
        error.contains("the file is a symbolic link; replace the link with a regular file"),
        "{error}"
    );
    assert_eq!(node.read("list"), FLANNEL);
    fs::remove_file(node.path("new/rdma-ipam")).expect("removed");
    let node_before = node.seen();
    let error = refused(&node.run("install", &["--from", &new(&node)]));
    assert!(error.contains("has no rdma-ipam"), "{error}");
    assert_eq!(node.seen(), node_before);
    // a later version wrote the record
    node.machine.write("state/install.json", "{\"format\":3}");
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("its format is 3, which a newer rdma-device-plugin wrote: use that release"),
        "{error}"
    );
}

#[test]
fn a_wrong_value_of_the_chain_is_reported_with_its_place() {
    let node = Node::with_list(FLANNEL);
    let cases = [
        (
            "plugin: {mode: sideways}",
            "chain.plugin: mode: \"sideways\"",
        ),
        (
            "plugin: {type: rdma}",
            "chain.plugin.type: must be left out",
        ),
        ("confDir: net.d", "chain.confDir: must be an absolute path"),
        (
            "network: pods",
            "chain.network: must be left out with runtime containerd, which uses the first network",
        ),
        (
            "runtime: docker",
            "chain.runtime: must be one of containerd, crio",
        ),
        ("file: x", "chain.file: not known"),
    ];
    for (field, sentence) in cases {
        let text = format!("resources: [{{name: rdma/hca, kind: shared}}]\nchain:\n  {field}\n");
        node.machine.write("etc/chain.yaml", &text);
        let conf = node.path("etc/chain.yaml");
        let output = node.run("install", &["--config", conf.to_str().expect("a path")]);
        let error = refused(&output);
        assert!(error.contains(sentence), "{field}: {error}");
        assert_eq!(node.read(LIST), FLANNEL);
    }
}

/// Runs as in a container that has only the capabilities CHOWN and DAC_OVERRIDE. Without them, the program cannot
/// change the file of another user.
#[test]
fn two_capabilities_are_enough_for_another_users_list() {
    let node = Node::with_list(FLANNEL);
    node.machine.write("opt/cni/bin/rdma-cni", "somebody's\n");
    for file in [LIST, "opt/cni/bin/rdma-cni"] {
        age(&node, file);
        let file = node.path(file);
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("a mode");
        std::os::unix::fs::chown(&file, Some(7), Some(7)).expect("an owner");
    }
    let before = node.seen();
    let new = node.path("new");
    for (verb, arguments) in [
        ("install", &["--from", new.to_str().expect("a path")][..]),
        ("uninstall", &[]),
    ] {
        let program = node.command(verb, arguments);
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-all,+chown,+dac_override");
        command.arg(program.get_program()).args(program.get_args());
        text_of(&command.output().expect("setpriv"));
    }
    assert_eq!(node.seen(), before);
}

#[test]
fn a_foreign_call_before_ours_is_the_only_one() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let text = node.read(LIST);
    let added = text.replace(
        "{\n      \"type\": \"portmap\"",
        "{\"type\": \"rdma\"},\n    {\n      \"type\": \"portmap\"",
    );
    assert_ne!(text, added);
    node.net("10-flannel.conflist", &added);
    assert!(
        node.install()
            .contains("with an entry that another program wrote")
    );
    assert_eq!(types(&node, LIST), ["flannel", "rdma", "portmap"]);
    // an operator adds the entry while neither daemon nor `install` runs
    node.net("10-flannel.conflist", FLANNEL);
    node.install();
    node.net("10-flannel.conflist", &added);
    assert!(
        node.uninstall()
            .contains("the binaries stay: rdma-cni or rdma-ipam is still in")
    );
    assert_eq!(types(&node, LIST), ["flannel", "rdma", "portmap"]);
}

#[test]
fn an_install_that_was_killed_is_taken_away_whole_or_done_again() {
    let node = Node::with_list(FLANNEL);
    let before = node.seen();
    let new = node.path("new");
    let mut killed = 0;
    for round in 0..40 {
        let mut command = node.command("install", &["--from", new.to_str().expect("a path")]);
        let mut running = command.stdout(Stdio::null()).spawn().expect("it runs");
        thread::sleep(Duration::from_micros(round * 400));
        running.kill().expect("killed");
        killed += u32::from(!running.wait().expect("gone").success());
        if round % 2 == 1 {
            node.install();
            assert_eq!(types(&node, LIST), ["flannel", "portmap", "rdma-cni"]);
        }
        node.uninstall();
        assert!(
            node.seen() == before,
            "round {round}: {:?}",
            node.seen().keys()
        );
    }
    assert!(killed > 3, "only {killed} were killed");
}
