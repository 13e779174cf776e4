// SPDX-License-Identifier: Apache-2.0
//! Moves, names and modes of RDMA devices, and their character devices.

use crate::{
    gid_table::Table,
    hca::{Hca, SubHca},
    ipoib,
    netdev::blank,
    world::{HOST, Refusal, World},
};
use nix::errno::Errno;
use rdma_netns::{
    CharDevice, DeviceAddress, Guid, HardwareAddress, LinkType, NetnsId, Pkey, RdmaDevice,
    RdmaMode, SubDevice, rdma::RdmaPort,
};

/// `IB_UVERBS_MAJOR` and `IB_UVERBS_BASE_MINOR` (`drivers/infiniband/core/uverbs_main.c`). umad has the same major
/// number, and minor numbers from 0.
const MAJOR: u32 = 231;
const UVERBS_BASE: u32 = 192;

impl World {
    /// Makes a sub-device: `rdma dev add NAME type SMI parent DEVICE`, run in a pod or on the host. The kernel makes it
    /// in the host's namespace (`ib_alloc_device()`). Its reference to the parent makes a move of the parent hang.
    pub fn add_sub_device(&mut self, name: &str, parent: &str) {
        let hca = self.hcas.iter().find(|it| it.name == parent);
        let of = hca.expect("an RDMA device").index;
        let umad = self.free_umad(None);
        let name = name.to_owned();
        self.sub_devices.push(SubHca { name, of, umad });
    }

    /// Deletes a sub-device: `rdma dev delete DEVICE`. If its parent was in a namespace that has ended, the parent now
    /// returns to the host (`wait_for_completion(&device->unreg_completion)`).
    pub(crate) fn delete_sub_device(&mut self, name: &str, at: NetnsId) -> Result<(), Refusal> {
        let is_seen = at == HOST || self.rdma_mode == Some(RdmaMode::Shared);
        let mut all = self.sub_devices.iter();
        let position = all.position(|it| it.name == name && is_seen);
        let of = self.sub_devices.remove(position.ok_or(Errno::ENODEV)?).of;
        let is_there = |netns| self.namespaces.iter().any(|it| it.id == netns);
        let mut hcas = self.hcas.iter();
        let waiting = hcas.position(|it| it.index == of && !is_there(it.netns));
        if let Some(position) = waiting.filter(|_| !self.has_sub_devices(of)) {
            self.relocate_rdma(position, HOST);
        }
        Ok(())
    }

    pub(crate) fn has_sub_devices(&self, index: u32) -> bool {
        self.sub_devices.iter().any(|it| it.of == index)
    }

    pub(crate) fn sub_devices_in(&self, netns: NetnsId) -> Vec<SubDevice> {
        let is_seen = netns == HOST || self.rdma_mode == Some(RdmaMode::Shared);
        let shown = |it: &SubHca| {
            let hca = self.hcas.iter().find(|hca| hca.index == it.of)?;
            Some(SubDevice {
                name: it.name.clone(),
                parent: hca.name.clone(),
            })
        };
        let seen = self.sub_devices.iter().filter(|_| is_seen);
        seen.filter_map(shown).collect()
    }

    /// Moves an RDMA device: `rdma dev set DEVICE netns NS`, by a caller inside `from`. ENODEV if the device is not in
    /// the caller's namespace. EOPNOTSUPP in shared mode, and for a driver that cannot disassociate the device's users
    /// (`ib_device_set_netns_put()`, `rdma_dev_change_netns()`, `drivers/infiniband/core/device.c`).
    pub(crate) fn move_rdma(
        &mut self,
        device: &str,
        from: NetnsId,
        to: NetnsId,
    ) -> Result<(), Refusal> {
        let mode = self.rdma_mode.ok_or(Errno::EPROTONOSUPPORT)?;
        let position = self
            .hcas
            .iter()
            .position(|hca| hca.name == device && (hca.netns == from || mode == RdmaMode::Shared));
        let position = position.ok_or(Errno::ENODEV)?;
        if mode == RdmaMode::Shared || !self.hcas[position].movable {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if from != to {
            self.must_not_be_held(device);
            let index = self.hcas[position].index;
            // disable_device() waits for all references
            assert!(
                !self.has_sub_devices(index),
                "the move of {device} hangs: a sub-device has a reference to it"
            );
            self.relocate_rdma(position, to);
        }
        Ok(())
    }

    /// Renames an RDMA device: `rdma dev set DEVICE name NAME`. The name may have any bytes, but must be unique in all
    /// namespaces (`ib_device_rename()`, `drivers/infiniband/core/device.c`).
    pub(crate) fn rename_rdma(
        &mut self,
        device: &str,
        name: &str,
        at: NetnsId,
    ) -> Result<(), Refusal> {
        let mode = self.rdma_mode.ok_or(Errno::EPROTONOSUPPORT)?;
        let is_it = |hca: &Hca| hca.name == device && (hca.netns == at || mode == RdmaMode::Shared);
        let position = self.hcas.iter().position(is_it).ok_or(Errno::ENODEV)?;
        if device != name && self.hcas.iter().any(|hca| hca.name == name) {
            return Err(Errno::EEXIST.into());
        }
        self.hcas[position].name = name.to_owned();
        Ok(())
    }

    /// Moves the device: all in-kernel clients remove and add it. So its character devices get the lowest free numbers,
    /// and ib_ipoib replaces its IPoIB netdev, if it has one.
    pub(crate) fn relocate_rdma(&mut self, position: usize, to: NetnsId) {
        let uverbs = self.free_uverbs(Some(position));
        let umad = self.free_umad(Some(position));
        let udev = self.udev;
        let hca = &mut self.hcas[position];
        (hca.uverbs, hca.udev, hca.netns) = (uverbs, udev, to);
        hca.umad = hca.umad.map(|_| umad);
        hca.gids = Table::default();
        if hca.ipoib {
            self.remake_ipoib(position);
        }
    }

    /// Returns the lowest number that no RDMA device other than `but` has (`ida_alloc_max()`).
    pub(crate) fn free_uverbs(&self, but: Option<usize>) -> u32 {
        self.free(but, |hca| Some(hca.uverbs))
    }

    pub(crate) fn free_umad(&self, but: Option<usize>) -> u32 {
        let of_subs: Vec<u32> = self.sub_devices.iter().map(|it| it.umad).collect();
        self.free_beside(&of_subs, but, |hca| hca.umad)
    }

    fn free(&self, but: Option<usize>, number: impl Fn(&Hca) -> Option<u32>) -> u32 {
        self.free_beside(&[], but, number)
    }

    fn free_beside(
        &self,
        beside: &[u32],
        but: Option<usize>,
        number: impl Fn(&Hca) -> Option<u32>,
    ) -> u32 {
        let others = self
            .hcas
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != but);
        let taken: Vec<u32> = others.filter_map(|(_, hca)| number(hca)).collect();
        (0..)
            .find(|number| !taken.contains(number) && !beside.contains(number))
            .unwrap_or_default()
    }

    /// Replaces the port's IPoIB netdev (`ipoib_remove_one()`, `ipoib_add_one()`): the new netdev is down, has the name
    /// `ib%d`, and another queue pair in its hardware address.
    pub(crate) fn remake_ipoib(&mut self, position: usize) {
        let guid = self.hcas[position].port_guid;
        let netns = match self.ipoib_follows_rdma {
            true => self.hcas[position].netns,
            false => HOST,
        };
        let old = self.hcas[position].netdev;
        self.netdevs.retain(|netdev| Some(netdev.id) != old);
        self.reap();
        let mut link = blank(self.numbered(netns, "ib"));
        link.index = self.index_in(netns, None);
        link.kind = Some("ipoib".to_owned());
        link.link_type = LinkType::Infiniband;
        link.mtu = ipoib::DATAGRAM_MTU;
        link.max_mtu = Some(ipoib::CONNECTED_MTU);
        link.tx_queue_len = 256;
        link.parent = self.hcas[position].parent.clone();
        link.mac = self.ipoib_address(guid);
        link.permanent_mac = Some(link.mac.clone());
        let id = self.insert(netns, link);
        // ipoib_parent_init()
        let pkey = self.hcas[position].partitions.first().copied();
        if let Some(netdev) = self.netdevs.last_mut() {
            netdev.max_mtu = ipoib::CONNECTED_MTU;
            netdev.set_ipoib(ipoib::fresh(pkey.unwrap_or(Pkey(0xffff))));
        }
        self.hcas[position].netdev = Some(id);
        if let Some(function) = self.hcas[position].parent.clone() {
            self.named_by_udev(function);
        }
    }

    /// Returns a new hardware address: flags, queue pair number, subnet prefix, port GUID.
    fn ipoib_address(&mut self, guid: Guid) -> HardwareAddress {
        let queue_pair = self.next_queue_pair;
        self.next_queue_pair = queue_pair.wrapping_add(1);
        let mut bytes = vec![
            ipoib::TAKES_CONNECTIONS,
            0,
            0,
            queue_pair,
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        bytes.extend(guid.0.to_be_bytes());
        HardwareAddress(bytes)
    }

    /// Returns the RDMA devices that `netns` sees: all in shared mode, otherwise its own. The netdev of a port is
    /// reported only if the netdev is in `netns` (`fill_port_info()`, `drivers/infiniband/core/nldev.c`).
    pub(crate) fn rdma_in(&self, netns: NetnsId) -> Vec<RdmaDevice> {
        let shared = self.rdma_mode == Some(RdmaMode::Shared);
        let seen = self.hcas.iter().filter(|hca| shared || hca.netns == netns);
        let mut devices: Vec<RdmaDevice> = seen.map(|hca| self.shown(hca, netns)).collect();
        devices.sort_by_key(|device| device.index);
        devices
    }

    /// Returns the RDMA device of the hardware at `address`, as seen in its own namespace.
    pub fn rdma_device(&self, address: &DeviceAddress) -> Option<RdmaDevice> {
        let mut hcas = self.hcas.iter();
        let hca = hcas.find(|hca| hca.parent.as_ref() == Some(address))?;
        Some(self.shown(hca, hca.netns))
    }

    fn shown(&self, hca: &Hca, netns: NetnsId) -> RdmaDevice {
        let mut netdevs = self.netdevs.iter();
        let netdev = netdevs.find(|n| Some(n.id) == hca.netdev && n.netns == netns);
        let node = |name: String, minor| CharDevice {
            name,
            major: MAJOR,
            minor,
            node: (hca.udev == 0).then_some((MAJOR, minor)),
        };
        let uverbs = node(format!("uverbs{}", hca.uverbs), UVERBS_BASE + hca.uverbs);
        let umad = hca.umad.map(|number| node(format!("umad{number}"), number));
        let is_seen = netns == HOST || self.rdma_mode == Some(RdmaMode::Shared);
        let subs = self.sub_devices.iter();
        let subs = subs.filter(|it| it.of == hca.index && is_seen);
        let of_subs = subs.map(|it| node(format!("umad{}", it.umad), it.umad));
        RdmaDevice {
            name: hca.name.clone(),
            index: hca.index,
            node_guid: hca.guid.clone(),
            parent: hca.parent.clone().filter(|_| !hca.parentless),
            ports: vec![RdmaPort {
                number: 1,
                netdev: netdev.map(|netdev| netdev.link.index),
                state: 4,
                link_layer: netdev.is_none().then_some(match hca.infiniband {
                    true => LinkType::Infiniband,
                    false => LinkType::Ether,
                }),
            }],
            char_devices: [uverbs].into_iter().chain(umad).chain(of_subs).collect(),
            kernel_users: Vec::new(),
        }
    }

    /// Unloads and loads ib_core with the modules that make RDMA devices. The loaded ib_core has the default mode
    /// `mode`, and all RDMA devices are made again on the host. Netdevs stay in their namespaces.
    pub fn reload_rdma(&mut self, mode: RdmaMode) {
        self.rdma_mode = Some(mode);
        for position in 0..self.hcas.len() {
            self.hcas[position].index = self.next_hca;
            self.next_hca += 1;
            self.relocate_rdma(position, HOST);
        }
        self.refresh_gids();
    }

    /// Changes the mode. The kernel refuses a change while there are namespaces other than the host's
    /// (`rdma_compatdev_set()`).
    pub fn set_rdma_mode(&mut self, mode: RdmaMode) -> Result<(), Refusal> {
        let changes = self.rdma_mode != Some(mode);
        if changes && self.namespaces.iter().any(|netns| netns.id != HOST) {
            return Err(Errno::EBUSY.into());
        }
        self.rdma_mode = Some(mode);
        Ok(())
    }
}
