// SPDX-License-Identifier: Apache-2.0
//! A machine in small: a host with rails on a switch, pods, and a state directory.

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

/// The machine. Rails are veths whose other ends are on a bridge in a namespace of their
/// own, so that nothing of the set-up is in the host's.
#[derive(Debug)]
pub struct Node {
    /// The namespace that plugins are started in.
    pub host: Netns,
    /// Namespace that has the switch.
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
    /// A host without rails.
    #[track_caller]
    pub fn new() -> Self {
        Self::on(Netns::new("host"))
    }

    /// Makes a node with the host `host`: [`Netns::own`], if RDMA devices are to be made.
    #[track_caller]
    pub fn on(host: Netns) -> Self {
        let switch = Netns::new("switch");
        switch.ip("link add name br0 type bridge");
        switch.ip("link set dev br0 up");
        Self::at(host, switch, "to".into())
    }

    /// Another machine on the switch of this one, which is the `number`th: from 2.
    #[track_caller]
    pub fn beside(&self, number: u32) -> Self {
        let switch = Netns::existing(self.switch.path());
        Self::at(Netns::new("host"), switch, format!("to{number}"))
    }

    #[track_caller]
    fn at(host: Netns, switch: Netns, ports: String) -> Self {
        let plugin = rdma_cni();
        // The host's link-local addresses are usable at once: a test need not wait. A
        // pod has its own setting.
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

    /// A host with `rails` called `eth1`, `eth2`…
    #[track_caller]
    pub fn with_rails(rails: u32) -> Self {
        let node = Self::new();
        for rail in 1..=rails {
            node.add_rail(&format!("eth{rail}"));
        }
        node
    }

    /// A host with the rails `eth1` and `eth2`, as its administrator has set them up.
    #[track_caller]
    pub fn furnished() -> Self {
        let node = Self::with_rails(2);
        node.furnish();
        node
    }

    /// Sets the rails `eth1` and `eth2` up as an administrator does: addresses, a route, an MTU, another name.
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
        // in a worker, a little later (`addrconf_dad_work()`, net/ipv6/addrconf.c)
        wait::until("the kernel has the address's local route", || {
            let routes = self.host.ip("-6 route show table local");
            routes.contains("2001:db8:5::5 ")
        });
    }

    /// A node whose rail `eth1` is a macvlan, up, on the NIC `nic0`.
    #[track_caller]
    pub fn with_macvlan() -> Self {
        let node = Self::with_rails(0);
        node.add_rail("nic0");
        node.host
            .ip("link add link nic0 name eth1 type macvlan mode bridge");
        node.host.ip("link set dev eth1 up");
        node
    }

    /// Adds a rail: up, without addresses but its link-local one.
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
        // it comes with the carrier, which the kernel reports a little later
        wait::until("the rail has its link-local address", || {
            let link = self.host.link(name).unwrap_or_default();
            link["addr_info"]
                .as_array()
                .is_some_and(|it| !it.is_empty())
        });
    }

    /// A pod's namespace.
    #[track_caller]
    pub fn pod(&self, label: &str) -> Netns {
        let pod = Netns::new(label);
        pod.ip("link set dev lo up");
        pod
    }

    /// `stateDir` of the configurations.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Returns a directory for a test's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A network configuration for the host's netdevs `netdevs`, without IPAM.
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

    /// Returns `CNI_PATH`: the plugin's directory, the stand-in's, Debian's.
    pub fn cni_path(&self) -> String {
        cni_path(&self.plugin, &[self.ipam.directory()])
    }

    /// `rdma-cni` with nothing set.
    pub fn bare(&self) -> Invocation<'_> {
        Invocation::new(&self.host, &self.plugin)
    }

    /// `rdma-cni` as a runtime calls it for `pod`: container id is `container`, `CNI_IFNAME`
    /// is `eth0`.
    pub fn invoke(&self, command: &str, container: &str, netns: &Path) -> Invocation<'_> {
        let path = self.cni_path();
        self.bare()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &path)
    }

    /// ADD of `configuration` to `pod`, as container `container`; it must succeed.
    #[track_caller]
    pub fn add(&self, configuration: &Value, container: &str, pod: &Netns) -> Value {
        self.invoke("ADD", container, pod.path())
            .input(configuration)
            .run()
            .result()
    }

    /// DEL, which must succeed.
    #[track_caller]
    pub fn del(&self, configuration: &Value, container: &str, pod: &Netns) {
        self.invoke("DEL", container, pod.path())
            .input(configuration)
            .run()
            .silent();
    }

    /// A runtime on this machine.
    pub fn runtime(&self) -> Runtime<'_> {
        Runtime::new(
            &self.host,
            &self.cni_path(),
            &self.directory.path().join("cache"),
        )
    }

    /// An attachment called `eth0` of container `container` in `pod`.
    pub fn attachment(&self, container: &str, pod: &Netns) -> Attachment {
        Attachment::new(container, pod.path(), "eth0")
    }

    /// The record of container `container` on network `network`.
    pub fn record(&self, network: &str, container: &str) -> PathBuf {
        self.state()
            .join("attachments")
            .join(network)
            .join(format!("{container}@eth0.json"))
    }

    /// The host is as it was `before`, and there is no record of any pod.
    #[track_caller]
    pub fn assert_restored(&self, before: &Snapshot) {
        before.assert_restored(&self.host);
        let left = self.records();
        assert!(left.is_empty(), "a record was left: {left:?}");
    }

    /// All records, of all networks.
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
