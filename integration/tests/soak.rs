// SPDX-License-Identifier: Apache-2.0
//! Thousands of pods that start and end, and a daemon that serves them. The resources at the end must not exceed those
//! after the first few pods by more than a margin.

use integration::{
    Daemon, Files, Machine, Node, Snapshot,
    daemon::rdma_device_plugin,
    extent,
    kernel_counts::{network_namespaces, unreclaimable_memory},
    kubelet::DeviceManager,
    machine::Nic,
    wait,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{collections::BTreeSet, mem, ops::Range, path::Path, slice, thread, time::Duration};

/// Number of pods that run at the same time with children of the same netdevs. One more pod has a netdev that moves.
const SHARING: usize = 3;

/// The kernel's unreclaimable memory may grow by this number of KiB, because other tests run at the same time.
const KERNEL_MEMORY: usize = 96 << 10;

/// The way in which a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// With one DEL.
    Usual,
    /// The runtime never calls DEL: another pod's ADD removes the remains.
    WithoutDel,
    /// The pod's namespace ends before DEL.
    BeforeDel,
    /// With two DELs, as by a runtime that repeats a DEL.
    DelTwice,
}

impl Ending {
    const ALL: [Self; 4] = [
        Self::Usual,
        Self::WithoutDel,
        Self::BeforeDel,
        Self::DelTwice,
    ];

    /// Returns the way in which a worker's pod `turn` ends: of ten pods, one has each of the possible unusual ends.
    fn of(turn: usize, may_die: bool) -> Self {
        match turn % 10 {
            3 if may_die => Self::WithoutDel,
            6 if may_die => Self::BeforeDel,
            8 => Self::DelTwice,
            _ => Self::Usual,
        }
    }

    /// Returns true if pods of a network can end in this way.
    fn is_possible(self, may_die: bool) -> bool {
        may_die || matches!(self, Self::Usual | Self::DelTwice)
    }
}

/// A network, and the ways in which its pods end.
struct Network<'a> {
    node: &'a Node,
    configuration: Value,
    /// True if a pod's namespace may end before DEL. The kernel then deletes the pod's virtual netdevs. In these tests
    /// it would delete moved netdevs of the host, too, because they have no hardware.
    may_die: bool,
}

impl<'a> Network<'a> {
    /// A network with children of `eth1` and `eth2`, which get addresses of their parents' prefixes.
    fn of_children(node: &'a Node) -> Self {
        let mut configuration = node.configuration(&["eth1", "eth2"]);
        configuration["name"] = "children".into();
        configuration["mode"] = "share".into();
        let leases = node.directory().join("leases");
        configuration["ipam"] = json!({"type": "rdma-ipam", "from": "parent", "dataDir": leases});
        Self {
            node,
            configuration,
            may_die: true,
        }
    }

    /// A network that moves `eth3` with its addresses.
    fn of_a_move(node: &'a Node) -> Self {
        let mut configuration = node.configuration(&["eth3"]);
        configuration["name"] = "move".into();
        Self {
            node,
            configuration,
            may_die: false,
        }
    }

    /// Runs ADD, CHECK and an end for the pod `number`.
    fn cycle(&self, worker: usize, number: usize, ending: Ending) {
        let container = format!("{worker}-{number}");
        let pod = self.node.pod("soak");
        let result = self.node.add(&self.configuration, &container, &pod);
        let mut checked = self.configuration.clone();
        checked["prevResult"] = result;
        let check = self.node.invoke("CHECK", &container, pod.path());
        check.input(&checked).run().silent();
        match ending {
            Ending::WithoutDel => drop(pod),
            Ending::BeforeDel => {
                let netns = pod.path().to_owned();
                drop(pod);
                self.del(&container, &netns);
            }
            Ending::DelTwice => {
                self.del(&container, pod.path());
                self.del(&container, pod.path());
            }
            Ending::Usual => self.del(&container, pod.path()),
        }
    }

    fn del(&self, container: &str, netns: &Path) {
        let call = self.node.invoke("DEL", container, netns);
        call.input(&self.configuration).run().silent();
    }
}

/// Traces that may grow on a node in addition to the contents of [`Snapshot`].
#[derive(Debug)]
struct Traces {
    /// The files with their contents: no remaining file may name a pod that has ended.
    files: Files,
    /// The multicast groups of the node's netdevs: netdev, group, and reference count.
    groups: Vec<String>,
    /// Number of network namespaces in the kernel. `None` if the kernel does not report it.
    namespaces: Option<usize>,
    /// The kernel's unreclaimable memory, including per-processor memory, in KiB.
    memory: usize,
}

impl Traces {
    fn of(node: &Node) -> Self {
        let below = [node.state(), node.directory().join("leases")];
        let below = below.each_ref().map(|it| it.to_str().expect("UTF-8"));
        let igmp6 = node.host.run("cat /proc/net/igmp6");
        let mut groups: Vec<String> = igmp6
            .lines()
            .filter_map(
                |line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                    [_, netdev, group, users, ..] => Some(format!("{netdev} {group} {users}")),
                    _ => None,
                },
            )
            .collect();
        groups.sort();
        Self {
            files: Files::below(&below),
            groups,
            namespaces: network_namespaces(),
            memory: unreclaimable_memory(),
        }
    }

    /// Asserts that no trace was added since `early`, after `cycles` cycles. Permits additions that parallel tests can
    /// cause.
    #[track_caller]
    fn assert_as(&self, early: &Self, cycles: usize) {
        let differing = self.files.differences(&early.files, &|_| false);
        assert!(differing.is_empty(), "{differing:#?}");
        assert_eq!(self.groups, early.groups);
        if let Some(before) = early.namespaces {
            let most = before + (cycles / 2).min(100);
            let ended = || network_namespaces().is_some_and(|now| now <= most);
            assert!(
                wait::within(wait::TIMEOUT, ended),
                "network namespaces stay: {before} before, {:?} now",
                network_namespaces()
            );
        }
        let most = early.memory + KERNEL_MEMORY;
        assert!(
            wait::within(wait::TIMEOUT, || unreclaimable_memory() <= most),
            "the kernel's memory has grown from {} KiB to {} KiB",
            early.memory,
            unreclaimable_memory()
        );
    }
}

/// Runs the given number of pods, with as many at the same time as there are workers. Returns the ends that each
/// worker's pods had.
fn come_and_go(
    children: &Network<'_>,
    moved: &Network<'_>,
    numbers: &Range<usize>,
) -> BTreeSet<(usize, Ending)> {
    let endings = thread::scope(|scope| {
        let begun: Vec<_> = (0..=SHARING)
            .map(|worker| {
                scope.spawn(move || {
                    let network = if worker < SHARING { children } else { moved };
                    let own = numbers.clone().skip(worker).step_by(SHARING + 1);
                    // each worker begins with another end, so that a few pods cover all of them
                    let turns = own.zip(SHARING * worker..);
                    let had = turns.map(|(number, turn)| {
                        let ending = Ending::of(turn, network.may_die);
                        network.cycle(worker, number, ending);
                        (worker, ending)
                    });
                    had.collect::<BTreeSet<_>>()
                })
            })
            .collect();
        let had = begun
            .into_iter()
            .map(|it| it.join().expect("its pods came and went"));
        had.flatten().collect()
    });
    // one more pod's ADD removes the remains of a pod that ended without a DEL
    children.cycle(SHARING + 1, 0, Ending::Usual);
    endings
}

#[test]
fn thousands_of_pods_leave_nothing() {
    let [few, all] = extent::of([12, 60], [200, 10_000]);
    let node = Node::with_rails(3);
    for rail in 1..=3 {
        node.host.ip(&format!(
            "address add 2001:db8:{rail}::1/64 dev eth{rail} nodad"
        ));
    }
    let (children, moved) = (Network::of_children(&node), Network::of_a_move(&node));
    let before = Snapshot::of(&node.host);
    come_and_go(&children, &moved, &(0..few));
    node.assert_restored(&before);
    let early = Traces::of(&node);
    let endings = come_and_go(&children, &moved, &(few..all));
    for worker in 0..=SHARING {
        for ending in Ending::ALL {
            let is_possible = ending.is_possible(worker < SHARING);
            let has_been = endings.contains(&(worker, ending));
            assert_eq!(has_been, is_possible, "{ending:?} of worker {worker}");
        }
    }
    node.assert_restored(&before);
    Traces::of(&node).assert_as(&early, all - few);
}

/// Sizes of a daemon that may grow.
#[derive(Debug)]
struct Size {
    descriptors: usize,
    threads: usize,
    /// In KiB.
    memory: u64,
    files: Files,
}

impl Size {
    fn of(daemon: &Daemon, machine: &Machine) -> Self {
        let below = ["state", "cdi", "kubelet"].map(|it| machine.path(it));
        let below = below.each_ref().map(|it| it.to_str().expect("UTF-8"));
        Self {
            descriptors: daemon.descriptors(),
            threads: daemon.threads(),
            memory: daemon.memory(),
            files: Files::below(&below),
        }
    }

    /// Returns the sizes when descriptors, threads and files are unchanged for a second: a daemon that has lost its
    /// kubelet creates sockets and connections again.
    #[track_caller]
    fn at_rest(daemon: &Daemon, machine: &Machine) -> Self {
        let mut last = Self::of(daemon, machine);
        wait::until("the daemon is at rest", || {
            thread::sleep(Duration::from_secs(1));
            let before = mem::replace(&mut last, Self::of(daemon, machine));
            (before.descriptors, before.threads, &before.files)
                == (last.descriptors, last.threads, &last.files)
        });
        last
    }

    /// Returns true if no size exceeds that of `early`, and the files are the same. Memory may exceed it by a quarter.
    fn is_as(&self, early: &Self) -> bool {
        self.descriptors <= early.descriptors
            && self.threads <= early.threads
            && self.memory <= early.memory + early.memory / 4
            && self.files == early.files
    }
}

#[test]
fn a_daemon_does_not_grow() {
    const RESOURCE: &str = "rdma/hca";
    const IDS: usize = 10;
    let nic = |address, rdma, netdev, number| Nic {
        address,
        rdma,
        netdev,
        numa_node: 0,
        number,
    };
    let stays = nic("0000:3b:00.0", "mlx5_0", "eth0", 0);
    let comes_and_goes = nic("0000:5e:00.0", "mlx5_1", "eth1", 1);
    let machine = Machine::with(&[stays, comes_and_goes]);
    machine.configure(&format!(
        r#"{{"resources": [{{"name": "{RESOURCE}", "kind": "perNic", "count": {IDS}}}]}}"#
    ));
    let mut kubelet = DeviceManager::started(&machine.path("kubelet"));
    let mut command = machine.command(&rdma_device_plugin());
    let daemon = Daemon::start(command.args(["--metrics-address", "127.0.0.1:0"]));
    let mut live = |rounds: usize| {
        for round in 1..=rounds {
            let healthy = |nics: usize| {
                let what = format!("ids of {nics} NICs are healthy");
                let all = kubelet.wait_for(RESOURCE, &what, |it| it.healthy().len() == nics * IDS);
                all.healthy().iter().map(|it| (*it).to_owned()).collect()
            };
            let ids: Vec<String> = healthy(2);
            for id in &ids {
                let given = kubelet.ask_for(RESOURCE, &[slice::from_ref(id)]);
                given.expect("it is given");
                let may_start = kubelet.before_start(RESOURCE, slice::from_ref(id));
                may_start.expect("it may start");
            }
            for page in ["/metrics", "/"] {
                assert!(daemon.get(page).starts_with("HTTP/1.1 200"));
            }
            machine.unplug(&comes_and_goes);
            daemon.signal(Signal::SIGHUP);
            healthy(1);
            machine.plug(&comes_and_goes);
            daemon.signal(Signal::SIGHUP);
            healthy(2);
            if round % 10 == 0 {
                kubelet.restart();
                let is_back = "kubelet has the ids again";
                kubelet.wait_for(RESOURCE, is_back, |it| it.healthy().len() == 2 * IDS);
            }
        }
    };
    let [few, all] = extent::of([10, 30], [100, 2000]);
    live(few);
    let early = Size::at_rest(&daemon, &machine);
    live(all - few);
    let mut late = Size::of(&daemon, &machine);
    let is_as_early = || {
        late = Size::of(&daemon, &machine);
        late.is_as(&early)
    };
    assert!(
        wait::within(wait::TIMEOUT, is_as_early),
        "{late:#?}\nis more than after {few} rounds:\n{early:#?}"
    );
}
