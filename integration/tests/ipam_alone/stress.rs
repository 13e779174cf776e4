// SPDX-License-Identifier: Apache-2.0
//! Pods that start and end by Debian's `macvlan`. The prefixes are so small that addresses are reused,
//! while the test kills `macvlan` and `rdma-ipam` at random moments. The test compares the pods' real
//! addresses all the time.
//!
//! A pod is compared from the end of its ADD, also of a failed one, until the start of its DEL: `macvlan`
//! releases addresses before it removes them from the interface.

use crate::lan::Lan;
use integration::{Attachment, Conflist, Netns, plugin::Running};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(15);
const THREADS: u32 = 4;

/// The largest number of living pods of each thread.
const PODS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Coming,
    Added,
    /// The pod's ADD was killed, or failed because its IPAM plugin was killed.
    Cut,
    Leaving,
}

#[derive(Debug)]
struct Pod {
    netns: Netns,
    container: String,
    phase: RwLock<Phase>,
}

impl Pod {
    fn attachment(&self) -> Attachment {
        Attachment::new(&self.container, self.netns.path(), "eth0")
    }

    fn is(&self, phase: Phase) -> bool {
        *self.phase.read().expect("no panic") == phase
    }

    fn becomes(&self, phase: Phase) {
        *self.phase.write().expect("no panic") = phase;
    }
}

/// The processes that the test kills.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// `macvlan` and the processes that it started, together.
    Group,
    /// Only `macvlan`: `rdma-ipam` continues, and no process reads its answer.
    Caller,
    /// Only `rdma-ipam`.
    Ipam,
}

const VICTIMS: [Victim; 3] = [Victim::Group, Victim::Caller, Victim::Ipam];

/// Pseudorandom numbers (xorshift).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[derive(Debug, Default)]
struct Counts {
    adds: AtomicU32,
    dels: AtomicU32,
    checks: AtomicU32,
    killed: [AtomicU32; 3],
}

#[derive(Debug)]
struct Stress {
    lan: Lan,
    list: Conflist,
    pods: Mutex<Vec<Arc<Pod>>>,
    counts: Counts,
    end: Instant,
    is_over: AtomicBool,
}

impl Stress {
    fn living(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().expect("no panic").clone()
    }

    fn start(&self, command: &str, pod: &Pod) -> Running {
        let runtime = self.lan.node.runtime();
        runtime.start(
            command,
            &self.list,
            &self.list.plugins[0],
            &pod.attachment(),
        )
    }

    /// Kills `running`, or one of its processes, at a random time. Returns true if the kill may have interrupted the
    /// call.
    fn kill(&self, running: &mut Running, dice: &mut Dice) -> bool {
        let index = usize::try_from(dice.below(3)).expect("small");
        let hit = match VICTIMS[index] {
            Victim::Group => {
                thread::sleep(Duration::from_micros(dice.below(60_000)));
                running.kill();
                true
            }
            Victim::Caller => {
                let pid = running.await_child("rdma-ipam");
                thread::sleep(Duration::from_micros(dice.below(8_000)));
                running.kill_alone();
                pid.is_some()
            }
            Victim::Ipam => {
                let pid = running.await_child("rdma-ipam");
                thread::sleep(Duration::from_micros(dice.below(8_000)));
                pid.is_some_and(|pid| running.kill_child(pid, "rdma-ipam"))
            }
        };
        self.counts.killed[index].fetch_add(hit.into(), Relaxed);
        hit
    }

    /// Runs ADD, which the test kills at random.
    fn add(&self, container: String, dice: &mut Dice) -> Arc<Pod> {
        let pod = Arc::new(Pod {
            netns: self.lan.quick_pod("pod"),
            container,
            phase: RwLock::new(Phase::Coming),
        });
        self.pods.lock().expect("no panic").push(pod.clone());
        let mut running = self.start("ADD", &pod);
        let was_killed = dice.below(3) == 0 && self.kill(&mut running, dice);
        // after a kill of `macvlan` alone, this waits for the end of `rdma-ipam`
        let outcome = running.wait();
        self.counts.adds.fetch_add(1, Relaxed);
        if outcome.status.success() {
            let result = outcome.result();
            let reported = crate::lan::ips(&result);
            assert_eq!(reported.len(), 2, "{result}");
            assert_eq!(pod.netns.addresses("eth0"), reported);
            pod.becomes(Phase::Added);
        } else {
            assert!(was_killed, "{outcome}");
            pod.becomes(Phase::Cut);
        }
        pod
    }

    /// Runs DEL, which the test kills at random and then repeats.
    fn del(&self, pod: &Arc<Pod>, dice: &mut Dice) {
        pod.becomes(Phase::Leaving);
        loop {
            let mut running = self.start("DEL", pod);
            let was_killed = dice.below(4) == 0 && self.kill(&mut running, dice);
            let outcome = running.wait();
            self.counts.dels.fetch_add(1, Relaxed);
            if outcome.status.success() {
                break;
            }
            assert!(was_killed, "{outcome}");
        }
        assert!(!pod.netns.has_link("eth0"));
        let mut leases = self.lan.leases().into_iter();
        let left = leases.find(|(_, (container, _))| *container == pod.container);
        assert_eq!(left, None, "after DEL");
        let mut pods = self.pods.lock().expect("no panic");
        pods.retain(|other| !Arc::ptr_eq(other, pod));
    }

    /// A thread that runs pods. A pod whose ADD was killed gets its DEL at once, later, or never.
    fn come_and_go(&self, number: u32) {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ u64::from(number + 1) << 32);
        let mut mine: Vec<Arc<Pod>> = vec![];
        for count in 0.. {
            if Instant::now() >= self.end {
                return;
            }
            if mine.len() < PODS && dice.below(5) > 1 {
                let pod = self.add(format!("pod-{number}-{count}"), &mut dice);
                if pod.is(Phase::Added) {
                    mine.push(pod);
                } else {
                    match dice.below(3) {
                        0 => self.del(&pod, &mut dice),
                        1 => mine.push(pod),
                        _ => {}
                    }
                }
            } else if !mine.is_empty() {
                let length = u64::try_from(mine.len()).expect("small");
                let index = usize::try_from(dice.below(length)).expect("small");
                self.del(&mine.swap_remove(index), &mut dice);
            }
        }
    }

    /// Asserts that no two pods have the same address, and that each address is leased to its pod's
    /// container.
    fn check_once(&self) {
        let pods = self.living();
        let phases = pods.iter().map(|pod| pod.phase.read().expect("no panic"));
        // `still` holds read locks of the phases: none of its pods can begin its DEL before this function returns
        let still: Vec<_> = pods
            .iter()
            .zip(phases)
            .filter(|(_, phase)| matches!(**phase, Phase::Added | Phase::Cut))
            .collect();
        let mut seen = BTreeMap::new();
        for (pod, phase) in &still {
            let addresses = configured(&pod.netns);
            if **phase == Phase::Added {
                assert_eq!(addresses.len(), 2, "{pod:?}: {addresses:?}");
            }
            for ip in addresses {
                if let Some(other) = seen.insert(ip, &pod.container) {
                    panic!("{ip} is in {other} and in {}", pod.container);
                }
                let owner = (pod.container.clone(), "eth0".to_owned());
                assert_eq!(self.lan.lease(ip), Some(owner), "{ip} in {pod:?}");
            }
        }
        self.counts.checks.fetch_add(1, Relaxed);
    }

    fn keep_checking(&self) {
        while !self.is_over.load(Relaxed) {
            self.check_once();
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The global addresses of a pod, on any of its interfaces.
fn configured(netns: &Netns) -> Vec<IpAddr> {
    let mut found = vec![];
    for link in netns.show("address show") {
        for address in link["addr_info"].as_array().expect("addr_info") {
            let ip: IpAddr = address["local"]
                .as_str()
                .expect("text")
                .parse()
                .expect("ip");
            if address["scope"] == "global" {
                found.push(ip);
            }
        }
    }
    found
}

#[test]
fn no_address_is_configured_twice_and_none_is_lost() {
    let lan = Lan::bare();
    lan.give(&["10.1.0.10/25", "2001:db8:1::10/121"]);
    let list = lan.macvlan(&json!({"from": "parent", "family": "both"}));
    let stress = Stress {
        lan,
        list,
        pods: Mutex::default(),
        counts: Counts::default(),
        end: Instant::now() + LONG,
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let checker = scope.spawn(|| stress.keep_checking());
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let stress = &stress;
                scope.spawn(move || stress.come_and_go(number))
            })
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stress.is_over.store(true, Relaxed);
        checker.join().expect("what was seen is right");
        assert!(ends.iter().all(Result::is_ok), "a thread failed");
    });
    stress.check_once();
    println!("{:?}, {} pods left", stress.counts, stress.living().len());
    for killed in &stress.counts.killed {
        assert!(killed.load(Relaxed) > 0, "{:?}", stress.counts);
    }
    let Stress { lan, list, .. } = &stress;

    // half of the killed pods get a DEL, and the other half only GC
    let mut dice = Dice(7);
    let pods = stress.living();
    let (cut, added): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod.is(Phase::Cut));
    for pod in cut.iter().step_by(2) {
        stress.del(pod, &mut dice);
    }
    for pod in cut.iter().skip(1).step_by(2) {
        pod.netns.die();
    }
    let valid: Vec<_> = added.iter().map(|pod| (&*pod.container, "eth0")).collect();
    lan.gc(list, &valid);
    let holders: Vec<_> = lan.leases().into_values().collect();
    assert_eq!(holders.len(), 2 * added.len());
    let holders: BTreeSet<_> = holders.iter().map(|(container, _)| &**container).collect();
    assert_eq!(
        holders,
        valid.iter().map(|(container, _)| *container).collect()
    );
    for pod in &added {
        stress.del(pod, &mut dice);
    }
    lan.gc(list, &[]);
    lan.assert_nothing_is_held();
    fill(lan, list);
}

/// Asserts that rdma-ipam can assign all usable addresses of both prefixes except the host's own and the first address.
fn fill(lan: &Lan, list: &Conflist) {
    let prefixes = ["10.1.0.", "2001:db8:1::"];
    let v4 = (2..=126)
        .filter(|it| *it != 10)
        .map(|it| format!("{}{it}", prefixes[0]));
    let v6 = (2..=127)
        .filter(|it| *it != 16)
        .map(|it| format!("{}{it:x}", prefixes[1]));
    let usable: BTreeSet<IpAddr> = v4.chain(v6).map(|ip| ip.parse().expect("ip")).collect();
    let add = |family: &str, container: &str| {
        let mut list = list.clone();
        list.plugins[0]["ipam"]["family"] = family.into();
        lan.direct("ADD", &list, &json!({}))
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/var/run/netns/none")
            .run()
    };
    for count in 0..124 {
        add("both", &format!("fill-{count}")).result();
    }
    let text = add("both", "one-too-many").error(11);
    assert!(
        text.contains("10.1.0.0/25: 124 addresses are in use"),
        "{text}"
    );
    add("ipv6", "last").result();
    let text = add("ipv6", "one-too-many").error(11);
    assert!(
        text.contains("2001:db8:1::/121: 125 addresses are in use"),
        "{text}"
    );
    assert_eq!(lan.leases().into_keys().collect::<BTreeSet<_>>(), usable);
    lan.gc(list, &[]);
    lan.assert_nothing_is_held();
}
