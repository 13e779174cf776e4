// SPDX-License-Identifier: Apache-2.0
//! Stand-in for an IPAM plugin: a script that records its calls. Files next to the script set its answers, errors and
//! waits.

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The stand-in. Callers find it by its name in its directory.
#[derive(Debug)]
pub struct StandInIpam {
    directory: PathBuf,
}

/// A call of the stand-in.
#[derive(Clone, Debug)]
pub struct Call {
    /// `CNI_COMMAND`
    pub command: String,
    /// `CNI_IFNAME`
    pub ifname: String,
    /// `CNI_CONTAINERID`
    pub container: String,
    /// `CNI_NETNS`
    pub netns: String,
    /// Standard input of the plugin.
    pub input: Value,
}

/// `type` of the plugin.
pub const NAME: &str = "stand-in-ipam";

const SCRIPT: &str = r#"#!/bin/sh
# CALLS/<time>: what came in. answer.COMMAND[.IFNAME]: what goes out. fail.COMMAND[.IFNAME]:
# the error that goes out instead. hold.COMMAND: wait until this file is gone.
here=$(dirname "$0")
call=$here/calls/$(date +%s%N)-$$
mkdir "$call.new"
printf '%s\n%s\n%s\n%s\n' "$CNI_COMMAND" "$CNI_IFNAME" "$CNI_CONTAINERID" "$CNI_NETNS" >"$call.new/env"
cat >"$call.new/input"
mv "$call.new" "$call"
while [ -e "$here/hold.$CNI_COMMAND" ]; do sleep 0.02; done
for suffix in "$CNI_COMMAND.$CNI_IFNAME" "$CNI_COMMAND"; do
	if [ -e "$here/fail.$suffix" ]; then cat "$here/fail.$suffix"; exit 1; fi
done
for suffix in "$CNI_COMMAND.$CNI_IFNAME" "$CNI_COMMAND"; do
	if [ -e "$here/answer.$suffix" ]; then cat "$here/answer.$suffix"; exit 0; fi
done
"#;

impl StandInIpam {
    /// Writes the stand-in into `directory`, which this function creates.
    #[track_caller]
    pub fn install(directory: &Path) -> Self {
        fs::create_dir_all(directory.join("calls")).expect("a directory for the stand-in");
        let script = directory.join(NAME);
        fs::write(&script, SCRIPT).expect("the stand-in's script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Returns the directory to add to `CNI_PATH`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sets the answer to `command`, which is `ADD`, or `ADD.rdma1` for one interface.
    pub fn answer(&self, command: &str, answer: &Value) {
        self.write(&format!("answer.{command}"), &answer.to_string());
    }

    /// Makes `command` (or `ADD.rdma1`) fail with this code and message.
    pub fn fail(&self, command: &str, code: u32, message: &str) {
        let error = serde_json::json!({"cniVersion": "1.1.0", "code": code, "msg": message});
        self.write(&format!("fail.{command}"), &error.to_string());
    }

    /// Ends the failures of `command`.
    pub fn recover(&self, command: &str) {
        fs::remove_file(self.directory.join(format!("fail.{command}"))).expect("it was failing");
    }

    /// Makes calls of `command` wait until [`Self::release`].
    pub fn hold(&self, command: &str) {
        self.write(&format!("hold.{command}"), "");
    }

    /// Lets the waiting calls of `command` continue.
    pub fn release(&self, command: &str) {
        fs::remove_file(self.directory.join(format!("hold.{command}"))).expect("it was held");
    }

    /// Returns the calls so far, in their order.
    pub fn calls(&self) -> Vec<Call> {
        let calls = fs::read_dir(self.directory.join("calls")).expect("the calls' directory");
        let mut calls: Vec<PathBuf> = calls.map(|entry| entry.expect("an entry").path()).collect();
        calls.retain(|call| call.extension().is_none());
        calls.sort();
        calls.iter().map(|call| read_call(call)).collect()
    }

    /// Returns the interfaces of the calls with `command`, in the calls' order.
    pub fn interfaces(&self, command: &str) -> Vec<String> {
        let calls = self
            .calls()
            .into_iter()
            .filter(|call| call.command == command);
        calls.map(|call| call.ifname).collect()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).expect("the stand-in's directory is writable");
    }
}

fn read_call(directory: &Path) -> Call {
    let env = fs::read_to_string(directory.join("env")).expect("a recorded environment");
    let input = fs::read_to_string(directory.join("input")).expect("a recorded input");
    let mut lines = env.lines().map(str::to_owned);
    let mut next = || lines.next().unwrap_or_default();
    Call {
        command: next(),
        ifname: next(),
        container: next(),
        netns: next(),
        input: serde_json::from_str(&input)
            .unwrap_or_else(|error| panic!("the IPAM plugin was given no JSON ({error}): {input}")),
    }
}
