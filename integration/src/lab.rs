// SPDX-License-Identifier: Apache-2.0
//! The lab's host, as seen from inside the VM: its NICs, their virtual functions with RDMA devices, and pods on them
//! (`integration/lab/vm --tier full`).

use crate::{
    Netns, Runtime, StandInIpam,
    plugin::{cni_path, rdma_cni},
    rails, udev, wait,
};
use rdma_netns::{Kernel as _, Linux, NetnsSide, Op, rdma::name};
use serde_json::{Value, json};
use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    slice,
    time::Duration,
};
use tempfile::TempDir;

/// Time limit in the lab for reports to kubelet that a device exists or that its port has changed. Outside the lab,
/// `cni/node-state/tests/health` checks a limit of one second. Two emulated machines that share two CPUs have needed
/// more than three seconds.
pub const REPORT_LIMIT: Duration = Duration::from_secs(15);

/// The NICs, on NUMA nodes 0 and 1 and on one fabric.
pub const NICS: [&str; 2] = ["enp33s0", "enp65s0"];

/// Returns true if systemd is the first process, by the check of `sd_booted(3)` (`integration/lab/under-systemd`).
pub fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Returns the VM's own namespace. Link-local addresses of new netdevs are usable immediately, as on a [`crate::Node`].
#[track_caller]
fn own() -> Netns {
    let host = Netns::own();
    for key in ["dad_transmits", "router_solicitation_delay"] {
        host.set_sysctl(&format!("ipv6/conf/default/{key}"), "0");
    }
    host
}

/// Returns the VM's own namespace. Panics if the lab is not in shared mode, in which RDMA devices remain on the host.
#[track_caller]
pub(crate) fn shared() -> Netns {
    assert_eq!(
        env::var("RDMA_LAB_MODE").as_deref(),
        Ok("shared"),
        "this test runs in the lab, by integration/lab/vm --tier full --shared"
    );
    own()
}

/// The lab's host. Each test gets new virtual functions.
#[derive(Debug)]
pub struct Lab {
    /// The VM's own namespace.
    pub host: Netns,
    /// Functions by NIC and number: `functions[nic][number]`.
    pub functions: [Vec<Function>; 2],
    /// Stand-in IPAM plugin, found by [`crate::ipam::NAME`].
    pub ipam: StandInIpam,
    directory: TempDir,
    made: bool,
}

/// A function with its RDMA device: a virtual or physical function of a NIC, or soft-RoCE on a veth.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name of the function's netdev on the host.
    pub netdev: String,
    /// PCI address of the function. Empty for soft-RoCE on a veth.
    pub pci: String,
    /// Name of the function's RDMA device.
    pub rdma: String,
}

impl Lab {
    /// Makes a host with `count` virtual functions on each NIC. All are up and have RDMA devices.
    #[track_caller]
    pub fn new(count: usize) -> Self {
        let lab = Self::made(count);
        add_rdma(&lab.host, &lab.functions.concat());
        udev::settle(&lab.host);
        lab
    }

    /// Makes a host like [`Self::new`], without RDMA devices.
    #[track_caller]
    pub fn without_rdma(count: usize) -> Self {
        let lab = Self::made(count);
        udev::settle(&lab.host);
        lab
    }

    #[track_caller]
    fn made(count: usize) -> Self {
        for nic in NICS {
            assert!(
                Path::new("/sys/class/net").join(nic).exists(),
                "there is no NIC {nic}: this test runs in the lab, by integration/lab/vm --tier full"
            );
        }
        let host = own();
        let functions = make_functions(&host, count);
        Self::with(host, functions, true)
    }

    /// Uses this machine's own functions, by their PCI addresses: first both rails of pod 0, then both of pod 1.
    pub fn on_host(pci: &[String; 4]) -> Result<Self, String> {
        let function = |index: usize| find_function(&pci[index]);
        let functions = [
            vec![function(0)?, function(2)?],
            vec![function(1)?, function(3)?],
        ];
        Ok(Self::with(Netns::own(), functions, false))
    }

    fn with(host: Netns, functions: [Vec<Function>; 2], made: bool) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let programs = directory.path().join("bin");
        let ipam = StandInIpam::install(&programs);
        symlink(rdma_cni(), programs.join("rdma")).expect("the drop-in's name");
        Self {
            host,
            functions,
            ipam,
            directory,
            made,
        }
    }

    /// Makes an RDMA device on a NIC's physical function. Returns the function.
    #[track_caller]
    pub fn physical_function(&self, nic: &str) -> Function {
        let path = Path::new("/sys/class/net").join(nic).join("device");
        let pci = file_name(&fs::read_link(path).expect("a link to the function"));
        let (netdev, rdma) = (nic.to_owned(), format!("r_{nic}"));
        // `ipv6/conf/default` does not apply to the NIC, which already exists
        for key in ["dad_transmits", "router_solicitation_delay"] {
            self.host.set_sysctl(&format!("ipv6/conf/{nic}/{key}"), "0");
        }
        let function = Function { netdev, pci, rdma };
        add_rdma(&self.host, slice::from_ref(&function));
        function
    }

    /// Adds an RDMA device on a veth to `switch`, for tests that need more NICs. The device has no PCI address, and
    /// ends with `switch`.
    #[track_caller]
    pub fn add_soft_function(&self, number: usize, switch: &Netns) -> Function {
        let (netdev, rdma) = (format!("soft{number}"), format!("r_soft{number}"));
        let peer = format!("to-{netdev}");
        let at = switch.name();
        // sets the MAC here: udev's policy would otherwise set another one when the netdev already has an IPv6 address
        // from the first MAC
        let mac = format!("02:00:00:00:ff:{number:02x}");
        self.host.ip_batch(&[
            format!("link add name {netdev} address {mac} type veth peer name {peer} netns {at}"),
            format!("link set dev {netdev} up"),
        ]);
        switch.ip(&format!("link set dev {peer} up"));
        let pci = String::new();
        let function = Function { netdev, pci, rdma };
        add_rdma(&self.host, slice::from_ref(&function));
        function
    }

    /// Makes the functions of a newly plugged NIC and their RDMA devices, as the node's set-up does. The number of
    /// functions is the same as before the NIC was unplugged. The physical function sets the hardware addresses of
    /// [`Self::give_hardware_addresses`] before a driver is bound to the functions.
    #[track_caller]
    pub fn furnish(&self, nic: usize) {
        let (name, functions) = (NICS[nic], &self.functions[nic]);
        let device = Path::new("/sys/class/net").join(name).join("device");
        wait::until("udev has named the NIC", || device.exists());
        self.host.ip(&format!("link set dev {name} up"));
        make(name, functions.len()).expect("functions");
        let address = |number| format!("link set dev {name} vf {number} mac {}", mac(nic, number));
        let lines: Vec<String> = (0..functions.len()).map(address).collect();
        self.host.ip_batch(&lines);
        for (number, function) in functions.iter().enumerate() {
            assert_eq!(driven(name, number).pci, function.pci, "another place");
        }
        bring_up(&self.host, functions);
        add_rdma(&self.host, functions);
        udev::settle(&self.host);
    }

    /// Sets the functions' hardware addresses as a node's set-up does, and makes their RDMA devices again, because
    /// their GUIDs depend on the addresses. The addresses are the same at every boot, while igb would choose random
    /// ones.
    #[track_caller]
    pub fn give_hardware_addresses(&self) {
        let (mut devices, mut links) = (vec![], vec![]);
        for (nic, functions) in self.functions.iter().enumerate() {
            for (number, Function { netdev, rdma, .. }) in functions.iter().enumerate() {
                devices.push(format!("link delete {rdma}"));
                let address = mac(nic, number);
                links.push(format!("link set dev {netdev} down"));
                links.push(format!("link set dev {netdev} address {address} up"));
            }
        }
        self.host.rdma_batch(&devices);
        self.host.ip_batch(&links);
        add_rdma(&self.host, &self.functions.concat());
    }

    /// Sets addresses that contain the numbers of rail and pod ([`ipv4`], [`ipv6`]). The first function of each NIC
    /// gets the addresses of pod 0, the second function those of pod 1, and so on.
    #[track_caller]
    pub fn give_addresses(&self) {
        self.each_address(|netdev, address| {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            format!("address add {address} dev {netdev} {nodad}")
        });
    }

    /// Removes the addresses of [`Self::give_addresses`].
    #[track_caller]
    pub fn take_addresses(&self) {
        self.each_address(|netdev, address| format!("address del {address} dev {netdev}"));
    }

    /// Runs `ip` with the line that `line` returns for each function's netdev and address.
    #[track_caller]
    fn each_address(&self, line: impl Fn(&str, &str) -> String) {
        let mut lines = vec![];
        for (rail, functions) in self.functions.iter().enumerate() {
            for (pod, Function { netdev, .. }) in functions.iter().enumerate() {
                lines.push(line(netdev, &format!("{}/24", ipv4(rail, pod))));
                lines.push(line(netdev, &format!("{}/64", ipv6(rail, pod))));
            }
        }
        self.host.ip_batch(&lines);
    }

    /// Returns the functions of `pod`: one for each rail.
    pub fn rails(&self, pod: usize) -> [&Function; 2] {
        [&self.functions[0][pod], &self.functions[1][pod]]
    }

    /// Returns the function with the character device `name`, such as `uverbs0`.
    #[track_caller]
    pub fn numbered(&self, name: &str) -> Function {
        let mut all = self.functions.iter().flatten();
        let found = all.find(|it| uverbs(&it.rdma).0 == name);
        found.unwrap_or_else(|| panic!("none has {name}")).clone()
    }

    /// Returns the configuration of `rdma-cni` for both rails of `pod`.
    pub fn configuration(&self, pod: usize) -> Value {
        let devices = self.rails(pod).map(|function| json!({"pci": function.pci}));
        json!({"type": "rdma-cni", "stateDir": self.state(), "devices": devices})
    }

    /// Returns the `stateDir` of the configurations.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Returns a runtime on this host.
    pub fn runtime(&self) -> Runtime<'_> {
        let path = cni_path(&rdma_cni(), &[self.ipam.directory()]);
        Runtime::new(&self.host, &path, &self.directory.path().join("cache"))
    }

    /// Makes a pod's namespace.
    #[track_caller]
    pub fn pod(&self, label: &str) -> Netns {
        let pod = Netns::new(label);
        pod.ip("link set dev lo up");
        pod
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for nic in NICS.iter().filter(|_| self.made) {
            let _ = make(nic, 0);
            let rdma = format!("r_{nic}");
            if Path::new("/sys/class/infiniband").join(&rdma).exists() {
                let mut delete = Command::new("rdma");
                let _ = delete.args(["link", "delete", &rdma]).output();
            }
        }
    }
}

/// Returns the IPv4 address of `pod` on `rail`.
pub fn ipv4(rail: usize, pod: usize) -> String {
    format!("10.{}.0.{}", rail + 1, pod + 1)
}

/// Returns the IPv6 address of `pod` on `rail`.
pub fn ipv6(rail: usize, pod: usize) -> String {
    format!("fd00:{}::{}", rail + 1, pod + 1)
}

/// Returns the RDMA devices that `ibv_devices` lists in `netns`.
#[track_caller]
pub fn verbs_devices(netns: &Netns) -> Vec<String> {
    let table = netns.run("ibv_devices");
    let rows = table
        .lines()
        .skip(2)
        .filter_map(|row| row.split_whitespace().next());
    let mut devices: Vec<String> = rows.map(str::to_owned).collect();
    devices.sort();
    devices
}

/// Renames an RDMA device as `rdma dev set DEVICE name NAME` does in the pod. The name can have any bytes.
#[track_caller]
pub fn rename_rdma(pod: &Netns, device: &str, name: &[u8]) {
    let kernel = Linux::new();
    let pod = kernel.open_pod(pod.path()).expect("a namespace");
    let op = Op::RenameRdma {
        at: NetnsSide::Pod,
        device: device.to_owned(),
        name: name::text(name),
    };
    let renamed = kernel.execute(&op, Some(&pod));
    renamed.unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the character device of an RDMA device in any namespace: name (such as `uverbs0`), major, minor.
#[track_caller]
pub fn uverbs(rdma: &str) -> (String, u64, u64) {
    let entries = fs::read_dir("/sys/class/infiniband_verbs").expect("ib_uverbs is loaded");
    let is_it = |path: &PathBuf| {
        fs::read_to_string(path.join("ibdev")).is_ok_and(|device| device.trim() == rdma)
    };
    let path = entries.flatten().map(|entry| entry.path()).find(is_it);
    let path = path.unwrap_or_else(|| panic!("{rdma} has no uverbs"));
    let number = fs::read_to_string(path.join("dev")).expect("a number");
    let (major, minor) = number.trim().split_once(':').expect("two numbers");
    let number = |text: &str| text.parse().expect("a number");
    let name = path.file_name().expect("a name").to_string_lossy();
    (name.into(), number(major), number(minor))
}

/// Opens the character device of the RDMA device `name` in `netns`. Asserts that a port is active.
#[track_caller]
pub fn open_verbs(netns: &Netns, name: &str) {
    let answer = netns.run(&format!("ibv_devinfo -d {name}"));
    assert!(
        answer.contains("PORT_ACTIVE"),
        "{name} exists, but no port is active: {answer}"
    );
}

/// Makes `count` new functions of the NIC. They have no driver yet, see [`driven`].
fn make(nic: &str, count: usize) -> io::Result<()> {
    let device = Path::new("/sys/class/net").join(nic).join("device");
    let autoprobe = device.join("sriov_drivers_autoprobe");
    fs::write(device.join("sriov_numvfs"), "0")?;
    fs::write(&autoprobe, "0")?;
    let made = fs::write(device.join("sriov_numvfs"), count.to_string());
    fs::write(&autoprobe, "1")?;
    made
}

/// Returns the netdev and the RDMA device of the PCI function `pci` on this machine.
fn find_function(pci: &str) -> Result<Function, String> {
    let only = |kind: &str| {
        let folder = Path::new("/sys/bus/pci/devices").join(pci).join(kind);
        let mut entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let name = entries
            .next()
            .and_then(|entry| entry.file_name().into_string().ok());
        name.ok_or_else(|| format!("PCI function {pci}: there is nothing in {folder:?}"))
    };
    Ok(Function {
        netdev: only("net")?,
        pci: pci.to_owned(),
        rdma: only("infiniband")?,
    })
}

/// Makes `count` functions of each NIC. Combines requests into few programs: each start of a program takes a tenth of a
/// second on an emulated machine.
fn make_functions(host: &Netns, count: usize) -> [Vec<Function>; 2] {
    host.ip_batch(&NICS.map(|nic| format!("link set dev {nic} up")));
    for nic in NICS {
        make(nic, count)
            .unwrap_or_else(|error| panic!("cannot make {count} VFs of {nic}: {error}"));
    }
    let functions = NICS.map(|nic| {
        let functions = (0..count).map(|number| driven(nic, number));
        functions.collect::<Vec<_>>()
    });
    bring_up(host, &functions.concat());
    functions
}

/// Sets all functions up. Returns when they have carrier.
#[track_caller]
fn bring_up(host: &Netns, functions: &[Function]) {
    let up = |it: &Function| format!("link set dev {} up", it.netdev);
    host.ip_batch(&functions.iter().map(up).collect::<Vec<_>>());
    wait::until("the functions have their carriers", || {
        functions.iter().all(|it| {
            let carrier = format!("/sys/class/net/{}/carrier", it.netdev);
            fs::read_to_string(carrier).is_ok_and(|it| it.trim() == "1")
        })
    });
}

/// Returns the hardware address that a node sets for a function.
fn mac(nic: usize, number: usize) -> String {
    format!("02:00:00:00:{nic:02x}:{number:02x}")
}

/// Binds the driver to a function. Returns when udev has named the function's netdev. The RDMA device does not exist
/// yet.
///
/// igb of Linux 5.10 and 6.1 serves the functions' mailboxes only when all functions exist (`igb_enable_sriov`, after
/// `pci_enable_sriov`). If a function's driver is bound earlier ("PF still in reset state"), the function has no
/// carrier until the driver's watchdog resets it about 10 s later.
fn driven(nic: &str, number: usize) -> Function {
    let link = format!("/sys/class/net/{nic}/device/virtfn{number}");
    let netdev = format!("{nic}v{number}");
    let target = fs::read_link(&link).expect("a link to the function");
    let pci = file_name(&target);
    fs::write("/sys/bus/pci/drivers/igbvf/bind", &pci).expect("a driver");
    wait::until("udev has named the function", || {
        Path::new(&link).join("net").join(&netdev).exists()
    });
    let rdma = format!("r_{netdev}");
    Function { netdev, pci, rdma }
}

/// Makes the RDMA devices of functions whose netdevs are up. Returns when the ports are active.
#[track_caller]
fn add_rdma(host: &Netns, functions: &[Function]) {
    let add = |it: &Function| format!("link add {} type rxe netdev {}", it.rdma, it.netdev);
    host.rdma_batch(&functions.iter().map(add).collect::<Vec<_>>());
    wait::until("the RDMA devices' ports are active", || {
        functions.iter().all(|it| rails::is_active(&it.rdma))
    });
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str());
    name.expect("a PCI address").to_owned()
}
