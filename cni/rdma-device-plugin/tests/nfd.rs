// SPDX-License-Identifier: Apache-2.0
//! Tests that node-feature-discovery itself reads the label file, by the source "local" of its worker
//! (`integration/nfd`).

use integration::{Daemon, Machine, kubelet::DeviceManager, machine::Nic, wait};
use std::{collections::BTreeMap, env, fs, process::Command};

/// The only directory that the source "local" reads.
const DIRECTORY: &str = "etc/kubernetes/node-feature-discovery/features.d";

/// Returns the labels that the source derives from the machine's files. The source runs with the machine's directory
/// as root.
fn labels(machine: &Machine) -> BTreeMap<String, String> {
    let output = Command::new("chroot")
        .arg(machine.path(""))
        .arg("/local")
        .output()
        .expect("chroot");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("labels as JSON")
}

#[test]
#[ignore = "scripts/test --full: it needs node-feature-discovery"]
fn nfd_has_the_labels_of_the_file() {
    let program = env::var_os("RDMA_NFD")
        .expect("RDMA_NFD is not set: export RDMA_NFD=$(integration/nfd/build)");
    let machine = Machine::with(&[Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 0,
    }]);
    machine.write("sys/class/net/ens1/speed", "200000\n");
    machine.configure(r#"{"mode":"hca"}"#);
    fs::copy(program, machine.path("local")).expect("copied");
    let directory = machine.path(DIRECTORY);
    fs::create_dir_all(&directory).expect("made");
    // an unfinished file of a daemon that was killed while it wrote
    let unfinished = format!("{DIRECTORY}/.rdma-device-plugin.new");
    machine.write(&unfinished, "feature.node.kubernetes.io/rdma-nics.cou");
    assert_eq!(labels(&machine), BTreeMap::new());

    let _kubelet = DeviceManager::started(&machine.path("kubelet"));
    let mut command = machine.command(env!("CARGO_BIN_EXE_rdma-device-plugin").as_ref());
    command.args(["--metrics-address", "127.0.0.1:0", "--node-features"]);
    let _daemon = Daemon::start(command.arg(&directory));
    wait::until("the daemon's file", || {
        directory.join("rdma-device-plugin").exists()
    });
    let label = |(name, value): (&str, &str)| {
        let name = format!("feature.node.kubernetes.io/rdma-nics.{name}");
        (name, value.to_owned())
    };
    let expected = [
        ("bonds", "0"),
        ("count", "1"),
        ("link-layer", "ethernet"),
        ("mode", "shared"),
        ("speed", "200"),
        ("vendor-15b3", "true"),
    ];
    assert_eq!(labels(&machine), expected.into_iter().map(label).collect());
}
