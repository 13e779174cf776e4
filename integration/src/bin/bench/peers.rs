// SPDX-License-Identifier: Apache-2.0
//! Debian's plugins for the same work as `rdma-cni`. They run once for each rail, as if each rail were a network: a
//! plugin that makes or moves the netdev, and `sbr`.

use super::run::{Run, call_for, milliseconds};
use integration::{Netns, plugin::debian};
use serde_json::{Value, json};
use std::{
    fs,
    ops::AddAssign,
    path::{Path, PathBuf},
};

/// Plugins, and the node on which they run.
pub(super) struct Peers<'a> {
    /// Names of the plugins, for the heading.
    pub(super) title: &'static str,
    /// Name of the plugin that makes or moves the netdev.
    pub(super) plugin: &'static str,
    /// Returns a rail's configuration without `cniVersion`, `name` and `type`.
    pub(super) configuration: &'a dyn Fn(u32) -> Value,
    /// Work after DEL that is not part of the plugins' cost.
    pub(super) afterwards: &'a dyn Fn(),
    /// Maximum number of rounds in which the peers run.
    pub(super) runs: usize,
    pub(super) directory: PathBuf,
    pub(super) cni_path: &'a str,
}

/// Cost of several processes, one after the other, in milliseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) wall: f64,
    pub(super) cpu: f64,
}

impl AddAssign<Run> for Cost {
    fn add_assign(&mut self, run: Run) {
        self.wall += milliseconds(run.wall);
        self.cpu += milliseconds(run.cpu);
    }
}

impl Peers<'_> {
    /// Runs ADD and DEL for a pod with `rails` rails, and returns their costs.
    pub(super) fn round(&self, rails: u32) -> [Cost; 2] {
        let pod = Netns::new("bench");
        let at = pod.path();
        let [mut added, mut deleted] = [Cost::default(); 2];
        let results: Vec<(u32, Value)> = (1..=rails)
            .map(|rail| (rail, self.add(at, rail, &mut added)))
            .collect();
        for (rail, result) in &results {
            for plugin in ["sbr", self.plugin] {
                deleted += self.call(plugin, "DEL", (at, *rail), Some(result)).0;
            }
        }
        (self.afterwards)();
        [added, deleted]
    }

    /// Runs ADD for one rail, and returns its result.
    fn add(&self, at: &Path, rail: u32, cost: &mut Cost) -> Value {
        let mut result = None;
        for plugin in [self.plugin, "sbr"] {
            let (run, output) = self.call(plugin, "ADD", (at, rail), result.as_ref());
            *cost += run;
            result = Some(serde_json::from_str(&output).expect("a result"));
        }
        result.expect("two plugins")
    }

    fn call(
        &self,
        plugin: &str,
        verb: &str,
        (pod, rail): (&Path, u32),
        result: Option<&Value>,
    ) -> (Run, String) {
        let mut configuration = (self.configuration)(rail);
        configuration["cniVersion"] = "1.0.0".into();
        configuration["name"] = format!("peer{rail}").into();
        configuration["type"] = plugin.into();
        if let Some(result) = result {
            configuration["prevResult"] = result.clone();
        }
        let input = self.directory.join("peer.json");
        fs::write(&input, json!(configuration).to_string()).expect("the configuration");
        let interface = format!("net{rail}");
        let of = ("bench", &*interface);
        call_for(of, &debian(plugin), verb, (pod, self.cni_path), &input)
    }
}
