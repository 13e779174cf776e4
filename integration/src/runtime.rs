// SPDX-License-Identifier: Apache-2.0
//! Runs a conflist as libcni does: the chain with `prevResult`, `runtimeConfig` for the
//! capabilities that a plugin declares, the cached result for CHECK and DEL, GC, and STATUS.

use crate::{Invocation, Netns, Outcome, plugin::Running};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

/// List of plugins' configurations.
#[derive(Clone, Debug)]
pub struct Conflist {
    /// `name`
    pub name: String,
    /// `cniVersion`
    pub version: String,
    /// `plugins`
    pub plugins: Vec<Value>,
}

impl Conflist {
    /// Makes a list called `net`.
    pub fn new(version: &str, plugins: Vec<Value>) -> Self {
        Self {
            name: "net".into(),
            version: version.into(),
            plugins,
        }
    }
}

/// The parameters with which a runtime calls plugins for one interface of a container.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// `CNI_CONTAINERID`
    pub container: String,
    /// `CNI_NETNS`
    pub netns: PathBuf,
    /// `CNI_IFNAME`
    pub ifname: String,
    /// `CNI_ARGS`
    pub args: BTreeMap<String, String>,
    /// Capability arguments. A plugin gets the arguments of the capabilities that it declares.
    pub capabilities: Map<String, Value>,
}

impl Attachment {
    /// Makes an attachment without arguments.
    pub fn new(container: &str, netns: &Path, ifname: &str) -> Self {
        Self {
            container: container.into(),
            netns: netns.to_owned(),
            ifname: ifname.into(),
            args: BTreeMap::new(),
            capabilities: Map::new(),
        }
    }

    /// Adds a capability argument.
    pub fn with_capability(mut self, name: &str, value: Value) -> Self {
        self.capabilities.insert(name.into(), value);
        self
    }

    /// Adds the pod's namespace and name to `CNI_ARGS`, as a Kubernetes container runtime does.
    pub fn of_pod(mut self, namespace: &str, name: &str) -> Self {
        for (key, value) in [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", namespace),
            ("K8S_POD_NAME", name),
        ] {
            self.args.insert(key.into(), value.into());
        }
        self
    }
}

/// A runtime that calls the plugins of conflists.
#[derive(Debug)]
pub struct Runtime<'a> {
    host: &'a Netns,
    cni_path: String,
    cache: PathBuf,
}

impl<'a> Runtime<'a> {
    /// Makes a runtime in `host` that finds plugins in `cni_path` and caches results in `cache`.
    pub fn new(host: &'a Netns, cni_path: &str, cache: &Path) -> Self {
        fs::create_dir_all(cache).expect("a directory for the cache");
        Self {
            host,
            cni_path: cni_path.into(),
            cache: cache.to_owned(),
        }
    }

    /// Runs ADD of the chain, and caches the result. The error is the outcome of the first plugin that failed. A
    /// runtime then calls [`Self::del`].
    #[track_caller]
    pub fn add(&self, list: &Conflist, attachment: &Attachment) -> Result<Value, Outcome> {
        let mut previous = None;
        for plugin in &list.plugins {
            let outcome = self.call("ADD", list, plugin, attachment, previous.as_ref());
            if !outcome.status.success() {
                return Err(outcome);
            }
            previous = Some(outcome.result());
        }
        let result = previous.expect("a list has plugins");
        fs::write(self.cached(list, attachment), result.to_string()).expect("the cache");
        Ok(result)
    }

    /// Runs DEL of the chain from the last plugin to the first, up to the first error.
    #[track_caller]
    pub fn del(&self, list: &Conflist, attachment: &Attachment) -> Result<(), Outcome> {
        let cached = self
            .cached_result(list, attachment)
            .filter(|_| !list.version.starts_with("0.3."));
        for plugin in list.plugins.iter().rev() {
            let outcome = self.call("DEL", list, plugin, attachment, cached.as_ref());
            if !outcome.status.success() {
                return Err(outcome);
            }
            outcome.silent();
        }
        let _ = fs::remove_file(self.cached(list, attachment));
        Ok(())
    }

    /// Runs CHECK of the chain. Every plugin gets the cached result of ADD.
    #[track_caller]
    pub fn check(&self, list: &Conflist, attachment: &Attachment) -> Result<(), Outcome> {
        let cached = self
            .cached_result(list, attachment)
            .expect("CHECK comes after ADD");
        for plugin in &list.plugins {
            let outcome = self.call("CHECK", list, plugin, attachment, Some(&cached));
            if !outcome.status.success() {
                return Err(outcome);
            }
            outcome.silent();
        }
        Ok(())
    }

    /// Runs GC of every plugin, with `valid` as the only valid attachments.
    #[track_caller]
    pub fn gc(&self, list: &Conflist, valid: &[&Attachment]) -> Vec<Outcome> {
        let valid: Vec<Value> = valid
            .iter()
            .map(|it| json!({"containerID": it.container, "ifname": it.ifname}))
            .collect();
        let calls = list.plugins.iter().map(|plugin| {
            let mut input = self.input(list, plugin, None, None);
            input["cni.dev/valid-attachments"] = valid.clone().into();
            input["cni.dev/attachments"] = valid.clone().into();
            self.program(plugin)
                .env("CNI_COMMAND", "GC")
                .input(&input)
                .run()
        });
        calls.collect()
    }

    /// Runs STATUS of every plugin.
    #[track_caller]
    pub fn status(&self, list: &Conflist) -> Vec<Outcome> {
        let calls = list.plugins.iter().map(|plugin| {
            let input = self.input(list, plugin, None, None);
            self.program(plugin)
                .env("CNI_COMMAND", "STATUS")
                .input(&input)
                .run()
        });
        calls.collect()
    }

    /// Starts ADD, DEL or CHECK of one plugin, for tests that kill the plugin.
    #[track_caller]
    pub fn start(
        &self,
        command: &str,
        list: &Conflist,
        plugin: &Value,
        attachment: &Attachment,
    ) -> Running {
        self.invocation(command, list, plugin, attachment, None)
            .start()
    }

    fn call(
        &self,
        command: &str,
        list: &Conflist,
        plugin: &Value,
        attachment: &Attachment,
        previous: Option<&Value>,
    ) -> Outcome {
        self.invocation(command, list, plugin, attachment, previous)
            .run()
    }

    fn invocation(
        &self,
        command: &str,
        list: &Conflist,
        plugin: &Value,
        attachment: &Attachment,
        previous: Option<&Value>,
    ) -> Invocation<'a> {
        let args: Vec<String> = attachment
            .args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        self.program(plugin)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &attachment.container)
            .env("CNI_NETNS", &attachment.netns)
            .env("CNI_IFNAME", &attachment.ifname)
            .env("CNI_ARGS", args.join(";"))
            .input(&self.input(list, plugin, Some(attachment), previous))
    }

    fn program(&self, plugin: &Value) -> Invocation<'a> {
        let kind = plugin["type"].as_str().expect("a plugin has a type");
        let found = env::split_paths(&self.cni_path)
            .map(|directory| directory.join(kind))
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no plugin {kind} in {}", self.cni_path));
        Invocation::new(self.host, &found).env("CNI_PATH", &self.cni_path)
    }

    fn input(
        &self,
        list: &Conflist,
        plugin: &Value,
        attachment: Option<&Attachment>,
        previous: Option<&Value>,
    ) -> Value {
        let mut input = plugin.clone();
        input["name"] = list.name.clone().into();
        input["cniVersion"] = list.version.clone().into();
        if let Some(previous) = previous {
            input["prevResult"] = previous.clone();
        }
        let declared = |name: &str| plugin["capabilities"][name] == true;
        let granted: Map<String, Value> = attachment
            .map(|attachment| attachment.capabilities.clone())
            .unwrap_or_default()
            .into_iter()
            .filter(|(name, _)| declared(name))
            .collect();
        if !granted.is_empty() {
            input["runtimeConfig"] = granted.into();
        }
        input
    }

    fn cached(&self, list: &Conflist, attachment: &Attachment) -> PathBuf {
        let Attachment {
            container, ifname, ..
        } = attachment;
        self.cache
            .join(format!("{}@{container}@{ifname}", list.name))
    }

    fn cached_result(&self, list: &Conflist, attachment: &Attachment) -> Option<Value> {
        let text = fs::read_to_string(self.cached(list, attachment)).ok()?;
        Some(serde_json::from_str(&text).expect("the cache has what a plugin answered"))
    }
}
