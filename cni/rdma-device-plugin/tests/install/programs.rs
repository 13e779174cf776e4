// SPDX-License-Identifier: Apache-2.0
//! Tests of the runtime's plugin directory: it must have each plugin that the list names, an installed binary must be
//! able to run, and the daemon removes `rdma-cni` from the list if its program disappears.

use crate::{
    FLANNEL, Node, SOCKET,
    keeping::{becomes, becomes_quiet, count_of_ours, daemon},
    plugin, refused, text_of,
};
use integration::{stopwatch, wait};
use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    process::{Command, Output},
    thread,
    time::Duration,
};

const LIST: &str = "etc/cni/net.d/10-flannel.conflist";
const CALLED: &str = "the runtime calls rdma-cni for network cbr0";

fn install(node: &Node, arguments: &[&str]) -> Output {
    let mut command = node.command("install", arguments);
    command.arg("--from").arg(node.path("new"));
    command.output().expect("it runs")
}

/// Debian's containerd searches `/usr/lib/cni`. The network's programs are in `/usr/lib/cni`, and not in the directory
/// of this test.
#[test]
fn a_directory_that_the_runtime_does_not_search_gets_nothing_into_the_list() {
    let node = Node::with_list(FLANNEL);
    for name in ["flannel", "portmap"] {
        fs::remove_file(node.path("opt/cni/bin").join(name)).expect("removed");
    }
    let error = refused(&install(&node, &[]));
    for words in [
        "10-flannel.conflist names flannel and portmap, not in",
        "the runtime uses other plugin directories",
        "`containerd config dump`",
        "--cni-bin-dir",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(node.read(LIST), FLANNEL);
    // the daemon's pod starts nevertheless, and the daemon reports the reason why it is not ready
    let text = text_of(&install(&node, &["--init-container"]));
    assert!(
        text.contains("the runtime does not call rdma-cni yet"),
        "{text}"
    );
    assert!(text.contains("names flannel and portmap"), "{text}");
    let daemon = daemon(&node);
    becomes(&daemon, 503, "names flannel and portmap");
    assert_eq!(node.read(LIST), FLANNEL);
    becomes_quiet(&daemon);
    node.program("flannel", "the network's");
    becomes(&daemon, 503, "names portmap, not in");
    node.program("portmap", "the network's");
    becomes(&daemon, 200, CALLED);
}

/// The list's plugins may be in any directory of CRI-O's `plugin_dirs` or containerd's `bin_dirs`.
#[test]
fn a_runtime_may_search_several_directories() {
    let node = Node::with_list(FLANNEL);
    fs::create_dir_all(node.path("usr/lib/cni")).expect("made");
    let [first, second] = ["opt/cni/bin", "usr/lib/cni"].map(|it| node.path(it));
    fs::rename(first.join("portmap"), second.join("portmap")).expect("elsewhere");
    let error = refused(&install(&node, &[]));
    assert!(error.contains("names portmap, not in"), "{error}");
    let further = ["--cni-bin-dir", second.to_str().expect("a path")];
    let text = text_of(&install(&node, &further));
    assert!(text.contains(CALLED), "{text}");
    assert!(first.join("rdma-cni").exists() && !second.join("rdma-cni").exists());
    // without `--cni-bin-dir` and `--cni-conf-dir`, `install` uses the directories of the last installation
    let mut again = node.bare("install");
    again.arg("--state-dir").arg(node.path("state"));
    again.arg("--from").arg(node.path("new"));
    let text = text_of(&again.output().expect("it runs"));
    assert!(
        text.contains(CALLED) && text.contains("as before"),
        "{text}"
    );
    let daemon = daemon(&node);
    becomes(&daemon, 200, CALLED);
    // the daemon watches all directories
    fs::rename(second.join("portmap"), node.path("portmap")).expect("gone");
    becomes(&daemon, 503, "names portmap, not in");
    let both = format!("not in {first:?} or {second:?}: ");
    becomes(&daemon, 503, &both);
    fs::rename(node.path("portmap"), second.join("portmap")).expect("back");
    becomes(&daemon, 200, CALLED);
    drop(daemon);
    // the order is the runtime's search order: with another order, `rdma-cni` would be installed in another directory
    let swapped = node
        .bare("install")
        .args(["--cni-bin-dir", "/elsewhere"])
        .args(further)
        .arg("--state-dir")
        .arg(node.path("state"))
        .output()
        .expect("it runs");
    assert!(
        refused(&swapped).contains("run uninstall first"),
        "{swapped:?}"
    );
    node.uninstall();
    assert_eq!(node.read(LIST), FLANNEL);
    assert!(!first.join("rdma-cni").exists());
}

#[test]
fn an_obstacle_in_the_list_does_not_keep_the_daemon_from_its_work() {
    let node = Node::with_list(&FLANNEL.replace("0.3.1", "0.2.0"));
    refused(&install(&node, &[]));
    let text = text_of(&install(&node, &["--init-container"]));
    assert!(text.contains("cniVersion is 0.2.0"), "{text}");
    assert!(node.path("opt/cni/bin/rdma-cni").exists());
    // a missing binary is an error also for an init container
    fs::remove_file(node.path("new/rdma-ipam")).expect("removed");
    let error = refused(&install(&node, &["--init-container"]));
    assert!(error.contains("has no rdma-ipam"), "{error}");
}

#[test]
fn a_program_that_goes_takes_ours_out_of_the_list_until_it_is_there_again() {
    for (file, text) in [
        ("10-flannel.conflist", FLANNEL),
        ("10-terway.conf", crate::TERWAY),
    ] {
        let node = Node::new();
        node.net(file, text);
        let before = node.seen();
        node.install();
        let with = node.seen();
        let daemon = daemon(&node);
        becomes(&daemon, 200, "the runtime calls rdma-cni");
        // a program replaces the binary by removing and writing it
        fs::remove_file(node.path("opt/cni/bin/rdma-cni")).expect("removed");
        becomes(&daemon, 503, "rdma-cni is not in");
        node.program("rdma-cni", &plugin("rdma-cni", "1"));
        becomes(&daemon, 200, "the runtime calls rdma-cni");
        // the binary is removed permanently
        fs::remove_file(node.path("opt/cni/bin/rdma-cni")).expect("removed");
        daemon.wait_for_log("removed rdma-cni, because its program is missing");
        becomes(&daemon, 503, "rdma-cni is not in");
        let lists = |seen: &crate::Files| {
            let mut lists = seen.clone();
            lists.retain(|path, _| path.starts_with(node.path("etc/cni/net.d")));
            let texts = lists.into_iter().map(|(path, seen)| (path, seen.0));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(lists(&node.seen()), lists(&before), "{file}");
        becomes_quiet(&daemon);
        // the entry stays removed although the network program writes its list
        node.net(file, text);
        thread::sleep(Duration::from_millis(300));
        assert_eq!(lists(&node.seen()), lists(&before), "{file}");
        node.program("rdma-cni", &plugin("rdma-cni", "1"));
        becomes(&daemon, 200, "the runtime calls rdma-cni");
        let is_back = || lists(&node.seen()) == lists(&with);
        assert!(
            stopwatch::within(crate::keeping::SOON, is_back),
            "{file}: {:?}",
            node.seen()
        );
        drop(daemon);
        node.uninstall();
        assert_eq!(lists(&node.seen()), lists(&before), "{file}");
    }
}

/// The runtime would fail to start the new program.
#[test]
fn an_unusable_program_does_not_replace_a_usable_one() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let before = node.seen();
    node.version("2");
    let bin = node.path("opt/cni/bin");
    let program = node.command("install", &["--init-container"]);
    let script = "mount --bind \"$0\" \"$0\" && \
                  mount -o remount,bind,noexec \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&bin);
    command.arg(program.get_program()).args(program.get_args());
    command.arg("--from").arg(node.path("new"));
    let error = refused(&command.output().expect("unshare"));
    assert!(error.contains("rdma-cni cannot be run in"), "{error}");
    assert!(error.contains("noexec"), "{error}");
    assert_eq!(node.seen(), before);
    // the binary is for another architecture
    node.machine.write("new/rdma-cni", "\x7fELF of another");
    let error = refused(&install(&node, &[]));
    assert!(error.contains("Exec format error"), "{error}");
    assert_eq!(node.seen(), before);
    // the binary is another program
    node.machine
        .write("new/rdma-cni", "#!/bin/sh\necho no >&2; exit 3\n");
    let error = refused(&install(&node, &[]));
    assert!(
        error.contains("the program does not answer VERSION (exit status: 3): no;"),
        "{error}"
    );
    assert_eq!(node.seen(), before);
}

#[test]
fn a_program_that_is_not_executable_is_none() {
    let node = Node::with_list(FLANNEL);
    let path = node.path("opt/cni/bin/portmap");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("a mode");
    let error = refused(&install(&node, &[]));
    assert!(error.contains("names portmap, not in"), "{error}");
}

/// If the container does not mount the plugin directory, `--check-config` reports that the plugins are unknown, and
/// changes no list.
#[test]
fn a_container_without_the_directory_changes_nothing() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let list = node.read(LIST);
    let (bin, conf) = (node.path("opt/cni/bin"), node.path("etc/cni/net.d"));
    node.machine.configure(r#"{"mode":"hca"}"#);
    let mut program = crate::keeping::command(&node);
    program.arg("--check-config");
    let script = "mount --bind \"$0\" \"$0\" && mount -t tmpfs none \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&conf);
    // the directory does not exist, as in an image without files
    command.arg(bin.parent().expect("a directory"));
    command.arg(program.get_program()).args(program.get_args());
    let text = text_of(&command.output().expect("unshare"));
    let unmounted = format!("are unknown ({bin:?} is not mounted)");
    assert!(text.contains(&unmounted), "{text}");
    assert_eq!(node.read(LIST), list);
}

#[test]
fn a_kubelet_elsewhere_is_refused_or_configured_for_the_plugin() {
    let node = Node::with_list(FLANNEL);
    let before = node.seen();
    fs::remove_file(node.path(SOCKET)).expect("removed");
    let error = refused(&install(&node, &[]));
    assert!(
        error.contains("the network's list was not changed: kubelet's socket"),
        "{error}"
    );
    let socket = format!("{:?} does not exist", node.path(SOCKET));
    assert!(error.contains(&socket), "{error}");
    assert!(error.contains("--kubelet-dir"), "{error}");
    assert_eq!(node.seen(), before);
    // kubelet is absent because an image is being built
    let text = text_of(&install(&node, &["--without-kubelet"]));
    assert!(
        text.contains("no pod of the network starts before kubelet does"),
        "{text}"
    );
    assert!(node.read(LIST).contains("\"podResourcesSocket\""));
    node.uninstall();
    // the init container must not fail: kubelet would never start the other containers
    let text = text_of(&install(&node, &["--init-container"]));
    assert!(text.contains(&socket), "{text}");
    assert_eq!(node.read(LIST), FLANNEL);
    let daemon = daemon(&node);
    becomes(&daemon, 503, &socket);
    assert_eq!(node.read(LIST), FLANNEL);
    UnixListener::bind(node.path(SOCKET)).expect("a socket");
    wait::until("it is in the list", || {
        count_of_ours(&node, "10-flannel.conflist") == 1
    });
    becomes(&daemon, 200, CALLED);
    // kubelet starts again
    fs::remove_file(node.path(SOCKET)).expect("removed");
    node.net("10-flannel.conflist", FLANNEL);
    wait::until("it is in the list", || {
        count_of_ours(&node, "10-flannel.conflist") == 1
    });
}

/// If the configuration names the devices, `rdma-cni` sends no request to kubelet.
#[test]
fn named_devices_need_no_request() {
    let node = Node::with_list(FLANNEL);
    fs::remove_file(node.path(SOCKET)).expect("removed");
    let text = "resources: [{name: rdma/hca, kind: shared}]\nchain: {confDir: /absent, plugin: {devices: [{netdev: eth1}]}}\n";
    node.machine.write("etc/chain.yaml", text);
    let conf = node.path("etc/chain.yaml");
    text_of(&install(
        &node,
        &["--config", conf.to_str().expect("a path")],
    ));
    assert!(node.read(LIST).contains("\"devices\""));
}
