// SPDX-License-Identifier: Apache-2.0
//! Virtual functions: the settings that are made through their physical function, like mlx5's
//! (`drivers/net/ethernet/mellanox/mlx5/core/esw/legacy.c`; `drivers/infiniband/hw/mlx5/ib_virt.c`). No setting changes
//! the virtual function's own netdev.

use crate::world::{HOST, Refusal, World};
use nix::errno::Errno;
use rdma_netns::{
    Device, DeviceAddress, Guid, HardwareAddress, LinkType, Vf, VfLinkState, VfRates, VfSetting,
    VfVlan,
};

/// Returns the default settings of a virtual function of a port of `link_type`.
pub(crate) fn untouched(link_type: LinkType) -> Vec<VfSetting> {
    if link_type == LinkType::Infiniband {
        return vec![
            VfSetting::LinkState(VfLinkState::Auto),
            VfSetting::NodeGuid(Guid::ZERO),
            VfSetting::PortGuid(Guid::ZERO),
        ];
    }
    vec![
        VfSetting::Mac(HardwareAddress(vec![0; 6])),
        VfSetting::Rates(VfRates { min: 0, max: 0 }),
        VfSetting::SpoofCheck(false),
        VfSetting::Trust(false),
        VfSetting::LinkState(VfLinkState::Auto),
        VfSetting::Vlan(VfVlan::NONE),
    ]
}

impl World {
    /// Returns the virtual function at `address`. `None`: the device there is no virtual function.
    pub(crate) fn vf(&self, address: &DeviceAddress) -> Result<Option<Vf>, Errno> {
        let Some(settings) = self.vfs.get(address) else {
            return Ok(None);
        };
        let mut functions = self.functions.iter();
        let function = functions.find(|it| it.address == *address);
        let physical = function.and_then(|it| it.physical_function.as_ref());
        let mut netdevs = self.netdevs.iter();
        let pf = netdevs.find(|it| it.netns == HOST && it.link.parent.as_ref() == physical);
        let pf = pf.filter(|_| physical.is_some()).ok_or(Errno::ENOENT)?;
        let siblings = physical.map(|it| self.vfs_of(it)).unwrap_or_default();
        let number = siblings.iter().position(|it| it == address);
        let is_reported = |it: &&VfSetting| !self.unreported_of_vfs.contains(&it.kind());
        Ok(Some(Vf {
            pf: pf.link.name.clone(),
            number: number
                .and_then(|it| u32::try_from(it).ok())
                .ok_or(Errno::ENOENT)?,
            settings: settings.iter().filter(is_reported).cloned().collect(),
        }))
    }

    /// Makes a setting: `ip link set dev PF vf NUMBER SETTING` (`do_setvfinfo()`, `net/core/rtnetlink.c`).
    pub(crate) fn set_vf(
        &mut self,
        pf: &str,
        number: u32,
        setting: &VfSetting,
    ) -> Result<(), Refusal> {
        let position = self.position(HOST, pf)?;
        let physical = self.netdevs[position].link.parent.clone();
        let functions = physical.map(|it| self.vfs_of(&it)).unwrap_or_default();
        if functions.is_empty() || self.fixed_of_vfs.contains(&setting.kind()) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let function = usize::try_from(number)
            .ok()
            .and_then(|it| functions.get(it));
        let settings = function.and_then(|it| self.vfs.get_mut(it));
        let settings = settings.ok_or(Refusal::from(Errno::EINVAL))?;
        // IPoIB's PF can set only link state and GUIDs, and Ethernet's PF no GUIDs
        let mut present = settings.iter_mut();
        let present = present.find(|it| it.kind() == setting.kind());
        *present.ok_or(Refusal::from(Errno::EOPNOTSUPP))? = setting.clone();
        Ok(())
    }

    /// Returns the virtual functions of a physical function, in order.
    fn vfs_of(&self, physical: &DeviceAddress) -> Vec<DeviceAddress> {
        let is_its = |it: &&Device| it.physical_function.as_ref() == Some(physical);
        let functions = self.functions.iter().filter(is_its);
        let functions = functions.filter(|it| self.vfs.contains_key(&it.address));
        functions.map(|it| it.address.clone()).collect()
    }
}
