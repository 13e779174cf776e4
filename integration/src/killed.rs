// SPDX-License-Identifier: Apache-2.0
//! Kills a verb before or after an operation. The next call must restore the host.

use crate::{Invocation, Netns, Outcome, Snapshot};
use serde_json::{Value, json};
use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};

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

/// Operations before and after which a verb is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// All operations.
    All,
    /// Moves of netdevs and of RDMA devices to another namespace, and changes of virtual functions' settings by their
    /// physical function.
    Moves,
}

impl Around {
    /// Returns the value for `RDMA_CNI_KILL_AROUND`.
    fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Moves => "moves",
        }
    }
}

/// An attachment that is made and removed, each time with a kill.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Namespace in which plugins start.
    pub host: &'a Netns,
    /// The plugin.
    pub plugin: PathBuf,
    /// Variant of the plugin that kills itself: `rdma-cni-killed`.
    pub killed: PathBuf,
    /// Operations around which the plugin is killed.
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
    /// turn, must restore the host. Returns the number of points.
    #[track_caller]
    pub fn run(&self, command: &str, restorers: &[Restorer]) -> u32 {
        for (points, restorer) in (0..).zip(restorers.iter().cycle().copied()) {
            // printed only if an assertion fails
            println!("{command} is killed at point {points}, then {restorer:?}");
            let pod = Netns::new("killed");
            let bare = Snapshot::of(&pod);
            if command == "DEL" {
                self.call("ADD", "a", &pod).run().result();
            }
            let mut call = self.call(command, "a", &pod);
            call = call
                .program(&self.killed)
                .env("RDMA_CNI_KILL_AROUND", self.around.word())
                .env("RDMA_CNI_KILL_AFTER", points.to_string());
            let outcome = call.run();
            if outcome.status.success() {
                self.call("DEL", "a", &pod).run().silent();
                self.before.assert_restored(self.host);
                return points;
            }
            assert_eq!(
                outcome.status.signal(),
                Some(9),
                "it was not killed: {outcome}"
            );
            self.restore(command, restorer, &pod);
            self.before.assert_restored(self.host);
            // the pod has no children and rules any more
            bare.assert_restored(&pod);
            self.call("DEL", "a", &pod).run().silent();
            self.before.assert_restored(self.host);
        }
        unreachable!("a verb has an end")
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
