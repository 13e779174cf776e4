// SPDX-License-Identifier: Apache-2.0
//! A node without kubelet: the real podman with its CNI backend, a network that podman created, and the entry that
//! `rdma-device-plugin install` adds to it. The NIC is a veth, so no RDMA device moves.

use integration::{Node, Snapshot, daemon::rdma_device_plugin, plugin};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Output,
};

/// Podman options. The files of every container are the machine's own `/usr`.
const OPTIONS: &str = "--cgroups=disabled --security-opt seccomp=unconfined -v /usr:/usr:ro";

/// A node, and the files of podman on it.
struct Podman {
    node: Node,
}

impl Podman {
    fn new() -> Self {
        let node = Node::with_rails(1);
        node.host.ip("address add 2001:db8:5::5/64 dev eth1 nodad");
        // the plugin `bridge` sets this sysctl, and does not restore it
        node.host.set_sysctl("ipv4/ip_forward", "1");
        let podman = Self { node };
        for directory in [
            "net.d",
            "results",
            "root/usr",
            "root/proc",
            "root/sys",
            "root/dev",
        ] {
            fs::create_dir_all(podman.path(directory)).expect("a directory");
        }
        for directory in ["root/etc", "root/run", "root/tmp"] {
            fs::create_dir(podman.path(directory)).expect("a directory");
        }
        for link in ["bin", "lib", "lib64", "sbin"] {
            let at = podman.path("root").join(link);
            symlink(Path::new("usr").join(link), at).expect("a link");
        }
        let settings = format!(
            "[network]\nnetwork_backend = \"cni\"\nnetwork_config_dir = {:?}\ncni_plugin_dirs = [{:?}, {:?}]\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
             [containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n",
            podman.path("net.d"),
            podman.path("cni"),
            plugin::DEBIAN_PLUGINS,
        );
        fs::write(podman.path("containers.conf"), settings).expect("written");
        podman
    }

    fn path(&self, below: &str) -> PathBuf {
        self.node.directory().join(below)
    }

    /// Writes a configuration for `install` on a node without kubelet.
    fn configure(&self, plugin: &Value) {
        let chain = json!({
            "confDir": self.path("net.d"), "runtime": "podman", "network": "rails", "plugin": plugin,
        });
        let text = json!({ "chain": chain }).to_string();
        fs::write(self.path("config.json"), text).expect("written");
    }

    /// Runs `script` on the node, in a mount namespace of its own (that of `ip netns exec`). In this namespace the
    /// test's own directory is libcni's cache, and cgroups have only version 2, because crun refuses a machine with
    /// both versions. `$PODMAN`, `$RUN` and `$PLUGIN` are commands.
    fn shell(&self, script: &str) -> Output {
        let own = |name: &str| self.path(name).to_str().expect("UTF-8").to_owned();
        let podman = format!(
            "podman --storage-driver vfs --root {} --runroot {} --tmpdir {}",
            own("storage"),
            own("run"),
            own("tmp"),
        );
        let prelude = format!(
            "umount -R -l /sys/fs/cgroup 2>/dev/null || true; mount -t cgroup2 none /sys/fs/cgroup; \
             mkdir -p /var/lib/cni/results; mount --bind {} /var/lib/cni/results; ",
            own("results"),
        );
        let program = rdma_device_plugin();
        let mut command = self.node.host.command("bash");
        command
            .args(["-euc", &format!("{prelude}{script}")])
            .env("CONTAINERS_CONF", self.path("containers.conf"))
            .env("PODMAN", &podman)
            .env(
                "RUN",
                format!("{podman} run --rm {OPTIONS} --network rails"),
            )
            .env("PLUGIN", program)
            .env("ROOTFS", self.path("root"))
            .env("STATE", self.path("state"))
            .env("CONF", self.path("config.json"))
            .env("BIN", self.path("cni"))
            .env("NOWHERE", self.path("nowhere"))
            .env("FROM", plugin::rdma_cni().parent().expect("a directory"));
        command.output().expect("bash")
    }

    /// Returns the output of `script`. Asserts that it succeeds.
    #[track_caller]
    fn succeeds(&self, script: &str) -> String {
        let output = self.shell(script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}:\n{output:?}\n{errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn is_home(&self) -> bool {
        self.node.host.has_link("eth1")
    }
}

const INSTALL: &str = "$PLUGIN install --config $CONF --cni-bin-dir $BIN --cni-bin-dir /usr/lib/cni \
                       --state-dir $STATE --kubelet-dir $NOWHERE --from $FROM";

fn has_link(text: &str, name: &str) -> bool {
    let links: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut links = links.as_array().into_iter().flatten();
    links.any(|link| link["ifname"] == name)
}

/// The first steps: a network of podman, `install`, a container with a rail, and the node as before.
#[test]
fn a_container_of_podman_has_a_rail_and_gives_it_back() {
    let podman = Podman::new();
    podman.configure(&json!({
        "requireRdma": false, "devices": [{ "netdev": "eth1" }],
        "ipam": { "type": "rdma-ipam", "from": "parent" },
    }));
    let before = Snapshot::of(&podman.node.host);
    // the network does not exist yet: `install` reports this, and changes no list
    let output = podman.shell(INSTALL);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("podman network create"), "{output:?}");
    podman.succeeds("$PODMAN network create rails");
    let list = fs::read(podman.path("net.d/rails.conflist")).expect("podman's list");
    let text = podman.succeeds(INSTALL);
    assert!(
        text.contains("calls rdma-cni for network rails (rails.conflist)"),
        "{text}"
    );

    let text = podman.succeeds("$RUN --rootfs $ROOTFS ip -j address show");
    assert!(
        has_link(&text, "eth0") && has_link(&text, "rdma0"),
        "{text}"
    );
    assert!(
        text.contains("2001:db8:5:"),
        "the rail has an address: {text}"
    );
    assert!(
        podman.is_home(),
        "the rail is back after the container's end"
    );

    // a container of another network has no rail, and a killed container returns its rail, too
    let text = podman.succeeds(
        "$PODMAN network create plain >&2; \
         ${RUN/--network rails/--network plain} --rootfs $ROOTFS ip -j link show",
    );
    assert!(
        has_link(&text, "eth0") && !has_link(&text, "rdma0"),
        "{text}"
    );
    podman.succeeds(
        "${RUN/--rm/-d} --name killed --rootfs $ROOTFS sleep 1000; \
         ! ip link show eth1 2>&1; $PODMAN kill killed; $PODMAN rm killed",
    );
    assert!(
        podman.is_home(),
        "the rail is back after the container was killed"
    );

    podman.succeeds("$PLUGIN uninstall --state-dir $STATE");
    let restored = fs::read(podman.path("net.d/rails.conflist")).expect("podman's list");
    assert_eq!(restored, list, "the list is as podman wrote it");
    podman.succeeds("$PODMAN network rm rails plain");
    before.assert_restored(&podman.node.host);
}

/// If the entry names no devices, no program can tell which devices a container gets. ADD's message and `doctor` name
/// the same remedy.
#[test]
fn an_entry_that_queries_kubelet_is_reported_by_doctor_and_refused_by_add() {
    let podman = Podman::new();
    podman.succeeds("$PODMAN network create rails");
    let chain = json!({ "chain": { "confDir": podman.path("net.d") } }).to_string();
    fs::write(podman.path("config.json"), chain).expect("written");
    let output = podman.shell(INSTALL);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("chain.plugin.devices"), "{output:?}");
    let text = podman.succeeds(&format!("{INSTALL} --without-kubelet"));
    assert!(text.contains("chain.plugin.devices"), "{text}");

    let output = podman.shell("$PLUGIN doctor --state-dir $STATE");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(
        words.join(" ").contains("name the devices in the entry"),
        "{text}"
    );

    let output = podman.shell("$RUN --rootfs $ROOTFS true");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        error.contains("name the devices by deviceID or devices"),
        "{error}"
    );
}

/// `install` accepts the example of `docs/install.md`, which is a file in `conf`.
#[test]
fn the_example_is_taken_by_install() {
    let podman = Podman::new();
    podman.succeeds("$PODMAN network create rails");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/install/podman.yaml");
    let text = fs::read_to_string(example).expect("the example");
    let own = format!("confDir: {:?}", podman.path("net.d"));
    let text = text.replacen("chain:\n", &format!("chain:\n  {own}\n"), 1);
    assert!(text.contains(&own), "{text}");
    fs::write(podman.path("config.json"), text).expect("written");
    let text = podman.succeeds(INSTALL);
    assert!(
        text.contains("calls rdma-cni for network rails (rails.conflist)"),
        "{text}"
    );
}
