// SPDX-License-Identifier: Apache-2.0
//! A node with bonds, and an IPAM plugin that records its leases and the input of its calls.

use crate::{
    gate::alone,
    node::{Node, Pod, host_change, settle},
};
use fake_kernel::{Nic, Snapshot, World};
use rdma_netns::{Link, LinkChange, RdmaMode};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const SCRIPT: &[u8] = br#"#!/bin/sh
lease="$0.leases/$CNI_CONTAINERID@$CNI_IFNAME"
read -r config
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $config" >> "$0.log"
refuse() { echo "{\"cniVersion\":\"1.1.0\",\"code\":100,\"msg\":\"$1\"}"; exit 1; }
[ -e "$0.refuses.$CNI_COMMAND" ] && refuse "the store is away"
case $CNI_COMMAND in
ADD)
    [ -e "$lease" ] && refuse "$CNI_CONTAINERID has a lease already"
    : > "$lease"
    cat "$0.$CNI_CONTAINERID.$CNI_IFNAME" 2>/dev/null || cat "$0.$CNI_IFNAME" ;;
DEL) rm -f "$lease" ;;
CHECK) [ -e "$lease" ] || refuse "$CNI_CONTAINERID has no lease" ;;
esac
exit 0
"#;

pub(crate) fn install(node: &Node, name: &str, script: &[u8]) {
    // a separate process writes the file, so that no child process of another test has it open for writing when the
    // node starts the plugin (ETXTBSY)
    let _starting = alone();
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(node.plugins.join(name))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    install.stdin.take().unwrap().write_all(script).unwrap();
    assert!(install.wait().unwrap().success());
}

#[derive(Debug)]
pub(crate) struct Call {
    /// Verb, container and rail of the call, such as `ADD a rdma0`.
    pub(crate) what: String,
    pub(crate) config: Value,
}

/// A node whose IPAM plugin gives every rail `rdma<n>` addresses in the networks of `bond<n>`.
pub(crate) struct Leases {
    pub(crate) node: Node,
}

/// Returns a world in shared mode, with bonds `bond0`… that have RDMA devices, and with the plain NIC `eth8`.
pub(crate) fn bonds(count: u8) -> World {
    let mut world = World::new(Some(RdmaMode::Shared));
    (0..count).for_each(|number| world.plug_bond(number));
    world.plug(Nic::physical("0000:3b:00.0", "eth8", "mlx5_8"));
    world
        .execute(&host_change("eth8", LinkChange::Up(true)), None)
        .unwrap();
    settle(&mut world);
    world
}

/// Returns the plugin's answer for a rail in the networks of `bond<bond>`. The addresses end with `host`.
pub(crate) fn answer(bond: u8, host: u8) -> Value {
    let (router4, router6) = (format!("10.{bond}.0.254"), format!("fd00:{bond}::fe"));
    json!({
        "cniVersion": "1.1.0",
        "ips": [
            { "address": format!("10.{bond}.0.{host}/16"), "gateway": router4 },
            { "address": format!("fd00:{bond}::{host}/64"), "gateway": router6 },
        ],
        "routes": [{ "dst": "172.16.0.0/12" }, { "dst": "::/0", "gw": router6 }],
    })
}

impl Leases {
    pub(crate) fn new(count: u8) -> Self {
        Self::on(Node::with(bonds(count)))
    }

    pub(crate) fn on(node: Node) -> Self {
        install(&node, "books", SCRIPT);
        fs::create_dir(node.plugins.join("books.leases")).unwrap();
        let leases = Self { node };
        for rail in 0..4 {
            leases.gives(&format!("rdma{rail}"), &answer(rail, 7));
        }
        leases
    }

    /// Sets the answer for `rail`: `rdma0`, or `a.rdma0` for one container.
    pub(crate) fn gives(&self, rail: &str, answer: &Value) {
        fs::write(self.path(rail), answer.to_string()).unwrap();
    }

    /// Makes the plugin refuse `command` if `refuses` is true, and accept it otherwise.
    pub(crate) fn refuses(&self, command: &str, refuses: bool) {
        let file = self.path(&format!("refuses.{command}"));
        if refuses {
            fs::write(file, "").unwrap();
        } else {
            fs::remove_file(file).unwrap();
        }
    }

    /// Returns the configuration of all bonds, with `fields`.
    pub(crate) fn config(&self, fields: Value) -> Value {
        let mut config = self.node.config(json!({
            "devices": [{ "netdev": "bond*" }],
            "ipam": { "type": "books" },
        }));
        for (key, value) in fields.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    /// Returns the holders of leases, such as `a@rdma0`.
    pub(crate) fn held(&self) -> Vec<String> {
        let mut names: Vec<String> = files(&self.path("leases"));
        names.sort();
        names
    }

    /// Returns the calls of the plugin since this function last ran.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let log = self.path("log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        let call = |line: &str| {
            let (what, config) = line.split_at(line.find('{').unwrap());
            let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
            let config = serde_json::from_str(config).unwrap();
            Call { what, config }
        };
        text.lines().map(call).collect()
    }

    /// Returns `what` of each call that [`Self::calls`] returns.
    pub(crate) fn take_call_names(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.what).collect()
    }

    /// Returns the names of the pods' directories that contain rails files.
    pub(crate) fn rails_files(&self) -> Vec<String> {
        let mut pods = files(&self.node.state.path().join("state/rails/rails"));
        pods.sort();
        pods
    }

    pub(crate) fn rails_file(&self, pod: &str) -> Option<Value> {
        let path = format!("state/rails/rails/{pod}/rails.json");
        let text = fs::read(self.node.state.path().join(path)).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    /// Asserts that host and pods are as before, and that there are no records, leases and rails files.
    #[track_caller]
    pub(crate) fn must_be(&self, before: &Snapshot, what: &str) {
        self.node.must_be(before, what);
        assert_eq!(self.held(), [""; 0], "{what}: leases");
        assert_eq!(self.rails_files(), [""; 0], "{what}: rails' files");
    }

    #[track_caller]
    pub(crate) fn check(&self, pod: &Pod, config: &Value, result: &Value) -> crate::node::Answer {
        let mut config = config.clone();
        config["prevResult"] = result.clone();
        self.node.run("CHECK", Some(pod), &config)
    }

    fn path(&self, what: &str) -> PathBuf {
        self.node.plugins.join(format!("books.{what}"))
    }
}

/// Runs a verb with the `CNI_ARGS` of a pod that has a name.
pub(crate) fn run_named(
    node: &Node,
    command: &str,
    pod: &Pod,
    name: &str,
    config: &Value,
) -> Value {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={name}");
    let mut output = vec![];
    node.run_on(
        &node.kernel,
        command,
        Some(pod),
        config,
        Some(&args),
        &mut output,
    );
    serde_json::from_slice(&output).unwrap_or(Value::Null)
}

#[track_caller]
pub(crate) fn link_of(node: &Node, pod: &Pod, name: &str) -> Link {
    let netns = node.netns(pod);
    let found = node.kernel.with(|world| world.link(netns, name).cloned());
    found.unwrap_or_else(|| panic!("{name} is not in the pod"))
}

pub(crate) fn has_link(node: &Node, pod: &Pod, name: &str) -> bool {
    let netns = node.netns(pod);
    node.kernel.with(|world| world.link(netns, name).is_some())
}

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| name(entry.unwrap())).collect()
}
