// SPDX-License-Identifier: Apache-2.0
//! The lab's eRDMA functions under the kernel's own driver, as seen from inside the VM
//! (`integration/lab/vm --tier erdma`). The driver and the provider are real, the functions are models.

use crate::{Netns, Node, netns::parse_list, wait};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The virtio NICs, on NUMA nodes 0 and 1 and on one fabric.
pub const NICS: [&str; 2] = ["enp33s1", "enp65s1"];
/// The PCI functions of [`NICS`].
pub const NIC_FUNCTIONS: [&str; 2] = ["0000:21:01.0", "0000:41:01.0"];
/// The eRDMA functions with the MACs of [`NICS`].
pub const FUNCTIONS: [&str; 2] = ["0000:21:02.0", "0000:41:02.0"];
/// Returns the permanent MACs of [`NICS`]. With two machines, the MACs depend on the machine.
pub fn macs() -> [String; 2] {
    let machine = env::var("RDMA_LAB_NODE").unwrap_or_else(|_| "0".to_owned());
    [1, 2].map(|nic| format!("52:54:00:ee:0{machine}:0{nic}"))
}

/// Variant of `erdma.ko` to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The kernel's driver, whose RDMA devices have no parent.
    Kernel,
    /// The kernel's driver, patched so that the parent is the PCI function, as in Alibaba's driver
    /// (`integration/lab/patches`).
    WithParent,
}

/// A machine with the driver loaded. Drop unloads the driver.
#[derive(Debug)]
pub struct ErdmaFunctions {
    /// The VM's own namespace.
    pub host: Netns,
    driver: Driver,
}

impl ErdmaFunctions {
    /// Loads the driver, and returns when both NICs have their RDMA devices.
    ///
    /// `mode` is the mode of the RDMA subsystem, `exclusive` or `shared`. The kernel changes it only if no other
    /// network namespace exists (`rdma_compatdev_set()` in `drivers/infiniband/core/device.c`).
    #[track_caller]
    pub fn new(driver: Driver, mode: &str) -> Self {
        assert_eq!(
            env::var("RDMA_LAB_ERDMA").as_deref(),
            Ok("in-tree"),
            "this test runs in the lab, by integration/lab/vm --tier erdma"
        );
        let host = Netns::own();
        let mut errors = String::new();
        let is_set = wait::within(wait::TIMEOUT, || {
            let mut set = Command::new("rdma");
            let set = set.args(["system", "set", "netns", mode]).output();
            let set = set.expect("rdma of iproute2");
            errors = String::from_utf8_lossy(&set.stderr).into_owned();
            set.status.success()
        });
        assert!(is_set, "{mode}: another network namespace lives: {errors}");
        if driver == Driver::WithParent {
            let release = host.run("uname -r");
            let module = format!("/lib/modules/{}/updates/erdma.ko", release.trim());
            host.run(&format!(
                "mount --bind /lib/modules/erdma-parent/erdma.ko {module}"
            ));
        }
        let functions = Self { host, driver };
        functions.load();
        for nic in 0..NICS.len() {
            wait::until("the NIC has its RDMA device", || {
                functions.rdma_in(&functions.host, nic).is_some()
            });
        }
        functions
    }

    /// Loads the driver.
    #[track_caller]
    pub fn load(&self) {
        self.host.run("modprobe erdma");
    }

    /// Unloads the driver.
    #[track_caller]
    pub fn unload(&self) {
        self.host.run("modprobe -r erdma");
    }

    /// Loads the driver again while the netdev of the first NIC is in the returned namespace. So the driver defers the
    /// probe of [`FUNCTIONS`]`[0]`.
    #[track_caller]
    pub fn load_with_a_netdev_away(&self) -> Netns {
        self.unload();
        let pod = Netns::new("pod");
        let line = format!("link set dev {} netns {}", NICS[0], pod.name());
        self.host.ip(&line);
        self.load();
        pod
    }

    /// Returns the NIC's RDMA device. NIC and RDMA device must be in the VM's own namespace.
    #[track_caller]
    pub fn rdma(&self, nic: usize) -> String {
        let name = self.rdma_in(&self.host, nic);
        name.unwrap_or_else(|| panic!("{} has no RDMA device", NICS[nic]))
    }

    /// Returns the RDMA device whose netdev in `netns` is the NIC.
    #[track_caller]
    pub fn rdma_in(&self, netns: &Netns, nic: usize) -> Option<String> {
        let links = links(netns);
        let link = links.iter().find(|link| link["netdev"] == NICS[nic])?;
        Some(link["ifname"].as_str().expect("a name").to_owned())
    }

    /// Moves the NIC into `pod`, and sets `address`. If `mode` is `exclusive`, also moves the RDMA device. Returns the
    /// name of the RDMA device.
    #[track_caller]
    pub fn give(&self, nic: usize, pod: &Netns, address: &str, mode: &str) -> String {
        let rdma = self.rdma(nic);
        let (netdev, to) = (NICS[nic], pod.name());
        self.host.ip(&format!("link set dev {netdev} netns {to}"));
        if mode == "exclusive" {
            self.host.run(&format!("rdma dev set {rdma} netns {to}"));
        }
        pod.ip_batch(&[
            "link set dev lo up".to_owned(),
            format!("address add {address}/24 dev {netdev}"),
            format!("link set dev {netdev} up"),
        ]);
        wait::until("the port is active in the pod", || {
            let links = links(pod);
            let mut links = links.iter().filter(|link| link["ifname"] == rdma.as_str());
            links.any(|it| it["state"] == "ACTIVE" && it["netdev"] == netdev)
        });
        rdma
    }

    /// Waits until both NICs and their RDMA devices are in the VM's own namespace.
    #[track_caller]
    pub fn are_home(&self) {
        for nic in 0..NICS.len() {
            wait::until("the NIC is back with its RDMA device", || {
                self.rdma_in(&self.host, nic).is_some()
            });
        }
    }
}

impl Drop for ErdmaFunctions {
    fn drop(&mut self) {
        let run = |line: &str| {
            let mut words = line.split_whitespace();
            let _ = Command::new(words.next().unwrap_or_default())
                .args(words)
                .output();
        };
        run("modprobe -r erdma");
        if self.driver == Driver::WithParent {
            let release = self.host.run("uname -r");
            run(&format!(
                "umount /lib/modules/{}/updates/erdma.ko",
                release.trim()
            ));
        }
        for ((nic, mac), function) in NICS.into_iter().zip(macs()).zip(NIC_FUNCTIONS) {
            // a failed test can leave a NIC in an ending namespace, under its name in the pod
            let mut found = None;
            wait::within(wait::TIMEOUT, || {
                found = netdev_of(function);
                found.is_some()
            });
            if let Some(name) = found.filter(|name| name != nic) {
                run(&format!("ip link set dev {name} down"));
                run(&format!("ip link set dev {name} name {nic}"));
            }
            run(&format!("ip address flush dev {nic} scope global"));
            run(&format!("ip link set dev {nic} address {mac} down"));
        }
    }
}

/// Returns the netdev of the virtio NIC at `function`. `None`: the netdev is in another network namespace.
fn netdev_of(function: &str) -> Option<String> {
    let directory = Path::new("/sys/bus/pci/devices").join(function);
    let mut below = fs::read_dir(directory).ok()?.flatten();
    let virtio = below.find(|it| it.file_name().to_string_lossy().starts_with("virtio"))?;
    let netdev = fs::read_dir(virtio.path().join("net"))
        .ok()?
        .flatten()
        .next()?;
    Some(netdev.file_name().to_string_lossy().into_owned())
}

/// A node with both NICs up and addressed.
#[derive(Debug)]
pub struct ErdmaNode {
    /// The node, with the state directory of `rdma-cni`.
    pub node: Node,
    /// The functions. This field is dropped last, so the driver is unloaded after the node's namespaces have ended.
    pub erdma: ErdmaFunctions,
}

/// Addresses of the NICs of a node that [`ErdmaNode::new`] makes, in one /24.
pub const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

impl ErdmaNode {
    /// Makes a node. Returns when the ports of both RDMA devices are active.
    #[track_caller]
    pub fn new(driver: Driver, mode: &str) -> Self {
        Self::with_addresses(driver, mode, ADDRESSES)
    }

    /// Makes a node like [`Self::new`], with other addresses in one /24.
    #[track_caller]
    pub fn with_addresses(driver: Driver, mode: &str, addresses: [&str; 2]) -> Self {
        let erdma = ErdmaFunctions::new(driver, mode);
        let node = Node::on(Netns::own());
        for (nic, address) in NICS.into_iter().zip(addresses) {
            // `ipv6/conf/default` does not apply to the NICs, which already exist
            for key in ["dad_transmits", "router_solicitation_delay"] {
                node.host.set_sysctl(&format!("ipv6/conf/{nic}/{key}"), "0");
            }
            node.host.ip(&format!("link set dev {nic} up"));
            node.host.ip(&format!("address add {address}/24 dev {nic}"));
        }
        are_active(&node.host);
        Self { node, erdma }
    }

    /// Returns a configuration of `rdma-cni` for the NIC and its RDMA device.
    pub fn configuration(&self, nic: usize) -> Value {
        let mut configuration = self.node.configuration(&[NICS[nic]]);
        configuration["requireRdma"] = true.into();
        configuration
    }
}

/// Waits until the ports of both RDMA devices are active in `netns`.
#[track_caller]
pub fn are_active(netns: &Netns) {
    wait::until("the ports are active", || {
        let links = links(netns);
        links.len() == 2 && links.iter().all(|link| link["state"] == "ACTIVE")
    });
}

/// Returns the ports of the RDMA devices in `netns`, as `rdma -j link show` lists them.
#[track_caller]
pub fn links(netns: &Netns) -> Vec<Value> {
    parse_list(&netns.run("rdma -j link show"))
}

/// Returns a driver's counter of the RDMA device, which is a file of `hw_counters` in `netns`.
#[track_caller]
pub fn counter(netns: &Netns, rdma: &str, name: &str) -> u64 {
    let text = netns.run(&format!(
        "cat /sys/class/infiniband/{rdma}/ports/1/hw_counters/{name}"
    ));
    text.trim().parse().expect("a number")
}

/// Returns the RDMA device's directory in sysfs, with links resolved.
#[track_caller]
pub fn directory(rdma: &str) -> PathBuf {
    let link = Path::new("/sys/class/infiniband").join(rdma);
    fs::canonicalize(&link).unwrap_or_else(|error| panic!("{link:?}: {error}"))
}

/// Returns true if the driver is bound to `function`.
pub fn is_bound(function: &str) -> bool {
    Path::new("/sys/bus/pci/drivers/erdma")
        .join(function)
        .exists()
}

/// Returns the node GUID of a device whose NIC has `mac`: the EUI-64 of the MAC (`addrconf_addr_eui48()`).
pub fn node_guid(mac: &str) -> String {
    let bytes: Vec<u8> = mac
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).expect("a MAC"))
        .collect();
    let [a, b, c, d, e, f] = bytes[..] else {
        panic!("{mac} is no MAC");
    };
    let a = a ^ 2;
    format!("{a:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}")
}
