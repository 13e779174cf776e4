// SPDX-License-Identifier: Apache-2.0
//! A netdev, with all attributes that a move between namespaces resets or that a pod can change.

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
    /// Index of the netdev in its namespace. A move keeps the index, unless it is taken in the new namespace.
    pub index: u32,
    /// Name in its namespace.
    pub name: InterfaceName,
    /// Present hardware address.
    pub mac: HardwareAddress,
    /// Link-layer broadcast address (`IFLA_BROADCAST`), for Ethernet only: the broadcast address of an InfiniBand
    /// netdev belongs to its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<HardwareAddress>,
    /// Permanent hardware address, if the driver reports it (Linux 5.6, `IFLA_PERM_ADDRESS`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<HardwareAddress>,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// Largest MTU of its driver, bytes (Linux 4.19, `IFLA_MAX_MTU`); 0: no limit. `None`: not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mtu: Option<u32>,
    /// True if its administrator has set it up (`IFF_UP`).
    pub up: bool,
    /// True if the medium is there (`IFF_LOWER_UP`).
    #[serde(default)]
    pub carrier: bool,
    /// Flags that are on, among those an administrator can set.
    #[serde(default)]
    pub flags: Vec<LinkFlag>,
    /// Transmit queue length, packets.
    #[serde(default)]
    pub tx_queue_len: u32,
    /// Numbers that an administrator of its namespace can set, and that no move resets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<LinkSetting, u32>,
    /// Alternative names, in the kernel's order. A name that is not UTF-8 is stored as a NUL and one character for each
    /// byte. No name contains a NUL otherwise.
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
    /// The PCI function or auxiliary device of the netdev (Linux 5.14, `IFLA_PARENT_DEV_NAME`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// The port's name on its switch (`IFLA_PHYS_PORT_NAME`): `p0`, `pf0vf3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    /// Index of the bond or bridge of which the netdev is a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
    /// Index of the lower netdev (`IFLA_LINK`) in the lower netdev's own namespace. A macvlan in a pod thus has an
    /// index of the host. `None` for the ends of a pair (`veth`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<u32>,
    /// Lower netdev of a virtual netdev, which never changes. The origin distinguishes this netdev from a later netdev
    /// with the same index and kind. `None`: there is no lower netdev, or it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Kind of child, if a pod can get this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// The partition and the mode of an IPoIB netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipoib: Option<Ipoib>,
    /// In the record of a virtual function: the set-up by its physical function before the first change.
    /// [`Observed::vfs`](crate::Observed::vfs) has the present set-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<Vf>,
    /// Settings in [`SYSCTLS`], under `/proc/sys/net/ipv{4,6}/conf/<name>/`, by names like `ipv6/accept_ra`. A move
    /// resets them.
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
    /// Index of the lower netdev, or of the other end of a pair (`IFLA_LINK`).
    pub index: u32,
    /// Number of the lower netdev's namespace in this namespace (`IFLA_LINK_NETNSID`). -1: both netdevs are in one
    /// namespace.
    pub netns: i32,
    /// Protocol and id of a VLAN (`IFLA_VLAN_PROTOCOL`, `IFLA_VLAN_ID`); 0: the netdev is no VLAN.
    #[serde(default)]
    pub vlan: u32,
}

/// A number of a netdev, set by rtnetlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkSetting {
    /// Mode `IF_LINK_MODE_*` (`include/uapi/linux/if.h`): 0 default, 1 dormant. Routing sees no carrier on a dormant
    /// netdev, even if it is up.
    Mode,
    /// Group of the netdev, which rules can name (`IFLA_GROUP`).
    Group,
    /// Largest size in bytes of a packet that is segmented later (`IFLA_GSO_MAX_SIZE`).
    GsoMaxSize,
    /// Largest number of segments of such a packet (`IFLA_GSO_MAX_SEGS`).
    GsoMaxSegments,
    /// Largest size in bytes of a packet that is merged from received ones (Linux 5.19, `IFLA_GRO_MAX_SIZE`).
    GroMaxSize,
    /// Same as [`Self::GsoMaxSize`] for IPv4 (Linux 6.3, `IFLA_GSO_IPV4_MAX_SIZE`). The kernel changes both together.
    GsoIpv4MaxSize,
    /// Same as [`Self::GroMaxSize`] for IPv4 (Linux 6.3, `IFLA_GRO_IPV4_MAX_SIZE`). The kernel changes both together.
    GroIpv4MaxSize,
    /// Operational state (`IFLA_OPERSTATE`). 1: the netdev is up, but dormant or under test, so IPv6 does not use it.
    /// The kernel updates the state when the carrier changes. On a netdev without a medium of its own this may never
    /// happen.
    Dormant,
    /// Id of the XDP program (`IFLA_XDP`). With several programs, the sum of their ids; 0: no program. A move does not
    /// detach programs.
    Xdp,
}

/// Flags of a netdev that an administrator sets, other than up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkFlag {
    /// The netdev receives every packet of the medium.
    Promisc,
    /// The netdev receives every multicast packet.
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
    /// All flags: those that `__dev_change_flags()` (`net/core/dev.c`) accepts from an administrator.
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

    /// Returns the name in `include/uapi/linux/if.h` without `IFF_`, in lower case.
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
    /// Returns true if `name` is the netdev's name, or one of its alternative names.
    pub fn has_name(&self, name: &str) -> bool {
        *self.name == *name || self.alt_names.iter().any(|alt| alt == name)
    }

    /// Returns true if `flag` is set.
    pub fn has(&self, flag: LinkFlag) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns true if the kernel would accept `route` on a netdev with `addresses`. The route's source must be one of
    /// `addresses`. Its gateway must be link-local, or be reachable by one of `addresses` or by another route of the
    /// netdev.
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

    /// Returns true if the kernel made `route` by itself, from one of the netdev's addresses or from a router
    /// advertisement.
    ///
    /// Two programs make routes that look like the kernel's. NetworkManager sets addresses with `IFA_F_NOPREFIXROUTE`,
    /// and makes the prefix route with `RTPROT_KERNEL`. systemd-networkd makes advertised routes with `RTPROT_RA`. Both
    /// programs make the kernel ignore advertisements, so the kernel does not make these routes again.
    ///
    /// The kernel makes routes in the main table (`fib_magic()`, `net/ipv4/fib_frontend.c`; `RT6_TABLE_PREFIX`,
    /// `include/net/ip6_fib.h`), or in the table of the netdev's VRF. A route with `RTPROT_KERNEL` in any other table
    /// is a copy, made by a script for rules that select by source.
    pub fn makes_itself(&self, route: &Route) -> bool {
        if route.table != MAIN_TABLE && self.master.is_none() {
            return false;
        }
        match route.protocol {
            PROTOCOL_KERNEL => {
                let comes_with = |address: &Address| address.brings(route);
                // the prefix of a router advertisement is on the link without an address of the netdev
                let advertised = route.destination.is_ipv6() && route.expires.is_some();
                self.addresses.iter().any(comes_with) || advertised && self.takes_advertisements()
            }
            PROTOCOL_RA => self.takes_advertisements(),
            _ => false,
        }
    }

    /// Returns true if the kernel makes addresses and routes from router advertisements (`ipv6_accept_ra()`,
    /// `include/net/ipv6.h`). Assumes the kernel's default for an unknown setting.
    fn takes_advertisements(&self) -> bool {
        let setting = |key: &str, default| self.sysctls.get(key).copied().unwrap_or(default);
        match setting("ipv6/accept_ra", 1) {
            2 => true,
            accepts => accepts != 0 && setting("ipv6/forwarding", 0) == 0,
        }
    }

    /// Returns the netdev as expected after `seconds` without other changes: lifetimes are shorter, and expired objects
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
        // a route that the kernel made with an address goes with the address
        let stays = |route: &&Route| !self.makes_itself(route) || link.makes_itself(route);
        let routes = self.routes.iter().filter(stays).map(|route| Route {
            expires: route.expires.map(left),
            ..route.clone()
        });
        let routes = routes.filter(|route| route.expires != Some(0)).collect();
        link.routes = routes;
        link
    }

    /// Returns the routes that the kernel does not make by itself. The order allows setting them one after the other: a
    /// route to a gateway comes before routes through this gateway.
    pub fn lasting_routes(&self) -> impl Iterator<Item = &Route> {
        let lasting = || self.routes.iter().filter(|route| !self.makes_itself(route));
        let on_link = lasting().filter(|route| route.gateway.is_none());
        on_link.chain(lasting().filter(|route| route.gateway.is_some()))
    }

    /// Returns true if the netdev is a bond or a team.
    pub fn is_bond(&self) -> bool {
        matches!(self.kind.as_deref(), Some("bond" | "team"))
    }

    /// Returns true if the netdev is a VLAN of its lower netdev.
    pub fn is_vlan(&self) -> bool {
        self.kind.as_deref() == Some("vlan") && self.lower.is_some()
    }

    /// Returns true if the netdev represents another function's port on the NIC's switch: `pf0vf3`, `c1pf0sf88`
    /// (`Documentation/networking/devlink/devlink-port.rst`).
    pub fn is_representor(&self) -> bool {
        let name = self.port_name.as_deref().unwrap_or_default();
        name.contains("pf") && (name.contains("vf") || name.contains("sf"))
    }

    /// Returns this netdev's address that equals `wanted` except for flags and lifetimes.
    pub fn address(&self, wanted: &Address) -> Option<&Address> {
        self.addresses.iter().find(|a| a.same_as(wanted))
    }
}
