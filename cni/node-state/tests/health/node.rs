// SPDX-License-Identifier: Apache-2.0
//! A node in a network namespace that ends with the test.

use nix::libc;
use node_state::health::Watch;
use rdma_netns::{Inventory, NetnsId, netns::Netns};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::runtime::Runtime;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The node in which a test runs.
pub(crate) struct Node {
    /// Inventory with one function. Its RDMA device is in the pod.
    pub(crate) inventory: Inventory,
    runtime: Runtime,
    directory: tempfile::TempDir,
    name: String,
}

/// Runs `test` on a node with a pod. The node has a veth pair: `nic0` and its other end `wire0`. Both netdevs are down.
pub(crate) fn with_node(test: impl FnOnce(&Node) + Send) {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rdma-health-{}-{count}", std::process::id());
    let node = Named(name.clone());
    let pod = Named(format!("{name}-pod"));
    for named in [&node, &pod] {
        ip(&["netns", "add", &named.0]);
    }
    ip(&[
        "-n", &name, "link", "add", "nic0", "type", "veth", "peer", "name", "wire0",
    ]);
    let inventory = json!({"functions": [{
        "address": "0000:3b:00.2", "driver": "mlx5_core",
        "hcas": [{"name": "mlx5_2"}],
    }]});
    let inside = || {
        test(&Node {
            inventory: serde_json::from_value(inventory).expect("an inventory"),
            runtime: runtime(),
            directory: tempfile::tempdir().expect("a directory"),
            name: name.clone(),
        });
    };
    let netns = Netns::open(&node.path()).expect("the node");
    netns.run(inside).expect("to enter the node");
}

fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

impl Node {
    /// Returns a watch of this node. The node's sysfs has only the port of [`port`](Self::port).
    pub(crate) fn watch(&self) -> (Watch, Vec<String>) {
        let _inside = self.runtime.enter();
        Watch::open(&self.directory.path().join("sys"), self.directory.path())
    }

    /// Returns a watch of this node whose sources cannot be waited for, because their tokio runtime has ended.
    pub(crate) fn watch_of_ended_runtime(&self) -> Watch {
        let ended = runtime();
        let inside = ended.enter();
        let (watch, losses) =
            Watch::open(&self.directory.path().join("sys"), self.directory.path());
        assert!(losses.is_empty(), "{losses:?}");
        drop(inside);
        watch
    }

    /// Returns a watch of this node without events of records, as with an exhausted limit of inotify instances.
    pub(crate) fn watch_without_records(&self) -> Watch {
        let attachments = self.directory.path().join("attachments");
        fs::write(&attachments, "").expect("written");
        let (watch, losses) = self.watch();
        assert!(
            matches!(losses.as_slice(), [one] if one.contains("cannot watch the records")),
            "{losses:?}"
        );
        fs::remove_file(&attachments).expect("removed");
        watch
    }

    /// Writes the state of an InfiniBand port, whose change causes no event.
    pub(crate) fn port(&self, state: &str) {
        let port = self.directory.path();
        let port = port.join("sys/class/infiniband/mlx5_2/ports/1");
        fs::create_dir_all(&port).expect("made");
        fs::write(port.join("link_layer"), "InfiniBand\n").expect("written");
        fs::write(port.join("state"), state).expect("written");
    }

    /// Waits until `something` is complete. Returns true if this took at most `limit`.
    pub(crate) fn wait(&self, limit: Duration, something: impl Future<Output = ()>) -> bool {
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(limit, something).await });
        outcome.is_ok()
    }

    /// Moves `link` into the pod, and writes a record of the move.
    pub(crate) fn attach(&self, link: &str, phase: &str) {
        self.ip(&format!("link set {link} netns {}", self.pod_name()));
        self.record(phase);
    }

    /// Writes a record that the pod has the device.
    pub(crate) fn record(&self, phase: &str) {
        let pod = Path::new("/run/netns").join(self.pod_name());
        let index = self.pod("-oneline link show nic0");
        let index: u32 = index
            .split(':')
            .next()
            .and_then(|it| it.parse().ok())
            .expect("an index");
        let id: NetnsId = Netns::open(&pod).expect("the pod").id();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
        let record = json!({
            "format": 8, "phase": phase, "bootId": boot_id.trim_end(), "pod": "team/train-0",
            "key": {"network": "rails", "container": "c1", "interface": "eth0"},
            "netns": pod, "netnsId": id, "rdmaMode": "shared", "dad": "off", "acceptRa": false, "config": {},
            "rails": [{
                "podName": "nic0", "podIndex": index,
                "home": {
                    "name": "nic0", "index": 2, "mac": "02:00:00:00:00:02", "mtu": 1500, "up": true,
                },
                "rdma": {
                    "name": "mlx5_2", "index": 2, "node_guid": "", "parent": "0000:3b:00.2",
                },
            }],
        });
        let file = self.file();
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        let new = file.with_extension("new");
        fs::write(&new, record.to_string()).expect("written");
        fs::rename(&new, &file).expect("renamed");
    }

    pub(crate) fn forget(&self) {
        fs::remove_file(self.file()).expect("removed");
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("attachments/rails/c1@eth0.json")
    }

    fn pod_name(&self) -> String {
        format!("{}-pod", self.name)
    }

    /// Ends the pod's namespace.
    pub(crate) fn end_pod(&self) {
        ip(&["netns", "del", &self.pod_name()]);
    }

    pub(crate) fn has(&self, link: &str) -> bool {
        self.ip("link show").contains(link)
    }

    #[track_caller]
    pub(crate) fn ip(&self, arguments: &str) -> String {
        inside(&self.name, arguments)
    }

    /// Runs `ip` in the pod's namespace.
    #[track_caller]
    pub(crate) fn pod(&self, arguments: &str) -> String {
        inside(&self.pod_name(), arguments)
    }
}

/// Removes the capability with the number `bit` from the effective set of the calling thread. `bit` is below 32.
pub(crate) fn give_up_capability(bit: u32) {
    // struct __user_cap_header_struct of _LINUX_CAPABILITY_VERSION_3, and its data: effective,
    // permitted and inheritable, twice
    let header = [0x2008_0522_u32, 0];
    let mut data = [0_u32; 6];
    // SAFETY: header and data have the sizes that this version requires.
    unsafe {
        let got = libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr());
        data[0] &= !(1 << bit);
        let set = libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr());
        assert_eq!((got, set), (0, 0), "{}", std::io::Error::last_os_error());
    }
}

#[track_caller]
fn inside(namespace: &str, arguments: &str) -> String {
    ip(&["-n", namespace]
        .into_iter()
        .chain(arguments.split(' '))
        .collect::<Vec<_>>())
}

/// Named network namespace. Dropping this value runs `ip netns del`.
struct Named(String);

impl Named {
    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // ignore the result: a failed removal must not hide why a test failed
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[track_caller]
fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "ip {}: {} (these tests need root and network namespaces)",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    String::from_utf8(output.stdout).expect("iproute2 prints UTF-8")
}
