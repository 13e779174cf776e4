// SPDX-License-Identifier: Apache-2.0
//! Kills a verb before and after its changes of the kernel's state. The next call must restore the host.

use crate::{
    Invocation, Netns, Outcome, Snapshot,
    tracer::{self, Fault, Report, point::Point},
};
use serde_json::{Value, json};
use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Call after the killed verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restorer {
    /// DEL of the same attachment.
    Del,
    /// ADD of the devices to another pod. A running pod keeps its devices until its DEL succeeds.
    /// Until then ADD answers 101, and the test first runs DEL.
    Add,
    /// GC with an empty list of valid attachments.
    Gc,
}

/// Changes before and after which a verb is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// All changes of the kernel's state: netlink requests, ioctl and bpf calls, writes to sysfs and to sysctls.
    All,
    /// Changes of RDMA devices and netdevs, among others their moves to another namespace, and changes of virtual
    /// functions' settings by their physical function.
    Moves,
}

impl Around {
    /// Returns true if the verb is killed before and after this change.
    fn includes(self, change: &Point) -> bool {
        let has = |words: &[&str]| words.iter().any(|it| change.what.contains(it));
        match self {
            Self::All => {
                has(&["netlink", "/proc/", "/sys/"]) || ["ioctl", "bpf"].contains(&&*change.call)
            }
            Self::Moves => has(&["RDMA netlink", "RTM_NEWLINK", "RTM_SETLINK"]),
        }
    }

    /// Returns the kills before and after the changes of a verb with this report. Between two such changes in a row
    /// there is only one kill.
    fn faults(self, report: &Report) -> Vec<Fault> {
        let mut faults = vec![];
        let mut is_after = false;
        for (number, change) in (1..).zip(report.changes()) {
            let is_included = self.includes(change);
            if is_included && !is_after {
                faults.push(Fault::Kill(number));
            }
            if is_included {
                faults.push(Fault::KillAfter(number));
            }
            is_after = is_included;
        }
        faults
    }
}

/// An attachment that is made and removed, each time with a kill.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Namespace in which plugins start.
    pub host: &'a Netns,
    /// The plugin.
    pub plugin: PathBuf,
    /// Program of `src/bin/fault-injector.rs`.
    pub injector: PathBuf,
    /// Changes around which the plugin is killed.
    pub around: Around,
    /// `CNI_PATH`
    pub cni_path: String,
    /// The whole network configuration.
    pub configuration: Value,
    /// State of the host without an attachment.
    pub before: Snapshot,
}

impl Sweep<'_> {
    /// Kills `command` (ADD or DEL) at each of its points. After each kill one of `restorers`, in
    /// turn, must restore the host. Returns the number of kills.
    #[track_caller]
    pub fn run(&self, command: &str, restorers: &[Restorer]) -> usize {
        // this fault never occurs: with it, the report has only changes
        let report = self.with(command, Fault::Kill(usize::MAX), Restorer::Del);
        let faults = self.around.faults(&report);
        let turns = faults.iter().zip(restorers.iter().cycle());
        let runs = turns.map(|(fault, restorer)| self.with(command, *fault, *restorer));
        let kills = runs.filter(|it| it.hit.is_some()).count();
        // a run that waits for the kernel may have fewer changes than the first run
        assert!(kills * 10 >= faults.len() * 9, "{kills} of {faults:?}");
        kills
    }

    /// Runs `command` with `fault`. If the fault occurs, `restorer` must restore the host.
    #[track_caller]
    fn with(&self, command: &str, fault: Fault, restorer: Restorer) -> Report {
        // printed only if an assertion fails
        println!("{command} with {fault:?}, then {restorer:?}");
        let pod = Netns::new("killed");
        let bare = Snapshot::of(&pod);
        if command == "DEL" {
            self.call("ADD", "a", &pod).run().result();
        }
        let file = NamedTempFile::new().expect("a file");
        let call = self.call(command, "a", &pod);
        let outcome = tracer::traced(call, &self.injector, [fault], file.path()).run();
        let report = tracer::report(file.path());
        if report.hit.is_none() {
            assert!(outcome.status.success(), "it failed: {outcome}");
        } else {
            let signal = outcome.status.signal();
            assert_eq!(signal, Some(9), "it was not killed: {outcome}");
            self.restore(command, restorer, &pod);
            self.before.assert_restored(self.host);
            // the pod has no children and rules any more
            bare.assert_restored(&pod);
        }
        self.call("DEL", "a", &pod).run().silent();
        self.before.assert_restored(self.host);
        report
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
