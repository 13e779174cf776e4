// SPDX-License-Identifier: Apache-2.0
//! A netdev, with attributes that a move between namespaces resets or that a pod can change.

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
use nix::libc;
pub(crate) use route::contains;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, net::IpAddr};

/// A netdev as seen in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Index of the netdev in its namespace. A move keeps the index if no netdev of the new namespace has this index.
    pub index: u32,
    /// Name of the netdev in its namespace.
    pub name: InterfaceName,
    /// Present hardware address.
    pub mac: HardwareAddress,
    /// Link-layer broadcast address (`IFLA_BROADCAST`) of an Ethernet netdev. `None` for an InfiniBand netdev, whose
    /// broadcast address belongs to its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<HardwareAddress>,
    /// Permanent hardware address, if the driver reports it (Linux 5.6, `IFLA_PERM_ADDRESS`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<HardwareAddress>,
    /// MTU, bytes.
    pub mtu: u32,
    /// Largest MTU of the driver, bytes (Linux 4.19, `IFLA_MAX_MTU`). 0: the driver has no limit. `None`: the kernel
    /// does not report the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mtu: Option<u32>,
    /// True if an administrator has set the netdev up (`IFF_UP`).
    pub up: bool,
    /// True if the netdev has carrier (`IFF_LOWER_UP`).
    #[serde(default)]
    pub carrier: bool,
    /// Flags that are set, among the flags that an administrator can set.
    #[serde(default)]
    pub flags: Vec<LinkFlag>,
    /// Transmit queue length, packets.
    #[serde(default)]
    pub tx_queue_len: u32,
    /// Numbers that an administrator of the netdev's namespace can set, and that a move does not reset.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<LinkSetting, u32>,
    /// Alternative names, in the kernel's order. A name that is not UTF-8 is stored as a NUL followed by one character
    /// for each byte. No other name contains a NUL.
    #[serde(default)]
    pub alt_names: Vec<String>,
    /// Free text (`ip link set alias`). A text that is not UTF-8 is stored as in `alt_names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Kind of a virtual netdev: `veth`, `bond`, `macvlan`… An Ethernet NIC has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Link type.
    #[serde(default)]
    pub link_type: LinkType,
    /// The PCI function or auxiliary device of the netdev (Linux 5.14, `IFLA_PARENT_DEV_NAME`; with older kernels from
    /// sysfs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// The port's name on its switch (`IFLA_PHYS_PORT_NAME`): `p0`, `pf0vf3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    /// Index of the master: the netdev is a port of this bond, bridge, VRF or other netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
    /// Index of the lower netdev (`IFLA_LINK`) in the lower netdev's own namespace: for a pod's macvlan, an index of
    /// the host. `None` for the ends of a pair (`veth`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<u32>,
    /// Lower netdev of a virtual netdev, or the other end of a pair. A netdev with another origin is another netdev,
    /// even if index and kind are the same. `None`: the netdev has no origin, or the origin is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Kind of child, if the netdev is a child of a kind that pods can get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// The partition and the mode of an IPoIB netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipoib: Option<Ipoib>,
    /// The settings that the physical function had for this virtual function before `rdma-cni` changed a setting. Only
    /// a record has this field. [`Observed::vfs`](crate::Observed::vfs) has the present settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<Vf>,
    /// The settings of [`SYSCTLS`] below `/proc/sys/net/ipv{4,6}/conf/<name>/`, by names like `ipv6/accept_ra`. The
    /// kernel resets these settings when the netdev moves to another namespace.
    #[serde(default)]
    pub sysctls: Sysctls,
    /// Addresses, in the kernel's order. The first address of an IPv4 prefix is the primary address.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Routes through this netdev, in all tables.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// Lower netdev of a virtual netdev, or the other end of a pair, as one namespace sees it (`rtnl_fill_link_netnsid()`,
/// `net/core/rtnetlink.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Index of the lower netdev, or of the other end of a pair (`IFLA_LINK`).
    pub index: u32,
    /// Number of the lower netdev's namespace in this namespace (`IFLA_LINK_NETNSID`). -1: the lower netdev, or the
    /// other end of the pair, is in this namespace too.
    pub netns: i32,
    /// Protocol and id of a VLAN (`IFLA_VLAN_PROTOCOL`, `IFLA_VLAN_ID`). 0: the netdev is no VLAN.
    #[serde(default)]
    pub vlan: u32,
}

/// A number that rtnetlink sets on a netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkSetting {
    /// Mode `IF_LINK_MODE_*` (`include/uapi/linux/if.h`): 0 default, 1 dormant. In mode 1 a netdev with carrier becomes
    /// dormant, and not operationally up (`Documentation/networking/operstates.rst`).
    Mode,
    /// Number of the group to which the netdev belongs (`IFLA_GROUP`).
    Group,
    /// Largest size in bytes of a packet that the kernel segments before it is sent (`IFLA_GSO_MAX_SIZE`).
    GsoMaxSize,
    /// Largest number of segments of a packet that the kernel segments before it is sent (`IFLA_GSO_MAX_SEGS`).
    GsoMaxSegments,
    /// Largest size in bytes of a packet that the kernel merges from received packets (Linux 5.19,
    /// `IFLA_GRO_MAX_SIZE`).
    GroMaxSize,
    /// Like [`Self::GsoMaxSize`], for IPv4 (Linux 6.3, `IFLA_GSO_IPV4_MAX_SIZE`). A change of `GsoMaxSize` can also
    /// change this setting.
    GsoIpv4MaxSize,
    /// Like [`Self::GroMaxSize`], for IPv4 (Linux 6.3, `IFLA_GRO_IPV4_MAX_SIZE`). A change of `GroMaxSize` can also
    /// change this setting.
    GroIpv4MaxSize,
    /// Operational state (`IFLA_OPERSTATE`). 1: the netdev is up, but dormant or under test, so IPv6 does not use it.
    /// The kernel updates the state when the carrier changes. The carrier of a netdev without a medium of its own may
    /// never change.
    Dormant,
    /// Id of the netdev's XDP program (`IFLA_XDP`). If the netdev has several programs, the sum of their ids. 0: the
    /// netdev has no program. The programs remain attached when the netdev moves.
    Xdp,
}

/// Flags of a netdev that an administrator can set, except the flag for up and down. The number of a flag is its bit in
/// the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkFlag {
    /// The netdev receives every packet of the medium.
    Promisc = libc::IFF_PROMISC as isize,
    /// The netdev receives every multicast packet.
    AllMulti = libc::IFF_ALLMULTI as isize,
    /// The netdev can send and receive multicast packets.
    Multicast = libc::IFF_MULTICAST as isize,
    /// The netdev does no neighbour discovery (`ip link set arp off`).
    NoArp = libc::IFF_NOARP as isize,
    /// A flag without effect in the kernel (`ip link set trailers off`).
    NoTrailers = libc::IFF_NOTRAILERS as isize,
    /// A flag without effect in the kernel (`ip link set dynamic on`).
    Dynamic = libc::IFF_DYNAMIC as isize,
    /// The driver may log more.
    Debug = libc::IFF_DEBUG as isize,
    /// A flag without effect in the kernel.
    PortSel = libc::IFF_PORTSEL as isize,
    /// A flag without effect in the kernel.
    AutoMedia = libc::IFF_AUTOMEDIA as isize,
}

impl LinkFlag {
    /// All flags that the kernel accepts from an administrator (`__dev_change_flags()`, `net/core/dev.c`).
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
}

/// Formats the flag as its name in `include/uapi/linux/if.h` without `IFF_`, in lower case.
impl fmt::Display for LinkFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Link type of a netdev (`ARPHRD_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkType {
    /// Ethernet, including RoCE.
    #[default]
    Ether,
    /// IP over InfiniBand.
    Infiniband,
    /// Another link type, such as loopback or a tunnel.
    Other,
}

impl Link {
    /// Returns true if `name` is the netdev's name, or one of its alternative names.
    pub fn has_name(&self, name: &str) -> bool {
        *self.name == *name || self.alt_names.iter().any(|alt| alt == name)
    }

    /// Returns true if `flag` is set.
    pub fn has(&self, flag: LinkFlag) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns true if the kernel would accept `route` on a netdev with `addresses`. If the route has a source, the
    /// source must be one of `addresses`. If the route has a gateway and no flag `onlink`, the gateway must be one of
    /// these:
    ///
    /// - a link-local address (IPv6)
    /// - an address in the prefix of one of `addresses` that has a prefix route
    /// - an address in an on-link route that the kernel did not make itself
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

    /// Returns true if the kernel made `route` from one of the netdev's addresses or from a router advertisement.
    ///
    /// Two programs make routes that look like the kernel's. NetworkManager sets addresses with `IFA_F_NOPREFIXROUTE`,
    /// and makes the prefix route with `RTPROT_KERNEL`. systemd-networkd makes advertised routes with `RTPROT_RA`. Both
    /// programs make the kernel ignore advertisements, so the kernel does not make these routes again after a move.
    ///
    /// The kernel makes routes in the main table (`fib_magic()`, `net/ipv4/fib_frontend.c`; `RT6_TABLE_PREFIX`,
    /// `include/net/ip6_fib.h`), or in the table of the netdev's VRF. A route with `RTPROT_KERNEL` in any other table
    /// is a script's copy, for rules that select a table by source address.
    pub fn makes_itself(&self, route: &Route) -> bool {
        if route.table != MAIN_TABLE && self.master.is_none() {
            return false;
        }
        match route.protocol {
            PROTOCOL_KERNEL => {
                let brings = |address: &Address| address.brings(route);
                // the prefix of a router advertisement is on the link even if the netdev has no address in it
                let advertised = route.destination.is_ipv6() && route.expires.is_some();
                self.addresses.iter().any(brings) || advertised && self.takes_advertisements()
            }
            PROTOCOL_RA => self.takes_advertisements(),
            _ => false,
        }
    }

    /// Returns true if the netdev accepts router advertisements (`ipv6_accept_ra()`, `include/net/ipv6.h`). A setting
    /// that is unknown counts as the kernel's default.
    fn takes_advertisements(&self) -> bool {
        let setting = |key: &str, default| self.sysctls.get(key).copied().unwrap_or(default);
        match setting("ipv6/accept_ra", 1) {
            2 => true,
            accepts => accepts != 0 && setting("ipv6/forwarding", 0) == 0,
        }
    }

    /// Returns the netdev as the kernel would report it `seconds` later if nothing else changed: lifetimes are shorter,
    /// and expired addresses and routes are missing.
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
        // when the kernel removes an address, it also removes the routes that it made with this address
        let stays = |route: &&Route| !self.makes_itself(route) || link.makes_itself(route);
        let routes = self.routes.iter().filter(stays).map(|route| Route {
            expires: route.expires.map(left),
            ..route.clone()
        });
        let routes = routes.filter(|route| route.expires != Some(0)).collect();
        link.routes = routes;
        link
    }

    /// Returns the routes that the kernel does not make by itself. A route to a gateway precedes the routes through
    /// this gateway, so a caller can add them in this order.
    pub fn lasting_routes(&self) -> impl Iterator<Item = &Route> {
        let lasting = || self.routes.iter().filter(|route| !self.makes_itself(route));
        let on_link = lasting().filter(|route| route.gateway.is_none());
        on_link.chain(lasting().filter(|route| route.gateway.is_some()))
    }

    /// Returns true if the netdev is a bond or a team.
    pub fn is_bond(&self) -> bool {
        matches!(self.kind.as_deref(), Some("bond" | "team"))
    }

    /// Returns a netdev that lies on this netdev, such as a VLAN. `links` are the netdevs of the same namespace. After a
    /// move of this netdev to another namespace, the netdev above it would stay and send through it
    /// (`vlan_device_event()`, `net/8021q/vlan.c`). The kernel would remove an IPoIB child when the RDMA device moves.
    pub fn above<'a>(&self, links: &'a [Link]) -> Option<&'a Link> {
        let is_here = |it: &Link| it.origin.as_ref().is_none_or(|origin| origin.netns == -1);
        let lies_on_it = |it: &&Link| it.lower == Some(self.index) && it.index != self.index;
        links.iter().find(|it| lies_on_it(it) && is_here(it))
    }

    /// Returns kind and name: `the vlan ens1f0.100`.
    pub fn describe(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or("netdev");
        format!("the {kind} {}", self.name)
    }

    /// Returns true if the netdev is a VLAN, and its lower netdev is known.
    pub fn is_vlan(&self) -> bool {
        self.kind.as_deref() == Some("vlan") && self.lower.is_some()
    }

    /// Returns true if the netdev is a representor: it represents another function's port on the NIC's switch, such as
    /// `pf0vf3` or `c1pf0sf88` (`Documentation/networking/devlink/devlink-port.rst`).
    pub fn is_representor(&self) -> bool {
        let name = self.port_name.as_deref().unwrap_or_default();
        name.contains("pf") && (name.contains("vf") || name.contains("sf"))
    }

    /// Returns the netdev's address that has the IP address, prefix and peer of `wanted`.
    pub fn address(&self, wanted: &Address) -> Option<&Address> {
        self.addresses.iter().find(|a| a.same_as(wanted))
    }
}
