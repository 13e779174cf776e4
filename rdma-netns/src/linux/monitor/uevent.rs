// SPDX-License-Identifier: Apache-2.0
//! Kernel uevents (`lib/kobject_uevent.c`): `add@/devices/…`, a NUL, and `KEY=value`s.

/// The subsystems whose devices make or are RDMA devices, and modules.
const SUBSYSTEMS: [&str; 7] = [
    "net",
    "infiniband",
    "infiniband_verbs",
    "infiniband_mad",
    "pci",
    "auxiliary",
    "module",
];

/// Modules that allow RDMA devices to register GPUs' memory. Other modules' events are ignored, because such a module's
/// devices have events of their own.
const MODULES: [&str; 2] = ["/module/nvidia_peermem", "/module/nv_peer_mem"];

/// `kobject_actions`; `bind` and `unbind` are of drivers.
const ACTIONS: [&str; 6] = ["add", "remove", "change", "move", "bind", "unbind"];

/// An event of a device: it appeared, disappeared, or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change`, `move`, `bind`, `unbind`.
    pub action: String,
    /// `net`, `infiniband`, `pci`…
    pub subsystem: String,
    /// Path below `/sys`: `/devices/pci0000:3a/…`; bytes that are no UTF-8 are lost.
    pub path: String,
}

impl Uevent {
    /// Parses a uevent. `None`: the subsystem is not one of [`SUBSYSTEMS`], or the module is not one of [`MODULES`].
    pub(super) fn parse(datagram: &[u8]) -> Option<Self> {
        let mut fields = datagram.split(|byte| *byte == 0);
        // a pod may name its devices with any bytes
        let event = String::from_utf8_lossy(fields.next()?);
        let (action, path) = event.split_once('@')?;
        let mut subsystem = None;
        for field in fields.filter_map(|it| str::from_utf8(it).ok()) {
            if let Some(value) = field.strip_prefix("SUBSYSTEM=") {
                subsystem = Some(value);
            }
        }
        let subsystem = subsystem.filter(|it| SUBSYSTEMS.contains(it))?;
        let matters = subsystem != "module" || MODULES.contains(&path);
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
    fn of_modules_only_those_of_peer_memory_matter() {
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
