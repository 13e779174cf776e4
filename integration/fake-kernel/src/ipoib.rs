// SPDX-License-Identifier: Apache-2.0
//! IPoIB netdevs and their children (`drivers/infiniband/ulp/ipoib/`).

use crate::{
    hca::Hca,
    netdev::{Netdev, blank},
    world::{HOST, Refusal, World},
};
use nix::errno::Errno;
use rdma_netns::{
    HardwareAddress, InterfaceName, Ipoib, IpoibMode, LinkFlag, LinkType, NetnsId, Pkey,
};

/// Largest MTU in datagram mode (`IPOIB_UD_MTU()`), with InfiniBand packets of 2 KiB.
pub(crate) const DATAGRAM_MTU: u32 = 2044;

/// Largest MTU in connected mode (`IPOIB_CM_MTU`).
pub(crate) const CONNECTED_MTU: u32 = 65520;

/// Flag in the first byte of a hardware address whose queue pair accepts connections (`IPOIB_FLAGS_RC`). Queue pairs
/// that mlx5 accelerates accept none (`ipoib_cm_dev_init()` is not called for them).
pub(crate) const TAKES_CONNECTIONS: u8 = 0x80;

/// Returns the attributes of a new netdev, a full member of its partition (`ipoib_ndo_init()`).
pub(crate) fn fresh(pkey: Pkey) -> Ipoib {
    Ipoib {
        pkey: pkey.full(),
        mode: IpoibMode::Datagram,
        umcast: false,
    }
}

impl World {
    /// Sets the partitions of the RDMA device's port, as the subnet manager would.
    pub fn set_partitions(&mut self, device: &str, partitions: &[Pkey]) {
        let mut hcas = self.hcas.iter_mut();
        if let Some(hca) = hcas.find(|hca| hca.name == device) {
            hca.partitions = partitions.to_vec();
        }
    }

    /// Makes the RDMA device's port one that mlx5 accelerates. Its netdev then supports only datagram mode.
    pub fn accelerate_ipoib(&mut self, device: &str) {
        let netdev = self.hcas.iter().find(|hca| hca.name == device);
        let id = netdev.and_then(|hca| hca.netdev);
        for netdev in self.netdevs.iter_mut().filter(|it| Some(it.id) == id) {
            netdev.link.mac.0[0] &= !TAKES_CONNECTIONS;
        }
    }

    pub(crate) fn partitions(&self, device: &str) -> Option<Vec<Pkey>> {
        let mut hcas = self.hcas.iter();
        Some(hcas.find(|hca| hca.name == device)?.partitions.clone())
    }

    /// Returns the RDMA device with the port of the netdev or of its lower netdev.
    fn hca_of(&self, position: usize) -> Option<&Hca> {
        let parent = self.below(position).unwrap_or(position);
        let id = self.netdevs[parent].id;
        self.hcas.iter().find(|hca| hca.netdev == Some(id))
    }

    /// Returns true if the port's table has the netdev's partition, or if the netdev is not IPoIB. Otherwise the netdev
    /// goes up without a carrier (`ipoib_pkey_dev_check_presence()`).
    pub(crate) fn is_in_partition(&self, position: usize) -> bool {
        let Some(ipoib) = self.netdevs[position].link.ipoib else {
            return true;
        };
        let hca = self.hca_of(position);
        let has_key = |hca: &Hca| {
            hca.partitions
                .iter()
                .any(|it| it.is_of_partition(ipoib.pkey))
        };
        hca.is_none_or(has_key)
    }

    /// Makes an IPoIB child (`ipoib_new_child_link()`). mlx5 refuses a namespace other than the parent's
    /// (`mlx5i_pkey_dev_init()`).
    pub(crate) fn add_ipoib_child(
        &mut self,
        netns: NetnsId,
        parent: usize,
        pkey: Pkey,
        name: &InterfaceName,
    ) -> Result<(), Refusal> {
        let below = &self.netdevs[parent];
        if below.link.link_type != LinkType::Infiniband {
            return Err(Errno::ENODEV.into());
        }
        if below.below.is_some() || netns != HOST || [0, 0x8000].contains(&pkey.0) {
            return Err(Errno::EINVAL.into());
        }
        let (id, index, parents) = (below.id, below.link.index, below.link.mac.clone());
        let mut link = blank(name.clone());
        link.index = self.index_in(netns, None);
        link.kind = Some("ipoib".to_owned());
        link.link_type = LinkType::Infiniband;
        link.mtu = DATAGRAM_MTU;
        link.max_mtu = Some(CONNECTED_MTU);
        link.tx_queue_len = 256;
        link.flags = vec![LinkFlag::Multicast];
        link.lower = Some(index);
        link.mac = self.with_queue_pair(&parents);
        self.insert(netns, link);
        if let Some(netdev) = self.netdevs.last_mut() {
            netdev.below = Some(id);
            netdev.max_mtu = CONNECTED_MTU;
            netdev.set_ipoib(fresh(pkey));
        }
        Ok(())
    }

    /// Returns the hardware address with the number of a new queue pair.
    fn with_queue_pair(&mut self, mac: &HardwareAddress) -> HardwareAddress {
        let mut mac = mac.clone();
        mac.0[3] = self.next_queue_pair;
        self.next_queue_pair = self.next_queue_pair.wrapping_add(1);
        mac
    }

    /// Sets the mode (`ipoib_set_mode()`). Connected mode sets its largest MTU. Datagram mode reduces a larger MTU to
    /// its largest.
    pub(crate) fn set_ipoib_mode(
        &mut self,
        netns: NetnsId,
        link: &str,
        mode: IpoibMode,
    ) -> Result<(), Refusal> {
        let netdev = self.netdev(netns, link)?;
        let Some(ipoib) = netdev.link.ipoib else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        if ipoib.mode == mode {
            return Ok(());
        }
        let takes_connections = netdev.link.mac.0[0] & TAKES_CONNECTIONS != 0;
        if mode == IpoibMode::Connected && !takes_connections {
            return Err(Errno::EINVAL.into());
        }
        let mtu = match mode {
            IpoibMode::Connected => CONNECTED_MTU,
            IpoibMode::Datagram => netdev.link.mtu.min(DATAGRAM_MTU),
        };
        netdev.set_ipoib(Ipoib { mode, ..ipoib });
        self.set_mtu(netns, link, mtu)
    }

    pub(crate) fn set_umcast(
        &mut self,
        netns: NetnsId,
        link: &str,
        on: bool,
    ) -> Result<(), Refusal> {
        let netdev = self.netdev(netns, link)?;
        let Some(ipoib) = netdev.link.ipoib else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        netdev.set_ipoib(Ipoib {
            umcast: on,
            ..ipoib
        });
        Ok(())
    }

    /// Gives a netdev's GUID to its children (`set_base_guid()`).
    pub(crate) fn set_guid_of_children(&mut self, id: u64, mac: &HardwareAddress) {
        let is_child = |it: &&mut Netdev| it.below == Some(id) && it.link.ipoib.is_some();
        for child in self.netdevs.iter_mut().filter(is_child) {
            child.link.mac.0[12..].copy_from_slice(&mac.0[12..]);
        }
    }
}
