// SPDX-License-Identifier: Apache-2.0
//! ADD, DEL and GC of `rdma-ipam` alone: leases of both families, with a secret that the first ADD makes.

use super::{
    attachment::{self, Verb},
    story::{End, Story, must_succeed},
};
use crate::{
    Files, Invocation, Netns,
    tracer::{self, Fault, Report},
};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};
use tempfile::TempDir;

/// A data directory, and the verb that the story runs on it.
#[derive(Debug)]
pub struct Leases {
    name: &'static str,
    verb: Verb,
    plugin: PathBuf,
    injector: PathBuf,
    directory: TempDir,
    netns: Netns,
}

impl Leases {
    /// Makes the directory. `programs` are `rdma-ipam` and the injector.
    #[track_caller]
    pub fn new(name: &'static str, verb: Verb, [plugin, injector]: [PathBuf; 2]) -> Self {
        Self {
            name,
            verb,
            plugin,
            injector,
            directory: TempDir::new().expect("a directory"),
            netns: Netns::own(),
        }
    }

    fn leases(&self) -> PathBuf {
        self.directory.path().join("leases")
    }

    fn configuration(&self) -> Value {
        json!({"cniVersion": "1.1.0", "name": "net", "ipam": {
            "type": "rdma-ipam", "dataDir": self.leases(), "strategy": "stable",
            "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]],
        }})
    }

    fn call(&self, command: &str, container: &str) -> Invocation<'_> {
        Invocation::new(&self.netns, &self.plugin)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", "/run/netns/x")
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={container}"),
            )
            .input(&self.configuration())
    }

    /// Checks the result of a successful ADD. It must have an address of each family, and CHECK must find
    /// these addresses.
    fn check(&self, result: &str) -> Vec<String> {
        let result: Value = serde_json::from_str(result).unwrap_or_default();
        let addresses = result["ips"].as_array().map_or(0, Vec::len);
        let mut configuration = self.configuration();
        configuration["prevResult"] = result;
        let call = self.call("CHECK", "a").input(&configuration);
        let mut left = must_succeed("CHECK after an ADD that succeeded", &call.run());
        if addresses != 2 {
            left.push(format!("ADD answered with {addresses} addresses"));
        }
        left
    }

    fn gc(&self) -> Invocation<'_> {
        let mut configuration = self.configuration();
        configuration["cni.dev/valid-attachments"] = json!([]);
        Invocation::new(&self.netns, &self.plugin)
            .env("CNI_COMMAND", "GC")
            .env("CNI_PATH", "/opt/cni/bin")
            .input(&configuration)
    }

    /// Returns the files that should not exist when no pod has an address.
    fn left(&self, when: &str) -> Vec<String> {
        let leases = self.leases();
        let directories = [leases.to_str().expect("UTF-8")];
        let left = Files::below(&directories);
        let left = left.differences(&Files::below(&[]), &attachment::is_lasting);
        left.into_iter().map(|it| format!("{when}: {it}")).collect()
    }

    /// Runs ADD and DEL of another attachment.
    fn other(&self) -> Vec<String> {
        let mut left = must_succeed("another's ADD", &self.call("ADD", "b").run());
        left.extend(must_succeed("its DEL", &self.call("DEL", "b").run()));
        left
    }
}

impl Story for Leases {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        let _ = fs::remove_dir_all(self.leases());
        if self.verb != Verb::Add {
            self.call("ADD", "a").run().result();
        }
        let call = match self.verb {
            Verb::Add => self.call("ADD", "a"),
            Verb::Del => self.call("DEL", "a"),
            Verb::Gc => self.gc(),
        };
        let report = self.directory.path().join("report");
        let outcome = tracer::traced(call, &self.injector, fault, &report).run();
        (End::of(&outcome), tracer::report(&report))
    }

    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String> {
        let mut left = vec![];
        match (self.verb, end) {
            (Verb::Add, End::Done(result)) => left.extend(self.check(result)),
            (Verb::Add, End::Refused(..)) => left.extend(self.left("before DEL")),
            (Verb::Del | Verb::Gc, End::Done(_)) => left.extend(self.left("it succeeded")),
            _ => {}
        }
        match turn % 3 {
            0 => {}
            1 => {
                left.extend(must_succeed("GC", &self.gc().run()));
                left.extend(self.left("after GC"));
            }
            _ => left.extend(self.other()),
        }
        left.extend(must_succeed("DEL", &self.call("DEL", "a").run()));
        left.extend(self.left("after DEL"));
        left.extend(self.other());
        left.extend(self.left("in the end"));
        left
    }
}
