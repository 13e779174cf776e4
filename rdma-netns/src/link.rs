// SPDX-License-Identifier: Apache-2.0
//! A netdev with all that a move between namespaces loses or a pod can change.

mod address;
mod route;
mod sysctl;

pub use address::{
    Address, FOR_EVER, GIVEN_FLAGS, IFA_F_HOMEADDRESS, IFA_F_MANAGETEMPADDR, IFA_F_MCAUTOJOIN,
    IFA_F_NODAD, IFA_F_NOPREFIXROUTE, IFA_F_OPTIMISTIC,
};
pub use route::{
    HIGH_PREFERENCE, LOW_PREFERENCE, MAIN_TABLE, PROTOCOL_KERNEL, PROTOCOL_RA, PROTOCOL_STATIC,
    Route, RouteMetrics, SCOPE_LINK,
};
pub use sysctl::{SYSCTLS, Sysctls};

use crate::{Child, DeviceAddress, HardwareAddress, InterfaceName, Ipoib, Vf};
pub(crate) use route::contains;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::IpAddr};

/// A netdev as seen in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Number in its namespace; a move keeps it unless it is taken there.
    pub index: u32,
    /// Name in its namespace.
    pub name: InterfaceName,
    /// Present hardware address.
    pub mac: HardwareAddress,
    /// Address of broadcasts and of neighbour queries (`IFLA_BROADCAST`), for Ethernet only: that of InfiniBand belongs
    /// to its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<HardwareAddress>,
    /// Address burnt in, where the driver tells it (Linux 5.6, `IFLA_PERM_ADDRESS`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<HardwareAddress>,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// Largest MTU of its driver, bytes (Linux 4.19, `IFLA_MAX_MTU`); 0: any. `None`: not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mtu: Option<u32>,
    /// Set up by its administrator (`IFF_UP`).
    pub up: bool,
    /// The medium is there (`IFF_LOWER_UP`).
    #[serde(default)]
    pub carrier: bool,
    /// Flags that are on, of those an administrator can set.
    #[serde(default)]
    pub flags: Vec<LinkFlag>,
    /// Transmit queue length, packets.
    #[serde(default)]
    pub tx_queue_len: u32,
    /// Numbers that its namespace's administrator can set, and that no move resets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<LinkSetting, u32>,
    /// Alternative names, in the kernel's order. One that is no UTF-8 is a NUL, which no name has, and a character for
    /// each of its bytes.
    #[serde(default)]
    pub alt_names: Vec<String>,
    /// Free text (`ip link set alias`); bytes that are no UTF-8 as in `alt_names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// `veth`, `bond`, `macvlan`…; a NIC has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Link type.
    #[serde(default)]
    pub link_type: LinkType,
    /// The PCI function or auxiliary device behind it (Linux 5.14, `IFLA_PARENT_DEV_NAME`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// The port's name on its switch (`IFLA_PHYS_PORT_NAME`): `p0`, `pf0vf3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    /// Index of the bond or bridge it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
    /// Index of the netdev it lies on (`IFLA_LINK`), in whichever namespace that is: beside a
    /// macvlan in a pod this is an index of the host. The ends of a pair (`veth`) have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<u32>,
    /// Lower netdev of a virtual netdev, which never changes and distinguishes it from a later netdev with the same
    /// index and kind. `None`: its kind has none, or it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Kind of child, if it is one that a pod can get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// The partition and the mode of an IPoIB netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipoib: Option<Ipoib>,
    /// Earlier set-up by its physical function, in the record of a virtual function that was changed.
    /// [`Observed::vfs`](crate::Observed::vfs) has the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<Vf>,
    /// Settings under `/proc/sys/net/ipv{4,6}/conf/<name>/` that a move resets, by
    /// `ipv6/accept_ra`-like name; those in [`SYSCTLS`].
    #[serde(default)]
    pub sysctls: Sysctls,
    /// Addresses, in the kernel's order (the first of an IPv4 prefix is its primary).
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Routes that leave by this netdev, in any table.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// Lower netdev of a virtual netdev, as one namespace sees it (`rtnl_fill_link_netnsid()`, `net/core/rtnetlink.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Index of the netdev that it lies on, or of the other end of a pair (`IFLA_LINK`).
    pub index: u32,
    /// The number that the namespace of that netdev has in this one (`IFLA_LINK_NETNSID`); -1: the two are in one
    /// namespace.
    pub netns: i32,
    /// Protocol and id of a VLAN (`IFLA_VLAN_PROTOCOL`, `IFLA_VLAN_ID`); 0: it is none.
    #[serde(default)]
    pub vlan: u32,
}

/// A number of a netdev, set by rtnetlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkSetting {
    /// Mode `IF_LINK_MODE_*` (`include/uapi/linux/if.h`): 0 default, 1 dormant, in which a netdev that is up has no
    /// carrier for routing.
    Mode,
    /// The group of netdevs that rules can name (`IFLA_GROUP`).
    Group,
    /// Bytes of a segment that is cut later (`IFLA_GSO_MAX_SIZE`).
    GsoMaxSize,
    /// Packets that it is cut into at most (`IFLA_GSO_MAX_SEGS`).
    GsoMaxSegments,
    /// Bytes of a segment that is put together of received ones (Linux 5.19, `IFLA_GRO_MAX_SIZE`).
    GroMaxSize,
    /// Same as [`Self::GsoMaxSize`] for IPv4 (Linux 6.3, `IFLA_GSO_IPV4_MAX_SIZE`). The kernel changes it together with
    /// that one.
    GsoIpv4MaxSize,
    /// Same as [`Self::GroMaxSize`] for IPv4 (Linux 6.3, `IFLA_GRO_IPV4_MAX_SIZE`). The kernel changes it together with
    /// that one.
    GroIpv4MaxSize,
    /// Operational state (`IFLA_OPERSTATE`), 1: up, but dormant or under test, so that IPv6 does not use it. The kernel
    /// updates it when the carrier changes, which may never happen on a netdev without a medium of its own.
    Dormant,
    /// Id of the XDP program (`IFLA_XDP`), of several the sum; 0: none. No move detaches it.
    Xdp,
}

/// Flags of a netdev that an administrator sets, other than up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkFlag {
    /// Every packet of the medium is taken in.
    Promisc,
    /// Every multicast packet is taken in.
    AllMulti,
    /// Multicast is possible.
    Multicast,
    /// No neighbour discovery (`ip link set arp off`).
    NoArp,
    /// Means nothing to the kernel (`ip link set trailers off`).
    NoTrailers,
    /// Means nothing to the kernel (`ip link set dynamic on`).
    Dynamic,
    /// Drivers may log more.
    Debug,
    /// Means nothing to the kernel.
    PortSel,
    /// Means nothing to the kernel.
    AutoMedia,
}

impl LinkFlag {
    /// All of them: what `__dev_change_flags()` (`net/core/dev.c`) takes from an administrator.
    pub const ALL: [Self; 9] = [
        Self::Promisc,
        Self::AllMulti,
        Self::Multicast,
        Self::NoArp,
        Self::NoTrailers,
        Self::Dynamic,
        Self::Debug,
        Self::PortSel,
        Self::AutoMedia,
    ];

    /// Its name in `include/uapi/linux/if.h` without `IFF_`, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Promisc => "promisc",
            Self::AllMulti => "allmulti",
            Self::Multicast => "multicast",
            Self::NoArp => "noarp",
            Self::NoTrailers => "notrailers",
            Self::Dynamic => "dynamic",
            Self::Debug => "debug",
            Self::PortSel => "portsel",
            Self::AutoMedia => "automedia",
        }
    }
}

/// Link type of a netdev (`ARPHRD_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkType {
    /// Ethernet, RoCE included.
    #[default]
    Ether,
    /// IP over InfiniBand.
    Infiniband,
    /// Anything else: loopback, tunnels.
    Other,
}

impl Link {
    /// Returns true if `name` is its name, or one of its alternative names.
    pub fn has_name(&self, name: &str) -> bool {
        *self.name == *name || self.alt_names.iter().any(|alt| alt == name)
    }

    /// Returns true if `flag` is set.
    pub fn has(&self, flag: LinkFlag) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns true if the kernel would accept `route` with `addresses`: its source is one of them, and its gateway is
    /// on the link by them, by a route, or by being link-local.
    pub fn can_have(&self, route: &Route, addresses: &[Address]) -> bool {
        let has_source = route
            .source
            .is_none_or(|ip| addresses.iter().any(|it| it.ip == ip));
        let Some(gateway) = route.gateway else {
            return has_source;
        };
        let link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let by_address = addresses
            .iter()
            .any(|it| it.flags & IFA_F_NOPREFIXROUTE == 0 && contains(it.ip, it.prefix, gateway));
        let by_route = self.routes.iter().any(|it| {
            it.gateway.is_none()
                && !self.makes_itself(it)
                && contains(it.destination, it.prefix, gateway)
        });
        has_source && (route.onlink || link_local || by_address || by_route)
    }

    /// Returns true if the kernel itself makes `route`, one of this netdev's: with one of its addresses, or from a
    /// router advertisement.
    ///
    /// NetworkManager sets its addresses with `IFA_F_NOPREFIXROUTE` and makes the prefix route itself with
    /// `RTPROT_KERNEL`; systemd-networkd makes advertised routes with `RTPROT_RA`. Both keep the kernel from accepting
    /// advertisements, so the kernel does not make these routes again.
    ///
    /// The kernel makes routes in the main table (`fib_magic()`, `net/ipv4/fib_frontend.c`; `RT6_TABLE_PREFIX`,
    /// `include/net/ip6_fib.h`), or in that of the netdev's VRF. Scripts copy them into other tables for rules by
    /// source.
    pub fn makes_itself(&self, route: &Route) -> bool {
        if route.table != MAIN_TABLE && self.master.is_none() {
            return false;
        }
        match route.protocol {
            PROTOCOL_KERNEL => {
                let comes_with = |address: &Address| address.brings(route);
                // a prefix that is on the link without an address of it
                let advertised = route.destination.is_ipv6() && route.expires.is_some();
                self.addresses.iter().any(comes_with) || advertised && self.takes_advertisements()
            }
            PROTOCOL_RA => self.takes_advertisements(),
            _ => false,
        }
    }

    /// Returns true if the kernel itself makes addresses and routes of router advertisements (`ipv6_accept_ra()`,
    /// `include/net/ipv6.h`). An unknown setting counts as the kernel's default.
    fn takes_advertisements(&self) -> bool {
        let setting = |key: &str, default| self.sysctls.get(key).copied().unwrap_or(default);
        match setting("ipv6/accept_ra", 1) {
            2 => true,
            accepts => accepts != 0 && setting("ipv6/forwarding", 0) == 0,
        }
    }

    /// Returns the netdev as it is `seconds` later without other changes: lifetimes are shorter, and expired objects
    /// are gone.
    pub fn aged(&self, seconds: u64) -> Self {
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX - 1);
        let left = |lifetime: u32| match lifetime {
            FOR_EVER => FOR_EVER,
            limited => limited.saturating_sub(seconds),
        };
        let mut link = self.clone();
        for address in &mut link.addresses {
            let lifetime = address.lifetime;
            address.lifetime = lifetime.map(|(valid, preferred)| (left(valid), left(preferred)));
        }
        let valid = |it: &Address| it.lifetime.is_none_or(|(valid, _)| valid > 0);
        link.addresses.retain(valid);
        // a route that came with an address goes with it
        let stays = |route: &&Route| !self.makes_itself(route) || link.makes_itself(route);
        let routes = self.routes.iter().filter(stays).map(|route| Route {
            expires: route.expires.map(left),
            ..route.clone()
        });
        let routes = routes.filter(|route| route.expires != Some(0)).collect();
        link.routes = routes;
        link
    }

    /// The routes that the kernel does not make by itself, in the order in which they can be
    /// set: a gateway has to be on the link before a route goes by it.
    pub fn lasting_routes(&self) -> impl Iterator<Item = &Route> {
        let lasting = || self.routes.iter().filter(|route| !self.makes_itself(route));
        let on_link = lasting().filter(|route| route.gateway.is_none());
        on_link.chain(lasting().filter(|route| route.gateway.is_some()))
    }

    /// Returns true if it is a bond of several netdevs, with which its ports stay.
    pub fn is_bond(&self) -> bool {
        matches!(self.kind.as_deref(), Some("bond" | "team"))
    }

    /// Returns true if it is a VLAN of its lower netdev.
    pub fn is_vlan(&self) -> bool {
        self.kind.as_deref() == Some("vlan") && self.lower.is_some()
    }

    /// Returns true if it represents another function's port on the NIC's switch: `pf0vf3`, `c1pf0sf88`
    /// (`Documentation/networking/devlink/devlink-port.rst`).
    pub fn is_representor(&self) -> bool {
        let name = self.port_name.as_deref().unwrap_or_default();
        name.contains("pf") && (name.contains("vf") || name.contains("sf"))
    }

    /// The address `wanted` as it is on this netdev.
    pub fn address(&self, wanted: &Address) -> Option<&Address> {
        self.addresses.iter().find(|a| a.same_as(wanted))
    }
}
