// SPDX-License-Identifier: Apache-2.0
//! Parses netdevs in rtnetlink messages (`RTM_NEWLINK`, `include/uapi/linux/if_link.h`).

use super::{
    children, devices, ipoib,
    link_messages::{HEADER, NUMBERS, OPER_DORMANT, bit, kind_of},
    sysctls, vlans, xdp,
};
use crate::{
    Child, HardwareAddress, InterfaceName, Ipoib, Link, LinkFlag, LinkSetting, LinkType, Origin,
    netlink::{attribute, attributes, text, u32_of, until_nul},
    probe::ProbeObstacle,
};
use netlink_packet_route::link::{LinkFlags, LinkHeader, LinkLayerType};
use nix::libc::{
    IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_ALT_IFNAME, IFLA_BROADCAST, IFLA_IFALIAS, IFLA_IFNAME,
    IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_LINKMODE, IFLA_MASTER, IFLA_MAX_MTU,
    IFLA_MTU, IFLA_OPERSTATE, IFLA_PARENT_DEV_BUS_NAME, IFLA_PARENT_DEV_NAME, IFLA_PERM_ADDRESS,
    IFLA_PHYS_PORT_NAME, IFLA_PROP_LIST, IFLA_TXQLEN, IFLA_XDP,
};
use std::{collections::BTreeMap, path::Path};

/// `IF_OPER_TESTING`
const OPER_TESTING: u8 = 4;

/// Returns the hardware address by which neighbours reach the Ethernet netdev of an `RTM_NEWLINK`. Returns `None` if
/// the netdev is down, has `IFF_NOARP`, or is not Ethernet.
pub(super) fn neighbours_find(body: &[u8]) -> Option<[u8; 6]> {
    let header = LinkHeader::parse(body).ok()?;
    let is_found = header.link_layer_type == LinkLayerType::Ether
        && header.flags.contains(LinkFlags::Up)
        && !header.flags.contains(LinkFlags::Noarp);
    let address = attribute(body.get(HEADER..)?, IFLA_ADDRESS).filter(|_| is_found)?;
    address.try_into().ok()
}

/// Returns the hardware address from which the netdev of an `RTM_NEWLINK` can send ARP and neighbour discovery now.
pub(super) fn can_ask(body: &[u8]) -> Result<[u8; 6], ProbeObstacle> {
    let header = LinkHeader::parse(body).map_err(|_| ProbeObstacle::NotEthernet)?;
    if header.link_layer_type != LinkLayerType::Ether {
        return Err(ProbeObstacle::NotEthernet);
    }
    if header.flags.contains(LinkFlags::Noarp) {
        return Err(ProbeObstacle::NoNeighbours);
    }
    if !header.flags.contains(LinkFlags::LowerUp) {
        return Err(ProbeObstacle::NoCarrier);
    }
    neighbours_find(body).ok_or(ProbeObstacle::NoCarrier)
}

/// Returns the netdev of an `RTM_NEWLINK`, without [alternative names](alt_names), addresses and routes.
pub(super) fn parse(body: &[u8], sysfs: &Path) -> Option<Link> {
    let header = LinkHeader::parse(body).ok()?;
    let flags = LinkFlag::ALL.into_iter();
    let mut link = Link {
        index: header.index,
        name: name_of(body, header.index),
        mac: HardwareAddress::default(),
        broadcast: None,
        permanent_mac: None,
        mtu: 0,
        max_mtu: None,
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        flags: flags.filter(|it| header.flags.contains(bit(*it))).collect(),
        tx_queue_len: 0,
        settings: BTreeMap::new(),
        alt_names: Vec::new(),
        alias: None,
        kind: None,
        link_type: match header.link_layer_type {
            LinkLayerType::Ether => LinkType::Ether,
            LinkLayerType::Infiniband => LinkType::Infiniband,
            _ => LinkType::Other,
        },
        parent: None,
        port_name: None,
        master: None,
        lower: None,
        origin: None,
        child: None,
        ipoib: None,
        vf: None,
        sysctls: Default::default(),
        addresses: Vec::new(),
        routes: Vec::new(),
    };
    let (mut parent, mut bus) = (None, None);
    let (mut netns, mut vlan) = (None, 0);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        let owned = || text(value).map(str::to_owned);
        match kind {
            IFLA_PHYS_PORT_NAME => link.port_name = owned(),
            IFLA_ADDRESS => link.mac = HardwareAddress(value.to_vec()),
            IFLA_BROADCAST if link.link_type == LinkType::Ether => {
                link.broadcast = Some(HardwareAddress(value.to_vec()));
            }
            IFLA_XDP => {
                let programs = xdp::programs(value).map(|(_, id)| id);
                let sum = programs.fold(0, u32::wrapping_add);
                link.settings.insert(LinkSetting::Xdp, sum);
            }
            IFLA_PERM_ADDRESS => link.permanent_mac = Some(HardwareAddress(value.to_vec())),
            IFLA_MTU => link.mtu = u32_of(value)?,
            IFLA_MAX_MTU => link.max_mtu = u32_of(value),
            IFLA_TXQLEN => link.tx_queue_len = u32_of(value)?,
            IFLA_LINKMODE => {
                let mode = value.first().copied().map(u32::from);
                link.settings
                    .extend(mode.map(|mode| (LinkSetting::Mode, mode)));
            }
            IFLA_OPERSTATE => {
                let is_dormant = matches!(value.first(), Some(&(OPER_TESTING | OPER_DORMANT)));
                link.settings
                    .insert(LinkSetting::Dormant, u32::from(is_dormant));
            }
            // 0 means that the netdev has no lower netdev; tunnels report 0
            IFLA_LINK => link.lower = u32_of(value).filter(|index| *index != 0),
            IFLA_LINK_NETNSID => netns = u32_of(value),
            IFLA_MASTER => link.master = u32_of(value),
            IFLA_IFALIAS => link.alias = Some(text_of_bytes(value)),
            IFLA_LINKINFO => {
                link.kind = kind_of(value);
                link.child = children::parse(value);
                link.ipoib = ipoib::parse(value);
                vlan = vlans::tag(value);
            }
            IFLA_PARENT_DEV_NAME => parent = owned(),
            IFLA_PARENT_DEV_BUS_NAME => bus = text(value),
            IFLA_AF_SPEC => link.sysctls = sysctls::parse(value),
            _ => {
                let number = NUMBERS.iter().find(|(_, number)| *number == kind);
                let set = number.zip(u32_of(value));
                link.settings
                    .extend(set.map(|((setting, _), value)| (*setting, value)));
            }
        }
    }
    link.origin = link.lower.map(|index| Origin {
        index,
        netns: netns.map_or(-1, |it| it as i32),
        vlan,
    });
    // IFLA_LINK of one end of a pair is the other end, which is no lower netdev
    if matches!(link.kind.as_deref(), Some("veth" | "vxcan" | "netkit")) {
        link.lower = None;
    }
    // IFLA_LINK of an IPoIB child is its parent (`ipoib_get_iflink()`, `ipoib_main.c`)
    if let (Some(Ipoib { pkey, mode, .. }), Some(_)) = (link.ipoib, link.lower) {
        link.child = Some(Child::Ipoib { pkey, mode });
    }
    let parent = parent.zip(bus);
    link.parent = parent.and_then(|(name, bus)| devices::hardware(sysfs, bus, &name));
    Some(link)
}

/// Returns the alternative names of the netdev of an `RTM_NEWLINK`. A netdev can have alternative names of 64 KiB.
pub(super) fn alt_names(body: &[u8]) -> Vec<String> {
    let list = attribute(body.get(HEADER..).unwrap_or_default(), IFLA_PROP_LIST);
    let names = attributes(list.unwrap_or_default()).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
    names.map(|(_, name)| text_of_bytes(name)).collect()
}

/// Returns the name of the netdev `index` of an `RTM_NEWLINK`.
fn name_of(body: &[u8], index: u32) -> InterfaceName {
    let name = attribute(body.get(HEADER..).unwrap_or_default(), IFLA_IFNAME);
    let name = name.and_then(|value| text(value)?.try_into().ok());
    name.unwrap_or_else(|| InterfaceName::of_index(index))
}

/// Returns true if the netdev of an `RTM_NEWLINK` may have hardware that the message does not name. Linux before
/// 5.14 reports no hardware (`rtnl_fill_ifinfo()`, `net/core/rtnetlink.c`). A netdev with a kind is virtual, except
/// an IPoIB netdev.
pub(super) fn hides_hardware(body: &[u8], link: &Link) -> bool {
    let can_have =
        link.link_type != LinkType::Other && matches!(link.kind.as_deref(), None | Some("ipoib"));
    let attributes = body.get(HEADER..).unwrap_or_default();
    can_have && attribute(attributes, IFLA_PARENT_DEV_NAME).is_none()
}

/// Returns the netdev of an `RTM_NEWLINK` like [`parse`]. If `sysfs` shows the netdev's namespace (`is_own`), the netdev
/// also has hardware that the message does not name.
pub(super) fn parse_in(body: &[u8], sysfs: &Path, is_own: bool) -> Option<Link> {
    let mut link = parse(body, sysfs)?;
    if is_own && hides_hardware(body, &link) {
        link.parent = devices::of_netdev(sysfs, &link.name, link.index);
    }
    Some(link)
}

/// Returns the bytes up to a NUL as text, in the form of [`Link::alt_names`]. A pod may use any bytes.
fn text_of_bytes(value: &[u8]) -> String {
    let bytes = until_nul(value);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => ['\0']
            .into_iter()
            .chain(bytes.iter().map(|byte| char::from(*byte)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::link_messages::message;
    use netlink_packet_core::{DefaultNla, NetlinkSerializable};
    use netlink_packet_route::{
        RouteNetlinkMessage,
        link::{InfoKind, LinkAttribute, LinkInfo},
    };
    use std::{fs, os::unix::fs::symlink};

    /// Returns the body of an `RTM_NEWLINK` for `eth2` with index 4.
    fn body(of: LinkLayerType, more: Vec<LinkAttribute>) -> Vec<u8> {
        let mut attributes = vec![
            LinkAttribute::IfName("eth2".to_owned()),
            LinkAttribute::Mtu(1500),
            LinkAttribute::TxQueueLen(1000),
        ];
        attributes.extend(more);
        let mut message = message(4, attributes);
        message.header.link_layer_type = of;
        let message = RouteNetlinkMessage::NewLink(message);
        let mut body = vec![0; message.buffer_len()];
        message.serialize(&mut body);
        body
    }

    fn kind(kind: InfoKind) -> Vec<LinkAttribute> {
        vec![LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])]
    }

    fn parent(name: &str) -> Vec<LinkAttribute> {
        let text = |kind, text: &str| {
            let text = [text.as_bytes(), b"\0"].concat();
            LinkAttribute::Other(DefaultNla::new(kind, text))
        };
        vec![
            text(IFLA_PARENT_DEV_NAME, name),
            text(IFLA_PARENT_DEV_BUS_NAME, "pci"),
        ]
    }

    #[test]
    fn sysfs_is_read_for_hardware_only_without_netlinks_report() {
        use LinkLayerType::{Ether, Infiniband, Loopback};
        let sysfs = tempfile::tempdir().expect("a directory");
        let place = sysfs.path().join("devices/0000:3b:00.2/net/eth2");
        let class = sysfs.path().join("class/net");
        for directory in [&place, &class] {
            fs::create_dir_all(directory).expect("a directory");
        }
        fs::write(place.join("ifindex"), "4\n").expect("a file");
        for (link, target) in [
            (class.join("eth2"), "../../devices/0000:3b:00.2/net/eth2"),
            (place.join("device"), "../../../0000:3b:00.2"),
            (place.join("../../subsystem"), "../../bus/pci"),
        ] {
            symlink(target, link).expect("a link");
        }
        for (what, body, expected) in [
            ("before 5.14", body(Ether, vec![]), Some("0000:3b:00.2")),
            (
                "IPoIB before 5.14",
                body(Infiniband, kind(InfoKind::Ipoib)),
                Some("0000:3b:00.2"),
            ),
            (
                "since 5.14",
                body(Ether, parent("0000:d8:00.2")),
                Some("0000:d8:00.2"),
            ),
            ("no PCI function", body(Ether, parent("none")), None),
            ("virtual", body(Ether, kind(InfoKind::Veth)), None),
            ("loopback", body(Loopback, vec![]), None),
        ] {
            let link = parse_in(&body, sysfs.path(), true).expect("a netdev");
            assert_eq!(link.parent.as_deref(), expected, "{what}");
        }
    }
}
