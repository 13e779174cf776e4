// SPDX-License-Identifier: Apache-2.0
//! In the lab, sriov-cni 2.1.0 of k8snetworkplumbingwg, and behind it either that project's rdma-cni 1.6.0 or ours
//! (`docs/drop-in.md`), as `integration/runtimes/build` made them: `scripts/test --full lab chained`. The function is
//! igb's, which QEMU emulates, and its RDMA device is soft-RoCE.

use integration::{
    Attachment, Conflist, Netns, Runtime, Snapshot,
    container_runtime::installed::records,
    lab::{self, Function, Lab, NICS, verbs_devices},
    plugin::{cni_path, rdma_cni},
    wait,
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::json;
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The directory of the other rdma-cni's state.
const STATE: &str = "/var/lib/cni/rdma";

/// A function, and the list of both plugins for it.
struct Chain {
    lab: Lab,
    function: Function,
    list: Conflist,
    programs: TempDir,
}

impl Chain {
    /// Returns a node as sriov-cni leaves it: with the netdev down.
    #[track_caller]
    fn new() -> Self {
        let lab = Lab::new(1);
        let function = lab.rails(0)[0].clone();
        lab.host
            .ip(&format!("link set dev {} down", function.netdev));
        let ipam = json!({
            "type": "host-local", "subnet": "10.56.217.0/24", "dataDir": lab.state().join("leases"),
        });
        let deviceid = &function.pci;
        // Multus writes both fields into each plugin's object
        let sriov = json!({"type": "sriov", "vlan": 100, "ipam": ipam, "deviceID": deviceid, "pciBusID": deviceid});
        let rdma = json!({"type": "rdma", "deviceID": deviceid, "pciBusID": deviceid});
        let list = Conflist::new("0.3.1", vec![sriov, rdma]);
        let programs = TempDir::new().expect("a directory");
        symlink(
            other("RDMA_SRIOV_CNI").join("sriov"),
            programs.path().join("sriov"),
        )
        .expect("a link");
        Self {
            lab,
            function,
            list,
            programs,
        }
    }

    fn runtime(&self) -> Runtime<'_> {
        let path = cni_path(&rdma_cni(), &[self.programs.path()]);
        Runtime::new(&self.lab.host, &path, &self.lab.state().join("cache"))
    }

    /// Installs `program` as the plugin `rdma`.
    #[track_caller]
    fn with(&self, program: &Path) {
        let place = self.programs.path().join("rdma");
        let _ = fs::remove_file(&place);
        symlink(program, place).expect("a link");
    }
}

/// Returns the directory that the environment variable `name` has.
fn other(name: &str) -> PathBuf {
    let directory = env::var_os(name).map(PathBuf::from);
    directory.unwrap_or_else(|| panic!("{name} is not set: scripts/test --full lab chained"))
}

/// Returns the line of `ip link show` about the function.
#[track_caller]
fn settings(host: &Netns) -> String {
    let text = host.ip(&format!("link show dev {}", NICS[0]));
    let mut lines = text.lines().map(str::trim);
    lines
        .find(|it| it.starts_with("vf 0"))
        .expect("a function")
        .to_owned()
}

/// Returns the path of the other project's rdma-cni.
#[track_caller]
fn theirs() -> PathBuf {
    other("RDMA_PLUGIN").join("rdma")
}

#[test]
fn either_rdma_cni_moves_the_device_behind_sriov_cni() {
    let chain = Chain::new();
    let (host, function) = (&chain.lab.host, &chain.function);
    let runtime = chain.runtime();
    let mut states = vec![];
    for program in [theirs(), rdma_cni()] {
        chain.with(&program);
        let pod = chain.lab.pod("pod");
        let attachment = Attachment::new("a", pod.path(), "net1");
        let added = runtime.add(&chain.list, &attachment);
        added.unwrap_or_else(|outcome| panic!("{outcome}"));
        assert!(settings(host).contains("vlan 100"), "{}", settings(host));
        assert!(pod.has_link("net1"));
        assert_eq!(verbs_devices(&pod), [function.rdma.as_str()]);
        lab::open_verbs(&pod, &function.rdma);
        let deleted = runtime.del(&chain.list, &attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        assert!(verbs_devices(host).contains(&function.rdma));
        assert!(!settings(host).contains("vlan"), "{}", settings(host));
        states.push(Snapshot::of(host));
    }
    assert_eq!(states[0].difference(&states[1]), "");
}

/// DEL of the other project's rdma-cni fails, so sriov-cni's DEL does not run. DEL of our rdma-cni succeeds.
#[test]
fn the_pods_namespace_ends_before_del() {
    let chain = Chain::new();
    let (host, function) = (&chain.lab.host, &chain.function);
    let runtime = chain.runtime();
    for program in [rdma_cni(), theirs()] {
        chain.with(&program);
        let pod = chain.lab.pod("pod");
        let attachment = Attachment::new("a", pod.path(), "net1");
        let added = runtime.add(&chain.list, &attachment);
        added.unwrap_or_else(|outcome| panic!("{outcome}"));
        assert_eq!(records().len(), usize::from(program == rdma_cni()));
        pod.die();
        wait::until("the kernel returned the RDMA device", || {
            verbs_devices(host).contains(&function.rdma)
        });
        match runtime.del(&chain.list, &attachment) {
            Ok(()) => {
                assert_eq!(program, rdma_cni());
                assert!(verbs_devices(host).contains(&function.rdma));
                assert!(records().is_empty(), "{:?}", records());
            }
            Err(outcome) => {
                assert_eq!(program, theirs(), "{outcome}");
                let what = "failed to open network namespace";
                assert!(outcome.stdout.contains(what), "{outcome}");
            }
        }
    }
}

/// The other plugin moves the device before it writes its state. If it is killed in between, its DEL succeeds and
/// leaves the device in the pod.
#[test]
fn the_other_rdma_cni_is_killed_after_the_move() {
    let chain = Chain::new();
    let (host, function) = (&chain.lab.host, &chain.function);
    let runtime = chain.runtime();
    chain.with(&theirs());
    let pod = chain.lab.pod("pod");
    let attachment = Attachment::new("a", pod.path(), "net1");
    let [sriov, rdma] = &chain.list.plugins[..] else {
        panic!("two plugins");
    };
    let first = Conflist::new("0.3.1", vec![sriov.clone()]);
    let result = runtime.add(&first, &attachment);
    let mut second = rdma.clone();
    second["prevResult"] = result.unwrap_or_else(|outcome| panic!("{outcome}"));
    // the plugin waits for a reader of its state file
    let state = Path::new(STATE).join("net-a-net1");
    fs::create_dir_all(STATE).expect("a directory");
    mkfifo(&state, Mode::S_IRWXU).expect("a FIFO");
    let mut adding = runtime.start("ADD", &chain.list, &second, &attachment);
    wait::until("the device is in the pod", || {
        verbs_devices(&pod).contains(&function.rdma)
    });
    adding.kill();
    adding.wait();
    fs::remove_file(&state).expect("the FIFO");

    let deleted = runtime.del(&chain.list, &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    assert!(host.has_link(&function.netdev));
    assert_eq!(verbs_devices(&pod), [function.rdma.as_str()]);
    pod.die();
    wait::until("the kernel returned the RDMA device", || {
        verbs_devices(host).contains(&function.rdma)
    });
}
