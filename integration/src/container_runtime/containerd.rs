// SPDX-License-Identifier: Apache-2.0
//! Configuration of containerd (`man containerd-config.toml`, `docs/cri/config.md`).

use super::{
    network::Network,
    place::{PAUSE, Place},
};
use crate::lab::has_systemd;
use std::{env, fs, path::Path, process::Command};

/// Environment variable that enables NRI in containerd 1.7. containerd 2 has NRI by default.
const NRI: &str = "RDMA_LAB_NRI";

#[track_caller]
pub(super) fn configure(place: &Place, text: &str) {
    fs::write(place.at("config.toml"), text).expect("the configuration");
}

pub(super) fn command(place: &Place) -> Command {
    let mut command = Command::new(place.programs.join("containerd"));
    command.arg("--config").arg(place.at("config.toml"));
    // containerd searches PATH for its shim
    let before = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{before}", place.programs.display());
    command.env("PATH", path);
    command
}

pub(super) fn import(place: &Place, archive: &Path) -> Command {
    let mut command = Command::new(place.programs.join("ctr"));
    command.arg("--address").arg(place.socket());
    command.args(["--namespace", "k8s.io", "images", "import"]);
    command.arg(archive);
    command
}

/// Returns the settings of directories, which have the same form in both versions of the configuration.
fn places(place: &Place) -> String {
    format!(
        r#"root = "{}"
state = "{}"
[grpc]
  address = "{}"
"#,
        place.root.display(),
        place.at("state").display(),
        place.socket().display()
    )
}

/// Returns the configuration of containerd 1.7. The timeouts of NRI (`docs/NRI.md`) are 5 s and 2 s by default, which
/// a plugin exceeds in an emulated machine: containerd closes the plugin's connection, and the plugin ends.
pub(super) fn version_2(place: &Place, network: &Network) -> String {
    let (plugins, lists) = (network.plugins().display(), network.lists().display());
    let (cdi, runc) = (place.cdi.display(), place.runc.display());
    let (places, by_systemd) = (places(place), has_systemd());
    let is_without_nri = env::var_os(NRI).is_none();
    format!(
        r#"version = 2
{places}[plugins."io.containerd.nri.v1.nri"]
  disable = {is_without_nri}
  plugin_registration_timeout = "1m"
  plugin_request_timeout = "1m"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["{cdi}"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{lists}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = {by_systemd}
"#
    )
}

/// Returns the configuration of containerd 2.
pub(super) fn version_3(place: &Place, network: &Network) -> String {
    let (plugins, lists) = (network.plugins().display(), network.lists().display());
    let (cdi, runc) = (place.cdi.display(), place.runc.display());
    let (places, by_systemd) = (places(place), has_systemd());
    format!(
        r#"version = 3
{places}[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["{cdi}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{lists}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = {by_systemd}
"#
    )
}
