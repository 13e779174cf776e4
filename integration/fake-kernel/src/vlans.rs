// SPDX-License-Identifier: Apache-2.0
//! VLANs of the host's netdevs, and the properties that they inherit from their lower netdev.

use crate::{
    nic::Nic,
    world::{HOST, Refusal, World},
};
use nix::errno::Errno;

impl World {
    /// Makes a VLAN on the host: `ip link add link LOWER name LOWER.ID type vlan id ID`. The VLAN is down, and has the
    /// hardware address and the MTU of LOWER (`register_vlan_dev()`, `net/8021q/vlan.c`; `vlan_dev_init()`,
    /// `vlan_dev.c`).
    pub fn add_vlan(&mut self, lower: &str, id: u16) {
        let name = format!("{lower}.{id}");
        self.plug(Nic::virtual_link(&name, "vlan"));
        let found = |name: &str| self.position(HOST, name).expect("a netdev of the host");
        let (below, vlan) = (found(lower), found(&name));
        let (id, lower) = (self.netdevs[below].id, self.netdevs[below].link.clone());
        let vlan = &mut self.netdevs[vlan];
        vlan.below = Some(id);
        let link = &mut vlan.link;
        (link.lower, link.mac, link.mtu) = (Some(lower.index), lower.mac, lower.mtu);
    }

    /// Prepares a VLAN that is about to go up: it inherits its lower netdev's present hardware address. ENETDOWN if the
    /// lower netdev is down (`vlan_dev_open()`, `net/8021q/vlan_dev.c`). Other netdevs need nothing.
    pub(crate) fn open_vlan(&mut self, position: usize) -> Result<(), Refusal> {
        let below = self.below(position);
        let Some(below) = below.filter(|_| self.netdevs[position].link.is_vlan()) else {
            return Ok(());
        };
        if !self.netdevs[below].link.up {
            return Err(Errno::ENETDOWN.into());
        }
        self.netdevs[position].link.mac = self.netdevs[below].link.mac.clone();
        Ok(())
    }

    /// Returns true if the netdev `root` is below the netdev `id`, directly or indirectly.
    pub(crate) fn lies_on(&self, id: u64, root: u64) -> bool {
        let below = |id: u64| self.netdevs.iter().find(|it| it.id == id)?.below;
        std::iter::successors(below(id), |id| below(*id)).any(|it| it == root)
    }
}
