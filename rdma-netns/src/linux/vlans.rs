// SPDX-License-Identifier: Apache-2.0
//! Finds the VLANs on a netdev in sysfs. A netdev's directory has a link to each upper netdev in its namespace
//! (`netdev_adjacent_sysfs_add()`, `net/core/dev.c`). A VLAN is recognized by its device type (`vlan_type`,
//! `net/8021q/vlan_dev.c`).

use super::devices::{entries, read};
use crate::{
    Vlan,
    netlink::{attribute, text},
};
use nix::libc::{IFLA_INFO_DATA, IFLA_INFO_KIND};
use std::path::Path;

const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;

/// Returns protocol and id of the VLAN that `IFLA_LINKINFO` describes, in the form of [`Origin`](crate::Origin).
/// Returns 0 for a netdev of another kind.
pub(super) fn tag(info: &[u8]) -> u32 {
    let is_vlan = attribute(info, IFLA_INFO_KIND).and_then(text) == Some("vlan");
    let data = attribute(info, IFLA_INFO_DATA).filter(|_| is_vlan);
    let word = |wanted| attribute(data?, wanted)?.try_into().ok();
    let id = word(IFLA_VLAN_ID).map_or(0, u16::from_ne_bytes);
    let protocol = word(IFLA_VLAN_PROTOCOL).map_or(0, u16::from_be_bytes);
    u32::from(protocol) << 16 | u32::from(id)
}

/// Returns the VLANs on the netdev `name`, sorted by name.
pub(super) fn of(sysfs: &Path, name: &str) -> Vec<Vlan> {
    let netdevs = sysfs.join("class/net");
    let uppers = entries(&netdevs.join(name)).unwrap_or_default();
    let names = uppers.iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("upper_")
    });
    let vlan = |name: &str| {
        let directory = netdevs.join(name);
        let uevent = read(&directory, "uevent")?;
        let is_vlan = uevent.lines().any(|line| line == "DEVTYPE=vlan");
        is_vlan.then(|| Vlan {
            name: name.to_owned(),
            up: is_up(&directory),
        })
    };
    let mut found: Vec<Vlan> = names.filter_map(vlan).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Returns true if the netdev at `directory` is administratively up (`IFF_UP`).
fn is_up(directory: &Path) -> bool {
    let flags = read(directory, "flags");
    let flags = flags.and_then(|it| u32::from_str_radix(it.strip_prefix("0x")?, 16).ok());
    flags.is_some_and(|flags| flags & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// The message has `IFLA_INFO_KIND`, and `IFLA_INFO_DATA` with a protocol in network byte order.
    #[test]
    fn a_vlan_has_its_protocol_and_id() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).expect("a length");
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let data = [
            attribute(IFLA_VLAN_ID, &100_u16.to_ne_bytes()),
            attribute(IFLA_VLAN_PROTOCOL, &0x88a8_u16.to_be_bytes()),
        ];
        let of = |kind: &[u8]| {
            let kind = attribute(IFLA_INFO_KIND, kind);
            tag(&[kind, attribute(IFLA_INFO_DATA, &data.concat())].concat())
        };
        assert_eq!(of(b"vlan\0"), 0x88a8_0064);
        assert_eq!(of(b"macvlan\0"), 0, "its attributes are others");
    }

    #[test]
    fn vlans_are_distinguished_from_other_upper_netdevs() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let netdevs = sysfs.path().join("class/net");
        fs::create_dir_all(netdevs.join("bond0")).expect("a directory");
        for (name, kind, flags) in [
            ("bond0.200", "vlan", "0x1002"),
            ("bond0.100", "vlan", "0x1003"),
            ("mac0", "macvlan", "0x1003"),
        ] {
            let directory = netdevs.join(name);
            fs::create_dir(&directory).expect("a directory");
            let uevent = format!("DEVTYPE={kind}\nINTERFACE={name}\nIFINDEX=9\n");
            fs::write(directory.join("uevent"), uevent).expect("a file");
            fs::write(directory.join("flags"), format!("{flags}\n")).expect("a file");
            let link = netdevs.join("bond0").join(format!("upper_{name}"));
            symlink(format!("../{name}"), link).expect("a link");
        }
        symlink("../eth0", netdevs.join("bond0/lower_eth0")).expect("a link");
        let found = of(sysfs.path(), "bond0");
        let seen: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.up)).collect();
        assert_eq!(seen, [("bond0.100", true), ("bond0.200", false)]);
        assert_eq!(of(sysfs.path(), "mac0"), []);
        assert_eq!(of(sysfs.path(), "gone"), []);
    }
}
