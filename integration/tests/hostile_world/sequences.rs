// SPDX-License-Identifier: Apache-2.0
//! Random sequences: a pod with ten rails changes each of them according to a random sequence, and ends. Then the host
//! must be in its earlier state, and the next pod must have these rails for itself.
//!
//! `RDMA_HOSTILE_SEED=N` repeats the sequences of one pod.

use crate::{
    change::{Change, Dice},
    inside::{
        attributes, driver_settings, inside, listener, received_texts, send_by_all, set_features,
    },
};
use integration::{
    Netns, Node, Snapshot, extent,
    tracer::{self, Fault},
    wait,
};
use rdma_netns::{Kernel, Linux};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};
use tempfile::NamedTempFile;

/// Number of a pod's rails: first veths, then macvlans.
const RAILS: usize = 10;
const VETHS: usize = 6;
/// The index of the rail that is down on the host.
const DOWN: usize = 8;

/// Number of test machines at the same time.
const WORLDS: usize = 3;

/// The test ends after this number of sequences with a difference.
const MOST_WRONG: usize = 10;

/// NETIF_F_GRO
const GRO: u32 = 1 << 14;

/// The largest number of changes of a rail.
const CHANGES: usize = 6;

/// The way in which a pod ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Del,
    Gc,
    /// DEL is killed before the change with this number, and the next pod's ADD completes the work.
    NextAdd(usize),
}

struct World {
    node: Node,
    rails: Value,
    before: State,
}

/// The host state that the test compares.
struct State {
    snapshot: Snapshot,
    other: BTreeMap<String, String>,
}

impl State {
    fn of(host: &Netns) -> Self {
        let kernel = Linux::new();
        let mut other = inside(host, || {
            let mut all = attributes();
            let observed = kernel.observe(None).expect("a state");
            for link in &observed.host.links {
                let settings = kernel.device_settings(link);
                let own = driver_settings(&link.name).map_err(|error| error.to_string());
                all.insert(
                    format!("settings of {}", &*link.name),
                    format!("{settings:?} {own:?}"),
                );
            }
            all
        });
        for line in [
            "tc qdisc show",
            "ip neigh show nud permanent",
            "ip neigh show proxy",
            "bridge fdb show",
        ] {
            // ignores `noqueue`: each netdev without a queue gets this qdisc when it is set up for the first time
            let shown = host.run(line);
            let lasting = shown.lines().filter(|it| !it.contains("noqueue"));
            other.extend(lasting.map(|it| (format!("{line}: {it}"), String::new())));
        }
        Self {
            snapshot: Snapshot::of(host),
            other,
        }
    }

    fn difference(&self, now: &Self) -> String {
        let mut text = self.snapshot.difference(&now.snapshot);
        let keys: BTreeSet<&String> = self.other.keys().chain(now.other.keys()).collect();
        for key in keys {
            let (before, now) = (self.other.get(key), now.other.get(key));
            if before != now {
                let _ = writeln!(text, "{key}: {before:?} -> {now:?}");
            }
        }
        text
    }
}

/// A pod's sequences of changes, one for each rail, and the way in which the pod ends.
struct Story {
    seed: u64,
    ending: Ending,
    rails: Vec<Vec<Change>>,
}

impl Story {
    fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let ending = match dice.roll(3) {
            0 => Ending::Del,
            1 => Ending::Gc,
            _ => Ending::NextAdd(1 + dice.roll(66)),
        };
        let rails = (0..RAILS).map(|rail| {
            let changes = 1 + dice.roll(CHANGES);
            let changes = (0..changes).map(|_| Change::any(&mut dice));
            // a macvlan of a macvlan is an upper netdev of the host's lower netdev, and not of the rail
            let is_apart =
                |it: &Change| matches!(it, Change::Ip(text) if text.starts_with("link add link"));
            changes.filter(|it| rail < VETHS || !is_apart(it)).collect()
        });
        Self {
            seed,
            ending,
            rails: rails.collect(),
        }
    }

    fn description(&self) -> String {
        let mut text = format!(
            "repeat with RDMA_HOSTILE_SEED={}\nending: {:?}\n",
            self.seed, self.ending
        );
        for (rail, changes) in self.rails.iter().enumerate() {
            let _ = writeln!(text, "rdma{rail} (eth{}): {changes:?}", rail + 1);
        }
        text
    }

    /// Makes all changes in `pod`: the first change of each rail, then the second of each, and so on. The caller must
    /// keep the returned descriptors open.
    fn make(&self, pod: &Netns, host: &Netns) -> Vec<OwnedFd> {
        let handle = |rail: usize| format!("the-rail-{rail}");
        let mut indices = vec![];
        let mut lines = vec![
            "link add name br0 up type bridge".to_owned(),
            "link add name own0 up type veth peer name own1".to_owned(),
            "link set dev own1 up".to_owned(),
        ];
        for rail in 0..RAILS {
            let link = pod.link(&format!("rdma{rail}")).expect("a rail");
            indices.push(link["ifindex"].as_u64().expect("an index"));
            lines.push(format!(
                "link property add dev rdma{rail} altname {}",
                handle(rail)
            ));
        }
        batch(pod, "ip", &lines);
        let mut held = vec![];
        for round in 0..CHANGES {
            let changes = self.rails.iter().enumerate();
            let changes = changes.filter_map(|(rail, it)| Some((rail, it.get(round)?)));
            let changes: Vec<(usize, &Change)> = changes.collect();
            let (mut ip, mut tc) = (vec![], vec![]);
            for (rail, change) in &changes {
                let other = (rail + 1) % RAILS + 1;
                let filled =
                    |text: &str| Change::fill(text, &handle(*rail), rail + 10, other, host.name());
                match change {
                    Change::Ip(text) => ip.push(filled(text)),
                    Change::Tc(text) => tc.push(filled(text)),
                    _ => {}
                }
            }
            batch(pod, "ip", &ip);
            batch(pod, "tc", &tc);
            held.extend(inside(pod, || {
                let made = changes.iter().filter_map(|(rail, change)| {
                    let name = name_of(indices[*rail])?;
                    change.make(&name)
                });
                made.collect::<Vec<_>>()
            }));
        }
        held
    }
}

/// Runs `program` once for all `lines`. A line that the kernel refuses is skipped.
fn batch(netns: &Netns, program: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), lines.join("\n") + "\n").expect("a file");
    let mut command = netns.command(program);
    command.args(["-force", "-batch"]).arg(file.path());
    let ran = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.expect("iproute2");
}

/// The name of the netdev `index` in the thread's sysfs.
fn name_of(index: u64) -> Option<String> {
    let netdevs = fs::read_dir("/sys/class/net").ok()?;
    let found = netdevs.flatten().find(|netdev| {
        let own = fs::read_to_string(netdev.path().join("ifindex"));
        own.is_ok_and(|own| own.trim() == index.to_string())
    })?;
    found.file_name().into_string().ok()
}

impl World {
    fn new() -> Self {
        let node = Node::with_rails(0);
        let switch = node.switch.name().to_owned();
        for rail in 1..=RAILS {
            let name = if rail > VETHS { "nic" } else { "eth" };
            node.host.ip(&format!(
                "link add name {name}{rail} numtxqueues 4 numrxqueues 4 type veth peer name to-{rail} numtxqueues 4 \
                 numrxqueues 4 netns {switch}"
            ));
            node.switch.ip(&format!("link set dev to-{rail} up"));
            node.host.ip(&format!("link set dev {name}{rail} up"));
            if rail > VETHS {
                node.host.ip(&format!(
                    "link add link nic{rail} name eth{rail} type macvlan mode bridge"
                ));
                // the host does not use this rail
                if rail != DOWN {
                    node.host.ip(&format!("link set dev eth{rail} up"));
                }
            }
        }
        node.furnish();
        // with GRO, a veth has NAPI instances while it is up, as a NIC has; without such an instance, `threaded` cannot
        // be set
        inside(&node.host, || {
            for rail in 1..=VETHS {
                set_features(&format!("eth{rail}"), GRO, true).expect("GRO");
            }
        });
        for line in [
            "link set dev eth3 alias of-the-host",
            "link set dev eth4 promisc on",
            "link set dev eth5 txqueuelen 500",
            "link set dev eth7 group 5",
        ] {
            node.host.ip(line);
        }
        let names: Vec<String> = (1..=RAILS).map(|rail| format!("eth{rail}")).collect();
        let names: Vec<&str> = names.iter().map(|it| &**it).collect();
        let rails = node.configuration(&names);
        thread::sleep(Duration::from_millis(300));
        let before = State::of(&node.host);
        Self {
            node,
            rails,
            before,
        }
    }

    /// Runs a pod that makes the changes of `story`, and then another pod with the same rails. Returns an error if the
    /// host's state or the second pod's rails differ from the expected ones.
    fn run(&self, story: &Story) -> Result<(), String> {
        let (old, next) = (self.node.pod("hostile"), self.node.pod("next"));
        self.node.add(&self.rails, "old", &old);
        let held = story.make(&old, &self.node.host);
        let spy = inside(&old, listener);
        self.end(story, &old, &next)?;
        self.probe(story, &old, &spy, &next)?;
        self.call("DEL", "next", &next)?;
        self.is_as_before("after the next pod's DEL")?;
        drop(held);
        // a late verb changes nothing
        self.call("DEL", "old", &old)?;
        self.is_as_before("after another DEL of the first pod")
    }

    /// Ends `old` and gives its rails to `next`.
    fn end(&self, story: &Story, old: &Netns, next: &Netns) -> Result<(), String> {
        match story.ending {
            Ending::Del => self.call("DEL", "old", old)?,
            Ending::Gc => {
                let mut configuration = self.rails.clone();
                configuration["cni.dev/valid-attachments"] = json!([]);
                let path = self.node.cni_path();
                let gc = self.node.bare().env("CNI_COMMAND", "GC");
                let gc = gc.env("CNI_PATH", &path).input(&configuration).run();
                if !gc.status.success() {
                    return Err(format!("GC: {gc}"));
                }
            }
            Ending::NextAdd(change) => {
                let del = self.node.invoke("DEL", "old", old.path());
                let injector = Path::new(env!("CARGO_BIN_EXE_fault-injector"));
                let report = NamedTempFile::new().expect("a file");
                let del = tracer::traced(del, injector, [Fault::Kill(change)], report.path());
                del.input(&self.rails).run();
                let add = self.node.invoke("ADD", "next", next.path());
                if add.input(&self.rails).run().status.success() {
                    return Ok(());
                }
                // a DEL that was killed before its first change leaves the rails to the first pod
                self.call("DEL", "old", old)?;
                return self.call("ADD", "next", next);
            }
        }
        self.is_as_before("after the pod's end")?;
        self.call("ADD", "next", next)
    }

    fn call(&self, command: &str, container: &str, pod: &Netns) -> Result<(), String> {
        let call = self.node.invoke(command, container, pod.path());
        let outcome = call.input(&self.rails).run();
        match outcome.status.success() {
            true => Ok(()),
            false => Err(format!("{command} of {container}: {outcome}")),
        }
    }

    /// Waits until the host's state is as before the first ADD, because the kernel creates and removes some objects
    /// only after the move. Returns an error if the state still differs after [`wait::TIMEOUT`], or if a record
    /// remains.
    fn is_as_before(&self, when: &str) -> Result<(), String> {
        let mut difference = String::new();
        let done = wait::within(wait::TIMEOUT, || {
            difference = self.before.difference(&State::of(&self.node.host));
            difference.is_empty()
        });
        match done && self.node.records().is_empty() {
            true => Ok(()),
            false => Err(format!(
                "{when}, records {:?}:\n{difference}",
                self.node.records()
            )),
        }
    }

    /// Checks that each rail carries frames both ways between `next` and the switch. The socket `spy` in `old` must not
    /// receive these frames. Neither `next` nor the switch may receive the frames that `old` sends.
    fn probe(&self, story: &Story, old: &Netns, spy: &OwnedFd, next: &Netns) -> Result<(), String> {
        let switch = &self.node.switch;
        let [at_switch, at_next] = [inside(switch, listener), inside(next, listener)];
        // discard frames that are still in flight
        received_texts(spy);
        let word = |who: &str| format!("{who}-{}", story.seed);
        let expected = |who: &str, netdev: &dyn Fn(usize) -> String| -> BTreeSet<String> {
            let rails = (0..RAILS).map(netdev);
            rails
                .map(|netdev| format!("{} {netdev}", word(who)))
                .collect()
        };
        let from_next = expected("next", &|rail| format!("rdma{rail}"));
        let from_switch = expected("switch", &|rail| format!("to-{}", rail + 1));
        let (mut by_switch, mut by_next) = (BTreeSet::new(), BTreeSet::new());
        let arrived = wait::within(wait::TIMEOUT, || {
            inside(old, || send_by_all(&word("old")));
            inside(next, || send_by_all(&word("next")));
            inside(switch, || send_by_all(&word("switch")));
            by_switch.extend(received_texts(&at_switch));
            by_next.extend(received_texts(&at_next));
            by_switch.is_superset(&from_next) && by_next.is_superset(&from_switch)
        });
        let conflicts_since_probe = received_texts(spy);
        let own = word("old");
        let is_foreign = |text: &String| !text.starts_with(&own);
        let foreign: Vec<&String> = conflicts_since_probe
            .iter()
            .filter(|it| is_foreign(it))
            .collect();
        let sent: Vec<&String> = { by_switch.iter().chain(&by_next) }
            .filter(|it| it.starts_with(&own))
            .collect();
        if arrived && foreign.is_empty() && sent.is_empty() {
            return Ok(());
        }
        let lost: Vec<&String> = { from_next.difference(&by_switch) }
            .chain(from_switch.difference(&by_next))
            .collect();
        Err(format!(
            "the old pod received {foreign:?}, others received {sent:?} from it, and of the next pod's frames {lost:?} \
             did not arrive"
        ))
    }
}

#[test]
fn nothing_that_a_pod_does_to_its_rails_outlives_it() {
    let only = std::env::var("RDMA_HOSTILE_SEED").ok();
    let only: Option<u64> = only.map(|seed| seed.parse().expect("RDMA_HOSTILE_SEED is a number"));
    let pods = extent::of(300, 10_000) / RAILS as u64;
    let seeds = only.map_or(0..pods, |seed| seed..seed + 1);
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
    let wrong = Mutex::new(vec![]);
    // one machine for each thread, because most of the time is spent waiting for the kernel
    thread::scope(|scope| {
        for _ in 0..WORLDS {
            scope.spawn(|| {
                let mut world = None;
                while let Some(seed) = next() {
                    let story = Story::of(seed);
                    let ran = world.get_or_insert_with(World::new).run(&story);
                    if let Err(error) = ran {
                        world = None;
                        let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                        wrong.push(format!("{error}\n{}", story.description()));
                        if wrong.len() >= MOST_WRONG {
                            return;
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The probe finds a macvlan of the first pod on a rail of the next pod. The sequences rely on this.
#[test]
fn a_netdev_on_another_pods_rail_is_found_by_its_frames() {
    let world = World::new();
    let (old, next) = (world.node.pod("hostile"), world.node.pod("next"));
    let spy = inside(&old, listener);
    world.node.add(&world.rails, "next", &next);
    let story = Story::of(1);
    world
        .probe(&story, &old, &spy, &next)
        .expect("nobody listens");
    next.ip(&format!(
        "link add link rdma0 name spy netns {} type macvlan mode bridge",
        old.name()
    ));
    old.ip("link set dev spy up");
    let found = world.probe(&story, &old, &spy, &next);
    let found = found.expect_err("a netdev of another pod");
    assert!(found.contains("\"old-1 spy\""), "{found}");
    assert!(found.contains("\"switch-1 to-1\""), "{found}");
    old.ip("link del dev spy");
    world.node.del(&world.rails, "next", &next);
}
