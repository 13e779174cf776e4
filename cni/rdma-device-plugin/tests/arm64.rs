// SPDX-License-Identifier: Apache-2.0
//! Tests of arm64's release binaries and image on an amd64 machine: their architecture, the image that a node selects,
//! and their start under QEMU's user-mode emulation (Debian's `qemu-user`).
//!
//! `scripts/test arm64` runs these tests after `scripts/build --arch all` has made `dist/`. The emulated program cannot
//! start another arm64 program: the amd64 kernel cannot execute it. The program that `install` calls is therefore a
//! script that calls QEMU.

use integration::{Machine, machine::Nic, oci::Archive};
use serde_json::{Value, json};
use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

const BINARIES: [&str; 3] = ["rdma-cni", "rdma-device-plugin", "rdma-ipam"];

const EMULATOR: &str = "/usr/bin/qemu-aarch64";

const LIST: &str =
    r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {}}]}"#;

const NIC: Nic<'_> = Nic {
    address: "0000:3b:00.0",
    rdma: "mlx5_0",
    netdev: "ens1",
    numa_node: 1,
    number: 0,
};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("a path")
}

fn dist() -> PathBuf {
    let dist = root().join("dist");
    for binary in ["rdma-cni", "arm64/rdma-cni"] {
        let built = dist.join(binary).exists();
        assert!(
            built,
            "there is no dist/{binary}: run scripts/build --arch all first"
        );
    }
    dist
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn words(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{error}")
}

fn elf(binary: &Path) -> String {
    let mut readelf = Command::new("readelf");
    readelf.args(["--wide", "--file-header", "--segments", "--sections"]);
    done(readelf.arg(binary))
}

/// Makes the image of both architectures in `directory` by `scripts/image`.
fn image_of_both(directory: &Path) -> PathBuf {
    let archive = directory.join("image.oci.tar");
    let mut image = Command::new(root().join("scripts/image"));
    image.arg("--binaries").arg(dist());
    done(image.arg("--output").arg(&archive));
    archive
}

/// Root file system of the image on an arm64 node, and the program that a runtime starts in it.
struct OnANode {
    directory: TempDir,
    entry_point: String,
}

impl OnANode {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let archive = Archive::open(&image_of_both(directory.path()));
        let image = archive.image("arm64");
        image.unpack(&directory.path().join("root"));
        let entry_point = match image.config["config"]["Entrypoint"].as_array() {
            Some(words) if words.len() == 1 => words[0].as_str().expect("a path").to_owned(),
            other => panic!("{other:?}"),
        };
        Self {
            directory,
            entry_point,
        }
    }

    /// Returns the command that runs `words` under the emulator. The program sees the image's `/usr`, the node's
    /// directories `mounts`, and the emulator with its libraries. On a real node it would not see the emulator.
    fn command(&self, words: &[&str], mounts: &[&Path]) -> Command {
        let mut command = Command::new("bwrap");
        command.args(["--die-with-parent", "--clearenv", "--tmpfs", "/"]);
        let usr = self.directory.path().join("root/usr");
        command.arg("--ro-bind").arg(usr).arg("/usr");
        for (from, to) in [
            (EMULATOR, "/emulator"),
            ("/usr/lib", "/lib"),
            ("/usr/lib64", "/lib64"),
        ] {
            command.args(["--ro-bind", from, to]);
        }
        command.args(["--proc", "/proc", "--dev", "/dev"]);
        for mount in mounts {
            command.arg("--bind").arg(mount).arg(mount);
        }
        command.args(["--", "/emulator"]).args(words);
        command
    }

    fn entry_point(&self, mounts: &[&Path]) -> Command {
        self.command(&[&self.entry_point], mounts)
    }
}

#[test]
fn binaries_are_static_and_stripped() {
    for (directory, machine) in [
        (dist(), "Advanced Micro Devices X86-64"),
        (dist().join("arm64"), "AArch64"),
    ] {
        for name in BINARIES {
            let elf = elf(&directory.join(name));
            assert!(elf.contains(machine), "{name}: {elf}");
            // a static program names no interpreter, and a stripped one has no symbols
            for what in ["INTERP", ".symtab", ".debug_"] {
                assert!(!elf.contains(what), "{name} has {what}: {elf}");
            }
        }
    }
}

#[test]
fn a_node_takes_the_image_of_its_architecture() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = image_of_both(directory.path());
    let archive = Archive::open(&file);
    for (architecture, machine) in [
        ("amd64", "Advanced Micro Devices X86-64"),
        ("arm64", "AArch64"),
    ] {
        let image = archive.image(architecture);
        let unpacked = directory.path().join(architecture);
        image.unpack(&unpacked);
        for name in BINARIES {
            let elf = elf(&unpacked.join("usr/bin").join(name));
            assert!(elf.contains(machine), "{name} of {architecture}: {elf}");
        }
        // CRI-O's library chooses the same image
        let copied = directory.path().join(format!("{architecture}.copied"));
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--override-arch", architecture, "--insecure-policy", "copy"]);
        skopeo.arg(format!("oci-archive:{}", file.display()));
        done(skopeo.arg(format!("dir:{}", copied.display())));
        let chosen = fs::read(copied.join("manifest.json")).expect("a manifest");
        let chosen: Value = serde_json::from_slice(&chosen).expect("JSON");
        assert_eq!(chosen["config"], image.manifest["config"]);
    }
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["--override-arch", "s390x", "inspect"]);
    let refused = skopeo
        .arg(format!("oci-archive:{}", file.display()))
        .output();
    let refused = words(&refused.expect("run"));
    assert!(refused.contains("no image found"), "{refused}");
}

#[test]
fn the_images_programs_start() {
    let node = OnANode::new();
    let version = done(node.entry_point(&[]).arg("--version"));
    assert_eq!(
        version,
        concat!("rdma-device-plugin ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for name in ["rdma-cni", "rdma-ipam"] {
        let program = format!("/usr/bin/{name}");
        let mut plugin = node.command(&["-E", "CNI_COMMAND=VERSION", &program], &[]);
        let reply = done(plugin.stdin(Stdio::null()));
        let reply: Value = serde_json::from_str(&reply).expect("JSON");
        let versions = reply["supportedVersions"].as_array().expect("a list");
        assert!(versions.contains(&json!("1.1.0")), "{name}: {reply}");
    }
}

#[test]
fn the_daemon_sees_a_node_as_amd64s_does() {
    let machine = Machine::with(&[NIC]);
    let config = machine.path("etc/config.json");
    fs::write(
        &config,
        r#"{"resources": [{"name": "rdma/hca", "kind": "shared"}]}"#,
    )
    .expect("written");
    let check_config = |mut command: Command| {
        command.arg("--check-config").arg("--config").arg(&config);
        for (flag, below) in [
            ("--sysfs", "sys"),
            ("--dev", "dev"),
            ("--state-dir", "state"),
        ] {
            command.arg(flag).arg(machine.path(below));
        }
        done(&mut command)
    };
    let node = OnANode::new();
    let seen = check_config(node.entry_point(&[&machine.path("")]));
    assert!(seen.contains("mlx5_0"), "{seen}");
    assert_eq!(
        seen,
        check_config(Command::new(dist().join("rdma-device-plugin")))
    );
}

/// Returns a node with a CNI network and a kubelet socket.
fn node_with_a_network() -> Machine {
    let machine = Machine::with(&[NIC]);
    for directory in ["opt/cni/bin", "etc/cni/net.d", "kubelet/pod-resources"] {
        fs::create_dir_all(machine.path(directory)).expect("made");
    }
    program(&machine.path("opt/cni/bin/ptp"), "#!/bin/sh\n");
    machine.write("etc/cni/net.d/10-pods.conflist", LIST);
    let config = r#"{"resources": [{"name": "rdma/hca", "kind": "shared"}], "chain": {}}"#;
    machine.write("etc/config.json", config);
    UnixListener::bind(machine.path("kubelet/pod-resources/kubelet.sock")).expect("a socket");
    machine
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a mode");
}

/// Adds the arguments of `install` or `uninstall` to `command`.
fn installer(mut command: Command, verb: &str, machine: &Machine) -> Command {
    command.arg(verb);
    for (flag, below) in [
        ("--cni-bin-dir", "opt/cni/bin"),
        ("--cni-conf-dir", "etc/cni/net.d"),
        ("--state-dir", "state"),
    ] {
        command.arg(flag).arg(machine.path(below));
    }
    if verb == "install" {
        for (flag, below) in [
            ("--config", "etc/config.json"),
            ("--sysfs", "sys"),
            ("--kubelet-dir", "kubelet"),
        ] {
            command.arg(flag).arg(machine.path(below));
        }
    }
    command
}

#[test]
fn the_plugins_are_put_onto_a_node_and_taken_off() {
    let node = OnANode::new();
    let machine = node_with_a_network();
    let from = machine.path("new");
    fs::create_dir(&from).expect("made");
    let bin = node.directory.path().join("root/usr/bin");
    for name in ["rdma-cni", "rdma-ipam"] {
        let binary = bin.join(name);
        let text = format!("#!/bin/sh\nexec {EMULATOR} {} \"$@\"\n", binary.display());
        program(&from.join(name), &text);
    }
    let emulated = || {
        let mut command = Command::new(EMULATOR);
        command.arg(bin.join("rdma-device-plugin"));
        command
    };
    let mut install = installer(emulated(), "install", &machine);
    let output = done(install.arg("--from").arg(&from));
    assert!(
        output.contains("the runtime calls rdma-cni for network pods"),
        "{output}"
    );
    let list = machine.path("etc/cni/net.d/10-pods.conflist");
    let written: Value = serde_json::from_slice(&fs::read(&list).expect("it")).expect("JSON");
    assert_eq!(written["plugins"][1]["type"], "rdma-cni");
    let installed = fs::read(machine.path("opt/cni/bin/rdma-cni")).expect("installed");
    assert!(installed == fs::read(from.join("rdma-cni")).expect("it"));

    done(&mut installer(emulated(), "uninstall", &machine));
    assert_eq!(fs::read_to_string(&list).expect("it"), LIST);
    assert!(!machine.path("opt/cni/bin/rdma-cni").exists());
}

#[test]
fn plugins_of_another_architecture_are_not_put_onto_a_node() {
    let machine = node_with_a_network();
    let native = Command::new(dist().join("rdma-device-plugin"));
    let mut install = installer(native, "install", &machine);
    let refused = install.arg("--from").arg(dist().join("arm64")).output();
    let refused = refused.expect("run");
    assert_eq!(refused.status.code(), Some(1), "{}", words(&refused));
    let output = words(&refused);
    assert!(output.contains("Exec format error"), "{output}");
    assert!(!machine.path("opt/cni/bin/rdma-cni").exists());
    let list = machine.path("etc/cni/net.d/10-pods.conflist");
    assert_eq!(fs::read_to_string(list).expect("it"), LIST);
}
