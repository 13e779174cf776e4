// SPDX-License-Identifier: Apache-2.0
//! Macvlan and ipvlan netdevs, and the properties that they inherit from their lower netdev.

use crate::{
    netdev::{Netdev, blank},
    world::{HOST, Refusal, World, refuse},
};
use nix::errno::Errno;
use rdma_netns::{
    Child, HardwareAddress, InterfaceName, IpvlanMode, Link, LinkFlag, LinkSetting, LinkType,
    MacvlanMode, NetnsId,
};

impl World {
    /// `ip link add link PARENT name NAME netns NS`: makes a child of a host netdev directly in `netns`. The child has
    /// no carrier while its parent is down, but can be set up.
    pub(crate) fn add_child(
        &mut self,
        netns: NetnsId,
        parent: &str,
        child: Child,
        name: &InterfaceName,
        mtu: u32,
    ) -> Result<(), Refusal> {
        let position = self.position(HOST, parent)?;
        if self.name_in_use(netns, name) {
            return Err(Errno::EEXIST.into());
        }
        if let Child::Ipoib { pkey, .. } = child {
            return self.add_ipoib_child(netns, position, pkey, name);
        }
        self.can_bear(position, child, mtu)?;
        let (id, parent) = (self.netdevs[position].id, &self.netdevs[position].link);
        let mut link = blank(name.clone());
        link.mac = if shares_mac(child) {
            parent.mac.clone()
        } else {
            let [.., high, low] = self.next_netdev.to_be_bytes();
            HardwareAddress(vec![0x02, 0x6d, 0x76, 0, high, low])
        };
        link.lower = Some(parent.index);
        link.index = self.index_in(netns, None);
        link.kind = Some(child.kind().to_owned());
        (link.child, link.mtu) = (Some(child), mtu);
        link.flags = vec![LinkFlag::Multicast];
        self.insert(netns, link);
        if let Some(netdev) = self.netdevs.last_mut() {
            netdev.below = Some(id);
        }
        // ipvlan_set_port_mode(): all ipvlan children of a netdev have one mode
        let siblings = self.netdevs.iter_mut().filter(|n| n.below == Some(id));
        if let Child::Ipvlan { .. } = child {
            siblings.for_each(|sibling| sibling.link.child = Some(child));
        }
        Ok(())
    }

    /// `ip link add link LOWER name NAME type macvlan mode bridge`, in the namespace of `lower`.
    pub fn add_macvlan(&mut self, netns: NetnsId, lower: &str, name: &InterfaceName) {
        let position = self
            .position(netns, lower)
            .unwrap_or_else(|_| panic!("no {lower}"));
        let (id, lower) = (self.netdevs[position].id, &self.netdevs[position].link);
        let mut link = blank(name.clone());
        (link.mac, link.mtu) = (lower.mac.clone(), lower.mtu);
        link.lower = Some(lower.index);
        link.kind = Some("macvlan".to_owned());
        link.child = Some(Child::Macvlan {
            mode: MacvlanMode::Bridge,
        });
        link.index = self.index_in(netns, None);
        self.insert(netns, link);
        if let Some(netdev) = self.netdevs.last_mut() {
            netdev.below = Some(id);
        }
    }

    /// Checks that a netdev can have the child. EINVAL if the netdev is not Ethernet, if a macvlan would have a larger
    /// MTU than the netdev, or if a passthru child would not be the only child (`macvlan_common_newlink()`,
    /// `drivers/net/macvlan.c`). EBUSY if a bond, a bridge or children of the other kind already receive the netdev's
    /// frames (`netdev_rx_handler_register()`, `net/core/dev.c`).
    fn can_bear(&self, position: usize, child: Child, mtu: u32) -> Result<(), Refusal> {
        let (id, parent) = (self.netdevs[position].id, &self.netdevs[position].link);
        if mtu < 68 {
            return refuse(Errno::EINVAL, "mtu less than device minimum");
        }
        if parent.link_type != LinkType::Ether || !fits(child, mtu, parent) {
            return Err(Errno::EINVAL.into());
        }
        let siblings = self.netdevs.iter().filter(|n| n.below == Some(id));
        let siblings: Vec<Child> = siblings.filter_map(|n| n.link.child).collect();
        let other_kind = |sibling: &Child| sibling.kind() != child.kind();
        if parent.master.is_some() || siblings.iter().any(other_kind) {
            return Err(Errno::EBUSY.into());
        }
        let passthru = Child::Macvlan {
            mode: MacvlanMode::Passthru,
        };
        if siblings.contains(&passthru) || (child == passthru && !siblings.is_empty()) {
            return Err(Errno::EINVAL.into());
        }
        Ok(())
    }

    /// Removes a netdev: `ip link del`. A missing netdev is no error. A hardware netdev has no `dellink`, so the kernel
    /// returns EOPNOTSUPP (`rtnl_delete_link()`). For IPoIB's main netdev it returns success, and removes nothing
    /// (`ipoib_del_child_link()`).
    pub(crate) fn remove_link(&mut self, netns: NetnsId, link: &str) -> Result<(), Refusal> {
        let Ok(position) = self.position(netns, link) else {
            return Ok(());
        };
        if self.netdevs[position].is_physical() {
            return match self.netdevs[position].link.ipoib {
                Some(_) => Ok(()),
                None => Err(Errno::EOPNOTSUPP.into()),
            };
        }
        self.netdevs.remove(position);
        self.reap();
        Ok(())
    }

    /// Removes the netdevs of the group. If one of them cannot be removed, returns an error and removes none. The
    /// kernel also refuses group 0, the default group.
    pub(crate) fn remove_group(&mut self, netns: NetnsId, group: u32) -> Result<(), Refusal> {
        let is_of_it = |it: &Netdev| {
            let own = it.link.settings.get(&LinkSetting::Group);
            it.netns == netns && own.copied().unwrap_or_default() == group
        };
        if group == 0 {
            return Err(Errno::EPERM.into());
        }
        if self
            .netdevs
            .iter()
            .any(|it| is_of_it(it) && it.is_physical() && it.link.ipoib.is_none())
        {
            return Err(Errno::EOPNOTSUPP.into());
        }
        self.netdevs.retain(|it| !is_of_it(it) || it.is_physical());
        self.reap();
        Ok(())
    }

    /// After a removal of netdevs: removes the netdevs whose lower netdev is gone, and releases the ports of a removed
    /// bond.
    pub(crate) fn reap(&mut self) {
        let mut before = 0;
        while before != self.netdevs.len() {
            before = self.netdevs.len();
            let alive: Vec<u64> = self.netdevs.iter().map(|netdev| netdev.id).collect();
            self.netdevs
                .retain(|netdev| netdev.below.is_none_or(|id| alive.contains(&id)));
        }
        let masters: Vec<(NetnsId, u32)> = self
            .netdevs
            .iter()
            .map(|netdev| (netdev.netns, netdev.link.index))
            .collect();
        for netdev in &mut self.netdevs {
            let netns = netdev.netns;
            let master = netdev.link.master;
            netdev.link.master = master.filter(|index| masters.contains(&(netns, *index)));
        }
        self.flush_dead_routes();
    }

    /// Returns the position of the netdev's lower netdev.
    pub(crate) fn below(&self, position: usize) -> Option<usize> {
        let id = self.netdevs[position].below?;
        self.netdevs.iter().position(|netdev| netdev.id == id)
    }

    /// Returns true if the netdev has a cable, and its lower netdev, if there is one, has a carrier. For IPoIB the port
    /// must have the cable, and the netdev must be in its partition.
    pub(crate) fn has_medium(&self, position: usize) -> bool {
        let below = self.below(position);
        if self.netdevs[position].link.ipoib.is_some() {
            let port = below.unwrap_or(position);
            return self.netdevs[port].cable && self.is_in_partition(position);
        }
        self.netdevs[position].cable && below.is_none_or(|below| self.netdevs[below].link.carrier)
    }

    /// Returns false if a macvlan would get a larger MTU than its parent (`macvlan_change_mtu()`).
    pub(crate) fn parent_allows(&self, position: usize, mtu: u32) -> bool {
        let child = self.netdevs[position].link.child;
        let below = self.below(position);
        child
            .zip(below)
            .is_none_or(|(child, below)| fits(child, mtu, &self.netdevs[below].link))
    }

    /// Updates the upper netdevs after a change of the netdev `id`: carrier, hardware address, lower index, MTU
    /// (`macvlan_device_event()`, `ipvlan_device_event()`, `vlan_device_event()`).
    pub(crate) fn update_children(&mut self, id: u64) {
        let Some(parent) = self.netdevs.iter().find(|netdev| netdev.id == id) else {
            return;
        };
        let parent = parent.link.clone();
        let (mut resized, mut vlans) = (vec![], vec![]);
        for netdev in self.netdevs.iter_mut().filter(|n| n.below == Some(id)) {
            let is_ipoib = netdev.is_ipoib_child();
            let link = &mut netdev.link;
            link.lower = Some(parent.index);
            if is_ipoib {
                continue;
            }
            link.carrier = link.up && parent.carrier;
            if link.is_vlan() {
                vlans.push(netdev.id);
            }
            // a VLAN that is down gets the hardware address when it goes up
            if link.is_vlan() && link.up || link.child.is_some_and(shares_mac) {
                link.mac = parent.mac.clone();
            }
            let mtu = match link.child {
                Some(Child::Ipvlan { .. }) => parent.mtu,
                _ => link.mtu.min(parent.mtu),
            };
            if mtu != link.mtu {
                resized.push((netdev.netns, link.name.clone(), mtu));
            }
        }
        for (netns, name, mtu) in resized {
            // the kernel accepts this MTU: it is at most the parent's, and an MTU that the parent can have is not too
            // small
            let _ = self.set_mtu(netns, &name, mtu);
        }
        for vlan in vlans {
            self.update_children(vlan);
        }
    }
}

/// Returns true if the child always has its parent's hardware address.
fn shares_mac(child: Child) -> bool {
    matches!(
        child,
        Child::Ipvlan { .. }
            | Child::Macvlan {
                mode: MacvlanMode::Passthru
            }
    )
}

/// Returns true for ipvlan in an L3 mode, which has no ARP while up (`ipvlan_open()`).
pub(crate) fn is_routed(link: &Link) -> bool {
    matches!(
        link.child,
        Some(Child::Ipvlan {
            mode: IpvlanMode::L3 | IpvlanMode::L3s
        })
    )
}

fn fits(child: Child, mtu: u32, parent: &Link) -> bool {
    matches!(child, Child::Ipvlan { .. } | Child::Ipoib { .. }) || mtu <= parent.mtu
}
