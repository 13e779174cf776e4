// SPDX-License-Identifier: Apache-2.0
//! Thousands of pods that start and end, and a daemon that serves as many. Resources at the end equal the resources
//! after the first few pods.

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

/// Number of pods that come and go at the same time with children of the same netdevs. Beside them there is one with a
/// netdev that moves.
const SHARING: usize = 3;

/// The kernel's memory that cannot be reclaimed may grow by so much, KiB: other tests run beside this one.
const KERNEL_MEMORY: usize = 96 << 10;

/// Way in which a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// With one DEL.
    Usual,
    /// Its runtime never asks for it: another pod's ADD does what DEL would have done.
    WithoutDel,
    /// Its namespace ends before DEL.
    BeforeDel,
    /// With two, as a runtime does that is not sure.
    DelTwice,
}

impl Ending {
    const ALL: [Self; 4] = [
        Self::Usual,
        Self::WithoutDel,
        Self::BeforeDel,
        Self::DelTwice,
    ];

    /// Returns how a worker's `turn`th pod ends: one pod in ten has each of the unusual ends.
    fn of(turn: usize, may_die: bool) -> Self {
        match turn % 10 {
            3 if may_die => Self::WithoutDel,
            6 if may_die => Self::BeforeDel,
            8 => Self::DelTwice,
            _ => Self::Usual,
        }
    }

    /// Returns true if pods of a network can end so.
    fn is_possible(self, may_die: bool) -> bool {
        may_die || matches!(self, Self::Usual | Self::DelTwice)
    }
}

/// A network, and how its pods end.
struct Network<'a> {
    node: &'a Node,
    configuration: Value,
    /// A namespace's end takes the pod's netdevs along, and no netdev of the host: those of these tests would go with it,
    /// too, as no hardware is behind them.
    may_die: bool,
}

impl<'a> Network<'a> {
    /// Children of `eth1` and `eth2`, with an address from each one's prefix.
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

    /// `eth3` itself, with its addresses.
    fn of_a_move(node: &'a Node) -> Self {
        let mut configuration = node.configuration(&["eth3"]);
        configuration["name"] = "move".into();
        Self {
            node,
            configuration,
            may_die: false,
        }
    }

    /// Runs ADD, CHECK and an end for the `number`th pod.
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

/// Traces that may grow on a node beside what [`Snapshot`] has.
#[derive(Debug)]
struct Traces {
    /// With their content: nothing of a pod that has ended is in a file that stays.
    files: Files,
    /// The groups of multicast that its netdevs are in: netdev, group, how often.
    groups: Vec<String>,
    /// Network namespaces of the machine; none: this kernel does not tell.
    namespaces: Option<usize>,
    /// The kernel's memory that cannot be reclaimed, and that of each processor's own, KiB.
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

    /// Nothing has come since `early`, but what tests beside this one may have, after so many cycles.
    #[track_caller]
    fn assert_as(&self, early: &Self, cycles: usize) {
        let differing = self.files.differences(&early.files, &|_| false);
        assert!(differing.is_empty(), "{differing:#?}");
        assert_eq!(self.groups, early.groups);
        if let Some(before) = early.namespaces {
            let most = before + (cycles / 2).min(100);
            let ended = || network_namespaces().is_some_and(|now| now <= most);
            assert!(
                wait::within(wait::PATIENCE, ended),
                "network namespaces stay: {before} before, {:?} now",
                network_namespaces()
            );
        }
        let most = early.memory + KERNEL_MEMORY;
        assert!(
            wait::within(wait::PATIENCE, || unreclaimable_memory() <= most),
            "the kernel's memory has grown from {} KiB to {} KiB",
            early.memory,
            unreclaimable_memory()
        );
    }
}

/// So many pods come and go, at the same time as many as there are workers; and which worker's have ended how.
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
                    // each begins elsewhere, so that a few pods have all endings
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
    // what a pod has left that died without a DEL
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
    /// KiB
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

    /// Returns the sizes that stay for a second: a daemon that has just lost its kubelet makes sockets and connections
    /// again.
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

    /// Returns true if nothing is more than it was `early`, and the files are the same. Memory may be more by a quarter.
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
        wait::within(wait::PATIENCE, is_as_early),
        "{late:#?}\nis more than after {few} rounds:\n{early:#?}"
    );
}
