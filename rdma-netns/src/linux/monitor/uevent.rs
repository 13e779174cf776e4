// SPDX-License-Identifier: Apache-2.0
//! Kernel uevents (`lib/kobject_uevent.c`): a header such as `add@/devices/…`, a NUL, then lines `KEY=value`.

/// The subsystems of netdevs, RDMA devices, their character devices and their hardware, and of modules and drivers.
const SUBSYSTEMS: [&str; 8] = [
    "net",
    "infiniband",
    "infiniband_verbs",
    "infiniband_mad",
    "pci",
    "auxiliary",
    "module",
    "drivers",
];

/// Directory of PCI drivers. The kernel sends the event of a driver after the driver has probed its functions
/// (`driver_register()`, `drivers/base/driver.c`). The kernel sends no event of a function whose probe the driver
/// defers. The parser ignores drivers of other buses.
const PCI_DRIVERS: &str = "/bus/pci/drivers/";

/// Modules by which RDMA devices can register GPUs' memory. The parser ignores other modules, because their devices
/// have events of their own.
const MODULES: [&str; 2] = ["/module/nvidia_peermem", "/module/nv_peer_mem"];

/// Actions that the parser accepts (`kobject_actions`). Drivers cause `bind` and `unbind`.
const ACTIONS: [&str; 6] = ["add", "remove", "change", "move", "bind", "unbind"];

/// An event of a device, module or driver, which appeared, disappeared, or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uevent {
    /// The action: `add`, `remove`, `change`, `move`, `bind`, `unbind`.
    pub action: String,
    /// The subsystem: `net`, `infiniband`, `pci`…
    pub subsystem: String,
    /// Path below `/sys`, such as `/devices/pci0000:3a/…`. Bytes that are not UTF-8 are replaced.
    pub path: String,
}

impl Uevent {
    /// Parses a uevent. Returns `None` if the subsystem is not one of [`SUBSYSTEMS`], if the action is not one of
    /// [`ACTIONS`], if the module is not one of [`MODULES`], or if the driver is not a PCI driver.
    pub(in crate::linux) fn parse(datagram: &[u8]) -> Option<Self> {
        let mut fields = datagram.split(|byte| *byte == 0);
        // a pod may name its devices with any bytes
        let event = String::from_utf8_lossy(fields.next()?);
        let (action, path) = event.split_once('@')?;
        let mut fields =
            fields.filter_map(|it| str::from_utf8(it).ok()?.strip_prefix("SUBSYSTEM="));
        let subsystem = fields.next_back().filter(|it| SUBSYSTEMS.contains(it))?;
        let matters = match subsystem {
            "module" => MODULES.contains(&path),
            "drivers" => path.starts_with(PCI_DRIVERS),
            _ => true,
        };
        (matters && ACTIONS.contains(&action)).then(|| Self {
            action: action.to_owned(),
            subsystem: subsystem.to_owned(),
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_matters() {
        let text = b"add@/devices/virtual/net/dummy0\0ACTION=add\0DEVPATH=/devices/virtual/net/dummy0\0SUBSYSTEM=net\0INTERFACE=dummy0\0SEQNUM=7\0";
        let event = Uevent::parse(text).expect("an event");
        assert_eq!(
            (event.action.as_str(), event.subsystem.as_str()),
            ("add", "net")
        );
        assert_eq!(event.path, "/devices/virtual/net/dummy0");
    }

    #[test]
    fn a_device_may_be_called_by_any_bytes() {
        let text =
            b"move@/devices/pci0000:3a/infiniband/\xff\0DEVPATH_OLD=/\xff\0SUBSYSTEM=infiniband\0";
        let event = Uevent::parse(text).expect("an event");
        assert_eq!((&*event.action, &*event.subsystem), ("move", "infiniband"));
    }

    #[test]
    fn only_peer_memory_modules_matter() {
        let load = |name: &str| {
            let text = format!("add@/module/{name}\0ACTION=add\0SUBSYSTEM=module\0SEQNUM=9\0");
            Uevent::parse(text.as_bytes())
        };
        let event = load("nvidia_peermem").expect("an event");
        assert_eq!((&*event.action, &*event.subsystem), ("add", "module"));
        assert_eq!(load("nvidia_peermem_x"), None);
        assert_eq!(load("ext4"), None);
    }

    #[test]
    fn only_pci_drivers_matter() {
        for (path, matters) in [
            ("/bus/pci/drivers/erdma", true),
            ("/bus/usb/drivers/hub", false),
            ("/bus/pci_express/drivers/aer", false),
        ] {
            let text = format!("add@{path}\0ACTION=add\0DEVPATH={path}\0SUBSYSTEM=drivers\0");
            let event = Uevent::parse(text.as_bytes());
            assert_eq!(event.is_some(), matters, "{path}");
        }
    }

    #[test]
    fn other_messages_are_no_uevents() {
        for text in [
            &b""[..],
            b"add@",
            b"\0\0\0",
            b"add@/devices/x\0SUBSYSTEM=block\0",
            b"add@/devices/x\0SUBSYSTEM=queues\0",
            b"shout@/devices/x\0SUBSYSTEM=net\0",
            b"libudev\0\xfe\xed\xca\xfe\0SUBSYSTEM=net\0",
        ] {
            assert_eq!(Uevent::parse(text), None, "{text:?}");
        }
    }
}
