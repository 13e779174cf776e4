// SPDX-License-Identifier: Apache-2.0
//! A constructed node for the daemon: a sysfs tree with RDMA NICs and virtual functions, device files, and the daemon's
//! directories. It has no hardware, and the kernel reports none of its changes.

use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::mkfifo,
};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

/// Major number of InfiniBand's character devices.
const MAJOR: u64 = 231;

/// A constructed node. Drop removes its files.
#[derive(Debug)]
pub struct Machine {
    root: tempfile::TempDir,
}

/// An RDMA NIC of a constructed node.
#[derive(Clone, Copy, Debug)]
pub struct Nic<'a> {
    /// PCI address, such as `0000:3b:00.0`.
    pub address: &'a str,
    /// Name of the RDMA device.
    pub rdma: &'a str,
    /// Name of the netdev.
    pub netdev: &'a str,
    /// NUMA node as in sysfs: -1 if unknown.
    pub numa_node: i32,
    /// Number of the `uverbs` device.
    pub number: u64,
}

/// The NIC of a machine that needs only one NIC.
pub const NIC: Nic<'_> = Nic {
    address: "0000:3b:00.0",
    rdma: "mlx5_0",
    netdev: "ens1",
    numa_node: 0,
    number: 0,
};

/// An eRDMA NIC of a constructed node. It has two PCI functions: one with the netdev, one with the RDMA device.
#[derive(Clone, Copy, Debug)]
pub struct Erdma<'a> {
    /// PCI address of the function with the RDMA device.
    pub address: &'a str,
    /// PCI address of the function with the netdev.
    pub netdev_address: &'a str,
    /// Name of the RDMA device.
    pub rdma: &'a str,
    /// Name of the netdev.
    pub netdev: &'a str,
    /// Hardware address of the netdev.
    pub mac: &'a str,
    /// NUMA node as in sysfs: -1 if unknown.
    pub numa_node: i32,
    /// Number of the `uverbs` device.
    pub number: u64,
}

impl Erdma<'_> {
    fn rdma_function(&self) -> Nic<'_> {
        Nic {
            address: self.address,
            rdma: self.rdma,
            netdev: self.netdev,
            numa_node: self.numa_node,
            number: self.number,
        }
    }

    /// Returns the EUI-64 of the hardware address, with the inverted "locally administered" bit.
    pub fn guid(&self) -> String {
        let bytes: Vec<u8> = self
            .mac
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
            .collect();
        let [a, b, c, d, e, f] = bytes.try_into().expect("six bytes");
        format!("{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}\n", a ^ 2)
    }
}

impl Machine {
    /// Makes a machine without RDMA.
    pub fn bare() -> Self {
        let machine = Self {
            root: tempfile::tempdir().expect("a directory"),
        };
        for directory in [
            "sys/bus/pci/devices",
            "sys/class/net",
            "sys/class/infiniband",
            "sys/class/infiniband_verbs",
            "dev/infiniband",
            "state",
            "cdi",
            "etc",
        ] {
            fs::create_dir_all(machine.path(directory)).expect("a directory");
        }
        machine
    }

    /// Makes a machine with these NICs, and `rdma_cm`.
    pub fn with(nics: &[Nic<'_>]) -> Self {
        let machine = Self::bare();
        fs::create_dir_all(machine.path("sys/class/misc/rdma_cm")).expect("a directory");
        machine.write("sys/class/misc/rdma_cm/dev", "10:58\n");
        machine.node("rdma_cm", 10, 58);
        for nic in nics {
            machine.plug(nic);
        }
        machine
    }

    /// Returns the command of `program` on this node.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.arguments(&mut command);
        command.arg("--config").arg(self.path("etc/config.json"));
        command
    }

    /// Clears the environment of `command`, and adds the arguments of [`Self::command`] except the configuration file.
    pub fn arguments(&self, command: &mut Command) {
        command.env_clear();
        for (flag, below) in [
            ("--kubelet-dir", "kubelet"),
            ("--cdi-dir", "cdi"),
            ("--sysfs", "sys"),
            ("--dev", "dev"),
            ("--state-dir", "state"),
            ("--cni-cache-dir", "results"),
        ] {
            command.arg(flag).arg(self.path(below));
        }
        // earlier daemons lack this flag
        if self.path("proc").exists() {
            command.arg("--procfs").arg(self.path("proc"));
        }
    }

    /// Returns a path on the machine.
    pub fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    /// Writes a file of the machine.
    pub fn write(&self, below: &str, text: &str) {
        fs::write(self.path(below), text).expect("written");
    }

    /// Writes the daemon's configuration file.
    pub fn configure(&self, text: &str) {
        self.write("etc/config.json", text);
    }

    /// Plugs a NIC in.
    pub fn plug(&self, nic: &Nic<'_>) {
        let place = self.function(nic.address, "mlx5_core", "15B3:101D", nic.numa_node);
        let (high, low) = (nic.number >> 8, nic.number & 0xff);
        let mac = format!("02:00:00:00:{high:02x}:{low:02x}");
        self.netdev(&place, nic.netdev, &mac);
        self.rdma(nic);
    }

    /// Plugs an eRDMA NIC in.
    pub fn plug_erdma(&self, nic: &Erdma<'_>) {
        let numa_node = nic.numa_node;
        let place = self.function(nic.netdev_address, "virtio-pci", "1AF4:1000", numa_node);
        self.netdev(
            &format!("{place}/virtio{}", nic.number),
            nic.netdev,
            nic.mac,
        );
        self.function(nic.address, "erdma", "1DED:107F", numa_node);
        self.rdma(&nic.rdma_function());
        let guid = format!("sys/class/infiniband/{}/node_guid", nic.rdma);
        self.write(&guid, &nic.guid());
    }

    /// Changes a plugged eRDMA NIC to its state with mainline's driver: the RDMA device has no parent.
    pub fn erdma_without_parent(&self, nic: &Erdma<'_>) {
        let verbs = format!("sys/class/infiniband_verbs/uverbs{}/device", nic.number);
        fs::remove_file(self.path(&verbs)).expect("a link");
        let uevent = "DRIVER=erdma\nPCI_CLASS=FF00\nPCI_ID=1DED:107F\n";
        let function = format!("sys/devices/pci0000:00/{}/uevent", nic.address);
        self.write(&function, uevent);
    }

    /// Unplugs an eRDMA NIC.
    pub fn unplug_erdma(&self, nic: &Erdma<'_>) {
        self.without_number(nic.number);
        for below in [
            format!("sys/bus/pci/devices/{}", nic.address),
            format!("sys/bus/pci/devices/{}", nic.netdev_address),
            format!("sys/class/net/{}", nic.netdev),
        ] {
            fs::remove_file(self.path(&below)).expect("removed");
        }
        for below in [
            format!("sys/class/infiniband/{}", nic.rdma),
            format!("sys/devices/pci0000:00/{}", nic.address),
            format!("sys/devices/pci0000:00/{}", nic.netdev_address),
        ] {
            fs::remove_dir_all(self.path(&below)).expect("removed");
        }
    }

    /// Loads the eRDMA driver. The inner value is `compat_mode`, if the driver has this parameter. `None` unloads the
    /// driver.
    pub fn erdma_module(&self, module: Option<Option<bool>>) {
        let path = "sys/module/erdma/parameters";
        let _ = fs::remove_dir_all(self.path("sys/module/erdma"));
        let Some(compat) = module else { return };
        fs::create_dir_all(self.path(path)).expect("a directory");
        if let Some(compat) = compat {
            let value = if compat { "Y\n" } else { "N\n" };
            self.write(&format!("{path}/compat_mode"), value);
        }
    }

    /// Plugs a GPU in, below a separate host bridge.
    pub fn accelerator(&self, address: &str, numa_node: i32) {
        let uevent = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n";
        self.below_own_bridge(address, uevent, numa_node);
    }

    /// Gives the NIC a Data Direct function below a separate host bridge, as a ConnectX-8 has.
    pub fn data_direct(&self, nic: &Nic<'_>, address: &str) {
        let uevent = "PCI_CLASS=80100\nPCI_ID=15B3:2100\n";
        self.below_own_bridge(address, uevent, nic.numa_node);
        for function in [nic.address, address] {
            let data = self.path(&format!("sys/bus/pci/devices/{function}/vpd"));
            fs::write(data, product_data(nic.rdma)).expect("written");
        }
    }

    fn below_own_bridge(&self, address: &str, uevent: &str, numa_node: i32) {
        let bridge = address.get(..7).expect("domain and bus");
        let place = format!("devices/pci{bridge}/{address}");
        fs::create_dir_all(self.path(&format!("sys/{place}"))).expect("a directory");
        self.write(&format!("sys/{place}/uevent"), uevent);
        let node = format!("{numa_node}\n");
        self.write(&format!("sys/{place}/numa_node"), &node);
        let link = format!("sys/bus/pci/devices/{address}");
        self.link(&link, &format!("../../../{place}"));
    }

    /// Plugs a GPU in like [`Self::accelerator`], with the file in `/proc` by which NVIDIA's driver reports its UUID.
    pub fn nvidia(&self, address: &str, numa_node: i32, uuid: &str) {
        self.accelerator(address, numa_node);
        let below = format!("proc/driver/nvidia/gpus/{address}");
        fs::create_dir_all(self.path(&below)).expect("a directory");
        let text = format!("GPU UUID: \t {uuid}\nBus Location: \t {address}\n");
        self.write(&format!("{below}/information"), &text);
    }

    /// Makes a PCI function. Returns its directory.
    fn function(&self, address: &str, driver: &str, id: &str, numa_node: i32) -> String {
        let place = format!("sys/devices/pci0000:00/{address}");
        fs::create_dir_all(self.path(&place)).expect("a directory");
        let uevent = format!("DRIVER={driver}\nPCI_CLASS=20000\nPCI_ID={id}\n");
        self.write(&format!("{place}/uevent"), &uevent);
        self.write(&format!("{place}/numa_node"), &format!("{numa_node}\n"));
        let device = format!("../../../devices/pci0000:00/{address}");
        self.link(&format!("sys/bus/pci/devices/{address}"), &device);
        place
    }

    /// Makes a netdev of the device at `place`.
    fn netdev(&self, place: &str, name: &str, mac: &str) {
        let netdev = format!("{place}/net/{name}");
        fs::create_dir_all(self.path(&netdev)).expect("a directory");
        self.write(&format!("{netdev}/type"), "1\n");
        self.write(&format!("{netdev}/carrier"), "1\n");
        self.write(&format!("{netdev}/address"), &format!("{mac}\n"));
        let below = place.strip_prefix("sys/").expect("in sysfs");
        let target = format!("../../{below}/net/{name}");
        self.link(&format!("sys/class/net/{name}"), &target);
    }

    fn rdma(&self, nic: &Nic<'_>) {
        let port = format!("sys/class/infiniband/{}/ports/1", nic.rdma);
        fs::create_dir_all(self.path(&port)).expect("a directory");
        self.write(&format!("{port}/state"), "4: ACTIVE\n");
        self.write(&format!("{port}/link_layer"), "Ethernet\n");
        self.number(nic, nic.number);
    }

    /// Makes the plugged NIC `virtual_one` the virtual function `index` of `physical`.
    pub fn is_virtual(&self, virtual_one: &Nic<'_>, physical: &Nic<'_>, index: usize) {
        let pci = "sys/devices/pci0000:00";
        let (own, of) = (virtual_one.address, physical.address);
        self.link(&format!("{pci}/{own}/physfn"), &format!("../{of}"));
        self.link(&format!("{pci}/{of}/virtfn{index}"), &format!("../{own}"));
        let count = format!("{pci}/{of}/sriov_numvfs");
        let before = fs::read_to_string(self.path(&count)).unwrap_or_default();
        let before: usize = before.trim_end().parse().unwrap_or_default();
        self.write(&count, &format!("{}\n", before.max(index + 1)));
    }

    /// Makes the `uverbs` device of the NIC, with this number.
    pub fn number(&self, nic: &Nic<'_>, number: u64) {
        let verbs = format!("sys/class/infiniband_verbs/uverbs{number}");
        fs::create_dir_all(self.path(&verbs)).expect("a directory");
        self.write(&format!("{verbs}/ibdev"), &format!("{}\n", nic.rdma));
        self.write(
            &format!("{verbs}/dev"),
            &format!("{MAJOR}:{}\n", 192 + number),
        );
        let device = format!("../../../devices/pci0000:00/{}", nic.address);
        self.link(&format!("{verbs}/device"), &device);
        self.node(&format!("uverbs{number}"), MAJOR, 192 + number);
    }

    /// Changes the number of the NIC's `uverbs` device. The NIC has the new device before the old one is removed, so that
    /// no observation meanwhile misses the device.
    pub fn renumber(&self, nic: &Nic<'_>, from: u64, to: u64) {
        self.number(nic, to);
        self.without_number(from);
    }

    /// Makes the plugged NIC `nic` a multi-plane NIC. Its function gets a second RDMA device for subnet management,
    /// `sub_device`. For each of the `planes`, this device has a port, a `umad` device and an `issm` device. `nic`
    /// itself gets the `umad` and `issm` devices with number 0.
    pub fn is_multi_plane(&self, nic: &Nic<'_>, sub_device: &str, planes: u64) {
        let own = std::iter::once((nic.rdma, 1, 0));
        for (rdma, port, number) in own.chain((1..=planes).map(|it| (sub_device, it, it))) {
            let ports = format!("sys/class/infiniband/{rdma}/ports/{port}");
            fs::create_dir_all(self.path(&ports)).expect("a directory");
            self.write(&format!("{ports}/state"), "4: ACTIVE\n");
            self.write(&format!("{ports}/link_layer"), "InfiniBand\n");
            for (kind, minor) in [("umad", number), ("issm", 64 + number)] {
                let name = format!("{kind}{number}");
                let mad = format!("sys/class/infiniband_mad/{name}");
                fs::create_dir_all(self.path(&mad)).expect("a directory");
                self.write(&format!("{mad}/ibdev"), &format!("{rdma}\n"));
                self.write(&format!("{mad}/port"), &format!("{port}\n"));
                self.write(&format!("{mad}/dev"), &format!("{MAJOR}:{minor}\n"));
                let device = format!("../../../devices/pci0000:00/{}", nic.address);
                self.link(&format!("{mad}/device"), &device);
                self.node(&name, MAJOR, minor);
            }
        }
    }

    /// Removes the `uverbs` device with this number.
    pub fn without_number(&self, number: u64) {
        let verbs = format!("sys/class/infiniband_verbs/uverbs{number}");
        fs::remove_dir_all(self.path(&verbs)).expect("removed");
        fs::remove_file(self.path(&format!("dev/infiniband/uverbs{number}"))).expect("removed");
    }

    /// Makes the firmware of `nic` stop responding: a process that opens the file of the port's state waits for a
    /// writer.
    ///
    /// # Panics
    /// There is no such NIC.
    #[track_caller]
    pub fn silence(&self, nic: &Nic<'_>) {
        let state = self.path(&format!("sys/class/infiniband/{}/ports/1/state", nic.rdma));
        fs::remove_file(&state).expect("removed");
        mkfifo(&state, Mode::S_IRUSR).expect("a FIFO");
    }

    /// Unplugs the NIC.
    pub fn unplug(&self, nic: &Nic<'_>) {
        self.without_number(nic.number);
        let own = self.path(&format!("sys/devices/pci0000:00/{}", nic.address));
        if let Ok(physical) = fs::read_link(own.join("physfn")) {
            let of = fs::read_dir(own.join(physical)).expect("its physical function");
            for link in of.map(|it| it.expect("an entry").path()) {
                if fs::read_link(&link).is_ok_and(|it| it.ends_with(nic.address)) {
                    fs::remove_file(link).expect("removed");
                }
            }
        }
        for below in [
            format!("sys/bus/pci/devices/{}", nic.address),
            format!("sys/class/net/{}", nic.netdev),
        ] {
            fs::remove_file(self.path(&below)).expect("removed");
        }
        for below in [
            format!("sys/class/infiniband/{}", nic.rdma),
            format!("sys/devices/pci0000:00/{}", nic.address),
        ] {
            fs::remove_dir_all(self.path(&below)).expect("removed");
        }
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.path(path)).expect("a link");
    }

    fn node(&self, name: &str, major: u64, minor: u64) {
        let path = self.path("dev/infiniband").join(name);
        mknod(
            &path,
            SFlag::S_IFCHR,
            Mode::S_IRUSR | Mode::S_IWUSR,
            makedev(major, minor),
        )
        .expect("a device file, which only root can make");
    }
}

/// Returns vital product data with the id `card` (`V3`), which the functions of one card share.
pub fn product_data(card: &str) -> Vec<u8> {
    let mut fields = b"PN\x03CX8V3".to_vec();
    fields.push(u8::try_from(card.len()).expect("short"));
    fields.extend(card.as_bytes());
    let length = u16::try_from(fields.len()).expect("short").to_le_bytes();
    [&[0x90][..], &length, &fields, &[0x78]].concat()
}
