// SPDX-License-Identifier: Apache-2.0
//! Random events for three pods, four devices and, in shared mode, a bond, in random order. At the end every device is
//! on the host. A number determines each history, so a failing history can be repeated.

use crate::node::{Answer, Node, Pod, address, host_change, mac, name, settle};
use attachments::{Attachment, Phase, Store, store::Record};
use fake_kernel::{Nic, Verdict, world::HOST};
use nix::errno::Errno;
use rdma_netns::{LinkChange, LinkFlag, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};

const HISTORIES: u64 = 100;
const STEPS: usize = 40;

const DEVICES: [(&str, &str); 4] = [
    ("eth2", "0000:3b:00.2"),
    ("eth3", "0000:d8:00.2"),
    ("eth4", "0000:d8:00.3"),
    ("en4s0", "mlx5_core.sf.4"),
];

/// Random number generator `splitmix64`.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).unwrap()
    }
}

/// A pod that was started, with the configuration of its ADD.
#[derive(Clone)]
struct Started {
    pod: Pod,
    config: Value,
}

/// Returns true if the device cannot return yet, because another netdev of the host has its name: a pod gave its own
/// device this name and ended.
fn is_blocked(answer: &Answer) -> bool {
    answer
        .message()
        .contains("because another netdev has the name")
}

struct History {
    seed: u64,
    dice: Dice,
    node: Node,
    mode: RdmaMode,
    /// The pods that run now, at most three.
    places: [Option<Started>; 3],
    /// All pods that were ever started.
    started: Vec<Started>,
    lines: Vec<String>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mode = match dice.roll(4) {
            0 => RdmaMode::Shared,
            _ => RdmaMode::Exclusive,
        };
        let node = Node::new(mode);
        if dice.roll(2) == 0 {
            node.kernel.with(|world| {
                world.plug(Nic::virtual_link("rdma0", "dummy"));
                world.switch_on();
            });
        }
        if mode == RdmaMode::Shared {
            node.kernel.with(|world| {
                world.plug_bond(0);
                for (link, _) in DEVICES {
                    world
                        .execute(&host_change(link, LinkChange::Up(true)), None)
                        .unwrap();
                }
                settle(world);
                world.switch_on();
            });
        }
        Self {
            seed,
            dice,
            node,
            mode,
            places: [None, None, None],
            started: vec![],
            lines: vec![format!("{mode}")],
        }
    }

    fn step(&mut self) {
        let at = self.dice.roll(3);
        match (self.dice.roll(12), self.places[at].clone()) {
            (0..4, None) => self.start(at),
            (0..2, Some(started)) => self.verb("ADD", &started),
            (2..5, Some(started)) => {
                self.verb("DEL", &started);
                self.end_namespace(at, &started);
            }
            (5, Some(started)) => self.verb("DEL", &started),
            (6..9, Some(started)) => self.tamper(&started),
            (9, Some(started)) => self.end_namespace(at, &started),
            (10, _) => self.collect(),
            (11, _) if self.dice.roll(4) == 0 => self.reboot(),
            _ => {}
        }
        self.no_device_has_two_holders();
        self.no_device_is_lost();
    }

    fn start(&mut self, at: usize) {
        let pod = self.node.pod(&format!("pod{}-{}", at, self.started.len()));
        let first = self.dice.roll(4);
        let shares = self.mode == RdmaMode::Shared && self.dice.roll(2) == 0;
        let config = match self.dice.roll(3) {
            0 if shares => json!({ "deviceID": DEVICES[first].1, "mode": "share" }),
            1 if shares => json!({ "deviceID": "0000:01:00.1" }),
            _ if shares => json!({
                "devices": [{ "netdev": "bond0" }, { "netdev": DEVICES[first].0 }],
                "mode": (["auto", "share"][self.dice.roll(2)]),
            }),
            0 => json!({ "deviceID": DEVICES[first].1 }),
            1 => json!({ "devices": [{ "netdev": DEVICES[first].0 }] }),
            _ => json!({ "devices": [
                { "netdev": DEVICES[first].0 },
                { "pci": DEVICES[(first + 1) % 3].1 },
            ] }),
        };
        let mut config = self.node.config(config);
        if self.dice.roll(2) == 0 {
            crate::smc::ask(&mut config);
        }
        let started = Started { pod, config };
        self.places[at] = Some(started.clone());
        self.started.push(started.clone());
        self.verb("ADD", &started);
    }

    /// Runs one verb, which may be disturbed.
    fn verb(&mut self, verb: &str, started: &Started) {
        let at = 1 + self.dice.roll(40);
        let verdict = match self.dice.roll(6) {
            0 => Verdict::DieBefore,
            1 => Verdict::DieAfter,
            2 => Verdict::Refuse(Errno::ENOMEM),
            3 => Verdict::Deceive(Errno::EIO),
            _ => Verdict::Proceed,
        };
        self.node.script(move |number| match number == at {
            true => verdict,
            false => Verdict::Proceed,
        });
        let answer = self.node.run(verb, Some(&started.pod), &started.config);
        let disturbed = verdict != Verdict::Proceed && self.node.kernel.journal().len() >= at;
        self.node.kernel.begin();
        let container = &started.pod.container;
        self.note(format!(
            "{verb} {container}, {verdict:?} {at}: {}",
            answer.value
        ));
        match (verb, answer.code()) {
            _ if disturbed => {}
            (_, 0) | ("ADD", 101) => {}
            ("DEL", 107) if is_blocked(&answer) => {}
            (_, code) => panic!("{self:?}\n{verb} failed with {code}"),
        }
    }

    fn tamper(&mut self, started: &Started) {
        let (at, link) = (NetnsSide::Pod, name(["rdma0", "rdma1"][self.dice.roll(2)]));
        let op = match self.dice.roll(10) {
            0 => Op::Link {
                at,
                link,
                change: LinkChange::Mtu(1000),
            },
            1 => Op::Link {
                at,
                link,
                change: LinkChange::Mtu(9000),
            },
            2 | 3 => Op::Link {
                at,
                link,
                change: LinkChange::Up(false),
            },
            4 => Op::Link {
                at,
                link,
                change: LinkChange::Rename(name(DEVICES[self.dice.roll(4)].0)),
            },
            5 => Op::Link {
                at,
                link,
                change: LinkChange::Mac(mac("06:00:00:00:77:77")),
            },
            6 => Op::Link {
                at,
                link,
                change: LinkChange::AddAddress(address("fd99::1/64")),
            },
            7 => Op::Link {
                at,
                link,
                change: LinkChange::AltName {
                    name: DEVICES[self.dice.roll(4)].0.into(),
                    present: true,
                },
            },
            8 => Op::Link {
                at,
                link,
                change: LinkChange::Flag(LinkFlag::Promisc, true),
            },
            _ => Op::Link {
                at,
                link,
                change: LinkChange::Sysctl {
                    key: "ipv6/disable_ipv6".into(),
                    value: 1,
                },
            },
        };
        let done = self.node.kernel.with(|world| {
            let netns = world.namespace_at(&started.pod.netns);
            world.execute(&op, netns)
        });
        self.note(format!("{} does {op}: {done:?}", started.pod.container));
    }

    fn end_namespace(&mut self, at: usize, started: &Started) {
        self.node
            .kernel
            .with(|world| world.unmount(&started.pod.netns));
        self.places[at] = None;
        self.note(format!("{} ends", started.pod.container));
    }

    fn collect(&mut self) {
        let valid: Vec<Started> = self.places.iter().flatten().cloned().collect();
        let valid: Vec<&Pod> = valid.iter().map(|started| &started.pod).collect();
        let answer = self.node.gc(&valid, &self.node.one_rail());
        self.note(format!("GC: {}", answer.value));
        assert!(answer.code() == 0 || is_blocked(&answer), "{self:?}");
    }

    fn reboot(&mut self) {
        self.node.kernel.with(|world| {
            world.reboot();
            settle(world);
        });
        self.places = [None, None, None];
        self.note("reboot".to_owned());
    }

    fn note(&mut self, text: String) {
        self.lines.push(text);
    }

    fn records(&self) -> Vec<Attachment> {
        let store = Store::new(&self.node.state.path().join("state"));
        let keys = store.keys(None).unwrap();
        let records = keys.iter().map(|key| match store.load(key).unwrap() {
            Record::Good(attachment) => *attachment,
            other => panic!("{self:?}\n{key}: {other:?}"),
        });
        records.collect()
    }

    /// Returns the records that have devices. All other records only wait for the release of their addresses.
    fn holding(&self) -> Vec<Attachment> {
        let mut records = self.records();
        records.retain(|record| record.phase != Phase::Restored);
        records
    }

    fn no_device_has_two_holders(&self) {
        let living = self.holding().into_iter().filter(|record| {
            let id = self
                .node
                .kernel
                .with(|world| world.namespace_at(&record.netns));
            id == Some(record.netns_id)
        });
        let rails: Vec<_> = living.flat_map(|record| record.rails).collect();
        let shared = rails
            .iter()
            .filter_map(|rail| rail.shared.as_ref()?.device.clone());
        let shared: Vec<_> = shared.collect();
        let mut devices: Vec<_> = rails
            .into_iter()
            .filter_map(|rail| rail.host_link?.parent)
            .collect();
        let moved = devices.iter().find(|device| shared.contains(device));
        assert_eq!(moved, None, "{self:?}\nmoved, and shared");
        devices.sort();
        let count = devices.len();
        devices.dedup();
        assert_eq!(
            devices.len(),
            count,
            "{self:?}\ntwo records have one device"
        );
    }

    /// Asserts that every device is on the host, or in the pod whose record has the device.
    fn no_device_is_lost(&self) {
        let records = self.holding();
        for (_, device) in DEVICES {
            let is_it = |link: &rdma_netns::Link| link.parent.as_deref() == Some(device);
            let netns = |record: &Attachment| {
                let rails = record
                    .rails
                    .iter()
                    .filter_map(|rail| rail.host_link.as_ref());
                rails.clone().any(is_it).then_some(record.netns_id)
            };
            let mut possible = vec![HOST];
            possible.extend(records.iter().filter_map(netns));
            let found = self.node.kernel.with(|world| {
                let has = |netns: &_| world.links(*netns).into_iter().any(is_it);
                possible.iter().any(has)
            });
            assert!(found, "{self:?}\n{device} is lost");
        }
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "history {}:\n{}", self.seed, self.lines.join("\n"))
    }
}

#[test]
fn in_the_end_everything_is_on_the_host() {
    for seed in 0..HISTORIES {
        let mut history = History::new(seed);
        let before = history.node.snapshot().without_numbers();
        for _ in 0..STEPS {
            history.step();
        }
        for started in history.started.clone() {
            history.node.del(&started.pod, &started.config);
            history
                .node
                .kernel
                .with(|world| world.unmount(&started.pod.netns));
        }
        // from now on no pod uses the name of another device
        for started in history.started.clone() {
            let answer = history.node.del(&started.pod, &started.config);
            history.note(format!(
                "last DEL {}: {}",
                started.pod.container, answer.value
            ));
            assert_eq!(answer.code(), 0, "{history:?}");
        }
        let differences = before.differences(&history.node.snapshot().without_numbers());
        assert!(differences.is_empty(), "{history:?}\n{differences:#?}");
        assert!(history.records().is_empty(), "{history:?}");
        let rails = history.node.state.path().join("state/rails/rails");
        let files = std::fs::read_dir(rails).into_iter().flatten();
        assert_eq!(files.count(), 0, "{history:?}\nrails' files are left");
    }
}
