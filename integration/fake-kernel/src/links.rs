// SPDX-License-Identifier: Apache-2.0
//! Netdevs: the effects of moves, of going up and down, and of other settings.

use crate::{
    children::is_routed,
    ipoib,
    netdev::{IPV6_MIN_MTU, Netdev},
    world::{HOST, Refusal, World, refuse},
};
use nix::errno::Errno;
use rdma_netns::{
    Child, DeviceSettings, HardwareAddress, InterfaceName, IpoibMode, Link, LinkFlag, LinkType,
    MacvlanMode, NetnsId, link::Sysctls,
};
use std::collections::BTreeMap;

/// The index of the loopback netdev (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

impl World {
    /// Inserts a new netdev into `netns`, with the namespace's default settings.
    pub(crate) fn insert(&mut self, netns: NetnsId, mut link: Link) -> u64 {
        link.sysctls = settings(&self.defaults(netns), &link);
        let id = self.next_netdev;
        self.next_netdev += 1;
        self.netdevs.push(Netdev {
            id,
            netns,
            link,
            settings: untouched_settings(),
            below: None,
            max_mtu: 65536,
            cable: true,
            mac_needs_down: false,
            detecting: BTreeMap::new(),
        });
        id
    }

    /// Sets a setting of `link`, as an administrator would in sysfs, by ethtool or by attaching a BPF program.
    pub fn set_device_setting(
        &mut self,
        netns: NetnsId,
        link: &str,
        (key, value): (&str, &str),
    ) -> Result<(), Refusal> {
        let settings = &mut self.netdev(netns, link)?.settings;
        let mut changed = DeviceSettings::default();
        let others = settings.iter().filter(|(other, _)| *other != key);
        for (key, value) in others.chain([(key, value)]) {
            changed.set(key, value);
        }
        *settings = changed;
        Ok(())
    }

    pub(crate) fn device_settings(&self, index: u32) -> DeviceSettings {
        let mut links = self.netdevs.iter();
        let link = links.find(|it| it.netns == HOST && it.link.index == index);
        link.map(|it| it.settings.clone()).unwrap_or_default()
    }

    /// Moves a netdev: `ip link set dev LINK netns NS name NAME`. Name and alternative names must be free in the new
    /// namespace. The netdev keeps its index if the index is free there (`__dev_change_net_namespace()`, `net/core/dev.c`).
    pub(crate) fn move_link(
        &mut self,
        from: NetnsId,
        to: NetnsId,
        link: &str,
        name: &InterfaceName,
    ) -> Result<(), Refusal> {
        let position = self.position(from, link)?;
        let moved = &self.netdevs[position].link;
        if from == to {
            return self.rename_link(from, link, name);
        }
        let is_immutable = matches!(moved.kind.as_deref(), Some("bond" | "bridge"));
        if moved.master.is_some() || is_immutable || moved.index == LOOPBACK {
            return refuse(
                Errno::EINVAL,
                "The interface netns is immutable or has an upper device",
            );
        }
        if self.name_in_use(to, name) {
            return refuse(Errno::EEXIST, "there is a netdev of that name");
        }
        if moved.alt_names.iter().any(|alt| self.name_in_use(to, alt)) {
            return refuse(
                Errno::EEXIST,
                "An interface with the same altname exists in the target netns",
            );
        }
        self.relocate(position, to, name.clone());
        Ok(())
    }

    /// Makes the move: the kernel closes, unregisters and registers the netdev. `inetdev_destroy()` and
    /// `addrconf_ifdown()` remove its IPv4 and IPv6 state.
    pub(crate) fn relocate(&mut self, position: usize, to: NetnsId, name: InterfaceName) {
        let index = self.index_in(to, Some(self.netdevs[position].link.index));
        let sysctls = settings(&self.defaults(to), &self.netdevs[position].link);
        let netdev = &mut self.netdevs[position];
        netdev.netns = to;
        netdev.detecting.clear();
        let link = &mut netdev.link;
        (link.index, link.name, link.sysctls) = (index, name, sysctls);
        (link.up, link.carrier) = (false, false);
        link.addresses.clear();
        link.routes.clear();
        let id = netdev.id;
        self.flush_dead_routes();
        self.update_children(id);
        // the netdev was closed, and setting VLANs and IPoIB children down cannot fail
        let _ = self.take_along(id, false);
    }

    /// Renames a netdev (`dev_change_name()`). EBUSY while it is up (before Linux 6.2). EEXIST if the name is taken,
    /// also as an alternative name.
    pub(crate) fn rename_link(
        &mut self,
        netns: NetnsId,
        link: &str,
        name: &InterfaceName,
    ) -> Result<(), Refusal> {
        let position = self.position(netns, link)?;
        if self.netdevs[position].link.name == *name {
            return Ok(());
        }
        if self.netdevs[position].link.up && !self.renames_while_up {
            return Err(Errno::EBUSY.into());
        }
        if self.name_in_use(netns, name) {
            return Err(Errno::EEXIST.into());
        }
        self.netdevs[position].link.name = name.clone();
        Ok(())
    }

    /// Sets a netdev up or down. Down removes IPv6 addresses and all routes, except for routes that another netdev
    /// shares, and keeps IPv4 addresses (`fib_disable_ip()`, `addrconf_ifdown()`). Up adds the prefix routes of the
    /// present addresses, and the link-local address.
    pub(crate) fn set_up(&mut self, netns: NetnsId, link: &str, up: bool) -> Result<(), Refusal> {
        let position = self.position(netns, link)?;
        let medium = self.has_medium(position);
        if self.netdevs[position].link.up == up {
            return Ok(());
        }
        if up {
            self.open_vlan(position)?;
        }
        let netdev = &mut self.netdevs[position];
        let id = netdev.id;
        (netdev.link.up, netdev.link.carrier) = (up, up && medium);
        if up {
            if is_routed(&netdev.link) {
                self.set_flag(netns, link, LinkFlag::NoArp, true)?;
            }
            self.start_addresses(netns, link)?;
        } else {
            let netdev = &mut self.netdevs[position];
            let mut dead = std::mem::take(&mut netdev.link.routes);
            netdev.lose_ipv6();
            dead.retain(|route| route.destination.is_ipv6());
            netdev.link.routes = dead;
            self.flush_dead_routes();
        }
        self.update_children(id);
        self.take_along(id, up)
    }

    /// Sets netdevs up or down together with the netdev `id`: its VLANs (`vlan_device_event()`, `NETDEV_UP`,
    /// `NETDEV_DOWN`), and its IPoIB children, in all namespaces (`ipoib_open()`, `ipoib_stop()`).
    fn take_along(&mut self, id: u64, up: bool) -> Result<(), Refusal> {
        let goes_along = |link: &Link| link.is_vlan() || link.ipoib.is_some();
        let lies_on_it = self.netdevs.iter().filter(|it| it.below == Some(id));
        let with_it: Vec<_> = lies_on_it
            .filter(|it| goes_along(&it.link))
            .map(|it| (it.netns, it.link.name.clone()))
            .collect();
        let mut with_it = with_it.into_iter();
        with_it.try_for_each(|(netns, name)| self.set_up(netns, &name, up))
    }

    /// Below an MTU of 1280 the netdev has no IPv6 and no IPv6 settings. From 1280 on, IPv6 returns with the
    /// namespace's default settings (`addrconf_notify()`, `NETDEV_CHANGEMTU`).
    pub(crate) fn set_mtu(&mut self, netns: NetnsId, link: &str, mtu: u32) -> Result<(), Refusal> {
        let defaults = self.defaults(netns);
        let position = self.position(netns, link)?;
        let allowed = self.parent_allows(position, mtu);
        let netdev = &mut self.netdevs[position];
        if mtu < 68 {
            return refuse(Errno::EINVAL, "mtu less than device minimum");
        }
        let datagrams = netdev
            .link
            .ipoib
            .is_some_and(|it| it.mode == IpoibMode::Datagram);
        // ipoib_change_mtu()
        if datagrams && mtu > ipoib::DATAGRAM_MTU {
            return Err(Errno::EINVAL.into());
        }
        if mtu > netdev.max_mtu {
            return refuse(Errno::EINVAL, "mtu greater than device maximum");
        }
        if !allowed {
            return Err(Errno::EINVAL.into());
        }
        let (before, after) = (netdev.link.mtu >= IPV6_MIN_MTU, mtu >= IPV6_MIN_MTU);
        netdev.link.mtu = mtu;
        let id = netdev.id;
        if before == after {
            self.update_children(id);
            return Ok(());
        }
        netdev.lose_ipv6();
        let fresh = settings(&defaults, &netdev.link);
        let sysctls = &mut netdev.link.sysctls;
        *sysctls = of_ipv4(sysctls);
        for (key, value) in fresh.iter().filter(|(key, _)| key.starts_with("ipv6/")) {
            sysctls.insert(key.to_owned().into(), value);
        }
        self.update_children(id);
        self.start_addresses(netns, link)
    }

    /// Sets the hardware address. An ipvlan child refuses it (it has no `ndo_set_mac_address`); a passthru child passes
    /// it to its parent. IPoIB accepts only an address with the present queue pair and subnet prefix
    /// (`ipoib_check_lladdr()`, `drivers/infiniband/ulp/ipoib/ipoib_main.c`).
    pub(crate) fn set_mac(
        &mut self,
        netns: NetnsId,
        link: &str,
        mac: &HardwareAddress,
    ) -> Result<(), Refusal> {
        let position = self.position(netns, link)?;
        let position = match self.netdevs[position].link.child {
            Some(Child::Ipvlan { .. }) => return Err(Errno::EOPNOTSUPP.into()),
            Some(Child::Macvlan {
                mode: MacvlanMode::Passthru,
            }) => self.below(position).unwrap_or(position),
            _ => position,
        };
        let netdev = &mut self.netdevs[position];
        let present = &netdev.link.mac;
        if mac.0.len() != present.0.len() {
            return Err(Errno::EINVAL.into());
        }
        if netdev.link.link_type == LinkType::Infiniband && mac.0[..12] != present.0[..12] {
            return Err(Errno::EINVAL.into());
        }
        if netdev.mac_needs_down && netdev.link.up {
            return Err(Errno::EBUSY.into());
        }
        netdev.link.mac = mac.clone();
        let id = netdev.id;
        self.update_children(id);
        self.set_guid_of_children(id, mac);
        Ok(())
    }

    pub(crate) fn set_flag(
        &mut self,
        netns: NetnsId,
        link: &str,
        flag: LinkFlag,
        on: bool,
    ) -> Result<(), Refusal> {
        let flags = &mut self.netdev(netns, link)?.link.flags;
        let is_set = |it: &LinkFlag| if *it == flag { on } else { flags.contains(it) };
        *flags = LinkFlag::ALL.into_iter().filter(is_set).collect();
        Ok(())
    }

    /// Adds or removes an alternative name, which must be unique among the namespace's names and alternative names
    /// (`netdev_name_node_alt_create()`).
    pub(crate) fn set_alt_name(
        &mut self,
        netns: NetnsId,
        link: &str,
        name: &str,
        present: bool,
    ) -> Result<(), Refusal> {
        let position = self.position(netns, link)?;
        if present {
            if self.name_in_use(netns, name) {
                return Err(Errno::EEXIST.into());
            }
            self.netdevs[position].link.alt_names.push(name.to_owned());
            return Ok(());
        }
        let names = &mut self.netdevs[position].link.alt_names;
        let Some(found) = names.iter().position(|other| other == name) else {
            return Err(Errno::ENOENT.into());
        };
        names.remove(found);
        Ok(())
    }

    /// Writes a sysctl. ENOENT for the sysctls of a protocol that the netdev lacks.
    pub(crate) fn set_sysctl(
        &mut self,
        netns: NetnsId,
        link: &str,
        key: &str,
        value: i32,
    ) -> Result<(), Refusal> {
        let netdev = self.netdev(netns, link).map_err(|_| Errno::ENOENT)?;
        let Some(present) = netdev.link.sysctls.get_mut(key) else {
            return Err(Errno::ENOENT.into());
        };
        if *present == value {
            return Ok(());
        }
        *present = value;
        match (key, value) {
            ("ipv6/disable_ipv6", 0) => self.start_addresses(netns, link),
            ("ipv6/disable_ipv6", _) => {
                netdev.lose_ipv6();
                Ok(())
            }
            // addrconf_sysctl_addr_gen_mode() may add the link-local address
            ("ipv6/addr_gen_mode", _) => self.start_addresses(netns, link),
            _ => Ok(()),
        }
    }
}

fn untouched_settings() -> DeviceSettings {
    let mut settings = DeviceSettings::default();
    for (key, value) in [("gro_flush_timeout", "0"), ("ethtool/messages", "00000007")] {
        settings.set(key, value);
    }
    settings
}

/// Returns a namespace's default settings for a netdev, without IPv6 if its MTU is too small.
fn settings(defaults: &Sysctls, link: &Link) -> Sysctls {
    match link.mtu < IPV6_MIN_MTU {
        true => of_ipv4(defaults),
        false => defaults.clone(),
    }
}

/// Returns the settings of IPv4 among `settings`.
fn of_ipv4(settings: &Sysctls) -> Sysctls {
    let ipv4 = settings.iter().filter(|(key, _)| key.starts_with("ipv4/"));
    ipv4.map(|(key, value)| (key.to_owned().into(), value))
        .collect()
}
