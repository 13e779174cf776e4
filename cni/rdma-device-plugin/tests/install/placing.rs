// SPDX-License-Identifier: Apache-2.0
//! Tests of the entry in the network's own directory.

use crate::{
    FLANNEL, Files, Node, Seen,
    keeping::{SOON, becomes, becomes_quiet, command, count_of_ours},
    refused, text_of,
};
use inotify::{EventMask, Inotify, WatchMask};
use integration::{CniCache, Daemon, stopwatch};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::PathBuf,
    thread,
    time::Duration,
};

const FILE: &str = "10-flannel.conflist";
const LIST: &str = "etc/cni/net.d/10-flannel.conflist";
const OWN: &str = "etc/cni/net.d/cbr0";
const OURS: &str = "etc/cni/net.d/cbr0/99-rdma-cni.conf";

/// Writes the evidence that `rdma-cni` writes when the runtime calls it from the network's own directory at `verbs`.
fn called(node: &Node, verbs: &[&str]) {
    for verb in verbs {
        node.machine
            .write(&format!("state/detected/{verb}@cbr0"), "");
    }
}

/// Returns true if the file in the network's own directory has the full entry, and false if it has only a detection
/// entry. Returns `None` if the file does not exist.
fn is_entry(node: &Node) -> Option<bool> {
    let text = fs::read_to_string(node.path(OURS)).ok()?;
    let entry: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(entry["type"], "rdma-cni");
    Some(entry["detect"] != true)
}

fn place(node: &Node, placement: &str) -> String {
    let new = node.path("new");
    let new = new.to_str().expect("a path");
    text_of(&node.run("install", &["--from", new, "--placement", placement]))
}

fn list(node: &Node) -> Seen {
    node.seen().remove(&node.path(LIST)).expect("the list")
}

/// With placement `directory` the entry has its own file. The list stays unchanged, with its modification time, and a
/// program that writes the list continuously cannot remove the entry.
#[test]
fn a_file_of_ours_and_no_list_is_touched() {
    let node = Node::with_list(FLANNEL);
    let list_path = node.path(LIST);
    let (before, untouched) = (node.seen(), list(&node));
    let text = place(&node, "directory");
    assert!(
        text.contains("cbr0/99-rdma-cni.conf\": written\n"),
        "{text}"
    );
    let calls = "the runtime calls rdma-cni for network cbr0 (cbr0/99-rdma-cni.conf)\n";
    assert!(text.ends_with(calls), "{text}");
    assert_eq!((is_entry(&node), list(&node)), (Some(true), untouched));
    for (below, mode) in [(OWN, 0o755), (OURS, 0o644)] {
        let found = fs::metadata(node.path(below)).expect("it");
        assert_eq!(found.mode() & 0o7777, mode, "{below}");
    }
    let text = place(&node, "directory");
    assert!(
        text.ends_with("(cbr0/99-rdma-cni.conf), as before\n"),
        "{text}"
    );
    node.machine
        .configure(r#"{"mode":"hca","chain":{"placement":"directory"}}"#);
    let daemon = start(&node);
    becomes(&daemon, 200, "network cbr0 (cbr0/99-rdma-cni.conf)");
    for round in 0..20 {
        let temporary = list_path.with_extension("tmp");
        fs::write(
            &temporary,
            FLANNEL.replace("true", &format!("{}", round % 2 == 0)),
        )
        .expect("written");
        fs::rename(&temporary, &list_path).expect("renamed");
        assert_eq!(is_entry(&node), Some(true));
        assert_eq!(count_of_ours(&node, FILE), 0);
        thread::sleep(Duration::from_millis(5));
    }
    // another program removes the daemon's file, and then the whole directory
    fs::remove_file(node.path(OURS)).expect("removed");
    assert!(stopwatch::within(SOON, || is_entry(&node) == Some(true)));
    fs::remove_dir_all(node.path(OWN)).expect("removed");
    assert!(stopwatch::within(SOON, || is_entry(&node) == Some(true)));
    becomes_quiet(&daemon);
    drop(daemon);
    fs::write(&list_path, FLANNEL).expect("written");
    let output = node.uninstall();
    assert!(
        output.contains("cbr0/99-rdma-cni.conf\": removed\n"),
        "{output}"
    );
    assert!(!node.path(OWN).exists());
    for below in ["etc/cni", "opt"] {
        let path = node.path(below);
        let files = |seen: &Files| -> Vec<PathBuf> {
            let files = seen.keys().filter(|it| it.starts_with(&path));
            files.cloned().collect()
        };
        assert_eq!(files(&node.seen()), files(&before));
    }
}

fn start(node: &Node) -> Daemon {
    let mut command = command(node);
    command.args(["--log-level", "debug", "--metrics-address", "127.0.0.1:0"]);
    Daemon::start(&mut command)
}

/// The daemon moves the entry into the network's own directory when evidence appears, and back to the list when the
/// evidence disappears.
#[test]
fn the_entry_goes_where_the_runtime_was_seen_to_call_it() {
    let node = Node::with_list(FLANNEL);
    let before = node.seen();
    place(&node, "auto");
    node.machine
        .configure(r#"{"mode":"hca","chain":{"placement":"auto"}}"#);
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (1, Some(false))
    );
    let cache = CniCache::new(&node.path("results"));
    cache.add("web-0", "a0", "cbr0", &["flannel"]);
    let daemon = start(&node);
    becomes(&daemon, 200, "(10-flannel.conflist)");
    // CRI-O calls the plugins of this directory at ADD, and not at DEL
    called(&node, &["ADD"]);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (1, Some(false))
    );
    called(&node, &["DEL"]);
    becomes(&daemon, 200, "(cbr0/99-rdma-cni.conf)");
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (0, Some(true))
    );
    assert_eq!(
        list(&node),
        before[&node.path(LIST)],
        "as it was, with its time"
    );
    // `install` of the next version keeps the entry in the directory
    place(&node, "auto");
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (0, Some(true))
    );
    becomes_quiet(&daemon);
    // another runtime is installed, which does not read the directory
    fs::remove_file(node.path("state/detected/ADD@cbr0")).expect("removed");
    becomes(&daemon, 200, "(10-flannel.conflist)");
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (1, Some(false))
    );
    // without libcni's cache, the daemon could not detect that the runtime no longer reads the directory, so the
    // entry stays in the list
    drop((daemon, cache));
    fs::remove_dir_all(node.path("results")).expect("removed");
    called(&node, &["ADD"]);
    let daemon = start(&node);
    becomes(&daemon, 200, "(10-flannel.conflist)");
    drop(daemon);
    node.uninstall();
    assert_eq!(list(&node), before[&node.path(LIST)]);
    assert!(!node.path(OWN).exists());
    assert!(!node.path("state/detected").exists());
}

/// Kubelet makes each directory that a DaemonSet mounts. An empty cache directory therefore does not prove that the
/// runtime keeps its cache there.
#[test]
fn an_empty_cache_shows_nothing() {
    let node = Node::with_list(FLANNEL);
    place(&node, "auto");
    node.machine
        .configure(r#"{"mode":"hca","chain":{"placement":"auto"}}"#);
    let cache = CniCache::new(&node.path("results"));
    called(&node, &["ADD", "DEL"]);
    let daemon = start(&node);
    becomes(&daemon, 200, "(10-flannel.conflist)");
    assert_eq!(is_entry(&node), Some(false));
    // a file in the cache proves that the runtime uses this directory
    let made = cache.add("web-0", "a0", "cbr0", &["flannel"]);
    assert!(stopwatch::within(3 * SOON, || is_entry(&node) == Some(true)));
    becomes(&daemon, 200, "(cbr0/99-rdma-cni.conf)");
    // the last pod has ended
    fs::remove_file(made).expect("removed");
    node.net(FILE, FLANNEL);
    becomes_quiet(&daemon);
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (0, Some(true))
    );
}

/// The list has the full entry, so the daemon can do without the detection entry.
#[test]
fn an_entry_that_cannot_be_written_to_detect_hinders_nothing() {
    for (in_the_way, what) in [(OWN, "cbr0"), ("state/detected", "detected")] {
        let node = Node::with_list(FLANNEL);
        fs::create_dir_all(node.path("state")).expect("made");
        node.machine.write(in_the_way, "");
        let text = place(&node, "auto");
        assert!(text.contains("(10-flannel.conflist)"), "{text}");
        assert_eq!((count_of_ours(&node, FILE), is_entry(&node)), (1, None));
        node.machine
            .configure(r#"{"mode":"hca","chain":{"placement":"auto"}}"#);
        let daemon = start(&node);
        becomes(&daemon, 200, "(10-flannel.conflist)");
        daemon.wait_for_log(&format!("{what}\": "));
        node.net(FILE, FLANNEL);
        becomes(&daemon, 200, "(10-flannel.conflist)");
        assert!(stopwatch::within(SOON, || count_of_ours(&node, FILE) == 1));
        becomes_quiet(&daemon);
        // the daemon writes the file as soon as this is possible
        fs::remove_file(node.path(in_the_way)).expect("removed");
        node.net(FILE, FLANNEL);
        assert!(stopwatch::within(SOON, || is_entry(&node) == Some(false)));
    }
}

#[test]
fn list_placement_uses_the_list_only() {
    let node = Node::with_list(FLANNEL);
    place(&node, "list");
    assert_eq!((count_of_ours(&node, FILE), is_entry(&node)), (1, None));
    place(&node, "directory");
    assert_eq!(
        (count_of_ours(&node, FILE), is_entry(&node)),
        (0, Some(true))
    );
    place(&node, "list");
    assert_eq!((count_of_ours(&node, FILE), is_entry(&node)), (1, None));
    assert!(!node.path(OWN).exists(), "it was made for the file");
    // there is no detection entry with CRI-O, or if `rdma-cni` does not query kubelet
    for chain in [
        r#"{"placement":"auto","runtime":"crio"}"#,
        r#"{"placement":"auto","plugin":{"devices":[{"netdev":"ens1"}]}}"#,
    ] {
        let text = format!(r#"{{"mode":"hca","chain":{chain}}}"#);
        node.machine.configure(&text);
        let (conf, new) = (node.path("etc/config.json"), node.path("new"));
        let mut command = node.command("install", &[]);
        command.arg("--from").arg(new).arg("--config").arg(conf);
        text_of(&command.output().expect("it runs"));
        assert_eq!(
            (count_of_ours(&node, FILE), is_entry(&node)),
            (1, None),
            "{chain}"
        );
        command.args(["--placement", "directory"]);
        let why = refused(&command.output().expect("it runs"));
        assert!(why.contains("--placement must be list or auto w"), "{why}");
    }
}

/// libcni follows a link in place of a network's directory, and so do `install` and `uninstall`. A file in place of the
/// directory counts as no directory.
#[test]
fn the_directory_is_the_one_that_libcni_reads() {
    let node = Node::with_list(FLANNEL);
    fs::create_dir(node.path("elsewhere")).expect("made");
    symlink("../../../elsewhere", node.path(OWN)).expect("a link");
    place(&node, "directory");
    let text = place(&node, "directory");
    assert!(text.ends_with(", as before\n"), "{text}");
    node.uninstall();
    assert!(!node.path(OURS).exists());
    fs::remove_file(node.path(OWN)).expect("removed");
    node.machine.write(OWN, "");
    node.install();
    assert_eq!(count_of_ours(&node, FILE), 1);
}

/// Runtimes watch only the directory of the lists, and no directory below it. When a file in the watched directory is
/// removed, containerd reads the lists again.
#[test]
fn containerd_hears_of_a_change_below() {
    let node = Node::with_list(FLANNEL);
    let mut inotify = Inotify::init().expect("inotify");
    let mask = WatchMask::MOVED_FROM | WatchMask::DELETE;
    let watches = inotify.watches().add(node.path("etc/cni/net.d"), mask);
    watches.expect("watched");
    let mut events = || {
        let mut buffer = [0; 4096];
        let events = inotify.read_events(&mut buffer).expect("events");
        let names: Vec<_> = events
            .filter(|it| !it.mask.contains(EventMask::ISDIR))
            .map(|it| it.name.expect("a name").to_owned())
            .collect();
        names
    };
    place(&node, "directory");
    assert_eq!(events(), [".rdma-cni-changes"]);
    // a run was killed after it changed the file and before it notified the runtime
    node.machine.write("etc/cni/net.d/.rdma-cni-changes", "");
    place(&node, "directory");
    assert_eq!(events(), [".rdma-cni-changes"]);
    node.uninstall();
    assert_eq!(events(), [".rdma-cni-changes"]);
}

#[test]
fn foreign_files_in_the_directory_stay() {
    let node = Node::with_list(FLANNEL);
    let theirs = "etc/cni/net.d/cbr0/50-tuning.conf";
    place(&node, "directory");
    node.machine.write(theirs, r#"{"type":"tuning"}"#);
    node.uninstall();
    assert_eq!(node.read(theirs), r#"{"type":"tuning"}"#);
    assert!(!node.path(OURS).exists());
    // `uninstall` keeps an empty directory that existed before
    fs::remove_file(node.path(theirs)).expect("removed");
    place(&node, "directory");
    node.uninstall();
    assert!(node.path(OWN).is_dir());
    // another program wrote an entry of rdma-cni, so the binaries stay as long as the entry exists
    node.machine
        .write(theirs, r#"{"type":"rdma-cni","deviceID":"0000:3b:00.0"}"#);
    let text = place(&node, "directory");
    assert!(
        text.ends_with(
            "(cbr0/50-tuning.conf), with an entry that another program wrote, as before\n"
        ),
        "{text}"
    );
    let text = node.uninstall();
    assert!(
        text.contains("rdma-cni or rdma-ipam is still in cbr0/50-tuning.conf"),
        "{text}"
    );
}

/// Even root cannot read a link that leads to itself.
#[test]
fn a_directory_that_cannot_be_read_is_named_and_one_that_is_none_any_more_is_not_missed() {
    let node = Node::with_list(FLANNEL);
    let before = node.seen();
    place(&node, "directory");
    let (own, aside) = (node.path(OWN), node.path("aside"));
    fs::rename(&own, &aside).expect("moved");
    symlink(&own, &own).expect("a link");
    let error = refused(&node.run("uninstall", &["--force"]));
    assert!(error.contains(own.to_str().expect("a path")), "{error}");
    fs::remove_file(&own).expect("removed");
    fs::rename(&aside, &own).expect("moved back");
    node.uninstall();
    assert_eq!(node.seen(), before);

    place(&node, "directory");
    fs::remove_dir_all(&own).expect("removed");
    fs::write(&own, "theirs").expect("written");
    node.uninstall();
    assert_eq!(fs::read_to_string(&own).expect("the file"), "theirs");
    fs::remove_file(&own).expect("removed");
    assert_eq!(node.seen(), before);

    place(&node, "directory");
    fs::remove_file(node.path(OURS)).expect("removed");
    fs::create_dir(node.path(OURS)).expect("made");
    node.uninstall();
    fs::remove_dir_all(&own).expect("theirs");
    assert_eq!(node.seen(), before);
}

/// A killed run has recorded that it removes the entry. The next run may see another directory instead of the directory
/// of the lists.
#[test]
fn another_directory_is_distinguished_from_one_whose_entry_is_gone() {
    let node = Node::with_list(FLANNEL);
    let before = node.seen();
    place(&node, "directory");
    let record = node.path("state/install.json");
    let text = fs::read_to_string(&record).expect("the record");
    let mut content: Value = serde_json::from_str(&text).expect("JSON");
    content["withdrawn"] = true.into();
    node.machine
        .write("state/install.json", &content.to_string());
    let (lists, aside) = (node.path("etc/cni/net.d"), node.path("aside"));
    fs::rename(&lists, &aside).expect("moved");
    fs::create_dir(&lists).expect("another one");
    let error = refused(&node.run("uninstall", &[]));
    assert!(error.contains("has none of these files"), "{error}");
    fs::remove_dir(&lists).expect("removed");
    fs::rename(&aside, &lists).expect("moved back");
    // make the state in which the killed run had already removed the entry
    fs::remove_dir_all(node.path(OWN)).expect("removed");
    node.uninstall();
    assert_eq!(node.seen(), before);
}

/// With each placement, an entry without its program makes ADD fail for every pod. So the daemon removes the entry while
/// the program is missing.
#[test]
fn the_file_goes_with_the_program_and_comes_back() {
    let node = Node::with_list(FLANNEL);
    place(&node, "directory");
    node.machine
        .configure(r#"{"mode":"hca","chain":{"placement":"directory"}}"#);
    let daemon = start(&node);
    becomes(&daemon, 200, "(cbr0/99-rdma-cni.conf)");
    let program = node.path("opt/cni/bin/rdma-cni");
    let aside = node.path("aside");
    fs::rename(&program, &aside).expect("moved");
    assert!(stopwatch::within(3 * SOON, || is_entry(&node).is_none()));
    becomes(&daemon, 503, "rdma-cni is not in");
    fs::rename(&aside, &program).expect("moved");
    assert!(stopwatch::within(SOON, || is_entry(&node) == Some(true)));
    becomes(&daemon, 200, "(cbr0/99-rdma-cni.conf)");
    drop(daemon);
    node.uninstall();
    assert!(!node.path(OWN).exists());
}
