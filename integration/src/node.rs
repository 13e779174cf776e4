// SPDX-License-Identifier: Apache-2.0
//! A small test machine: a host with rails on a switch, pods, and a state directory.

use crate::{
    Attachment, Invocation, Netns, Runtime, Snapshot, StandInIpam,
    plugin::{cni_path, rdma_cni},
    wait,
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A small test machine. Rails are veths. Their peers are on a bridge in a separate namespace, so the host's namespace
/// has only the rails.
#[derive(Debug)]
pub struct Node {
    /// Namespace in which plugins are started.
    pub host: Netns,
    /// Namespace of the switch.
    pub switch: Netns,
    /// Stand-in IPAM plugin, found by [`crate::ipam::NAME`].
    pub ipam: StandInIpam,
    directory: TempDir,
    plugin: PathBuf,
    /// Prefix of the names of the switch's ports.
    ports: String,
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// Makes a host without rails.
    #[track_caller]
    pub fn new() -> Self {
        Self::on(Netns::new("host"))
    }

    /// Makes a node with the host `host`. If a test makes RDMA devices, `host` must be [`Netns::own`].
    #[track_caller]
    pub fn on(host: Netns) -> Self {
        let switch = Netns::new("switch");
        switch.ip("link add name br0 type bridge");
        switch.ip("link set dev br0 up");
        Self::at(host, switch, "to".into())
    }

    /// Makes another machine on this machine's switch. `number` is its number, from 2.
    #[track_caller]
    pub fn beside(&self, number: u32) -> Self {
        let switch = Netns::existing(self.switch.path());
        Self::at(Netns::new("host"), switch, format!("to{number}"))
    }

    #[track_caller]
    fn at(host: Netns, switch: Netns, ports: String) -> Self {
        let plugin = rdma_cni();
        // The host's new link-local addresses are usable immediately, so a test need not wait for them. Pods have
        // separate settings.
        host.set_sysctl("ipv6/conf/default/dad_transmits", "0");
        host.set_sysctl("ipv6/conf/default/router_solicitation_delay", "0");
        host.ip("link set dev lo up");
        let directory = TempDir::new().expect("a temporary directory");
        let ipam = StandInIpam::install(&directory.path().join("bin"));
        Self {
            host,
            switch,
            ipam,
            directory,
            plugin,
            ports,
        }
    }

    /// Makes a host with `rails` rails, called `eth1`, `eth2`…
    #[track_caller]
    pub fn with_rails(rails: u32) -> Self {
        let node = Self::new();
        for rail in 1..=rails {
            node.add_rail(&format!("eth{rail}"));
        }
        node
    }

    /// Makes a host with the rails `eth1` and `eth2`, configured as an administrator configures them.
    #[track_caller]
    pub fn furnished() -> Self {
        let node = Self::with_rails(2);
        node.furnish();
        node
    }

    /// Configures the rails `eth1` and `eth2` as an administrator does: addresses, a route, an MTU, an alternative
    /// name.
    #[track_caller]
    pub fn furnish(&self) {
        for line in [
            "address add 192.0.2.5/24 dev eth1",
            "address add 2001:db8:5::5/64 dev eth1 nodad",
            "route add 198.51.100.0/24 via 192.0.2.1 dev eth1 metric 120",
            "link set dev eth2 mtu 1400",
            "link property add dev eth2 altname second-rail",
        ] {
            self.host.ip(line);
        }
        // a kernel worker adds the route a little later (`addrconf_dad_work()`, net/ipv6/addrconf.c)
        wait::until("the kernel has the address's local route", || {
            let routes = self.host.ip("-6 route show table local");
            routes.contains("2001:db8:5::5 ")
        });
    }

    /// Makes a node whose rail `eth1` is a macvlan on the NIC `nic0`. The rail is up.
    #[track_caller]
    pub fn with_macvlan() -> Self {
        let node = Self::with_rails(0);
        node.add_rail("nic0");
        node.host
            .ip("link add link nic0 name eth1 type macvlan mode bridge");
        node.host.ip("link set dev eth1 up");
        node
    }

    /// Adds a rail that is up. Its only address is link-local.
    #[track_caller]
    pub fn add_rail(&self, name: &str) {
        let peer = format!("{}-{name}", self.ports);
        let switch = self.switch.name();
        self.host.ip(&format!(
            "link add name {name} type veth peer name {peer} netns {switch}"
        ));
        self.switch
            .ip(&format!("link set dev {peer} master br0 up"));
        self.host.ip(&format!("link set dev {name} up"));
        // the kernel adds the address after the carrier, which the veth reports a little later
        wait::until("the rail has its link-local address", || {
            let link = self.host.link(name).unwrap_or_default();
            link["addr_info"]
                .as_array()
                .is_some_and(|it| !it.is_empty())
        });
    }

    /// Makes a pod's namespace.
    #[track_caller]
    pub fn pod(&self, label: &str) -> Netns {
        let pod = Netns::new(label);
        pod.ip("link set dev lo up");
        pod
    }

    /// Returns the `stateDir` of the configurations.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Returns a directory for a test's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a network configuration for the host's netdevs `netdevs`. It has no IPAM.
    pub fn configuration(&self, netdevs: &[&str]) -> Value {
        let devices: Vec<Value> = netdevs
            .iter()
            .map(|netdev| json!({"netdev": netdev}))
            .collect();
        json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "rdma-cni",
            "stateDir": self.state(),
            "requireRdma": false,
            "interfaceName": "rdma%d",
            "devices": devices,
        })
    }

    /// Returns the `CNI_PATH` with the plugin's directory, the stand-in's, and Debian's.
    pub fn cni_path(&self) -> String {
        cni_path(&self.plugin, &[self.ipam.directory()])
    }

    /// Returns a call of `rdma-cni` without environment and input.
    pub fn bare(&self) -> Invocation<'_> {
        Invocation::new(&self.host, &self.plugin)
    }

    /// Returns a call of `rdma-cni` as a runtime makes it for the namespace `netns`: the container id is `container`,
    /// and `CNI_IFNAME` is `eth0`.
    pub fn invoke(&self, command: &str, container: &str, netns: &Path) -> Invocation<'_> {
        let path = self.cni_path();
        self.bare()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &path)
    }

    /// Runs ADD of `configuration` for `pod`, as container `container`. It must succeed. Returns the result.
    #[track_caller]
    pub fn add(&self, configuration: &Value, container: &str, pod: &Netns) -> Value {
        self.invoke("ADD", container, pod.path())
            .input(configuration)
            .run()
            .result()
    }

    /// Runs DEL, which must succeed.
    #[track_caller]
    pub fn del(&self, configuration: &Value, container: &str, pod: &Netns) {
        self.invoke("DEL", container, pod.path())
            .input(configuration)
            .run()
            .silent();
    }

    /// Returns a runtime on this machine.
    pub fn runtime(&self) -> Runtime<'_> {
        Runtime::new(
            &self.host,
            &self.cni_path(),
            &self.directory.path().join("cache"),
        )
    }

    /// Returns the attachment `eth0` of container `container` in `pod`.
    pub fn attachment(&self, container: &str, pod: &Netns) -> Attachment {
        Attachment::new(container, pod.path(), "eth0")
    }

    /// Returns the path of the record of container `container` on network `network`.
    pub fn record(&self, network: &str, container: &str) -> PathBuf {
        self.state()
            .join("attachments")
            .join(network)
            .join(format!("{container}@eth0.json"))
    }

    /// Asserts that the host is the same as `before`, and that there is no record of any pod.
    #[track_caller]
    pub fn assert_restored(&self, before: &Snapshot) {
        before.assert_restored(&self.host);
        let left = self.records();
        assert!(left.is_empty(), "a record was left: {left:?}");
    }

    /// Returns the paths of all records of all networks.
    pub fn records(&self) -> Vec<PathBuf> {
        let list = |directory: &Path| -> Vec<PathBuf> {
            let Ok(entries) = fs::read_dir(directory) else {
                return vec![];
            };
            entries
                .map(|entry| entry.expect("an entry").path())
                .collect()
        };
        let networks = list(&self.state().join("attachments"));
        let mut records: Vec<_> = networks.iter().flat_map(|network| list(network)).collect();
        records.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        });
        records
    }
}
