// SPDX-License-Identifier: Apache-2.0
//! A node with two eRDMA NICs, and a NIC with the default route, on a fake kernel with real files.

use cni_protocol::Input;
use erdma::{
    Nic,
    bring_up::{BringUp, Outcome, Released, State, release},
    conf::{self, NicAddress},
    metadata::Pace,
};
use fake_kernel::{Died, FakeKernel, Nic as Hardware, Snapshot, Verdict, World};
use integration::MetadataService;
use nix::errno::Errno;
use rdma_netns::{Address, InterfaceName, Link, LinkChange, NetnsSide, Op, RdmaMode, Route};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// PCI function, netdev, RDMA device, hardware address and IP address of each NIC.
pub(crate) const NICS: [(&str, &str, &str, &str, &str); 2] = [
    (
        "0000:00:06.0",
        "eth1",
        "erdma_0",
        "02:00:00:00:00:03",
        "10.0.0.6",
    ),
    (
        "0000:00:07.0",
        "eth2",
        "erdma_1",
        "02:00:00:00:00:04",
        "10.0.0.7",
    ),
];

pub(crate) const CIDR: &str = "10.0.0.0/24";
pub(crate) const GATEWAY: &str = "10.0.0.253";

/// Returns a metadata service that knows both NICs.
pub(crate) fn service() -> MetadataService {
    let service = MetadataService::new();
    for (_, _, _, mac, ip) in NICS {
        service.add_nic(mac, ip, CIDR, GATEWAY);
    }
    service
}

pub(crate) struct Node {
    pub(crate) kernel: FakeKernel,
    pub(crate) state: TempDir,
}

/// Bring-up of one daemon process, until the process ends.
pub(crate) struct Process {
    runtime: Runtime,
    bring_up: BringUp<FakeKernel>,
}

pub(crate) fn name(text: &str) -> InterfaceName {
    InterfaceName::try_from(text).expect("an interface name")
}

/// Returns the PCI function of the NIC `rail`, in its state when it is plugged in.
pub(crate) fn hardware(rail: usize) -> Hardware {
    let (address, link, rdma, ..) = NICS[rail];
    Hardware::physical(address, link, rdma).with_max_mtu(8500)
}

pub(crate) fn furnished() -> World {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Hardware::physical("0000:00:05.0", "eth0", "-").without_rdma());
    for rail in 0..NICS.len() {
        world.plug(hardware(rail));
    }
    let (at, link) = (NetnsSide::Host, name("eth0"));
    let up = Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::Up(true),
    };
    let address = Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::AddAddress(Address::new("10.0.0.5".parse().expect("an address"), 24)),
    };
    let route = Op::Link {
        at,
        link,
        change: LinkChange::AddRoute(Route {
            gateway: Some(GATEWAY.parse().expect("an address")),
            ..Route::new([0; 4].into(), 0)
        }),
    };
    for op in [up, address, route] {
        make(&mut world, &op);
    }
    for (_, link, ..) in NICS {
        let strict = Op::Link {
            at,
            link: name(link),
            change: LinkChange::Sysctl {
                key: "ipv4/rp_filter".to_owned(),
                value: 1,
            },
        };
        make(&mut world, &strict);
    }
    (0..world.detection).for_each(|_| world.pass_time());
    world
}

/// Makes a change on the host, as an administrator does.
#[track_caller]
pub(crate) fn make(world: &mut World, op: &Op) {
    let made = world.execute(op, None);
    made.unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
}

/// Returns a configuration with the addresses of both NICs.
pub(crate) fn by_hand() -> conf::BringUp {
    let of = |(_, _, _, mac, ip): (&str, &str, &str, &str, &str)| NicAddress {
        mac: mac.parse().expect("a hardware address"),
        address: format!("{ip}/24").parse().expect("an address"),
        gateway: Some(GATEWAY.parse().expect("an address")),
    };
    conf::BringUp {
        addresses: NICS.map(of).to_vec(),
        ..by_service("http://127.0.0.1:9")
    }
}

/// Returns a configuration whose addresses come from the service at `base`.
pub(crate) fn by_service(base: &str) -> conf::BringUp {
    conf::BringUp {
        mtu: 8500,
        metadata: base.to_owned(),
        addresses: vec![],
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::with(furnished())
    }

    pub(crate) fn with(world: World) -> Self {
        // use memory, which is faster: records are synced to the disk
        let memory = Path::new("/dev/shm");
        let state = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        Self {
            kernel: FakeKernel::new(world),
            state: state.expect("a directory"),
        }
    }

    pub(crate) fn process(&self, conf: conf::BringUp) -> Process {
        self.process_of(conf, crate::metadata::PACE)
    }

    pub(crate) fn process_of(&self, conf: conf::BringUp, pace: Pace) -> Process {
        self.kernel.begin();
        let kernel = Arc::new(self.kernel.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let bring_up = BringUp::with_pace(conf, self.state.path(), kernel, pace);
        Process {
            runtime: runtime.expect("a runtime"),
            bring_up: bring_up.expect("an address"),
        }
    }

    /// Starts a new process that settles the NICs once.
    pub(crate) fn settle(&self, conf: conf::BringUp) -> Vec<Outcome> {
        self.process(conf).settle(&self.nics())
    }

    /// Returns the NICs as discovery finds them.
    pub(crate) fn nics(&self) -> Vec<Nic> {
        let of = |(address, netdev, rdma, mac, _): (&str, &str, &str, &str, &str)| Nic {
            rdma: rdma.to_owned(),
            address: address.to_owned().try_into().expect("a PCI address"),
            netdev: self.link(netdev).map(|link| link.name.to_string()),
            mac: self
                .link(netdev)
                .map(|_| mac.parse().expect("a hardware address")),
        };
        NICS.map(of).to_vec()
    }

    /// Runs `--release` in a new process.
    pub(crate) fn release(&self) -> Vec<Released> {
        self.kernel.begin();
        release(&self.kernel, self.state.path()).expect("records")
    }

    pub(crate) fn link(&self, name: &str) -> Option<Link> {
        self.kernel
            .with(|world| world.link(fake_kernel::world::HOST, name).cloned())
    }

    pub(crate) fn make(&self, op: &Op) {
        self.kernel.with(|world| make(world, op));
    }

    /// Returns a snapshot after duplicate address detection has ended.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.kernel
            .with(|world| (0..world.detection).for_each(|_| world.pass_time()));
        self.kernel.snapshot()
    }

    #[track_caller]
    pub(crate) fn must_be(&self, wanted: &Snapshot, what: &str) {
        let differences = wanted.differences(&self.snapshot());
        assert_eq!(differences, [""; 0], "{what}");
    }

    /// Returns the file names of the existing records.
    pub(crate) fn records(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state.path().join("erdma"));
        let entries = entries.into_iter().flatten();
        let names = entries.map(|it| it.expect("an entry").file_name().display().to_string());
        names.filter(|name| name.ends_with(".json")).collect()
    }

    /// Sets the verdict on each change. Changes are numbered from 1.
    pub(crate) fn script(&self, verdict: impl Fn(usize) -> Verdict + Send + 'static) {
        self.kernel.intercept(move |_, step| verdict(step.number));
    }

    /// Calls `rdma-cni` for a pod with the first NIC.
    pub(crate) fn cni(&self, command: &str, pod: &str) {
        let netns = PathBuf::from(format!("/run/netns/{pod}"));
        self.kernel.with(|world| {
            if world.namespace_at(&netns).is_none() {
                world.create_namespace(&netns);
            }
        });
        let config = json!({
            "cniVersion": "1.1.0", "name": "rails", "type": "rdma-cni",
            "stateDir": self.state.path(), "log": {"level": "off"}, "deviceID": NICS[0].0,
        });
        let environment = BTreeMap::from(
            [
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", pod),
                ("CNI_IFNAME", "eth0"),
                ("CNI_NETNS", &netns.display().to_string()),
                ("CNI_PATH", "/nowhere"),
                ("CNI_ARGS", "K8S_POD_NAMESPACE=team;K8S_POD_NAME=train-0"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let input = Input {
            arguments: vec![],
            environment,
        };
        let stdin = serde_json::to_vec(&config).expect("JSON");
        let mut output = vec![];
        let _ = rdma_cni::run(input, &mut stdin.as_slice(), &mut output, &self.kernel);
        let answer: Value = serde_json::from_slice(&output).unwrap_or_default();
        assert!(answer.get("code").is_none(), "{command}: {answer}");
    }
}

impl Process {
    pub(crate) fn settle(&mut self, nics: &[Nic]) -> Vec<Outcome> {
        self.runtime.block_on(self.bring_up.settle(nics))
    }

    /// Settles the NICs. Returns true if the fake kernel killed the process.
    pub(crate) fn dies(mut self, nics: &[Nic]) -> bool {
        died(|| drop(self.settle(nics)))
    }
}

/// Returns true if the fake kernel killed the process that ran `work`.
pub(crate) fn died(work: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => false,
        Err(payload) if payload.is::<Died>() => true,
        Err(payload) => resume_unwind(payload),
    }
}

/// Returns the number of changes of each NIC. Any other outcome fails the test.
#[track_caller]
pub(crate) fn changes(outcomes: &[Outcome]) -> Vec<usize> {
    let of = |outcome: &Outcome| match outcome.state {
        State::Configured { changes, .. } => changes,
        _ => panic!("{outcome}"),
    };
    outcomes.iter().map(of).collect()
}

pub(crate) fn words(outcomes: &[Outcome]) -> Vec<String> {
    outcomes.iter().map(Outcome::to_string).collect()
}

/// Returns destination and metric of a netdev's routes, without the kernel's own routes.
pub(crate) fn metrics(link: &Link) -> Vec<(String, Option<u32>)> {
    let routes = link.routes.iter().filter(|route| !link.makes_itself(route));
    let fields = |it: &Route| (format!("{}/{}", it.destination, it.prefix), it.metric);
    routes.map(fields).collect()
}

pub(crate) const REFUSED: Verdict = Verdict::Refuse(Errno::EIO);
