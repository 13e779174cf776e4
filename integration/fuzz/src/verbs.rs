// SPDX-License-Identifier: Apache-2.0
//! `prevResult` for verbs of `rdma-cni` and `rdma-ipam` that only read it. Any plugin of the chain may have written a
//! part of `prevResult`.

use cni_protocol::{Input, lock::LockDeadline};
use fake_kernel::{FakeKernel, Nic, Snapshot, World};
use rdma_ipam::store::RealDisk;
use rdma_netns::{Linux, RdmaMode};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A node whose pod `a` has a NIC and an address, and whose pod `b` has neither.
struct Node {
    kernel: FakeKernel,
    state: TempDir,
    linux: Linux,
    /// State of the kernel while the NIC is in the pod.
    attached: Snapshot,
}

thread_local! {
    /// Verbs that only read do not change the node, so all inputs share it.
    static NODE: Node = Node::new();
}

impl Node {
    fn new() -> Self {
        let mut world = World::new(Some(RdmaMode::Exclusive));
        world.plug(Nic::physical("0000:3b:00.0", "eth2", "mlx5_2"));
        for pod in ["a", "b"] {
            world.create_namespace(Path::new("/run/netns").join(pod));
        }
        let kernel = FakeKernel::new(world);
        // records are synced to disk, which is faster in memory
        let memory = Path::new("/dev/shm");
        let state = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let mut node = Self {
            attached: kernel.snapshot(),
            kernel,
            state: state.expect("a directory"),
            linux: Linux::new(),
        };
        node.rdma_cni("ADD", "a", None).expect("attached");
        node.rdma_ipam("ADD", None).expect("an address");
        node.attached = node.kernel.snapshot();
        node
    }

    /// Runs `rdma-cni`. Returns its result or its error.
    fn rdma_cni(&self, command: &str, pod: &str, previous: Option<&Value>) -> Result<Value, Value> {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "rdma-cni", "log": {"level": "off"},
            "stateDir": self.state.path().join("state"), "deviceID": "0000:3b:00.0", "interfaceName": "rdma%d",
        });
        if let Some(previous) = previous {
            conf["prevResult"] = previous.clone();
        }
        let input = Input {
            arguments: vec![],
            environment: environment(command, pod),
        };
        let mut output = vec![];
        self.kernel.begin();
        let text = conf.to_string();
        let _ = rdma_cni::run(input, &mut text.as_bytes(), &mut output, &self.kernel);
        let answer: Value = serde_json::from_slice(&output).unwrap_or_default();
        match answer.get("code") {
            None => Ok(answer),
            Some(_) => Err(answer),
        }
    }

    /// Runs `rdma-ipam` for the pod `a`. Returns its result or its error.
    fn rdma_ipam(&self, command: &str, previous: Option<&Value>) -> Result<Value, Value> {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "net", "log": {"level": "off"},
            "ipam": {"type": "rdma-ipam", "dataDir": self.state.path().join("leases"), "subnet": "10.7.0.0/24"},
        });
        if let Some(previous) = previous {
            conf["prevResult"] = previous.clone();
        }
        let lock_deadline = LockDeadline::until(Instant::now() + Duration::from_secs(5));
        let answer = rdma_ipam::call(
            environment(command, "a"),
            conf.to_string().as_bytes(),
            (&RealDisk, &self.linux),
            lock_deadline,
        );
        let read = |text: Vec<u8>| serde_json::from_slice(&text).unwrap_or_default();
        answer.map(read).map_err(read)
    }
}

fn environment(command: &str, pod: &str) -> BTreeMap<String, String> {
    let variables = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", pod),
        ("CNI_NETNS", &format!("/run/netns/{pod}")),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/nonexistent"),
    ];
    variables
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// The result of a chain, as CHECK of both plugins and DEL of `rdma-cni` get it.
///
/// # Panics
/// CHECK fails with an error other than a drift, a message has several lines, DEL of a pod without devices fails, or
/// the kernel's state changes.
pub fn checked_result(input: &[u8]) {
    let Ok(previous) = serde_json::from_slice::<Map<String, Value>>(input) else {
        return;
    };
    let previous = Value::Object(previous);
    NODE.with(|node| {
        for (program, result) in [
            ("rdma-cni", node.rdma_cni("CHECK", "a", Some(&previous))),
            ("rdma-ipam", node.rdma_ipam("CHECK", Some(&previous))),
        ] {
            if let Err(error) = result {
                let message = error["msg"].as_str().expect("a sentence");
                assert!(is_drift(&error), "{program}: {error}");
                assert!(!message.contains(conf_reader::steers), "{message:?}");
            }
        }
        if let Err(error) = node.rdma_cni("DEL", "b", Some(&previous)) {
            panic!("DEL of a pod without devices: {error}");
        }
        let differences = node.attached.differences(&node.kernel.snapshot());
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

/// Returns true if `error` is a drift that CHECK found. No other error of CHECK has its code.
fn is_drift(error: &Value) -> bool {
    error["code"] == cni_protocol::code::INTERNAL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ensures that CHECK compares the result at all, so that the target is not void.
    #[test]
    fn results_are_compared() {
        let result = |mac: &str, ip: &str| {
            json!({
                "interfaces": [{"name": "eth0", "mac": mac, "sandbox": "/run/netns/a"}],
                "ips": [{"address": ip, "interface": 0}],
            })
        };
        NODE.with(|node| {
            let mac = node.kernel.with(|world| {
                let pod = world.namespace_at(Path::new("/run/netns/a")).expect("it");
                world
                    .observe(Some(pod))
                    .pod
                    .expect("a pod")
                    .links
                    .iter()
                    .find(|it| &*it.name == "rdma0")
                    .expect("its NIC")
                    .mac
                    .to_string()
            });
            println!("{mac}");
            for (mac, ip, is_so) in [
                (&*mac, "10.7.0.2/24", true),
                ("02:66:66:66:66:66", "10.7.0.3/24", false),
            ] {
                let mut previous = result(mac, ip);
                let ipam = node.rdma_ipam("CHECK", Some(&previous));
                assert_eq!(ipam.is_ok(), is_so, "{ipam:?}");
                previous["interfaces"][0]["name"] = "rdma0".into();
                let cni = node.rdma_cni("CHECK", "a", Some(&previous));
                assert_eq!(cni.is_ok(), is_so, "{cni:?}");
                for answer in [ipam, cni] {
                    assert!(answer.as_ref().err().is_none_or(is_drift), "{answer:?}");
                }
            }
        });
    }
}
