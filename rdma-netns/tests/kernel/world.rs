// SPDX-License-Identifier: Apache-2.0
//! A node and a pod: two namespaces that end with the test.

use rdma_netns::{
    InterfaceName, Kernel, Link, Linux, NetnsSide, Observed, Op, OpError, linux::Space,
    netns::Netns,
};
use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A namespace that `ip netns add` has made. Dropping this value removes it by `ip netns del`.
pub(crate) struct Named(String);

impl Named {
    pub(crate) fn new(role: &str) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rdma-netns-{}-{count}-{role}", std::process::id());
        ip(&["netns", "add", &name]);
        let named = Self(name);
        ip(&["-n", &named.0, "link", "set", "lo", "up"]);
        named
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // an error of this command must not hide the reason why a test failed
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Runs `ip` and returns its output. If `ip` fails, the test fails.
#[track_caller]
pub(crate) fn ip(arguments: &[&str]) -> String {
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

/// The node and its pod. The test runs inside the node's namespace, which the tested code treats as the host.
pub(crate) struct World {
    pub(crate) kernel: Linux,
    pub(crate) pod: Space,
    node: String,
    pod_name: String,
}

/// Runs `test` inside a node that has a NIC `nic0` with its other end `wire0`, both up.
pub(crate) fn with_node(test: impl FnOnce(&World) + Send) {
    let (node, pod) = (Named::new("node"), Named::new("pod"));
    ip(&[
        "-n", &node.0, "link", "add", "nic0", "type", "veth", "peer", "name", "wire0",
    ]);
    for link in ["nic0", "wire0"] {
        ip(&["-n", &node.0, "link", "set", link, "up"]);
    }
    let inside = || {
        let kernel = Linux::new();
        let pod_space = kernel.open_pod(&pod.path()).expect("the pod");
        test(&World {
            kernel,
            pod: pod_space,
            node: node.0.clone(),
            pod_name: pod.0.clone(),
        });
    };
    Netns::open(&node.path())
        .expect("the node")
        .run(inside)
        .expect("to enter the node");
}

impl World {
    pub(crate) fn node_path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.node)
    }

    pub(crate) fn pod_path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.pod_name)
    }

    pub(crate) fn observe(&self) -> Observed {
        self.kernel.observe(Some(&self.pod)).expect("a state")
    }

    #[track_caller]
    pub(crate) fn host_link(&self, name: &str) -> Link {
        self.observe()
            .host
            .link(name)
            .unwrap_or_else(|| panic!("no {name} on the host"))
            .clone()
    }

    #[track_caller]
    pub(crate) fn pod_link(&self, name: &str) -> Link {
        let pod = self.observe().pod.expect("the pod");
        pod.link(name)
            .unwrap_or_else(|| panic!("no {name} in the pod"))
            .clone()
    }

    #[track_caller]
    pub(crate) fn execute(&self, op: Op) {
        self.kernel
            .execute(&op, Some(&self.pod))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    #[track_caller]
    pub(crate) fn refused(&self, op: Op) -> OpError {
        let outcome = self.kernel.execute(&op, Some(&self.pod));
        outcome.expect_err(&format!("{op} was not refused"))
    }

    /// Runs `ip` in the node's namespace.
    #[track_caller]
    pub(crate) fn ip(&self, arguments: &str) -> String {
        ip(&["-n", &self.node]
            .into_iter()
            .chain(arguments.split(' '))
            .collect::<Vec<_>>())
    }

    #[track_caller]
    pub(crate) fn pod_ip(&self, arguments: &str) -> String {
        ip(&["-n", &self.pod_name]
            .into_iter()
            .chain(arguments.split(' '))
            .collect::<Vec<_>>())
    }
}

pub(crate) fn to_pod(link: &str, name: &str) -> Op {
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    Op::MoveLink {
        link: interface(link),
        from,
        to,
        name: interface(name),
    }
}

pub(crate) fn to_host(link: &str, name: &str) -> Op {
    let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
    Op::MoveLink {
        link: interface(link),
        from,
        to,
        name: interface(name),
    }
}

pub(crate) fn interface(name: &str) -> InterfaceName {
    InterfaceName::try_from(name).expect("an interface name")
}
