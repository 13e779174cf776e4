// SPDX-License-Identifier: Apache-2.0
//! Configuration of CRI-O (`man crio.conf`). `conmon` and `skopeo` are Debian's.

use super::{
    network::Network,
    place::{PAUSE, Place},
};
use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// Storage driver that copies whole directories. overlayfs would need a mount helper on top of the guest's own
/// overlay.
const STORAGE: &str = "vfs";

#[track_caller]
pub(super) fn configure(place: &Place, network: &Network) {
    let write =
        |name: &str, text: &str| fs::write(place.at(name), text).expect("the configuration");
    write(
        "policy.json",
        r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
    );
    // no registry is used: this file gives the full name to an image that is named without a registry
    let registries = Path::new("/etc/containers");
    fs::create_dir_all(registries).expect("a directory");
    let text = "unqualified-search-registries = [\"docker.io\"]\n";
    fs::write(registries.join("registries.conf"), text).expect("a file");
    write("crio.conf", &configuration(place, network));
    keep_macs_of_veths();
}

/// Prevents udev from changing the MACs of veths. CRI-O calls CHECK after each ADD. The reference bridge's CHECK
/// expects that the veth on the host has kept its first MAC. But udev assigns another MAC a moment later
/// (`MACAddressPolicy=persistent`, systemd.link(5)), so a few pods would fail (docs/node.md).
#[track_caller]
fn keep_macs_of_veths() {
    let directory = Path::new("/etc/systemd/network");
    fs::create_dir_all(directory).expect("a directory");
    let text = "[Match]\nOriginalName=veth*\n[Link]\nNamePolicy=keep\nMACAddressPolicy=none\n";
    fs::write(directory.join("10-veth.link"), text).expect("a file");
    crate::netns::check(Command::new("udevadm").args(["control", "--reload"]));
}

pub(super) fn command(place: &Place) -> Command {
    let mut command = Command::new(place.programs.join("crio"));
    command.arg("--config").arg(place.at("crio.conf"));
    // with an empty name, CRI-O reads no further files
    command.arg("--config-dir").arg("");
    command
}

/// Returns the command that imports an archive's only image into CRI-O's storage.
#[track_caller]
pub(super) fn import(place: &Place, archive: &Path) -> Command {
    let index = crate::netns::check(
        Command::new("tar")
            .arg("xOf")
            .arg(archive)
            .arg("index.json"),
    );
    let index: Value = serde_json::from_str(&index).expect("an OCI archive's index");
    let name = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
    let name = name.as_str().expect("the image's name");
    let (root, run) = storage(place);
    let mut command = Command::new("skopeo");
    command.args(["copy", "--quiet", "--insecure-policy"]);
    command.arg(format!("oci-archive:{}", archive.display()));
    command.arg(format!("containers-storage:[{STORAGE}@{root}+{run}]{name}"));
    command
}

/// Returns CRI-O's directory of images and containers, and its directory for state that a boot removes.
fn storage(place: &Place) -> (String, String) {
    let root = place.root.display().to_string();
    (root, place.at("storage").display().to_string())
}

fn configuration(place: &Place, network: &Network) -> String {
    let at = |below: &str| place.at(below).display().to_string();
    let (root, run) = storage(place);
    let (plugins, lists) = (network.plugins().display(), network.lists().display());
    let (cdi, runc) = (place.cdi.display(), place.runc.display());
    let (logs, version, clean) = (at("logs"), at("version"), at("clean.shutdown"));
    let (socket, pinns) = (place.socket(), place.programs.join("pinns"));
    let (socket, pinns) = (socket.display(), pinns.display());
    let (exits, attach, policy) = (at("exits"), at("attach"), at("policy.json"));
    format!(
        r#"[crio]
root = "{root}"
runroot = "{run}"
storage_driver = "{STORAGE}"
log_dir = "{logs}"
version_file = "{version}"
clean_shutdown_file = "{clean}"
[crio.api]
listen = "{socket}"
[crio.runtime]
apparmor_profile = "unconfined"
cdi_spec_dirs = ["{cdi}"]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
container_attach_socket_dir = "{attach}"
container_exits_dir = "{exits}"
default_runtime = "runc"
enable_criu_support = false
pinns_path = "{pinns}"
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_type = "oci"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
[crio.image]
pause_image = "{PAUSE}"
pause_command = ""
signature_policy = "{policy}"
[crio.network]
network_dir = "{lists}"
plugin_dirs = ["{plugins}"]
"#
    )
}
