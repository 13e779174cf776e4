// SPDX-License-Identifier: Apache-2.0
//! Rails of the node and of its pods.

use attachments::pods::PodRail;
use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::{InterfaceFlags, if_indextoname},
};
use rdma_netns::{
    HardwareAddress,
    linux::nldev::{DeviceInfo, Nldev},
    sidr,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

/// A netdev, and its RDMA device if known. The two pods of `--exchange` send their rails to each other as JSON objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rail {
    /// Name of the netdev in its namespace.
    pub(crate) netdev: String,
    /// Name of the RDMA device, if known.
    #[serde(skip)]
    pub(crate) device: Option<String>,
    /// Addresses of the netdev, IPv6 addresses first. Leaves out link-local addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Hardware address of an Ethernet netdev, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mac: Option<HardwareAddress>,
    /// Resource of the NIC in its node's ResourceSlices, and the NIC's index in it. Nodes with the same set-up have the
    /// same indices. `None`: the rail is not from a ResourceSlice.
    #[serde(skip)]
    pub(crate) place: Option<(String, i64)>,
}

/// RDMA devices that a namespace sees, by index.
pub(crate) type Devices = BTreeMap<u32, DeviceInfo>;

impl Rail {
    pub(crate) fn new(netdev: String, device: Option<String>, addresses: Vec<IpAddr>) -> Self {
        Self {
            netdev,
            device,
            addresses: usable(addresses),
            mac: None,
            place: None,
        }
    }

    /// Sets the hardware address of each of `rails`. Reads the addresses in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel refuses the query.
    pub(crate) fn identify(rails: &mut [Self]) -> io::Result<()> {
        let macs = macs()?;
        for rail in rails {
            rail.mac = macs.get(&rail.netdev).cloned();
        }
        Ok(())
    }

    /// Returns true if `name` is the rail's netdev, its RDMA device or one of its addresses.
    pub(crate) fn has(&self, name: &str) -> bool {
        let address: Option<IpAddr> = name.parse().ok();
        self.netdev == name
            || self.device.as_deref() == Some(name)
            || address.is_some_and(|it| self.addresses.contains(&it))
    }

    /// Returns the rail's first address of the same family as `other`.
    pub(crate) fn address_for(&self, other: IpAddr) -> Option<IpAddr> {
        of_family(&self.addresses, other)
    }

    /// Returns true if this rail and `other`, a rail of another node or pod, have the same place in ResourceSlices or,
    /// without a place, the same netdev name. Both rails are then on one network.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match &self.place {
            Some(_) => self.place == other.place,
            None => self.netdev == other.netdev,
        }
    }

    /// Returns an address of this rail and an address of `other`, both of the same family.
    pub(crate) fn addresses_to(&self, other: &Self) -> Option<(IpAddr, IpAddr)> {
        common(&self.addresses, &other.addresses)
    }
}

/// Returns `addresses` in the order of [`Rail::addresses`].
pub(crate) fn usable(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.retain(|it| !is_link_local(*it));
    addresses.sort_by_key(|it| it.is_ipv4());
    addresses
}

fn of_family(addresses: &[IpAddr], other: IpAddr) -> Option<IpAddr> {
    let mut addresses = addresses.iter().copied();
    addresses.find(|it| it.is_ipv4() == other.is_ipv4())
}

/// Returns an address of `own` and an address of `others`: the first pair with one family.
pub(crate) fn common(own: &[IpAddr], others: &[IpAddr]) -> Option<(IpAddr, IpAddr)> {
    let mut others = others.iter();
    others.find_map(|it| Some((of_family(own, *it)?, *it)))
}

/// Returns the RDMA devices that the calling thread's namespace sees. Returns none if the kernel has no RDMA subsystem.
pub(crate) fn devices() -> io::Result<Devices> {
    let Some(mut nldev) = Nldev::open()? else {
        return Ok(Devices::new());
    };
    let found = nldev.devices().map_err(io::Error::other)?;
    Ok(found.into_iter().map(|it| (it.index, it)).collect())
}

/// Returns the rails of the calling thread's namespace in the order of their netdevs' names. Rails are the netdevs of
/// the ports of `devices`, and the child netdevs that pods have on shared NICs. A netdev counts as such a child netdev
/// if the connection manager at `manager` finds a GID of the devices for one of its addresses.
pub(crate) fn rails(manager: &Path, devices: &Devices) -> io::Result<Vec<Rail>> {
    let Some(mut nldev) = Nldev::open()? else {
        return Ok(vec![]);
    };
    let mut netdevs = addresses()?;
    let mut rails = vec![];
    for device in devices.values() {
        for port in nldev.ports(device.index).map_err(io::Error::other)? {
            let netdev = port.netdev.and_then(|it| if_indextoname(it).ok());
            let netdev = netdev.and_then(|it| it.into_string().ok());
            rails.extend(netdev.map(|netdev| {
                let addresses = netdevs.get(&netdev).cloned().unwrap_or_default();
                Rail::new(netdev, Some(device.name.clone()), addresses)
            }));
        }
    }
    netdevs.retain(|netdev, _| rails.iter().all(|it: &Rail| it.netdev != *netdev));
    for (netdev, addresses) in netdevs {
        let mut rail = Rail::new(netdev, None, addresses);
        // ignore the error: the first request reports a missing connection manager
        let device = |it: &IpAddr| sidr::device_of(manager, *it).ok().flatten();
        let index = rail.addresses.iter().find_map(device);
        let device = index.and_then(|it| devices.get(&it));
        rail.device = device.map(|it| it.name.clone());
        rails.extend(rail.device.is_some().then_some(rail));
    }
    rails.sort_by(|one, other| one.netdev.cmp(&other.netdev));
    Rail::identify(&mut rails)?;
    Ok(rails)
}

/// Returns the addresses of each netdev except `lo`.
pub(crate) fn addresses() -> io::Result<BTreeMap<String, Vec<IpAddr>>> {
    let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for interface in getifaddrs()? {
        let Some(address) = interface.address else {
            continue;
        };
        if interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let ipv4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        let ipv6 = address
            .as_sockaddr_in6()
            .map(|it| IpAddr::from(Ipv6Addr::from(it.ip().octets())));
        let of_netdev = addresses.entry(interface.interface_name).or_default();
        of_netdev.extend(ipv4.or(ipv6));
    }
    Ok(addresses)
}

fn macs() -> io::Result<BTreeMap<String, HardwareAddress>> {
    let mac = |it: InterfaceAddress| {
        let link = it.address?;
        let mac = link.as_link_addr().filter(|it| it.halen() == 6)?.addr()?;
        Some((it.interface_name, HardwareAddress(mac.to_vec())))
    };
    Ok(getifaddrs()?.filter_map(mac).collect())
}

impl From<PodRail> for Rail {
    fn from(rail: PodRail) -> Self {
        let addresses = rail.addresses.iter().map(|it| it.ip).collect();
        Self::new(rail.name, rail.rdma, addresses)
    }
}

/// Returns true for a link-local address. Such an address does not determine the netdev that sends to it.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(addresses: &[&str]) -> Rail {
        let addresses = addresses.iter().map(|it| it.parse().expect("an address"));
        Rail::new(
            "rdma0".to_owned(),
            Some("mlx5_0".to_owned()),
            addresses.collect(),
        )
    }

    #[test]
    fn a_rail_is_named_by_netdev_device_and_address() {
        let rail = rail(&["fe80::1", "10.0.0.1", "fd00::1"]);
        for name in ["rdma0", "mlx5_0", "10.0.0.1", "fd00::1", "fd00:0::1"] {
            assert!(rail.has(name), "{name}");
        }
        for name in ["rdma", "mlx5_1", "10.0.0.2", "fe80::1", ""] {
            assert!(!rail.has(name), "{name}");
        }
    }

    #[test]
    fn two_rails_use_a_family_that_both_have_and_ipv6_first() {
        let both = rail(&["10.0.0.1", "fd00::1"]);
        let of = |one: &Rail, other: &Rail| {
            let pair = one.addresses_to(other);
            pair.map(|(from, to)| (from.to_string(), to.to_string()))
        };
        let pair = |from: &str, to: &str| Some((from.to_owned(), to.to_owned()));
        assert_eq!(
            of(&both, &rail(&["10.0.0.2", "fd00::2"])),
            pair("fd00::1", "fd00::2")
        );
        assert_eq!(
            of(&both, &rail(&["10.0.0.2", "fe80::2"])),
            pair("10.0.0.1", "10.0.0.2")
        );
        assert_eq!(of(&rail(&["10.0.0.1"]), &rail(&["fd00::2"])), None);
    }
}
