// SPDX-License-Identifier: Apache-2.0
//! The node: two NICs with two virtual functions each, whose addresses NetworkManager sets; containerd; the daemon; and
//! a stand-in for kubelet on the daemon's real sockets. The long-lived pod has the first function of both NICs. Each
//! short-lived pod has one of the other functions.

use integration::{
    ContainerRuntime, Manager, Qemu,
    container_runtime::{
        ExclusiveNode, Pod, PodSpec,
        exclusive::{BY_CDI, VF},
        shared::address,
        traffic::{self, End},
    },
    kubelet::{AllocationRequest, node::Node},
    lab::{Function, Lab, NICS, ipv4, ipv6, uverbs},
    smc::pods::UEID,
    wait,
};
use serde_json::json;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const FUNCTIONS: usize = 2;

/// Time that NetworkManager may need in an emulated machine after a netdev has carrier.
const TO_CONNECT: Duration = Duration::from_secs(60);

/// The annotation for SMC-R on a pod's rails.
const SMC_R: (&str, &str) = ("network.alibabacloud.com/erdma-smcr", "true");

/// A pod and its functions, by NIC and number.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) pod: Pod,
    pub(super) functions: Vec<(usize, usize)>,
}

/// The node, and the state of the day.
#[derive(Debug)]
pub(super) struct Day {
    // dropped first: otherwise NetworkManager would configure netdevs while the other fields are dropped
    manager: Option<Manager>,
    pub(super) node: ExclusiveNode,
    pub(super) qemu: Qemu,
    pub(super) round: usize,
    pods: usize,
    passers: usize,
    began: Instant,
}

impl Day {
    #[track_caller]
    pub(super) fn begin() -> Self {
        let began = Instant::now();
        end_the_machine_if_a_task_hangs();
        let qemu = Qemu::monitor();
        let lab = Lab::without_rdma(FUNCTIONS);
        for (nic, name) in NICS.into_iter().enumerate() {
            // `ipv6/conf/default` does not apply to the NICs, which already exist
            for key in ["dad_transmits", "router_solicitation_delay"] {
                lab.host.set_sysctl(&format!("ipv6/conf/{name}/{key}"), "0");
            }
            lab.furnish(nic);
        }
        let manager = network_manager(&lab);
        let node = Node::start(BY_CDI);
        let runtime = ContainerRuntime::start(&node.path("cdi"));
        let chain = json!({
            "capabilities": {"io.kubernetes.cri.pod-annotations": true}, "smcUeid": UEID,
            "ipam": {
                "type": "rdma-ipam", "from": "parent", "family": "both", "dataDir": node.path("leases"),
            },
        });
        let node = ExclusiveNode::new(lab, node, runtime, &chain);
        let day = Self {
            manager: Some(manager),
            node,
            qemu,
            round: 0,
            pods: 0,
            passers: 0,
            began,
        };
        day.report("the node is there");
        day
    }

    /// Prints `what` with the current time.
    pub(super) fn report(&self, what: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        eprintln!("{seconds:6.1} s, round {}: {what}", self.round);
    }

    /// A pod with the first function of both NICs, in every second round with SMC-R.
    #[track_caller]
    pub(super) fn long_lived(&mut self) -> Given {
        let has_smc_r = self.round % 2 == 1;
        self.comes(&[(0, 0), (1, 0)], |spec| match has_smc_r {
            true => spec.annotation(SMC_R.0, SMC_R.1),
            false => spec,
        })
    }

    /// Starts and ends another pod with a function of one NIC. The pod exchanges data with the long-lived pod over this
    /// NIC.
    #[track_caller]
    pub(super) fn a_pod_comes_and_goes(&mut self, lives: &Given) {
        self.passers += 1;
        let nic = self.passers % NICS.len();
        let comes = self.comes(&[(nic, 1)], |spec| spec);
        let ends = [(lives, nic), (&comes, 0)];
        let addresses = ends.map(|(given, rail)| address(&given.pod.netns(), rail, true));
        let end = |number: usize| End {
            container: ends[number].0.pod.main(),
            rdma: &self.function((nic, number)).rdma,
            address: &addresses[number],
        };
        traffic::rping(end(0), end(1));
        self.remove(comes.pod);
        self.report("a pod has come and gone");
    }

    /// Starts a pod with one container that requests these functions. Asserts that the pod has exactly these functions.
    #[track_caller]
    fn comes(
        &mut self,
        functions: &[(usize, usize)],
        with: impl FnOnce(PodSpec) -> PodSpec,
    ) -> Given {
        self.pods += 1;
        let name = format!("pod-{}", self.pods);
        let ids = functions.iter().map(|it| self.function(*it).pci.clone());
        let ids: Vec<String> = ids.collect();
        let request = AllocationRequest::new(&name, "main", VF, ids.len()).reusing(&ids);
        let given = self.node.node.allocate(&request);
        let spec = with(PodSpec::new(&name).container("main", &[given]));
        let kubelet = &self.node.node.kubelet;
        let pod = self
            .node
            .runtime
            .run_asking(&spec, |it| kubelet.before_start(&it.resource, &it.ids));
        let pod = pod.unwrap_or_else(|status| panic!("{name}: {}", status.message()));
        let given = Given {
            pod,
            functions: functions.to_vec(),
        };
        self.has_its_own(&given);
        given
    }

    /// Asserts that the pod's container has the device files of exactly its functions, and that their ports are active.
    #[track_caller]
    pub(super) fn has_its_own(&self, given: &Given) {
        let mut nodes = given.pod.main().rdma_nodes();
        nodes.retain(|(name, ..)| name != "rdma_cm");
        let functions = given.functions.iter();
        let functions = functions.map(|it| uverbs(&self.function(*it).rdma));
        let mut expected: Vec<_> = functions.collect();
        expected.sort();
        assert_eq!(nodes, expected, "{given:?}");
        let output = given.pod.main().sh("ibv_devinfo");
        let active = output.matches("PORT_ACTIVE").count();
        assert_eq!(active, expected.len(), "{output}");
    }

    #[track_caller]
    pub(super) fn remove(&self, pod: Pod) {
        self.node.remove(pod);
    }

    fn function(&self, (nic, number): (usize, usize)) -> &Function {
        &self.node.lab.functions[nic][number]
    }

    /// Kills NetworkManager and starts it again; its settings remain.
    #[track_caller]
    pub(super) fn start_network_manager_anew(&mut self) {
        drop(self.manager.take());
        self.manager = Some(network_manager(&self.node.lab));
    }

    /// Waits until kubelet has `count` functions for pods.
    #[track_caller]
    pub(super) fn wait_for_healthy(&self, count: usize) {
        let what = format!("{count} functions are healthy");
        let kubelet = &self.node.node.kubelet;
        kubelet.wait_for(VF, &what, |it| it.healthy().len() == count);
    }

    /// Waits until all functions on the host are configured, and kubelet lists all of them as healthy.
    #[track_caller]
    pub(super) fn settles(&self) {
        let manager = self.manager.as_ref().expect("it runs");
        until_connected(manager, &self.node.lab);
        self.wait_for_healthy(NICS.len() * FUNCTIONS);
    }

    /// Waits as [`Day::settles`] does. Asserts that the host is as it was before the first pod.
    #[track_caller]
    pub(super) fn rests(&self) {
        self.settles();
        self.node.before.assert_restored(&self.node.lab.host);
        self.report("the node is as it was");
    }

    /// Ends the day and NetworkManager, whose settings remain.
    #[track_caller]
    pub(super) fn ends(mut self) {
        drop(self.manager.take());
        self.node.before.assert_restored(&self.node.lab.host);
    }
}

/// Makes the kernel panic if a task hangs for two minutes. The console shows the stack of the task. Without the panic,
/// the machine would wait for the task until its time limit.
#[track_caller]
fn end_the_machine_if_a_task_hangs() {
    for (key, value) in [("printk", "7"), ("hung_task_panic", "1")] {
        let path = format!("/proc/sys/kernel/{key}");
        fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// NetworkManager with a profile for each function, as an administrator writes it, and with no other profile. The
/// profile permits more than four failed attempts: after four, for example those that end with a flap, NetworkManager
/// would wait five minutes (`autoconnect-retries`, nm-settings(5)).
#[track_caller]
fn network_manager(lab: &Lab) -> Manager {
    let profiles = all(lab).map(|(nic, number, netdev)| {
        // with its own metric: otherwise NetworkManager numbers the netdevs in the order in which they appear
        let metric = 100 + nic * FUNCTIONS + number;
        let text = format!(
            "[connection]\nid={netdev}\ntype=ethernet\ninterface-name={netdev}\nautoconnect-retries=0\n\
             [ipv4]\nmethod=manual\naddress1={}/24\nroute-metric={metric}\n\
             [ipv6]\nmethod=manual\naddr-gen-mode=eui64\naddress1={}/64\nroute-metric={metric}\n",
            ipv4(nic, number),
            ipv6(nic, number)
        );
        (netdev, text)
    });
    let profiles: Vec<(&str, String)> = profiles.collect();
    let profiles: Vec<(&str, &str)> = profiles.iter().map(|(it, text)| (*it, &**text)).collect();
    let manager = Manager::network_manager_for(&lab.host, "enp*v*", &profiles);
    until_connected(&manager, lab);
    manager
}

/// Waits until NetworkManager has configured all functions on the host. NetworkManager regards a function that returns
/// with its addresses as a connection of another program ("externally"). After a flap such a function is
/// "disconnected", and keeps its addresses.
#[track_caller]
fn until_connected(manager: &Manager, lab: &Lab) {
    let mut output = String::new();
    let done = wait::within(TO_CONNECT, || {
        output = manager.run("nmcli -t -f DEVICE,STATE device");
        let is = |netdev: &str, state: &str| {
            let start = format!("{netdev}:{state}");
            output.lines().any(|line| line.starts_with(&start))
        };
        let has_addresses = |nic, number, netdev: &str| {
            let shown = lab
                .host
                .run(&format!("ip -oneline address show dev {netdev}"));
            let addresses = [ipv4(nic, number), ipv6(nic, number)];
            addresses
                .iter()
                .all(|it| shown.contains(&format!(" {it}/")))
        };
        let is_here = |netdev: &str| Path::new("/sys/class/net").join(netdev).exists();
        all(lab).all(|(nic, number, netdev)| {
            let is_done = || {
                is(netdev, "connected")
                    || is(netdev, "disconnected") && has_addresses(nic, number, netdev)
            };
            !is_here(netdev) || is_done()
        })
    });
    assert!(
        done,
        "not within {TO_CONNECT:?}: {output}\n{}\n{}",
        lab.host.run("ip address"),
        manager.log()
    );
}

/// The NIC, number and netdev of all functions.
fn all(lab: &Lab) -> impl Iterator<Item = (usize, usize, &str)> {
    let nics = lab.functions.iter().enumerate();
    nics.flat_map(|(nic, functions)| {
        let functions = functions.iter().enumerate();
        functions.map(move |(number, it)| (nic, number, &*it.netdev))
    })
}
