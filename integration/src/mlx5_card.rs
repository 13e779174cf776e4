// SPDX-License-Identifier: Apache-2.0
//! The lab's ConnectX card under Debian's own driver, as seen from inside the VM (`integration/lab/vm --tier mlx5`, or
//! `integration/lab/pair`). The driver and the kernel are real, the card is a model.

use crate::{
    Daemon, Netns, Node,
    daemon::rdma_device_plugin,
    kubelet::DeviceManager,
    model_orders::ModelOrders,
    netns::{self, parse_list},
    wait,
};
use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// PCI functions of the card.
pub const FUNCTIONS: [&str; 2] = ["0000:21:01.0", "0000:21:01.1"];
/// PCI addresses of the virtual functions, in the machine that has virtual functions instead of the card.
pub const VIRTUAL_FUNCTIONS: [&str; 2] = ["0000:21:01.0", "0000:21:02.0"];
/// Netdevs of the card's functions.
pub const NETDEVS: [&str; 2] = ["enp33s1f0np0", "enp33s1f1np1"];
/// The virtual functions' netdevs.
pub const VIRTUAL_NETDEVS: [&str; 2] = ["enp33s1", "enp33s2"];
/// IPoIB netdevs of the card's functions, if the ports are InfiniBand.
pub const IPOIB: [&str; 2] = ["ibp33s1f0", "ibp33s1f1"];
/// Permanent MACs of the functions, in a machine that is no node of a cluster or pair.
pub const MACS: [&str; 2] = ["52:54:00:bb:00:01", "52:54:00:bb:00:02"];
/// Addresses of the functions in the tests.
pub const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
/// RDMA devices of the functions.
pub const RDMA: [&str; 2] = ["mlx5_0", "mlx5_1"];
/// Time limit for work of the driver in a kernel worker. Under emulation this takes several seconds.
const TIMEOUT: Duration = Duration::from_secs(160);

/// A machine with the driver loaded. Drop unloads the driver.
#[derive(Debug)]
pub struct Mlx5Card {
    /// The VM's own namespace.
    pub host: Netns,
    /// Netdevs of the functions.
    netdevs: [&'static str; 2],
}

impl Mlx5Card {
    /// Loads the driver. Returns when both functions have their netdev and RDMA device.
    ///
    /// `mode` is the mode of the RDMA subsystem, `exclusive` or `shared`. The kernel changes it only if no other
    /// network namespace exists.
    #[track_caller]
    pub fn new(mode: &str) -> Self {
        assert_eq!(
            env::var("RDMA_LAB_TIER").as_deref(),
            Ok("mlx5"),
            "this test runs in the lab, by integration/lab/vm --tier mlx5"
        );
        let host = Netns::own();
        wait::until("the mode of the RDMA subsystem is set", || {
            let mut set = Command::new("rdma");
            let set = set.args(["system", "set", "netns", mode]).output();
            set.expect("rdma of iproute2").status.success()
        });
        let is_infiniband = env::var("RDMA_LAB_LINK").as_deref() == Ok("infiniband");
        let netdevs = match (is_infiniband, functions() == VIRTUAL_FUNCTIONS) {
            (true, _) => IPOIB,
            (false, true) => VIRTUAL_NETDEVS,
            (false, false) => NETDEVS,
        };
        let card = Self { host, netdevs };
        for order in ["plug all", "link all up"] {
            assert_eq!(card.order(order), "ok");
        }
        card.host.run("modprobe mlx5_core");
        if is_infiniband {
            card.host.run("modprobe ib_ipoib");
        }
        card.are_home();
        card
    }

    /// Waits until both functions have their netdevs and RDMA devices, with their usual names, in the VM's own
    /// namespace.
    #[track_caller]
    pub fn are_home(&self) {
        let is_home = || {
            let links = links(&self.host);
            (0..2).all(|function| {
                let netdev = self.netdevs[function];
                // `rdma link show` does not name the netdev of an InfiniBand port
                let is_it = |it: &Value| {
                    it["ifname"] == RDMA[function]
                        && (it["netdev"] == netdev || self.netdevs == IPOIB)
                };
                links.iter().any(is_it) && directory(function).join("net").join(netdev).exists()
            })
        };
        let shown = || (links(&self.host), self.host.ip("-br link"));
        assert!(wait::within(TIMEOUT, is_home), "{:?}", shown());
    }

    /// Sends the model an order. Returns the answer, without the end of the line.
    #[track_caller]
    pub fn order(&self, order: &str) -> String {
        ModelOrders::open().execute(order)
    }

    /// Returns the model's status line of the function, with its state and counters.
    #[track_caller]
    pub fn status(&self, function: usize) -> String {
        let status = self.order("status");
        let line = status.lines().find(|it| it.starts_with(MACS[function]));
        line.expect("a line for each function").to_owned()
    }

    /// Waits until the port of an RDMA device in `netns` has the state `state`: `ACTIVE` or `DOWN`.
    #[track_caller]
    pub fn has_state(&self, netns: &Netns, rdma: &str, state: &str) {
        let has = || (links(netns).iter()).any(|it| it["ifname"] == rdma && it["state"] == state);
        assert!(
            wait::within(TIMEOUT, has),
            "{rdma} {state}: {:?}\n{}",
            links(netns),
            fs::read_to_string("/proc/net/bonding/bond0").unwrap_or_default()
        );
    }

    /// Waits until the netdev uses its link-local address. The kernel makes the address's routes shortly after carrier.
    #[track_caller]
    fn has_link_local(&self, netdev: &str) {
        let line = format!("-6 route show table local dev {netdev}");
        wait::until("the netdev has a link-local address", || {
            self.host.ip(&line).contains("fe80::")
        });
    }

    /// Makes a node on which both netdevs are up and have addresses, and both ports are active.
    #[track_caller]
    pub fn node(&self) -> Node {
        self.node_with(ADDRESSES)
    }

    /// Makes a node like [`Self::node`], with other addresses in one /24.
    #[track_caller]
    pub fn node_with(&self, addresses: [&str; 2]) -> Node {
        let node = Node::on(Netns::own());
        for (function, netdev) in self.netdevs.into_iter().enumerate() {
            for key in ["dad_transmits", "router_solicitation_delay"] {
                let key = format!("ipv6/conf/{netdev}/{key}");
                node.host.set_sysctl(&key, "0");
            }
            node.host.ip(&format!("link set dev {netdev} up"));
            let address = addresses[function];
            node.host
                .ip(&format!("address add {address}/24 dev {netdev}"));
            self.has_state(&node.host, RDMA[function], "ACTIVE");
            self.has_link_local(netdev);
        }
        node
    }

    /// Makes `bond0` of both functions, in the bond mode `mode` and with `address`. Returns when the driver has made
    /// the bonded RDMA device, and in mode 802.3ad both functions have joined the switch's aggregate.
    #[track_caller]
    pub fn bond(&self, mode: &str, address: &str) {
        self.host.run("modprobe bonding");
        self.host
            .ip(&format!("link add bond0 type bond mode {mode} miimon 100"));
        for netdev in self.netdevs {
            self.host.ip(&format!("link set dev {netdev} master bond0"));
        }
        self.host.set_sysctl("ipv6/conf/bond0/dad_transmits", "0");
        self.host.ip("link set dev bond0 up");
        self.host.ip(&format!("address add {address} dev bond0"));
        self.has_state(&self.host, "mlx5_bond_0", "ACTIVE");
        self.has_link_local("bond0");
        if mode == "802.3ad" {
            let bond = || self.host.link("bond0").expect("a bond");
            let aggregate = || bond()["linkinfo"]["info_data"]["ad_info"].clone();
            let has_both = || {
                let aggregate = aggregate();
                aggregate["num_ports"] == 2 && aggregate["partner_mac"] == "52:54:00:bb:ff:ff"
            };
            assert!(wait::within(wait::TIMEOUT, has_both), "{}", aggregate());
        }
    }

    /// Removes the bond. Returns when both functions have their netdevs and RDMA devices again.
    #[track_caller]
    pub fn unbond(&self) {
        self.host.ip("link del dev bond0");
        for netdev in self.netdevs {
            self.host.ip(&format!("link set dev {netdev} down"));
        }
        self.are_home();
    }
}

impl Drop for Mlx5Card {
    fn drop(&mut self) {
        // a failed test may have left the bond
        for line in [
            "ip link del dev bond0",
            "modprobe -r ib_ipoib mlx5_ib mlx5_core",
        ] {
            let mut words = line.split_whitespace();
            let _ = Command::new(words.next().unwrap_or_default())
                .args(words)
                .output();
        }
    }
}

/// Returns the ports of the RDMA devices in `netns`, as `rdma -j link show` lists them.
#[track_caller]
pub fn links(netns: &Netns) -> Vec<Value> {
    parse_list(&netns::check(&mut list(netns)))
}

/// Waits until no RDMA device is in `netns`. The kernel answers `EIO` while a device there does not answer its driver.
#[track_caller]
pub fn has_no_links(netns: &Netns) {
    wait::until("the RDMA device is removed", || {
        let output = list(netns).output().expect("rdma of iproute2");
        output.status.success() && parse_list(&String::from_utf8_lossy(&output.stdout)).is_empty()
    });
}

fn list(netns: &Netns) -> Command {
    let mut command = netns.command("rdma");
    command.args(["-j", "link", "show"]);
    command
}

/// Returns the number of bytes that the port of the RDMA device has sent. `netns` is the device's namespace, in which
/// sysfs shows the port's counters.
#[track_caller]
pub fn sent(netns: &Netns, rdma: &str) -> u64 {
    let counters = format!("/sys/class/infiniband/{rdma}/ports/1/counters");
    let text = netns.run(&format!("cat {counters}/port_xmit_data"));
    // the counter's unit is 4 bytes
    4 * text.trim().parse::<u64>().expect("a number")
}

/// Returns the text of a file, without white space at its beginning and end.
#[track_caller]
pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    text.trim().to_owned()
}

/// Returns a configuration of `rdma-cni` that moves `netdev` and its RDMA device into a pod.
#[track_caller]
pub fn configuration(node: &Node, netdev: &str) -> Value {
    let mut configuration = node.configuration(&[netdev]);
    configuration["requireRdma"] = true.into();
    configuration
}

/// Returns a configuration that gives a pod a child of `netdev`, with an address from the IPv4 prefix of `netdev`.
#[track_caller]
pub fn shared_configuration(node: &Node, netdev: &str) -> Value {
    let mut configuration = configuration(node, netdev);
    configuration["mode"] = "share".into();
    configuration["ipam"] = json!({
        "type": "rdma-ipam",
        "from": "parent",
        "family": "ipv4",
        "dataDir": node.directory().join("leases"),
    });
    configuration
}

/// Adds two pods by their configurations, each with a child of a netdev. Returns the pods and their IPv4 addresses.
#[track_caller]
pub fn pods_with_children(node: &Node, configurations: &[Value; 2]) -> ([Netns; 2], [String; 2]) {
    let pods = ["server", "client"].map(|label| node.pod(label));
    let addresses = [0, 1].map(|it: usize| {
        node.add(&configurations[it], &format!("c{it}"), &pods[it]);
        let child = pods[it].link("rdma0").expect("a child");
        assert_eq!(child["linkinfo"]["info_kind"], "macvlan", "{child}");
        let address = pods[it].addresses("rdma0")[0].clone();
        address.split('/').next().unwrap_or_default().to_owned()
    });
    (pods, addresses)
}

/// Returns the output of `--check-config` for a resource `rdma/hca` of the kind `kind`.
#[track_caller]
pub fn offered(node: &Node, kind: &str) -> String {
    let file = node.directory().join("config.json");
    let resources = json!({"resources": [{"name": "rdma/hca", "kind": kind}]});
    fs::write(&file, resources.to_string()).expect("written");
    let mut check = Command::new(rdma_device_plugin());
    let check = check.arg("--config").arg(&file).arg("--check-config");
    let done = check.output().expect("the daemon's program");
    assert!(done.status.success(), "{done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Asserts that the table of `--check-config` shows each function as healthy, with these netdevs.
#[track_caller]
pub fn are_healthy(table: &str, netdevs: [&str; 2]) {
    for function in 0..2 {
        let mut lines = table.lines();
        let line = lines.find(|line| line.contains(functions()[function]));
        let line = line.unwrap_or_else(|| panic!("{table}"));
        for word in [RDMA[function], netdevs[function], "healthy"] {
            assert!(line.contains(word), "{word}: {table}");
        }
    }
}

/// Starts a stand-in for kubelet, and the daemon. The daemon offers the functions as the resources `rdma/a` and
/// `rdma/b`.
#[track_caller]
pub fn offering(node: &Node) -> (DeviceManager, Daemon) {
    let path = |below: &str| node.directory().join(below);
    let resources = json!({"resources": [
        {"name": "rdma/a", "kind": "exclusive", "devices": [{"rdma": RDMA[0]}]},
        {"name": "rdma/b", "kind": "exclusive", "devices": [{"rdma": RDMA[1]}]},
    ]});
    fs::write(path("config.json"), resources.to_string()).expect("written");
    let kubelet = DeviceManager::started(&path("kubelet"));
    let mut command = Command::new(rdma_device_plugin());
    for (flag, below) in [
        ("--config", "config.json"),
        ("--kubelet-dir", "kubelet"),
        ("--state-dir", "state"),
        ("--cdi-dir", "cdi"),
    ] {
        command.arg(flag).arg(path(below));
    }
    let daemon = Daemon::start(command.args(["--metrics-address", "127.0.0.1:0"]));
    has_ids(&kubelet, "rdma/a", 1);
    has_ids(&kubelet, "rdma/b", 1);
    (kubelet, daemon)
}

/// Waits until a resource has `count` healthy ids.
#[track_caller]
pub fn has_ids(kubelet: &DeviceManager, resource: &str, count: usize) {
    let what = format!("{count} healthy ids");
    kubelet.wait_for(resource, &what, |it| it.healthy().len() == count);
}

/// Returns the machine's functions: the card's or the virtual ones.
pub fn functions() -> [&'static str; 2] {
    match env::var("RDMA_LAB_VIRTUAL").as_deref() {
        Ok("1") => VIRTUAL_FUNCTIONS,
        _ => FUNCTIONS,
    }
}

/// Returns the directory of the function in sysfs.
pub fn directory(function: usize) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(functions()[function])
}

/// Returns the GIDs in the first 16 entries of the RDMA device's GID table in `netns`, with their types.
#[track_caller]
pub fn gids(netns: &Netns, rdma: &str) -> Vec<(String, String)> {
    // an entry without a GID has no readable type
    let script = format!(
        "cd /sys/class/infiniband/{rdma}/ports/1; for i in $(seq 0 15); do \
         kind=$(cat gid_attrs/types/$i 2>/dev/null) && printf '%s\\t%s\\n' $(cat gids/$i) \"$kind\"; done; true"
    );
    let text = netns::check(netns.command("sh").args(["-c", &script]));
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs
        .map(|(gid, kind)| (gid.to_owned(), kind.to_owned()))
        .collect()
}
