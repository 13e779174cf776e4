// SPDX-License-Identifier: Apache-2.0
//! A netdev of a world.

use rdma_netns::{
    Child, DeviceAddress, DeviceSettings, HardwareAddress, InterfaceName, Ipoib, Link, LinkSetting,
    LinkType, NetnsId, link::Sysctls,
};
use std::{collections::BTreeMap, net::IpAddr};

/// The smallest MTU that IPv6 works on (`IPV6_MIN_MTU`).
pub(crate) const IPV6_MIN_MTU: u32 = 1280;

/// A netdev in any namespace.
#[derive(Clone, Debug)]
pub(crate) struct Netdev {
    /// Number of the netdev, which no move changes.
    pub(crate) id: u64,
    pub(crate) netns: NetnsId,
    pub(crate) link: Link,
    /// Settings that rtnetlink does not report, and that no move resets.
    pub(crate) settings: DeviceSettings,
    /// The lower netdev, by [`Netdev::id`].
    pub(crate) below: Option<u64>,
    pub(crate) max_mtu: u32,
    /// True if a cable is plugged in.
    pub(crate) cable: bool,
    /// True if the driver changes the hardware address only while the netdev is down.
    pub(crate) mac_needs_down: bool,
    /// Number of observations that each duplicate address detection still takes.
    pub(crate) detecting: BTreeMap<IpAddr, u32>,
}

impl Netdev {
    /// Returns true if the netdev belongs to hardware, so that no `ip link add` made it.
    pub(crate) fn is_physical(&self) -> bool {
        matches!(self.link.kind.as_deref(), None | Some("ipoib")) && !self.is_ipoib_child()
    }

    pub(crate) fn has_ipv6(&self) -> bool {
        self.link.mtu >= IPV6_MIN_MTU && self.link.sysctls.get("ipv6/disable_ipv6") == Some(&0)
    }

    /// Removes the netdev's IPv6 state, as the kernel does when the netdev goes down, gets an MTU below 1280 or
    /// `disable_ipv6` (`addrconf_ifdown()`, `net/ipv6/addrconf.c`).
    pub(crate) fn lose_ipv6(&mut self) {
        self.link.addresses.retain(|address| address.ip.is_ipv4());
        self.link.routes.retain(|route| route.destination.is_ipv4());
        self.detecting.clear();
    }

    /// Sets the IPoIB attributes, and for a netdev with a lower netdev also the child attributes.
    pub(crate) fn set_ipoib(&mut self, ipoib: Ipoib) {
        let Ipoib { pkey, mode, .. } = ipoib;
        self.link.ipoib = Some(ipoib);
        self.link.child = self.below.map(|_| Child::Ipoib { pkey, mode });
    }

    /// Returns true if the netdev is a child of an IPoIB netdev.
    pub(crate) fn is_ipoib_child(&self) -> bool {
        self.link.ipoib.is_some() && self.below.is_some()
    }
}

/// A netdev that udev is about to rename.
#[derive(Clone, Debug)]
pub(crate) struct Renaming {
    pub(crate) function: DeviceAddress,
    /// Number of observations until udev renames the netdev.
    pub(crate) left: u32,
}

/// Returns a netdev that is down, without addresses, routes and sysctls.
pub(crate) fn blank(name: InterfaceName) -> Link {
    Link {
        index: 0,
        name,
        mac: HardwareAddress::default(),
        broadcast: Some(HardwareAddress(vec![0xff; 6])),
        permanent_mac: None,
        mtu: 1500,
        max_mtu: None,
        up: false,
        carrier: false,
        flags: vec![],
        tx_queue_len: 1000,
        settings: BTreeMap::from([
            (LinkSetting::Mode, 0),
            (LinkSetting::Group, 0),
            (LinkSetting::GsoMaxSize, 65536),
            (LinkSetting::GsoMaxSegments, 65535),
            (LinkSetting::GroMaxSize, 65536),
            (LinkSetting::GsoIpv4MaxSize, 65536),
            (LinkSetting::GroIpv4MaxSize, 65536),
            (LinkSetting::Xdp, 0),
        ]),
        alt_names: vec![],
        alias: None,
        kind: None,
        link_type: LinkType::Ether,
        parent: None,
        port_name: None,
        master: None,
        lower: None,
        origin: None,
        child: None,
        ipoib: None,
        vf: None,
        sysctls: Sysctls::default(),
        addresses: vec![],
        routes: vec![],
    }
}
