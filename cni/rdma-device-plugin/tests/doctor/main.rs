// SPDX-License-Identifier: Apache-2.0
//! Tests of the whole program on made-up nodes: the files are below a directory of the test, and
//! the netdevs are in a namespace of the test. A fake kernel has the RDMA devices.

mod container;
mod odd_files;

use doctor::{
    Paths,
    examine::{self, Severity},
    facts::{Facts, Record},
    gather,
};
use fake_kernel::{FakeKernel, World};
use integration::Netns;
use rdma_netns::{RdmaMode, netns::Netns as OpenNetns};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma-device-plugin");
const STATE: &str = "var/lib/cni/rdma-cni";
const RECORDS: &str = "var/lib/cni/rdma-cni/attachments/pods";

/// Files of a node: a CNI list with `rdma-cni`, the list's programs, and kernel modules.
struct Root(TempDir);

impl Root {
    fn new() -> Self {
        let root = Self(tempfile::tempdir().expect("a directory"));
        root.write("proc/sys/kernel/osrelease", "6.6.30\n");
        let modules = ["ib_core", "ib_uverbs", "rdma_ucm"];
        let built_in = modules.map(|name| format!("kernel/drivers/infiniband/{name}.ko\n"));
        root.write("lib/modules/6.6.30/modules.builtin", &built_in.concat());
        root.write("lib/modules/6.6.30/modules.dep", "");
        fs::create_dir_all(root.path("run/netns")).expect("made");
        root.chain(json!({"type": "rdma-cni", "devices": [{"netdev": "bond*"}]}));
        for (name, output) in [
            ("bridge", "CNI bridge plugin"),
            ("rdma-cni", concat!("rdma-cni ", env!("CARGO_PKG_VERSION"))),
        ] {
            root.write(
                &format!("opt/cni/bin/{name}"),
                &format!("#!/bin/sh\necho {output}\n"),
            );
            let path = root.path(&format!("opt/cni/bin/{name}"));
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
        }
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn chain(&self, ours: Value) {
        let list = json!({
            "cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}, ours],
        });
        self.write("etc/cni/net.d/10-pods.conflist", &list.to_string());
    }

    /// Writes a record of a pod whose namespace is at `path`. `is_it` is true if the path still
    /// leads to the recorded namespace.
    fn record(&self, container: &str, netns: &Path, is_it: bool) {
        let id = OpenNetns::open(netns).expect("a namespace").id();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("an id");
        let record = json!({
            "format": 1,
            "key": {"network": "pods", "container": container, "interface": "eth0"},
            "pod": format!("default/{container}"),
            "bootId": boot.trim(),
            "netns": Path::new("/run/netns").join(netns.file_name().expect("a name")),
            "netnsId": {
                "device": id.device, "inode": id.inode + u64::from(!is_it), "cookie": id.cookie,
            },
            "phase": "attached", "rdmaMode": "shared", "dad": "off", "acceptRa": false,
            "rails": [], "config": {},
        });
        self.write(
            &format!("{RECORDS}/{container}@eth0.json"),
            &record.to_string(),
        );
    }

    fn paths(&self) -> Paths {
        Paths {
            root: self.0.path().to_owned(),
            ..Paths::default()
        }
    }

    /// Returns all files with their content, mode and modification time.
    fn snapshot(&self) -> BTreeMap<PathBuf, (Vec<u8>, u32, i64, i64)> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.0.path().to_owned()];
        while let Some(path) = left.pop() {
            let metadata = fs::symlink_metadata(&path).expect("there");
            if metadata.is_dir() {
                let entries = fs::read_dir(&path).expect("readable");
                left.extend(entries.map(|entry| entry.expect("readable").path()));
            }
            let content = match metadata.is_file() {
                true => fs::read(&path).expect("readable"),
                false => vec![],
            };
            let seen = (
                content,
                metadata.mode(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            );
            found.insert(path, seen);
        }
        found
    }
}

fn run(mut command: Command) -> (i32, String, String) {
    let output = command.output().expect("started");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("not killed");
    (code, text(output.stdout), text(output.stderr))
}

/// Returns the command that runs `doctor` in `netns`, on the node with the files of `root`.
fn doctor_in(netns: &Netns, root: &Root, words: &[&str]) -> Command {
    let mut command = netns.command(PROGRAM);
    command
        .args(["doctor", "--root"])
        .arg(root.0.path())
        .args(words);
    command
}

fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn findings(facts: &Facts, least: Severity) -> Vec<String> {
    let findings = examine::examine(facts).into_iter();
    let bad = findings.filter(|it| it.severity >= least);
    bad.map(|it| it.what).collect()
}

#[test]
fn pods_share_bonds_of_a_fake_kernel() {
    let root = Root::new();
    let mut world = World::new(Some(RdmaMode::Shared));
    world.plug_bond(0);
    world.plug_bond(1);
    root.write("sys/class/net/bond0/bonding/mode", "802.3ad 4\n");
    let kernel = FakeKernel::new(world);
    let facts = gather::gather(&kernel, &root.paths());
    assert_eq!(facts.unseen, []);
    assert_eq!(facts.release, "6.6.30");
    assert_eq!(facts.bond_modes["bond0"], "802.3ad");
    assert_eq!(facts.gids.len(), 2);
    assert_eq!(findings(&facts, Severity::Error), [] as [&str; 0]);
    let text = doctor::report(&facts, &examine::examine(&facts));
    let text = joined(&text);
    assert!(text.contains("ADD shares bond0, bond1"), "{text}");
    assert!(
        text.contains("bond0 (802.3ad), bond1 (mode not known)"),
        "{text}"
    );
}

#[test]
fn multus_is_followed_to_the_list_that_it_calls() {
    let root = Root::new();
    let mut world = World::new(Some(RdmaMode::Shared));
    world.plug_bond(0);
    let kernel = FakeKernel::new(world);
    let warnings = |cluster_network: &str| {
        let multus = json!({
            "cniVersion": "0.3.1", "name": "m", "type": "multus-shim",
            "clusterNetwork": cluster_network,
        });
        root.write("etc/cni/net.d/00-multus.conf", &multus.to_string());
        let facts = gather::gather(&kernel, &root.paths());
        findings(&facts, Severity::Warning).join("\n")
    };
    let warning = "does not call rdma-cni";
    for network in ["/host/etc/cni/net.d/10-pods.conflist", "pods"] {
        let warnings = warnings(network);
        assert!(!warnings.contains(warning), "{network}: {warnings}");
    }
    let warnings = warnings("gone");
    assert!(warnings.contains("00-multus.conf"), "{warnings}");
    assert!(warnings.contains(warning), "{warnings}");
}

#[test]
fn bonds_in_exclusive_mode_are_an_error() {
    let root = Root::new();
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug_bond(0);
    let facts = gather::gather(&FakeKernel::new(world), &root.paths());
    let errors = findings(&facts, Severity::Error);
    let [error] = errors.as_slice() else {
        panic!("{errors:?}");
    };
    assert!(error.starts_with("bond0 cannot be shared"), "{error}");
    assert_eq!(doctor::code(&facts, &examine::examine(&facts), false), 1);
}

#[test]
fn the_program_reports_faults_and_changes_nothing() {
    let (host, alive) = (Netns::new("doctor"), Netns::new("pod"));
    let root = Root::new();
    root.chain(json!({"type": "rdma-cni", "mode": "moved"}));
    fs::create_dir_all(root.path("run/netns")).expect("made");
    for (container, is_it) in [("web", true), ("gone", false)] {
        root.record(container, alive.path(), is_it);
    }
    let own = root.path("run/netns").join(alive.name());
    std::os::unix::fs::symlink(alive.path(), own).expect("a link");
    root.write(&format!("{RECORDS}/cut@eth0.json"), "{");
    root.write(&format!("{RECORDS}/old@eth0.corrupt"), "{");
    for name in [
        "device-plugins/rdma-device-plugin-rdma_hca.sock",
        "plugins_registry/rdma-device-plugin-hca.rdma@4f.sock",
    ] {
        let socket = root.path("var/lib/kubelet").join(name);
        fs::create_dir_all(socket.parent().expect("a directory")).expect("made");
        drop(UnixListener::bind(socket).expect("bound"));
    }
    let before = root.snapshot();
    let (code, output, errors) = run(doctor_in(&host, &root, &[]));
    assert_eq!((code, errors.as_str()), (1, ""), "{output}");
    for expected in [
        "10-pods.conflist: mode: \"moved\" is not valid",
        "default/gone",
        "its pod is gone",
        "the record of container cut (eth0 of network pods) cannot be read",
        "1 record renamed as unreadable: /var/lib/cni/rdma-cni/attachments/pods/old@eth0.corrupt",
        "rdma-device-plugin has published nothing",
        "there is no RDMA device on this node",
    ] {
        assert!(
            joined(&output).contains(expected),
            "{expected:?} is missing: {output}"
        );
    }
    assert!(!output.contains("default/web"), "it lives: {output}");
    let (_, json, _) = run(doctor_in(&host, &root, &["--json"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["findings"][0]["group"], "kernel");
    let (code, facts, _) = run(doctor_in(&host, &root, &["--facts"]));
    assert_eq!(code, 1);
    let facts: Facts = serde_json::from_str(&facts).expect("facts");
    assert_eq!(facts.records.len(), 3);
    assert_eq!(facts.daemon.sockets.len(), 2);
    assert_eq!(root.snapshot(), before, "it changed something");
}

#[test]
fn leases_are_read_as_host_local_writes_them() {
    let root = Root::new();
    let ipam = json!({"type": "rdma-ipam", "from": "parent"});
    root.chain(json!({"type": "rdma-cni", "devices": [{"netdev": "bond*"}], "ipam": ipam}));
    for (file, text) in [
        ("10.0.0.5", "c1\r\nrdma0"),
        ("fd00::5", "c2"),
        ("10.0.0.6", ""),
        ("lock", ""),
        ("last_reserved_ip.0", "10.0.0.5"),
    ] {
        root.write(&format!("var/lib/cni/networks/pods/{file}"), text);
    }
    root.write("var/lib/cni/results/pods-c2-rdma0", "{}");
    let facts = gather::gather(&FakeKernel::new(World::new(None)), &root.paths());
    let leases = facts.leases.iter();
    let leases: Vec<_> = leases
        .map(|it| {
            (
                it.address.to_string(),
                &*it.container,
                it.interface.as_deref(),
            )
        })
        .collect();
    let first = ("10.0.0.5".to_owned(), "c1", Some("rdma0"));
    assert_eq!(leases, [first, ("fd00::5".to_owned(), "c2", None)]);
    let idle = "1 address leased to containers that are gone: 10.0.0.5";
    assert!(findings(&facts, Severity::Warning).contains(&idle.to_owned()));
}

#[test]
fn a_verb_at_work_is_seen_by_its_lock() {
    let (host, pod) = (Netns::new("doctor"), Netns::new("pod"));
    let root = Root::new();
    root.record("web", pod.path(), false);
    let is_busy = || {
        let (_, facts, _) = run(doctor_in(&host, &root, &["--facts"]));
        let facts: Facts = serde_json::from_str(&facts).expect("facts");
        match facts.records.as_slice() {
            [Record::Good { busy, lives, .. }] => {
                assert!(!lives);
                *busy
            }
            records => panic!("{records:?}"),
        }
    };
    assert!(!is_busy(), "without a lock's file");
    let lock = File::create(root.path(&format!("{RECORDS}/web@eth0.lock"))).expect("made");
    assert!(!is_busy(), "nobody has it");
    lock.lock().expect("locked");
    assert!(is_busy());
}

#[test]
fn missing_permissions_are_reported_by_exit_code_2() {
    let host = Netns::new("doctor");
    let root = Root::new();
    root.chain(json!({"type": "rdma-cni", "deviceID": "0000:3b:00.2", "requireRdma": false}));
    fs::create_dir_all(root.path(STATE)).expect("made");
    fs::create_dir_all(root.path(RECORDS)).expect("made");
    let closed = root.path("var/lib/cni/rdma-cni/attachments");
    fs::set_permissions(closed, fs::Permissions::from_mode(0o700)).expect("set");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(root.0.path(), open).expect("set");
    let program = root.path("rdma-device-plugin");
    fs::copy(PROGRAM, &program).expect("a copy that others can run");
    let as_nobody = || {
        let mut command = host.command("setpriv");
        let words = ["--reuid", "65534", "--clear-groups"];
        command.args(words).arg(&program).args(["doctor", "--root"]);
        command.arg(root.0.path());
        run(command)
    };
    // retry while a child process of another test still has the new file open for writing
    let mut ended = as_nobody();
    while ended.2.contains("Text file busy") {
        ended = as_nobody();
    }
    let (code, output, errors) = ended;
    assert_eq!((code, errors.as_str()), (2, ""), "{output}");
    assert!(output.contains("not seen"), "{output}");
    assert!(output.contains("run doctor as root"), "{output}");
    let (code, output, _) = run(doctor_in(&host, &root, &[]));
    assert_eq!(code, 0, "{output}");
    let (code, output, _) = run(doctor_in(&host, &root, &["--strict"]));
    assert_eq!(code, 1, "no RDMA device is a warning: {output}");
}

#[test]
fn wrong_usage_is_exit_code_2_and_help_an_answer() {
    let mut command = Command::new(PROGRAM);
    command.args(["doctor", "--yaml"]);
    let (code, output, errors) = run(command);
    assert_eq!((code, output.as_str()), (2, ""));
    assert!(errors.contains("'--yaml'"), "{errors}");
    assert!(
        errors.contains("Usage: rdma-device-plugin doctor"),
        "{errors}"
    );
    let mut command = Command::new(PROGRAM);
    command.args(["doctor", "--help"]);
    let (code, output, _) = run(command);
    assert_eq!(code, 0);
    assert!(output.contains("Exit code: 0: no error;"));
}
