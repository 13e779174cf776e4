// SPDX-License-Identifier: Apache-2.0
//! Eight nodes with twenty pods each on one /24 and one /64. All pods start at the same time, with the configuration
//! of the manifests. No two pods get the same address, and no pod gets a node's address.
//!
//! All nodes share the few CPUs of this machine, while a real node has many CPUs of its own: work waits longer for a
//! CPU here.

use integration::{Netns, plugin::cni_path, plugin::rdma_cni};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const NODES: usize = 8;
const PODS: usize = 20;

/// Number of attempts in the test's role of kubelet: a pod whose ADD failed gets a DEL, and another ADD.
const TRIES: usize = 3;

struct Machine {
    host: Netns,
    state: TempDir,
    pods: Vec<Netns>,
}

fn address(node: usize) -> [String; 2] {
    let number = node + 1;
    [format!("10.9.0.{number}"), format!("fd00:9::{number}")]
}

/// A machine with `eth1` on the bridge `br0` of `switch`.
fn machine(node: usize, switch: &Netns) -> Machine {
    let host = Netns::new("node");
    host.set_sysctl("ipv6/conf/default/dad_transmits", "0");
    let port = format!("to-node{node}");
    let [ipv4, ipv6] = address(node);
    host.ip_batch(&[
        "link set dev lo up".into(),
        format!(
            "link add name eth1 type veth peer name {port} netns {}",
            switch.name()
        ),
        "link set dev eth1 up".into(),
        format!("address add {ipv4}/24 dev eth1"),
        format!("address add {ipv6}/64 dev eth1 nodad"),
    ]);
    switch.ip(&format!("link set dev {port} master br0 up"));
    // records and leases are synced to the disk: a memory file system is faster
    let memory = Path::new("/dev/shm");
    let state = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    Machine {
        host,
        state: state.expect("a directory"),
        pods: (0..PODS).map(|_| Netns::new("pod")).collect(),
    }
}

impl Machine {
    fn configuration(&self) -> Value {
        json!({
            "cniVersion": "1.1.0",
            "name": "rails",
            "type": "rdma-cni",
            "requireRdma": false,
            "devices": [{ "netdev": "eth1" }],
            // without `interfaceName`, the only rail of the list's first plugin would be called `CNI_IFNAME`
            "interfaceName": "rdma%d",
            "mode": "share",
            "stateDir": self.state.path().join("state"),
            "ipam": {
                "type": "rdma-ipam",
                "from": "parent",
                "family": "both",
                "dataDir": self.state.path().join("leases"),
            },
        })
    }

    /// Calls `verb` for the pod `number`. The plugin runs in the namespace of the calling thread, which must be the
    /// node's.
    fn call(&self, verb: &str, number: usize) -> Child {
        let plugin = rdma_cni();
        let mut child = Command::new(&plugin)
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("c{number}"))
            .env("CNI_NETNS", self.pods[number].path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", cni_path(&plugin, &[]))
            .env(
                "CNI_ARGS",
                format!("K8S_POD_NAMESPACE=job;K8S_POD_NAME=worker-{number}"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the plugin starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let text = self.configuration().to_string();
        stdin.write_all(text.as_bytes()).expect("it reads");
        child
    }

    /// Starts all pods at the same time. Asserts that each of them starts within [`TRIES`] attempts. Returns the
    /// messages of failed attempts, the time of the slowest ADD, the number of conflicts after which another address
    /// was assigned, and the number of ADDs that started again.
    fn start(&self) -> Started {
        let mut started = Started::default();
        let mut waiting: Vec<usize> = (0..PODS).collect();
        for _ in 0..TRIES {
            let begin = Instant::now();
            let adds: Vec<(usize, Child)> = waiting
                .drain(..)
                .map(|number| (number, self.call("ADD", number)))
                .collect();
            for (number, add) in adds {
                let output = add.wait_with_output().expect("its end");
                started.slowest = started.slowest.max(begin.elapsed());
                let log = String::from_utf8_lossy(&output.stderr).into_owned();
                started.others += log.matches("requesting another address").count();
                started.anew += log.matches("ADD starts again").count();
                if !output.status.success() {
                    let del = self.call("DEL", number).wait_with_output();
                    assert!(del.expect("its end").status.success());
                    waiting.push(number);
                    started.failed.push(log);
                }
            }
        }
        assert!(waiting.is_empty(), "never started: {:?}", started.failed);
        started
    }
}

#[derive(Debug, Default)]
struct Started {
    failed: Vec<String>,
    slowest: Duration,
    others: usize,
    anew: usize,
}

/// Returns the addresses of `link` in `netns`, without link-local ones.
fn addresses(netns: &Netns, link: &str) -> Vec<String> {
    let found = netns.addresses(link).into_iter();
    let found = found.map(|it| it.split('/').next().unwrap_or_default().to_owned());
    found.collect()
}

#[test]
fn eight_nodes_of_twenty_pods_share_no_address() {
    let switch = Netns::new("switch");
    switch.ip("link add name br0 type bridge");
    switch.ip("link set dev br0 up");
    let machines: Vec<Machine> = (0..NODES).map(|node| machine(node, &switch)).collect();
    let at_once = Barrier::new(NODES);
    let begin = Instant::now();
    let started: Vec<Started> = thread::scope(|scope| {
        let threads: Vec<_> = machines
            .iter()
            .map(|machine| {
                let at_once = &at_once;
                scope.spawn(move || {
                    let host = File::open(machine.host.path()).expect("the node's namespace");
                    setns(&host, CloneFlags::CLONE_NEWNET).expect("root may enter it");
                    at_once.wait();
                    machine.start()
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|it| it.expect("every pod starts")).collect()
    });
    let took = begin.elapsed();

    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node, machine) in machines.iter().enumerate() {
        for address in address(node) {
            owners
                .entry(address)
                .or_default()
                .push(format!("node {node}"));
        }
        for (number, pod) in machine.pods.iter().enumerate() {
            let found = addresses(pod, "rdma0");
            assert_eq!(found.len(), 2, "pod {number} of node {node}: {found:?}");
            for address in found {
                let owner = format!("pod {number} of node {node}");
                owners.entry(address).or_default().push(owner);
            }
        }
    }
    let total = |count: fn(&Started) -> usize| started.iter().map(count).sum::<usize>();
    let slowest = started.iter().map(|it| it.slowest).max();
    println!(
        "{} pods in {:.1} s, the slowest in {:.1} s; another address {} times, all anew {} times, \
         another ADD {} times",
        NODES * PODS,
        took.as_secs_f64(),
        slowest.unwrap_or_default().as_secs_f64(),
        total(|it| it.others),
        total(|it| it.anew),
        total(|it| it.failed.len()),
    );
    assert_eq!(
        owners.len(),
        2 * NODES * (PODS + 1),
        "{:?}",
        shared(&owners)
    );
    assert_eq!(shared(&owners), Vec::<String>::new());
}

/// Returns the addresses with several owners, and these owners.
fn shared(owners: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let shared = owners.iter().filter(|(_, owners)| owners.len() > 1);
    shared
        .map(|(address, it)| format!("{address}: {}", it.join(", ")))
        .collect()
}
