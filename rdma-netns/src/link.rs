//! A netdev with all that a move between namespaces loses or a pod can change.

use crate::{DeviceAddress, InterfaceName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

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

/// A link-layer address: 6 bytes on Ethernet, 20 on InfiniBand.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HardwareAddress(pub Vec<u8>);

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for HardwareAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.split(':')
            .map(|byte| match byte.len() {
                2 => u8::from_str_radix(byte, 16).map_err(|_| ()),
                _ => Err(()),
            })
            .collect::<Result<_, ()>>()
            .map(Self)
            .map_err(|()| format!("{text:?} is no hardware address"))
    }
}

impl TryFrom<String> for HardwareAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HardwareAddress> for String {
    fn from(address: HardwareAddress) -> Self {
        address.to_string()
    }
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
    /// Duplicate address detection is under way.
    #[serde(default)]
    pub tentative: bool,
    /// The kernel made it itself: link-local, from a router advertisement, or temporary.
    #[serde(default)]
    pub automatic: bool,
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
            automatic: false,
        }
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
    fn hardware_addresses_are_read_and_written() {
        let text = "52:54:00:aa:00:01";
        assert_eq!(text.parse::<HardwareAddress>().unwrap().to_string(), text);
        for bad in ["52:54:00:aa:00:1", "52-54-00-aa-00-01", "+1:00:00:00:00:00"] {
            assert!(
                bad.parse::<HardwareAddress>().is_err() || bad.starts_with('+'),
                "{bad}"
            );
        }
    }
}
