// SPDX-License-Identifier: Apache-2.0
//! A node with a fake kernel that is set up, a state directory, and a runtime that runs verbs.

use crate::gate;
use attachments::Store;
use cni_protocol::{Command, Environment, Input, Mistakes, lock::LockDeadline};
use fake_kernel::{FakeKernel, Nic, Snapshot, Verdict, World};
use network_conf::Conf;
use rdma_netns::{
    Address, HardwareAddress, InterfaceName, Kernel, LinkChange, LinkFlag, NetnsId, NetnsSide, Op,
    RdmaMode, Route,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub(crate) struct Node {
    pub(crate) kernel: FakeKernel,
    pub(crate) state: TempDir,
    pub(crate) plugins: PathBuf,
}

/// A pod, with the names that a runtime passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) container: String,
    pub(crate) netns: PathBuf,
    /// `CNI_IFNAME`
    pub(crate) ifname: &'static str,
}

impl Pod {
    pub(crate) fn attachment(&self, ifname: &'static str) -> Self {
        Self {
            ifname,
            ..self.clone()
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
}

impl Answer {
    /// Returns the CNI error code. 0: no error.
    pub(crate) fn code(&self) -> u64 {
        self.value["code"].as_u64().unwrap_or(0)
    }

    pub(crate) fn message(&self) -> String {
        self.value["msg"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub(crate) fn must_succeed(self) -> Value {
        assert_eq!(self.code(), 0, "{}", self.value);
        self.value
    }

    #[track_caller]
    pub(crate) fn must_fail(self, code: u64) -> String {
        assert_eq!(self.code(), code, "{}", self.value);
        self.message()
    }
}

/// Returns a world with two VFs of different PFs. The node's set-up has given both VFs addresses, routes, settings and
/// alternative names. A third VF and a sub-function have no such attributes.
pub(crate) fn furnished(mode: RdmaMode) -> World {
    let mut world = World::new(Some(mode));
    world.plug(Nic::physical("0000:3b:00.0", "ens1np0", "mlx5_0"));
    world.plug(Nic::physical("0000:d8:00.0", "ens2np0", "mlx5_1"));
    for (rail, address, of) in [
        (2, "0000:3b:00.2", "0000:3b:00.0"),
        (3, "0000:d8:00.2", "0000:d8:00.0"),
    ] {
        let (link, rdma) = (format!("eth{rail}"), format!("mlx5_{rail}"));
        let nic = Nic::virtual_function(address, of, &link, &rdma);
        world.plug(nic.with_mac_only_while_down());
        configure(&mut world, &link, rail);
    }
    world.plug(Nic::virtual_function(
        "0000:d8:00.3",
        "0000:d8:00.0",
        "eth4",
        "mlx5_4",
    ));
    world.plug(Nic::sub_function(
        "mlx5_core.sf.4",
        "0000:3b:00.0",
        "en4s0",
        "mlx5_5",
    ));
    settle(&mut world);
    world
}

/// Configures the netdev of a rail as the node's set-up does.
pub(crate) fn configure(world: &mut World, link: &str, rail: u8) {
    let (at, link) = (NetnsSide::Host, name(link));
    let mut ops = vec![
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Mtu(4200),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::TxQueueLen(500),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Flag(LinkFlag::AllMulti, true),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Alias(format!("rail {rail}")),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::AltName {
                name: format!("enp{rail}s0v0"),
                present: true,
            },
        },
    ];
    let settings = [
        ("ipv4/arp_ignore", 1),
        ("ipv4/arp_announce", 2),
        ("ipv6/accept_ra", 0),
        ("ipv6/use_tempaddr", 0),
    ];
    ops.extend(settings.map(|(key, value)| Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::Sysctl {
            key: key.to_owned(),
            value,
        },
    }));
    ops.push(Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::Up(true),
    });
    let addresses = [format!("10.0.{rail}.5/24"), format!("fd00:{rail}::5/64")];
    ops.extend(addresses.map(|text| Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::AddAddress(address(&text)),
    }));
    let routes = [
        (format!("10.{rail}.0.0/16"), format!("10.0.{rail}.1")),
        (format!("fd{rail}0::/32"), format!("fd00:{rail}::1")),
    ];
    ops.extend(routes.map(|(destination, gateway)| Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::AddRoute(route(&destination, &gateway)),
    }));
    for op in ops {
        world
            .execute(&op, None)
            .unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }
}

/// Makes duplicate address detection end.
pub(crate) fn settle(world: &mut World) {
    (0..world.detection).for_each(|_| world.pass_time());
}

pub(crate) fn name(text: &str) -> InterfaceName {
    InterfaceName::try_from(text).unwrap()
}

pub(crate) fn host_change(link: &str, change: LinkChange) -> Op {
    Op::Link {
        at: NetnsSide::Host,
        link: name(link),
        change,
    }
}

pub(crate) fn mac(text: &str) -> HardwareAddress {
    text.parse().unwrap()
}

pub(crate) fn address(text: &str) -> Address {
    let (ip, prefix) = prefix(text);
    Address::new(ip, prefix)
}

pub(crate) fn route(destination: &str, gateway: &str) -> Route {
    let (ip, length) = prefix(destination);
    Route {
        gateway: Some(gateway.parse().unwrap()),
        ..Route::new(ip, length)
    }
}

fn prefix(text: &str) -> (IpAddr, u8) {
    let (ip, length) = text.split_once('/').unwrap();
    (ip.parse().unwrap(), length.parse().unwrap())
}

impl Node {
    /// Returns a node in `mode` that is set up ([`furnished`]).
    pub(crate) fn new(mode: RdmaMode) -> Self {
        Self::with(furnished(mode))
    }

    pub(crate) fn with(world: World) -> Self {
        // records are synced to disk: this is faster in memory
        let memory = Path::new("/dev/shm");
        let state = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let state = state.unwrap();
        let plugins = state.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        Self {
            kernel: FakeKernel::new(world),
            state,
            plugins,
        }
    }

    pub(crate) fn pod(&self, container: &str) -> Pod {
        let netns = PathBuf::from(format!("/run/netns/{container}"));
        self.kernel.with(|world| world.create_namespace(&netns));
        Pod {
            container: container.to_owned(),
            netns,
            ifname: "eth0",
        }
    }

    pub(crate) fn netns(&self, pod: &Pod) -> NetnsId {
        let id = self.kernel.with(|world| world.namespace_at(&pod.netns));
        id.expect("the pod's namespace")
    }

    pub(crate) fn two_rails(&self) -> Value {
        self.config(json!({ "devices": [{ "netdev": "eth2" }, { "netdev": "eth3" }] }))
    }

    /// Counts the driver rebinds since the journal began.
    pub(crate) fn rebinds(&self) -> usize {
        let is_rebind = |op: &&Op| matches!(op, Op::RebindDriver { .. });
        self.kernel.journal().iter().filter(is_rebind).count()
    }

    pub(crate) fn one_rail(&self) -> Value {
        self.config(json!({ "deviceID": "0000:3b:00.2" }))
    }

    pub(crate) fn config(&self, fields: Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.1.0",
            "name": "rails",
            "type": "rdma-cni",
            "stateDir": self.state.path().join("state"),
            "interfaceName": "rdma%d",
            "log": { "level": "off" },
        });
        for (key, value) in fields.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    /// Runs a verb with the input that a runtime passes, in this process.
    pub(crate) fn run(&self, command: &str, pod: Option<&Pod>, config: &Value) -> Answer {
        let mut output = vec![];
        self.run_into(command, pod, config, &mut output);
        let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
        Answer { value }
    }

    pub(crate) fn run_into(
        &self,
        command: &str,
        pod: Option<&Pod>,
        config: &Value,
        output: &mut dyn io::Write,
    ) {
        self.run_on(&self.kernel, command, pod, config, None, output);
    }

    /// Runs a verb like [`Self::run`], with `args` as `CNI_ARGS`.
    pub(crate) fn run_with(&self, command: &str, pod: &Pod, config: &Value, args: &str) -> Answer {
        let (mut output, pod, args) = (vec![], Some(pod), Some(args));
        self.run_on(&self.kernel, command, pod, config, args, &mut output);
        let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
        Answer { value }
    }

    /// Runs a verb on `kernel`, for example on a wrapper of this node's kernel. `args` is `CNI_ARGS`.
    pub(crate) fn run_on(
        &self,
        kernel: &impl Kernel,
        command: &str,
        pod: Option<&Pod>,
        config: &Value,
        args: Option<&str>,
        output: &mut dyn io::Write,
    ) {
        let mut environment = self.environment(command, pod, args);
        let mut arguments = vec![];
        if command == "plan" {
            // an administrator runs `plan` by hand
            environment.remove("CNI_COMMAND");
            arguments.push(command.to_owned());
        }
        let input = Input {
            arguments,
            environment,
        };
        let stdin = serde_json::to_vec(config).unwrap();
        // a runtime starts a new process for each verb, in which no earlier verb has limited the observation
        kernel.limit_observation(None);
        let starts_ipam = !config["ipam"].is_null();
        gate::pass(starts_ipam, || {
            let _ = rdma_cni::run(input, &mut stdin.as_slice(), output, kernel);
        });
    }

    pub(crate) fn add(&self, pod: &Pod, config: &Value) -> Answer {
        self.run("ADD", Some(pod), config)
    }

    pub(crate) fn del(&self, pod: &Pod, config: &Value) -> Answer {
        self.run("DEL", Some(pod), config)
    }

    /// Runs DEL with the time limit `time` for all its locks. Returns its code and its message.
    pub(crate) fn del_within(&self, pod: &Pod, config: &Value, time: Duration) -> (u32, String) {
        let error = self.within(time, "DEL", Some(pod), config, |node| {
            rdma_cni::verb::del::del(node).unwrap_err()
        });
        (rdma_cni::reply::code(&error), error.to_string())
    }

    /// Runs the verb `run` with the time limit `time` for all its locks.
    pub(crate) fn within<T>(
        &self,
        time: Duration,
        command: &str,
        pod: Option<&Pod>,
        config: &Value,
        run: impl FnOnce(&rdma_cni::node::Node<'_, FakeKernel>) -> T,
    ) -> T {
        let environment = Environment::parse(self.environment(command, pod, None), None).unwrap();
        let raw = config.as_object().unwrap().clone();
        let conf = Conf::read(raw, &environment.args, &mut Mistakes::of(Command::Del)).unwrap();
        let mut node = rdma_cni::node::Node::new(&self.kernel, &environment, &conf);
        node.store = Store::within(&conf.state_dir, LockDeadline::until(Instant::now() + time));
        gate::pass(!config["ipam"].is_null(), || run(&node))
    }

    fn environment(
        &self,
        command: &str,
        pod: Option<&Pod>,
        args: Option<&str>,
    ) -> BTreeMap<String, String> {
        let mut environment = BTreeMap::from([
            ("CNI_COMMAND".to_owned(), command.to_owned()),
            ("CNI_PATH".to_owned(), self.plugins.display().to_string()),
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
        ]);
        if let Some(pod) = pod {
            environment.extend([
                ("CNI_CONTAINERID".to_owned(), pod.container.clone()),
                ("CNI_IFNAME".to_owned(), pod.ifname.to_owned()),
                ("CNI_NETNS".to_owned(), pod.netns.display().to_string()),
            ]);
        }
        environment.extend(args.map(|args| ("CNI_ARGS".to_owned(), args.to_owned())));
        environment
    }

    pub(crate) fn gc(&self, valid: &[&Pod], config: &Value) -> Answer {
        self.run("GC", None, &Self::of_gc(valid, config))
    }

    pub(crate) fn of_gc(valid: &[&Pod], config: &Value) -> Value {
        let valid: Vec<Value> = valid
            .iter()
            .map(|pod| json!({ "containerID": pod.container, "ifname": "eth0" }))
            .collect();
        let mut config = config.clone();
        config["cni.dev/valid-attachments"] = valid.into();
        config
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.kernel.snapshot()
    }

    /// Makes the change `op` as the pod does, or without `pod` as an administrator of the host.
    #[track_caller]
    pub(crate) fn change(&self, pod: Option<&Pod>, op: &Op) {
        let done = self.kernel.with(|world| {
            let netns = pod.map(|pod| world.namespace_at(&pod.netns).unwrap());
            world.execute(op, netns)
        });
        done.unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }

    /// Sets the kernel's `verdict` for each change of the process.
    pub(crate) fn script(&self, verdict: impl Fn(usize) -> Verdict + Send + 'static) {
        self.kernel.begin();
        self.kernel.intercept(move |_, step| verdict(step.number));
    }

    /// Kills the process of `verb` at change number `at`. Returns false if the verb ended before that change.
    pub(crate) fn kill(&self, at: usize, verdict: Verdict, verb: impl FnOnce(&Self)) -> bool {
        self.script(move |number| match number == at {
            true => verdict,
            false => Verdict::Proceed,
        });
        verb(self);
        let killed = self.kernel.journal().len() >= at;
        self.kernel.begin();
        killed
    }

    /// Returns the number of changes that the process requested, without announcements: a failed announcement has
    /// no consequence.
    pub(crate) fn changes(&self) -> usize {
        let journal = self.kernel.journal();
        let is_change = |op: &Op| {
            !matches!(
                op,
                Op::Link {
                    change: LinkChange::Announce(_),
                    ..
                }
            )
        };
        let changes = journal.iter().filter(|op| is_change(op)).count();
        assert!(journal[..changes].iter().all(is_change), "{journal:?}");
        changes
    }

    /// Returns the names of the record files and lock files of the network `rails`.
    pub(crate) fn records(&self) -> Vec<String> {
        let directory = self.state.path().join("state/attachments/rails");
        let mut names: Vec<String> = fs::read_dir(directory)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn record_of(&self, pod: &Pod) -> PathBuf {
        let Pod {
            container, ifname, ..
        } = pod;
        let name = format!("state/attachments/rails/{container}@{ifname}.json");
        Path::new(self.state.path()).join(name)
    }

    /// Asserts that everything is as before, and that no record exists.
    #[track_caller]
    pub(crate) fn must_be(&self, before: &Snapshot, what: &str) {
        let differences = before.differences(&self.snapshot());
        assert!(
            differences.is_empty(),
            "{what}:\n{}",
            differences.join("\n")
        );
        let records = self.records();
        assert!(records.is_empty(), "{what}: left are {records:?}");
    }
}
