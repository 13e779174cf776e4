//! `install` and `uninstall`.

use crate::{FLANNEL, Node, TERWAY, refused, said};
use inotify::{Inotify, WatchMask};
use rdma_netns::{Kernel, Linux};
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

fn age(node: &Node, file: &str) {
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
        let users = text.contains("\"rdma");
        let took = node.run("uninstall", &[]);
        if users && text.contains("rdma-cni") || text.contains("\"rdma\"") {
            // the binaries have to stay as long as the user's list names them
            assert!(
                said(&took).contains("the binaries stay: somebody else has rdma-cni"),
                "{took:?}"
            );
            assert_eq!(fs::read_to_string(&path).expect("it"), text);
            continue;
        }
        said(&took);
        assert_eq!(node.seen(), before, "{file}");
    }
}

#[test]
fn the_list_calls_ours_last_and_says_what_was_configured() {
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
    // another configuration is put in its place
    node.machine.write(
        "etc/chain.yaml",
        "resources: [{name: rdma/hca, kind: shared}]\nchain:\n  confDir: /absent\n  plugin:\n    \
         ipam: {type: rdma-ipam, from: parent}\n",
    );
    let (conf, new) = (node.path("etc/chain.yaml"), node.path("new"));
    let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    said(&node.run(
        "install",
        &["--from", &path(&new), "--config", &path(&conf)],
    ));
    assert_eq!(types(&node, LIST), ["flannel", "portmap", "rdma-cni"]);
    let value: Value = serde_json::from_str(&node.read(LIST)).expect("JSON");
    let expected = json!({
        "type": "rdma-cni",
        "ipam": {"type": "rdma-ipam", "from": "parent"},
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
    });
    assert_eq!(value["plugins"][2], expected);
    node.uninstall();
    assert_eq!(node.read(LIST), FLANNEL);
}

/// containerd passes over files that appear; it reads again when one is written, removed or renamed
/// away.
#[test]
fn containerd_hears_of_the_new_list() {
    for (file, text) in [("10-flannel.conflist", FLANNEL), ("10-terway.conf", TERWAY)] {
        let node = Node::new();
        node.net(file, text);
        let mut inotify = Inotify::init().expect("inotify");
        let heard = WatchMask::MOVED_FROM | WatchMask::DELETE;
        let directory = node.path("etc/cni/net.d");
        inotify.watches().add(&directory, heard).expect("watched");
        for step in ["install", "uninstall"] {
            match step {
                "install" => node.install(),
                _ => node.uninstall(),
            };
            // what happens before the new list is there is no such event
            let mut buffer = [0; 4096];
            let events = inotify.read_events(&mut buffer).expect("heard");
            assert!(events.count() > 0, "{file}: {step}");
        }
    }
}

#[test]
fn what_a_user_changed_in_our_entry_is_theirs_from_then_on() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let text = node.read(LIST);
    let changed = text.replace("\"rdma-cni\",", "\"rdma-cni\", \"mtu\": 4200,");
    assert_ne!(text, changed);
    node.net("10-flannel.conflist", &changed);
    let said = node.install();
    assert!(
        said.ends_with(", as somebody else configured it, as before\n"),
        "{said}"
    );
    assert_eq!(node.read(LIST), changed);
    let said = node.uninstall();
    assert!(said.contains("the binaries stay: somebody else has rdma-cni in 10-flannel.conflist"));
    assert_eq!(node.read(LIST), changed);
    // the network writes its file anew: it is ours again
    node.net("10-flannel.conflist", FLANNEL);
    node.install();
    assert_eq!(types(&node, LIST), ["flannel", "portmap", "rdma-cni"]);
    node.uninstall();
    assert_eq!(node.read(LIST), FLANNEL);
}

#[test]
fn a_second_install_changes_nothing_and_says_so() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let before = node.seen();
    let inode = fs::metadata(node.path(LIST)).expect("it").ino();
    let text = node.install();
    assert_eq!(text.matches("there already\n").count(), 2, "{text}");
    assert!(
        text.ends_with("(10-flannel.conflist), as before\n"),
        "{text}"
    );
    assert_eq!(node.seen(), before);
    assert_eq!(fs::metadata(node.path(LIST)).expect("it").ino(), inode);
}

#[test]
fn a_running_binary_goes_on_when_another_version_takes_its_place() {
    let node = Node::with_list(FLANNEL);
    fs::copy("/bin/sleep", node.path("new/rdma-cni")).expect("a program");
    node.install();
    let binary = node.path("opt/cni/bin/rdma-cni");
    let mut running = Command::new(&binary).arg("60").spawn().expect("it runs");
    node.version("2");
    let text = node.install();
    let goes_on = running.try_wait().expect("a child").is_none();
    running.kill().expect("ended");
    running.wait().expect("gone");
    assert!(goes_on, "the old one ended");
    assert!(
        text.contains("rdma-cni\": another version is there now"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&binary).expect("it"), "rdma-cni 2\n");
    // and back
    node.version("1");
    node.install();
    assert_eq!(fs::read_to_string(&binary).expect("it"), "rdma-cni 1\n");
    node.uninstall();
    assert!(!binary.exists());
}

#[test]
fn what_somebody_else_put_there_comes_back_and_what_they_put_there_since_stays() {
    let node = Node::with_list(FLANNEL);
    node.machine.write("opt/cni/bin/rdma-cni", "somebody's\n");
    node.machine.write("opt/cni/bin/rdma-ipam", "rdma-ipam 1\n");
    let binary = node.path("opt/cni/bin/rdma-cni");
    fs::set_permissions(&binary, Permissions::from_mode(0o711)).expect("a mode");
    age(&node, "opt/cni/bin/rdma-cni");
    let before = node.seen();
    let text = node.install();
    assert!(
        text.contains("what somebody else had put there is kept"),
        "{text}"
    );
    assert!(
        text.contains("there already, put by somebody else"),
        "{text}"
    );
    node.version("2");
    node.install();
    node.version("3");
    node.install();
    let text = node.uninstall();
    assert!(
        text.contains("rdma-cni\": what was there before is back"),
        "{text}"
    );
    let mut after = node.seen();
    // that one was replaced by version 2, and kept then
    let ipam = node.path("opt/cni/bin/rdma-ipam");
    assert_eq!(
        after.remove(&ipam).map(|it| it.0),
        before.get(&ipam).map(|it| it.0.clone())
    );
    let mut before = before;
    before.remove(&ipam);
    assert_eq!(after, before);

    node.install();
    node.machine
        .write("opt/cni/bin/rdma-cni", "somebody's since\n");
    let text = node.uninstall();
    assert!(
        text.contains("rdma-cni\": stays; somebody else put it there"),
        "{text}"
    );
    assert_eq!(node.read("opt/cni/bin/rdma-cni"), "somebody's since\n");
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
    // not even a directory
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
fn what_cannot_be_done_is_one_sentence_and_changes_no_list() {
    let (old, broken) = (FLANNEL.replace("0.3.1", "0.2.0"), &FLANNEL[..60]);
    let cases = [
        (
            old.as_str(),
            "10-flannel.conflist is left as it is: cniVersion is 0.2.0; rdma-cni speaks",
        ),
        (
            broken,
            "10-flannel.conflist cannot be used by the runtime, and is left as it is:",
        ),
        ("// {}", "10-flannel.conflist cannot be used by the runtime"),
        (
            "{\"name\":\"n\",\"plugins\":[]}",
            "plugins must have a plugin in it",
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
        error.contains("it is a symbolic link; put the file itself there"),
        "{error}"
    );
    assert_eq!(node.read("list"), FLANNEL);
    fs::remove_file(node.path("new/rdma-ipam")).expect("removed");
    let node_before = node.seen();
    let error = refused(&node.run("install", &["--from", &new(&node)]));
    assert!(error.contains("there is no rdma-ipam in"), "{error}");
    assert_eq!(node.seen(), node_before);
    // without --from, they are looked for beside the program, where a build has them or not
    node.machine.write("state/install.json", "{\"format\":2}");
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("has format 2, and this version knows 1"),
        "{error}"
    );
}

#[test]
fn a_wrong_value_of_the_chain_is_told_with_its_place() {
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
            "chain.network: must be left out: only CRI-O",
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

#[test]
fn pods_with_devices_are_not_left_behind() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let boot_id = Linux::new().boot_id().expect("the boot");
    let record = json!({
        "key": {"container": "c1"}, "pod": "ml/trainer-0", "boot_id": boot_id, "bootId": boot_id,
        "netns": "/run/netns/x", "netnsId": {"device": 1, "inode": 2, "cookie": 3},
        "phase": "attached", "rails": [],
    });
    fs::create_dir_all(node.path("state/attachments/cbr0")).expect("a directory");
    node.machine
        .write("state/attachments/cbr0/c1@eth0.json", &record.to_string());
    let before = node.seen();
    let error = refused(&node.run("uninstall", &[]));
    assert!(
        error.contains("nothing was changed: these pods have devices"),
        "{error}"
    );
    assert!(error.contains("ml/trainer-0"), "{error}");
    assert_eq!(node.seen(), before);
    let text = said(&node.run("uninstall", &["--force"]));
    assert!(
        text.contains("the binaries stay for ml/trainer-0"),
        "{text}"
    );
    assert_eq!(node.read(LIST), FLANNEL);
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
    fs::remove_file(node.path("state/attachments/cbr0/c1@eth0.json")).expect("ended");
    node.uninstall();
    assert!(!node.path("opt/cni/bin/rdma-cni").exists());
    assert!(!node.path("state/install.json").exists());
}
