//! A netdev with all that a move between namespaces loses or a pod can change.

use crate::{Child, DeviceAddress, HardwareAddress, InterfaceName};
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
    /// Address burnt in, where the driver tells it (Linux 5.6, `IFLA_PERM_ADDRESS`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<HardwareAddress>,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// Largest MTU that its driver takes, bytes (Linux 4.19, `IFLA_MAX_MTU`); 0: any. None: not
    /// told.
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
    /// Alternative names, in the kernel's order.
    #[serde(default)]
    pub alt_names: Vec<String>,
    /// Free text (`ip link set alias`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// `veth`, `bond`, `macvlan`…; a NIC has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What it is a link of.
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
    /// What kind of child of that netdev it is, if it is one that a pod can be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// Settings under `/proc/sys/net/ipv{4,6}/conf/<name>/` that a move resets, by
    /// `ipv6/accept_ra`-like name; those in [`SYSCTLS`].
    #[serde(default)]
    pub sysctls: BTreeMap<String, i32>,
    /// Addresses, in the kernel's order (the first of an IPv4 prefix is its primary).
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Routes that leave by this netdev, in any table.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// The per-netdev settings that are kept over a move and back.
pub const SYSCTLS: [&str; 35] = [
    "ipv4/accept_local",
    "ipv4/accept_redirects",
    "ipv4/accept_source_route",
    "ipv4/arp_accept",
    "ipv4/arp_announce",
    "ipv4/arp_filter",
    "ipv4/arp_ignore",
    "ipv4/arp_notify",
    "ipv4/forwarding",
    "ipv4/log_martians",
    "ipv4/promote_secondaries",
    "ipv4/proxy_arp",
    "ipv4/proxy_arp_pvlan",
    "ipv4/route_localnet",
    "ipv4/rp_filter",
    "ipv4/secure_redirects",
    "ipv4/send_redirects",
    "ipv4/shared_media",
    "ipv4/src_valid_mark",
    "ipv6/accept_dad",
    "ipv6/accept_ra",
    "ipv6/accept_ra_defrtr",
    "ipv6/accept_ra_pinfo",
    "ipv6/accept_redirects",
    "ipv6/addr_gen_mode",
    "ipv6/autoconf",
    "ipv6/dad_transmits",
    "ipv6/disable_ipv6",
    "ipv6/forwarding",
    "ipv6/max_addresses",
    "ipv6/ndisc_notify",
    "ipv6/optimistic_dad",
    "ipv6/proxy_ndp",
    "ipv6/router_solicitations",
    "ipv6/use_tempaddr",
];

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
}

/// What a netdev is a link of (`ARPHRD_*`).
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

/// An IP address on a netdev (`struct ifaddrmsg`, `include/uapi/linux/if_addr.h`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address itself (`IFA_LOCAL`).
    pub ip: IpAddr,
    /// Length of the prefix on the link, bits.
    pub prefix: u8,
    /// The other end of a point-to-point link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// IPv4 broadcast address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<IpAddr>,
    /// `RT_SCOPE_*`: 0 global, 253 link, 254 host.
    #[serde(default)]
    pub scope: u8,
    /// IPv4 label, where it is not the netdev's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Metric of its prefix route (`IFA_RT_PRIORITY`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// Flags that were given with it: `IFA_F_NODAD`, `…OPTIMISTIC`, `…HOMEADDRESS`,
    /// `…MANAGETEMPADDR`, `…NOPREFIXROUTE`, `…MCAUTOJOIN`.
    #[serde(default)]
    pub flags: u32,
    /// Remaining lifetimes (valid, preferred), seconds; none: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<(u32, u32)>,
    /// Not usable yet: duplicate address detection is under way, or has failed.
    #[serde(default)]
    pub tentative: bool,
    /// Duplicate address detection found another one on the link (`IFA_F_DADFAILED`): the
    /// address is there and cannot be used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dad_failed: bool,
    /// The kernel made it itself: link-local, from a router advertisement, or temporary.
    #[serde(default)]
    pub automatic: bool,
    /// The kernel made it for privacy and replaces it within days (RFC 8981,
    /// `IFA_F_TEMPORARY`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
}

/// `IFA_F_NODAD`: no duplicate address detection, usable at once.
pub const IFA_F_NODAD: u32 = 0x02;
/// `IFA_F_OPTIMISTIC`: usable while duplicate address detection goes on.
pub const IFA_F_OPTIMISTIC: u32 = 0x04;
/// `IFA_F_HOMEADDRESS`: a mobile node's home address.
pub const IFA_F_HOMEADDRESS: u32 = 0x10;
/// `IFA_F_MANAGETEMPADDR`: the kernel makes temporary addresses from it.
pub const IFA_F_MANAGETEMPADDR: u32 = 0x100;
/// `IFA_F_NOPREFIXROUTE`: no route for the prefix is made.
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;
/// `IFA_F_MCAUTOJOIN`: multicast groups are joined.
pub const IFA_F_MCAUTOJOIN: u32 = 0x400;
/// The flags of [`Address::flags`].
pub const GIVEN_FLAGS: u32 = IFA_F_NODAD
    | IFA_F_OPTIMISTIC
    | IFA_F_HOMEADDRESS
    | IFA_F_MANAGETEMPADDR
    | IFA_F_NOPREFIXROUTE
    | IFA_F_MCAUTOJOIN;

impl Address {
    /// A global address without anything special.
    pub fn new(ip: IpAddr, prefix: u8) -> Self {
        Self {
            ip,
            prefix,
            peer: None,
            broadcast: None,
            scope: 0,
            label: None,
            metric: None,
            flags: 0,
            lifetime: None,
            tentative: false,
            dad_failed: false,
            automatic: false,
            temporary: false,
        }
    }

    /// Whether its prefix tells which network the netdev is in: it is global, in use, and is
    /// to stay. Addresses of scope link or host, link-local ones of either family, loopback
    /// and multicast tell of no network; tentative, duplicate, deprecated (preferred lifetime
    /// 0) and temporary ones may be another machine's, or gone soon.
    pub fn names_a_network(&self) -> bool {
        let is_global = match self.ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        let is_unicast =
            !(self.ip.is_loopback() || self.ip.is_multicast() || self.ip.is_unspecified());
        let is_deprecated = self.lifetime.is_some_and(|(_, preferred)| preferred == 0);
        let is_passing = self.tentative || self.dad_failed || is_deprecated || self.temporary;
        self.scope == 0 && is_global && is_unicast && !is_passing
    }

    /// Whether `other` is this very address, whatever its flags and age.
    pub fn same_as(&self, other: &Self) -> bool {
        self.ip == other.ip && self.prefix == other.prefix && self.peer == other.peer
    }

    /// Whether it is an IPv6 link-local address.
    pub fn is_link_local(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}

/// A route that leaves by one netdev (`struct rtmsg`, `include/uapi/linux/rtnetlink.h`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// Network address; `0.0.0.0` or `::` with prefix 0 is the default route.
    pub destination: IpAddr,
    /// Length of the destination's prefix, bits.
    pub prefix: u8,
    /// Next hop; none: the destination is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Preferred source address (`src`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// Priority; the lowest wins. None: the kernel's default (0; 1024 for IPv6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// Table, 254 is main.
    #[serde(default = "main_table")]
    pub table: u32,
    /// Who made it (`RTPROT_*`): 2 kernel, 3 boot, 4 static, 9 router advertisement.
    #[serde(default = "static_protocol")]
    pub protocol: u8,
    /// `RT_SCOPE_*`: 0 global, 253 link.
    #[serde(default)]
    pub scope: u8,
    /// The gateway is taken to be on the link.
    #[serde(default)]
    pub onlink: bool,
    /// Path MTU, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// TCP maximum segment size advertised, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
}

/// `RT_TABLE_MAIN`.
pub const MAIN_TABLE: u32 = 254;
/// `RTPROT_KERNEL`: made by the kernel, with an address.
pub const PROTOCOL_KERNEL: u8 = 2;
/// `RTPROT_STATIC`: made by an administrator.
pub const PROTOCOL_STATIC: u8 = 4;
/// `RTPROT_RA`: made by the kernel from a router advertisement.
pub const PROTOCOL_RA: u8 = 9;
/// `RT_SCOPE_LINK`: the destination is on the link.
pub const SCOPE_LINK: u8 = 253;

fn main_table() -> u32 {
    MAIN_TABLE
}

fn static_protocol() -> u8 {
    PROTOCOL_STATIC
}

impl Route {
    /// A static route in the main table.
    pub fn new(destination: IpAddr, prefix: u8) -> Self {
        Self {
            destination,
            prefix,
            gateway: None,
            source: None,
            metric: None,
            table: MAIN_TABLE,
            protocol: PROTOCOL_STATIC,
            scope: 0,
            onlink: false,
            mtu: None,
            advmss: None,
        }
    }

    /// Whether `other` leads to the same place, in the same table.
    pub fn same_destination(&self, other: &Self) -> bool {
        (self.destination, self.prefix, self.table)
            == (other.destination, other.prefix, other.table)
    }

    /// The metric that counts where there is none: `IP6_RT_PRIO_USER` for IPv6
    /// (`include/uapi/linux/ipv6_route.h`).
    pub fn default_metric(&self) -> u32 {
        if self.destination.is_ipv4() { 0 } else { 1024 }
    }

    /// Whether the kernel makes it by itself, with an address or from an advertisement.
    pub fn is_automatic(&self) -> bool {
        matches!(self.protocol, PROTOCOL_KERNEL | PROTOCOL_RA)
    }
}

/// Whether `ip` is in the network of `length` bits that `network` is in.
fn contains(network: IpAddr, length: u8, ip: IpAddr) -> bool {
    let shift = |bits: u32| bits.saturating_sub(u32::from(length));
    match (network, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differing = u64::from(a.to_bits() ^ b.to_bits());
            differing >> shift(32) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits())
                .checked_shr(shift(128))
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

impl Link {
    /// Whether `flag` is on.
    pub fn has(&self, flag: LinkFlag) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether the kernel would take `route` with `addresses`: its source is one of them, and
    /// its gateway is on the link by them, by a route, or by being link-local.
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
                && !it.is_automatic()
                && contains(it.destination, it.prefix, gateway)
        });
        has_source && (route.onlink || link_local || by_address || by_route)
    }

    /// The routes that the kernel does not make by itself, in the order in which they can be
    /// set: a gateway has to be on the link before a route goes by it.
    pub fn lasting_routes(&self) -> impl Iterator<Item = &Route> {
        let lasting = || self.routes.iter().filter(|route| !route.is_automatic());
        let on_link = lasting().filter(|route| route.gateway.is_none());
        on_link.chain(lasting().filter(|route| route.gateway.is_some()))
    }

    /// Whether it is several netdevs in one, which its ports stay with.
    pub fn is_bond(&self) -> bool {
        matches!(self.kind.as_deref(), Some("bond" | "team"))
    }

    /// Whether it stands for another function's port on the NIC's switch: `pf0vf3`,
    /// `c1pf0sf88` (`Documentation/networking/devlink/devlink-port.rst`).
    pub fn is_representor(&self) -> bool {
        let name = self.port_name.as_deref().unwrap_or_default();
        name.contains("pf") && (name.contains("vf") || name.contains("sf"))
    }

    /// The address `wanted` as it is on this netdev.
    pub fn address(&self, wanted: &Address) -> Option<&Address> {
        self.addresses.iter().find(|a| a.same_as(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_addresses_name_a_network() {
        let address = |ip: &str| Address::new(ip.parse().unwrap(), 24);
        for ip in ["10.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(address(ip).names_a_network(), "{ip}");
        }
        for ip in [
            "169.254.0.1",
            "127.0.0.1",
            "224.0.0.1",
            "0.0.0.0",
            "fe80::1",
            "::1",
            "ff02::1",
            "::",
        ] {
            assert!(!address(ip).names_a_network(), "{ip}");
        }
        let changes: [fn(&mut Address); 6] = [
            |it| it.scope = SCOPE_LINK,
            |it| it.tentative = true,
            |it| it.dad_failed = true,
            |it| it.lifetime = Some((3600, 0)),
            |it| it.lifetime = Some((u32::MAX, 0)),
            |it| it.temporary = true,
        ];
        for change in changes {
            let mut address = address("2001:db8::1");
            change(&mut address);
            assert!(!address.names_a_network(), "{address:?}");
        }
        let aging = Address {
            lifetime: Some((3600, 1)),
            automatic: true,
            ..address("2001:db8::1")
        };
        assert!(aging.names_a_network(), "from a router advertisement");
    }

    #[test]
    fn an_address_of_an_older_record_is_not_temporary() {
        let address = Address::new("fd00::1".parse().unwrap(), 64);
        let written = serde_json::to_value(&address).unwrap();
        assert!(written.get("temporary").is_none(), "{written}");
        assert_eq!(serde_json::from_value::<Address>(written).unwrap(), address);
    }
}
