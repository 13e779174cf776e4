// SPDX-License-Identifier: Apache-2.0
//! SIGKILL after changes of a verb, by [`tracer`], and what the next call makes of it.

use crate::{
    Invocation, Netns, Outcome, Snapshot,
    tracer::{self, Fault, Report, netlink, point::Point},
};
use serde_json::{Value, json};
use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Which call comes after the one that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restorer {
    /// DEL of the same attachment.
    Del,
    /// ADD of the same devices to another pod. A pod that lives holds its devices until
    /// its DEL is through: then the answer is 101, and DEL comes first.
    Add,
    /// GC that knows of no attachment.
    Gc,
}

/// Where a verb is killed: before the first of these changes of the kernel's state, and after each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// All changes.
    All,
    /// The moves of netdevs and of RDMA devices to another namespace, and what a physical function sets.
    Moves,
    /// What SMC-R needs: pnet entries, user EIDs, `tcp2smc`, links per link group.
    Smc,
}

impl Around {
    /// Whether `point` is such a change: a netlink request, or a setting's file.
    fn has(self, point: &Point) -> bool {
        let is = |begin: &str| point.what.starts_with(begin);
        let is_setting = point.call == "write" && (is("/sys/") || is("/proc/sys/"));
        let is_netlink = is("rtnetlink ") || is("RDMA netlink") || is("netlink ");
        let is_of_kind = match self {
            Self::All => is_setting || is_netlink,
            Self::Moves => [netlink::MOVE, netlink::FUNCTION]
                .iter()
                .any(|words| point.what.ends_with(words)),
            Self::Smc => is("/proc/sys/net/smc/") || is(GENERIC),
        };
        point.changes && is_of_kind
    }
}

/// A request of generic netlink, as a point has it.
const GENERIC: &str = "netlink 16,";

/// A sweep may meet one in so many of its faults not at all: a run that waits for the kernel may ask it once less.
const MOST_UNMET: u32 = 10;

/// One attachment that is made and unmade, each time with a kill.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Where plugins are started.
    pub host: &'a Netns,
    /// The plugin.
    pub plugin: PathBuf,
    /// The program that kills it: `fault-injector`.
    pub injector: PathBuf,
    /// Where it does.
    pub around: Around,
    /// `CNI_PATH`
    pub cni_path: String,
    /// The whole network configuration.
    pub configuration: Value,
    /// How the host has to be whenever nothing is attached.
    pub before: Snapshot,
}

impl Sweep<'_> {
    /// Kills `command` (ADD or DEL) at each of the points; every time one of `restorers`, in turn,
    /// has to bring the host back. How many points there were.
    #[track_caller]
    pub fn run(&self, command: &str, restorers: &[Restorer]) -> u32 {
        let faults = self.faults(command);
        let (mut points, mut unmet) = (0, 0);
        for (fault, restorer) in faults.into_iter().zip(restorers.iter().cycle()) {
            // shown when an assertion fails
            println!("{command} is killed: {fault:?}, then {restorer:?}");
            let pod = Netns::new("killed");
            let bare = Snapshot::of(&pod);
            let (outcome, _) = self.traced(command, &pod, Some(fault));
            points += 1;
            if outcome.status.success() {
                unmet += 1;
            } else {
                assert_eq!(
                    outcome.status.signal(),
                    Some(9),
                    "it was not killed: {outcome}"
                );
                self.restore(command, *restorer, &pod);
                self.before.assert_restored(self.host);
                // children and rules
                bare.assert_restored(&pod);
            }
            self.call("DEL", "a", &pod).run().silent();
            self.before.assert_restored(self.host);
        }
        assert!(unmet * MOST_UNMET <= points, "{unmet} of {points} not met");
        points
    }

    /// The faults of a run of `command`, which is made and unmade.
    #[track_caller]
    fn faults(&self, command: &str) -> Vec<Fault> {
        let pod = Netns::new("whole");
        let (outcome, report) = self.traced(command, &pod, None);
        assert!(outcome.status.success(), "{outcome}");
        self.call("DEL", "a", &pod).run().silent();
        self.before.assert_restored(self.host);
        let of_kernel = (1..)
            .zip(report.changes())
            .filter(|(_, point)| Around::All.has(point));
        let mut faults = vec![];
        let mut follows = false;
        for (number, point) in of_kernel {
            let is_one = self.around.has(point);
            if is_one && !follows {
                faults.push(Fault::Kill(number));
            }
            if is_one {
                faults.push(Fault::KillAfter(number));
            }
            follows = is_one;
        }
        faults
    }

    /// `command` by the injector, with a fault or none; a DEL after its ADD.
    #[track_caller]
    fn traced(&self, command: &str, pod: &Netns, fault: Option<Fault>) -> (Outcome, Report) {
        if command == "DEL" {
            self.call("ADD", "a", pod).run().result();
        }
        let file = NamedTempFile::new().expect("a file");
        let call = self.call(command, "a", pod);
        let outcome = tracer::traced(call, &self.injector, fault, file.path()).run();
        (outcome, tracer::report(file.path()))
    }

    #[track_caller]
    fn restore(&self, command: &str, restorer: Restorer, pod: &Netns) {
        match restorer {
            Restorer::Del => self.call("DEL", "a", pod).run().silent(),
            Restorer::Gc => self.gc().silent(),
            Restorer::Add => {
                let other = Netns::new("other");
                let outcome = self.call("ADD", "b", &other).run();
                if !outcome.status.success() {
                    assert_eq!(command, "DEL", "a killed ADD holds nothing: {outcome}");
                    outcome.error(101);
                    self.call("DEL", "a", pod).run().silent();
                    self.call("ADD", "b", &other).run().result();
                }
                self.call("DEL", "b", &other).run().silent();
            }
        }
    }

    fn gc(&self) -> Outcome {
        let mut configuration = self.configuration.clone();
        configuration["cni.dev/valid-attachments"] = json!([]);
        let call = Invocation::new(self.host, &self.plugin).env("CNI_COMMAND", "GC");
        call.env("CNI_PATH", &self.cni_path)
            .input(&configuration)
            .run()
    }

    fn call(&self, command: &str, container: &str, pod: &Netns) -> Invocation<'_> {
        Invocation::new(self.host, &self.plugin)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", Path::new(&self.cni_path))
            .input(&self.configuration)
    }
}
