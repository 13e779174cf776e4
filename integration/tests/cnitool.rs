// SPDX-License-Identifier: Apache-2.0
//! `rdma-cni`, called by libcni's own `cnitool`, which `scripts/cnitool` builds.

use base64::{Engine, prelude::BASE64_STANDARD};
use integration::{Invocation, Netns, Node, Outcome, Snapshot, ipam};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// A node with one rail, and the CNI list that `cnitool` finds.
struct Libcni {
    node: Node,
    pod: Netns,
}

impl Libcni {
    /// `name` is the network's name. It must be unique, because libcni keeps its cache of all networks in one
    /// directory.
    fn new(name: &str, version: &str, plugins: &[Value]) -> Self {
        let node = Node::with_rails(1);
        let list = json!({ "cniVersion": version, "name": name, "plugins": plugins });
        let directory = node.directory().join("net.d");
        fs::create_dir(&directory).expect("a directory");
        fs::write(directory.join("10-net.conflist"), list.to_string()).expect("a list");
        let pod = node.pod("pod");
        Self { node, pod }
    }

    fn run(&self, command: &str, network: &str) -> Outcome {
        self.run_with(command, network, &[])
    }

    fn run_with(&self, command: &str, network: &str, environment: &[(&str, &str)]) -> Outcome {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cnitool");
        assert!(
            program.exists(),
            "there is no {program:?}: run scripts/cnitool"
        );
        let pod = self.pod.path().to_str().expect("UTF-8");
        let call = Invocation::new(&self.node.host, &program);
        let words = [command, network, pod].into_iter();
        let call = words.fold(call, |call, word| call.argument(word));
        let environment = environment.iter();
        environment
            .fold(call, |call, (name, value)| call.env(name, value))
            .env("CNI_PATH", self.node.cni_path())
            .env("NETCONFPATH", self.node.directory().join("net.d"))
            .run()
    }
}

#[track_caller]
fn succeeds(outcome: &Outcome) {
    assert!(outcome.status.success(), "{outcome}");
}

fn ours() -> Value {
    let addresses = json!([{ "address": "192.0.2.10/24" }, { "address": "2001:db8:1::10/64" }]);
    json!({
        "type": "rdma-cni", "requireRdma": false, "devices": [{ "netdev": "eth1" }],
        "ipam": { "type": "static", "addresses": addresses },
    })
}

/// `cnitool gc` passes no list of valid attachments. GC then succeeds and drops nothing.
#[test]
fn gc_without_a_list_succeeds_and_drops_nothing() {
    let mut plugin = ours();
    plugin.as_object_mut().expect("an object").remove("ipam");
    let state = tempfile::tempdir().expect("a directory");
    plugin["stateDir"] = state.path().to_str().expect("UTF-8").into();
    let libcni = Libcni::new("cnitool-gc", "1.1.0", &[plugin.clone()]);
    let node = &libcni.node;
    let before = Snapshot::of(&node.host);
    succeeds(&libcni.run("status", "cnitool-gc"));
    // libcni itself sends DEL only for attachments that it added: not for the attachment `a`
    plugin["cniVersion"] = "1.1.0".into();
    plugin["name"] = "cnitool-gc".into();
    node.add(&plugin, "a", &libcni.pod);
    succeeds(&libcni.run("gc", "cnitool-gc"));
    assert!(libcni.pod.has_link("eth0"), "the pod's rail was taken away");
    node.del(&plugin, "a", &libcni.pod);
    before.assert_restored(&node.host);
}

/// The chain contains the reference `bridge`. Its CHECK expects every address of the result on its own interface.
/// libcni drops unknown fields of a result, such as `rails`.
#[test]
fn check_succeeds_behind_the_reference_bridge() {
    let state = tempfile::tempdir().expect("a directory");
    let mut plugin = ours();
    plugin["stateDir"] = state.path().to_str().expect("UTF-8").into();
    let leases = state.path().join("leases");
    let bridge = json!({
        "type": "bridge", "bridge": "cni0",
        "ipam": { "type": "host-local", "subnet": "10.9.0.0/24", "dataDir": leases },
    });
    let libcni = Libcni::new("cnitool-check", "1.0.0", &[bridge, plugin]);
    let outcome = libcni.run("add", "cnitool-check");
    succeeds(&outcome);
    let result = outcome.result();
    assert_eq!(result["ips"].as_array().expect("ips").len(), 1, "{result}");
    assert_eq!(result["interfaces"][3]["name"], "rdma0", "{result}");
    succeeds(&libcni.run("check", "cnitool-check"));
    libcni.pod.ip("address del 192.0.2.10/24 dev rdma0");
    let outcome = libcni.run("check", "cnitool-check");
    assert!(!outcome.status.success(), "{outcome}");
    succeeds(&libcni.run("del", "cnitool-check"));
    assert!(libcni.node.host.has_link("eth1"));
}

/// An IPAM plugin without CHECK, such as whereabouts, makes each CHECK fail. `disableCheck` in the list avoids this.
#[test]
fn a_list_with_disable_check_is_not_checked() {
    let state = tempfile::tempdir().expect("a directory");
    let mut plugin = ours();
    plugin["stateDir"] = state.path().to_str().expect("UTF-8").into();
    plugin["ipam"] = json!({ "type": ipam::NAME });
    let network = "cnitool-unchecked";
    let libcni = Libcni::new(network, "1.0.0", &[plugin.clone()]);
    let node = &libcni.node;
    node.ipam
        .answer("ADD", &json!({ "ips": [{ "address": "192.0.2.10/24" }] }));
    let why = "CNI CHECK method is not implemented";
    node.ipam.fail("CHECK", 999, why);
    succeeds(&libcni.run("add", network));
    let outcome = libcni.run("check", network);
    assert!(outcome.stderr.contains(why), "{outcome}");
    assert!(!outcome.status.success(), "{outcome}");
    let list = json!({ "cniVersion": "1.0.0", "name": network, "disableCheck": true, "plugins": [plugin] });
    let file = node.directory().join("net.d/10-net.conflist");
    fs::write(file, list.to_string()).expect("a list");
    succeeds(&libcni.run("check", network));
    succeeds(&libcni.run("del", network));
}

/// Since 1.3, libcni appends the plugins of the network's own directory to those of its list. libcni calls `rdma-cni`
/// from this directory at ADD, CHECK and DEL, with the list unchanged. The list in libcni's cache does not show the
/// directory's plugins; the interfaces of the cached result do.
#[test]
fn a_file_in_the_networks_directory_is_called() {
    let directory = Directory::new("cnitool-directory", "1.0.0");
    let libcni = &directory.libcni;
    let (network, before) = ("cnitool-directory", Snapshot::of(&libcni.node.host));
    directory.write("99-rdma-cni.conf", &directory.ours);
    let outcome = libcni.run("add", network);
    succeeds(&outcome);
    assert_eq!(
        outcome.result()["interfaces"][3]["name"],
        "rdma0",
        "{outcome}"
    );
    let (list, result) = directory.kept();
    assert_eq!(list["plugins"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(result["interfaces"][3]["name"], "rdma0", "{result}");
    succeeds(&libcni.run("check", network));
    libcni.pod.ip("address del 192.0.2.10/24 dev rdma0");
    assert!(!libcni.run("check", network).status.success());
    succeeds(&libcni.run("del", network));
    libcni.node.host.ip("link del cni0");
    before.assert_restored(&libcni.node.host);
    // libcni does not call `rdma-cni` from the directory if the list disables the directory
    let list = directory.list(&[], &json!({ "loadOnlyInlinedPlugins": true }));
    directory.write("../10-net.conflist", &list);
    let outcome = libcni.run("add", network);
    succeeds(&outcome);
    assert!(!libcni.pod.has_link("rdma0"), "{outcome}");
    succeeds(&libcni.run("del", network));
}

/// A pod gets its rails once if the list and the directory both have the entry, as between two steps of the daemon.
#[test]
fn the_list_and_the_directory_at_once_give_a_pod_its_rails_once() {
    let directory = Directory::new("cnitool-both", "1.0.0");
    let (libcni, network) = (&directory.libcni, "cnitool-both");
    let before = Snapshot::of(&libcni.node.host);
    directory.write("99-rdma-cni.conf", &directory.ours);
    let list = directory.list(std::slice::from_ref(&directory.ours), &json!({}));
    directory.write("../10-net.conflist", &list);
    let outcome = libcni.run("add", network);
    succeeds(&outcome);
    let interfaces = outcome.result()["interfaces"].as_array().map(Vec::len);
    assert_eq!(interfaces, Some(4), "{outcome}");
    succeeds(&libcni.run("check", network));
    succeeds(&libcni.run("del", network));
    assert!(!libcni.pod.has_link("rdma0"));
    libcni.node.host.ip("link del cni0");
    before.assert_restored(&libcni.node.host);
}

/// The detection entry records ADD and DEL of a pod, also in a CNI version whose DEL gets no result. By these records
/// the daemon detects that the runtime calls plugins of the directory. A DEL without an ADD leaves no record.
#[test]
fn the_entry_that_finds_out_notes_what_libcni_calls() {
    for (network, version) in [("cnitool-new", "1.0.0"), ("cnitool-old", "0.3.1")] {
        let directory = Directory::new(network, version);
        let libcni = &directory.libcni;
        let state = directory.state.path().join("detected");
        fs::create_dir(&state).expect("a directory");
        let notes = || {
            let entries = fs::read_dir(&state).expect("the directory");
            let names = entries.map(|it| it.expect("an entry").file_name().into_string());
            let mut names: Vec<String> = names.map(|it| it.expect("UTF-8")).collect();
            names.sort();
            names
        };
        let detecting =
            json!({ "type": "rdma-cni", "detect": true, "stateDir": directory.state.path() });
        directory.write("99-rdma-cni.conf", &detecting);
        succeeds(&libcni.run("add", network));
        assert_eq!(notes(), [] as [&str; 0], "{network}: by hand");
        succeeds(&libcni.run("del", network));
        assert_eq!(notes(), [] as [&str; 0], "{network}: by hand");
        let pod = [(
            "CNI_ARGS",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a",
        )];
        succeeds(&libcni.run_with("add", network, &pod));
        assert_eq!(notes(), [format!("ADD@{network}")]);
        succeeds(&libcni.run_with("del", network, &pod));
        assert_eq!(
            notes(),
            [format!("ADD@{network}"), format!("DEL@{network}")]
        );
        // a DEL without an ADD, as after a failed start
        fs::remove_file(state.join(format!("DEL@{network}"))).expect("removed");
        succeeds(&libcni.run_with("del", network, &pod));
        assert_eq!(notes(), [format!("ADD@{network}")]);
    }
}

/// A network of the reference `bridge`, with a plugin directory of its own.
struct Directory {
    libcni: Libcni,
    state: tempfile::TempDir,
    ours: Value,
}

impl Directory {
    fn new(network: &str, version: &str) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let mut ours = ours();
        ours["stateDir"] = state.path().to_str().expect("UTF-8").into();
        let bridge = json!({
            "type": "bridge", "bridge": "cni0",
            "ipam": { "type": "host-local", "subnet": "10.9.0.0/24", "dataDir": state.path().join("leases") },
        });
        let libcni = Libcni::new(network, version, &[bridge]);
        fs::create_dir(libcni.node.directory().join("net.d").join(network)).expect("a directory");
        Self {
            libcni,
            state,
            ours,
        }
    }

    /// The network's list, with the additional plugins `more` and the additional `fields`.
    fn list(&self, more: &[Value], fields: &Value) -> Value {
        let path = self.libcni.node.directory().join("net.d/10-net.conflist");
        let text = fs::read(path).expect("the list");
        let mut list: Value = serde_json::from_slice(&text).expect("JSON");
        list["plugins"]
            .as_array_mut()
            .expect("a list")
            .extend_from_slice(more);
        let fields = fields.as_object().cloned();
        list.as_object_mut()
            .expect("an object")
            .extend(fields.expect("an object"));
        list
    }

    /// Writes a file in the network's own directory.
    fn write(&self, file: &str, value: &Value) {
        let net = self.libcni.node.directory().join("net.d");
        let entries = fs::read_dir(&net).expect("the directory").flatten();
        let own = entries.map(|it| it.path()).find(|it| it.is_dir());
        fs::write(own.expect("the directory").join(file), value.to_string()).expect("written");
    }

    /// The list and the result in libcni's cache.
    fn kept(&self) -> (Value, Value) {
        let entries = fs::read_dir("/var/lib/cni/results")
            .expect("libcni's cache")
            .flatten();
        let mut files = entries.map(|it| it.path());
        let is_it = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("cnitool-directory-")
        };
        let text = fs::read(files.find(is_it).expect("the network")).expect("read");
        let kept: Value = serde_json::from_slice(&text).expect("JSON");
        let list = BASE64_STANDARD.decode(kept["config"].as_str().expect("the list"));
        let list = serde_json::from_slice(&list.expect("base64")).expect("JSON");
        (list, kept["result"].clone())
    }
}
