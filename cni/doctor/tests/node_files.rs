// SPDX-License-Identifier: Apache-2.0
//! Tests that `doctor` and systemd read the node files in `conf/node` as docs/node.md promises.

use doctor::{Paths, examine, gather};
use fake_kernel::{FakeKernel, World};
use rdma_netns::RdmaMode;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf/node")
}

/// Returns a node that has `files` of `conf/node` below its `/etc`. Each file is given with its
/// target directory.
fn node(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for (file, directory) in files {
        let from = conf().join(file);
        let to = root.path().join("etc").join(directory);
        fs::create_dir_all(&to).expect("made");
        fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("copied");
    }
    root
}

fn gathered(root: &Path) -> doctor::facts::Facts {
    let kernel = FakeKernel::new(World::new(Some(RdmaMode::Exclusive)));
    let paths = Paths {
        root: root.to_owned(),
        ..Paths::default()
    };
    gather::gather(&kernel, &paths)
}

#[test]
fn option_and_unit_each_make_a_node_exclusive_at_boot() {
    let unit = "systemd/system/rdma-netns-exclusive.service";
    for (file, directory) in [
        ("modprobe.d/rdma-netns-exclusive.conf", "modprobe.d"),
        (unit, "systemd/system/sysinit.target.wants"),
    ] {
        let root = node(&[(file, directory)]);
        let facts = gathered(root.path());
        let modes: Vec<RdmaMode> = facts.boot_modes.iter().map(|it| it.mode).collect();
        assert_eq!(modes, [RdmaMode::Exclusive], "{file}");
        let findings = examine::examine(&facts);
        let reports = |text: &str| findings.iter().any(|it| it.what.contains(text));
        assert!(!reports("after the next boot"), "{findings:?}");
    }
    // the unit is installed, but not enabled
    let root = node(&[(unit, "systemd/system")]);
    assert_eq!(gathered(root.path()).boot_modes, []);
    // the link that `systemctl enable` makes
    let wants = root.path().join("etc/systemd/system/sysinit.target.wants");
    fs::create_dir(&wants).expect("made");
    let own = Path::new("/etc").join(unit);
    let link = wants.join("rdma-netns-exclusive.service");
    std::os::unix::fs::symlink(&own, link).expect("a link");
    let modes = gathered(root.path()).boot_modes;
    assert_eq!((modes.len(), &modes[0].file), (1, &own));
}

#[test]
fn the_rule_takes_the_place_of_rdma_cores() {
    let file = "udev/rules.d/60-rdma-persistent-naming.rules";
    let root = node(&[(file, "udev/rules.d")]);
    let theirs = root.path().join("usr/lib/udev/rules.d");
    fs::create_dir_all(&theirs).expect("made");
    let rule = "ACTION==\"add\", SUBSYSTEM==\"infiniband\", PROGRAM=\"rdma_rename %k NAME_KERNEL\"";
    fs::write(theirs.join("60-rdma-persistent-naming.rules"), rule).expect("written");
    let naming = gathered(root.path()).naming.expect("a rule");
    assert_eq!(naming.policy, "NAME_PCI");
    assert_eq!(naming.file, Path::new("/etc").join(file));
}

#[test]
fn module_lists_name_modules_alone() {
    let mut names = vec![];
    for file in ["rdma.conf", "rdma-smc.conf"] {
        let text = fs::read_to_string(conf().join("modules-load.d").join(file)).expect("a list");
        // lines that begin with `#` or `;` are comments (modules-load.d(5))
        let lines = text.lines().filter(|line| !line.starts_with(['#', ';']));
        names.extend(lines.map(str::to_owned));
    }
    assert_eq!(
        names,
        ["ib_core", "ib_uverbs", "rdma_ucm", "smc", "smc_diag"]
    );
}

/// Returns the result of `systemd-analyze verify` (true: it accepts the unit), and its warnings.
fn verify(unit: &Path) -> (bool, String) {
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(unit)
        .output();
    let output = output.expect("systemd-analyze: apt-get install systemd");
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), warnings)
}

/// A link in a directory of leases or records is hostile or a mistake. `rdma-ipam` does not follow a lease that is a
/// link. `rdma-cni` follows the directory of a network.
#[test]
fn links_in_the_directories_of_records_and_leases_are_reported() {
    let root = tempfile::tempdir().expect("a directory");
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    let list = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},
        {"type":"rdma-cni","devices":[{"netdev":"bond*"}],"ipam":{"type":"rdma-ipam"}}]}"#;
    write("etc/cni/net.d/10-net.conflist", list);
    let leases = "var/lib/cni/networks/net";
    write(&format!("{leases}/10.0.0.7"), "0a1b\r\nrdma0");
    write("etc/hostname", "node-1\n");
    let link = |target: &str, link: &str| {
        let link = root.path().join(link);
        fs::create_dir_all(link.parent().expect("a directory")).expect("made");
        std::os::unix::fs::symlink(root.path().join(target), link).expect("a link");
    };
    link("etc/hostname", &format!("{leases}/10.0.0.9"));
    write("elsewhere/pods/x", "");
    let attachments = "var/lib/cni/rdma-cni/attachments";
    link("elsewhere/pods", &format!("{attachments}/net"));
    write(&format!("{attachments}/other/x"), "");
    let facts = gathered(root.path());
    let leases = facts.leases.iter().map(|it| it.container.as_str());
    assert_eq!(leases.collect::<Vec<_>>(), ["0a1b"]);
    let unseen = facts.unseen.iter().map(|it| (&*it.what, &*it.why));
    let lease = (
        "/var/lib/cni/networks/net/10.0.0.9",
        "it is a symbolic link, which is not followed",
    );
    assert!(unseen.clone().any(|it| it == lease), "{:?}", facts.unseen);
    let findings = examine::examine(&facts);
    let about = findings.iter().find(|it| it.what.contains("symbolic link"));
    let about = about.expect("a finding");
    assert_eq!(
        about.what,
        "directories of records or leases are symbolic links: /var/lib/cni/rdma-cni/attachments/net"
    );
}

#[test]
fn systemd_takes_the_unit() {
    let unit = conf().join("systemd/system/rdma-netns-exclusive.service");
    assert_eq!(verify(&unit), (true, String::new()));
    // systemd warns about a wrong unit
    let text = fs::read_to_string(&unit).expect("a unit");
    let directory = tempfile::tempdir().expect("a directory");
    let broken = directory.path().join("broken.service");
    fs::write(&broken, text.replace("Type=oneshot", "Type=once")).expect("written");
    assert_ne!(verify(&broken).1, "");
}
