// SPDX-License-Identifier: Apache-2.0
//! Hardware that is plugged into a world, and its cables.

use crate::{
    hca::Hca,
    nic::{FIRST_GUID, Nic},
    vfs,
    world::{HOST, Refusal, World},
};
use rdma_netns::{Guid, HardwareAddress, LinkType, NetnsId, Pkey};

impl World {
    /// Plugs the cable into the netdev `link` of the pod or, with `None`, of the host, or pulls it out.
    ///
    /// # Errors
    /// There is no such netdev.
    pub fn cable(
        &mut self,
        pod: Option<NetnsId>,
        link: &str,
        present: bool,
    ) -> Result<(), Refusal> {
        let position = self.position(pod.unwrap_or(HOST), link)?;
        let netdev = &mut self.netdevs[position];
        netdev.cable = present;
        let up = netdev.link.up;
        let carrier = up && self.has_medium(position);
        self.netdevs[position].link.carrier = carrier;
        Ok(())
    }

    /// Plugs `nic` in: its devices appear in the host's namespace.
    pub fn plug(&mut self, nic: Nic) {
        if let Some(function) = nic.function.clone() {
            let of = function.physical_function.clone();
            if of.is_some() && function.address.bus() == "pci" {
                let settings = vfs::untouched(nic.link.link_type);
                self.vfs.insert(function.address.clone(), settings);
            }
            let own = nic.guid.unwrap_or(FIRST_GUID + u64::from(self.next_hca));
            self.nics
                .insert(function.address.clone(), nic.clone().with_guid(own));
            let inode = self.inodes.entry(function.address.clone());
            inode.or_insert(self.next_inode);
            self.next_inode += 1;
            self.functions.push(function);
            self.functions.sort_by(|a, b| a.address.cmp(&b.address));
            let mut functions = self.functions.iter_mut();
            if let Some(physical) = functions.find(|f| Some(&f.address) == of.as_ref()) {
                physical.virtual_functions += 1;
            }
        }
        self.make_devices(nic);
    }

    /// Plugs in an eRDMA NIC. The virtio function at `address` has the netdev `link`, and the function `erdma` has the
    /// RDMA device, whose GUID derives from the netdev's address. With `has_parent`, sysfs shows `erdma` as the RDMA
    /// device's parent (Alibaba's own driver); mainline's driver sets no parent.
    pub fn plug_erdma(
        &mut self,
        address: &str,
        link: &str,
        (erdma, rdma): (&str, &str),
        has_parent: bool,
    ) {
        let virtio = Nic::physical(address, link, "").without_rdma();
        self.plug(virtio.with_driver(Some("virtio-pci")));
        let netdev = self.netdevs.last().expect("plugged");
        let (id, mac) = (netdev.id, netdev.link.mac.clone());
        let [a, b, c, d, e, f] = mac.0.as_slice() else {
            return;
        };
        let guid = u64::from_be_bytes([a ^ 2, *b, *c, 0xff, 0xfe, *d, *e, *f]);
        let mut function = Nic::physical(erdma, "none", rdma)
            .without_netdev()
            .with_guid(guid);
        if let Some(device) = &mut function.function {
            device.vendor = Some("1ded".to_owned());
            device.device = Some("107f".to_owned());
        }
        self.plug(function.with_driver(Some("erdma")));
        let hca = self.hcas.last_mut().expect("plugged");
        hca.netdev = Some(id);
        hca.parentless = !has_parent;
    }

    pub(crate) fn make_devices(&mut self, nic: Nic) {
        let number = u8::try_from(self.next_netdev).unwrap_or(u8::MAX);
        let parent = nic.link.parent.clone();
        let infiniband = nic.link.link_type == LinkType::Infiniband;
        let ipoib = infiniband && nic.has_netdev;
        let netdev = (!infiniband && nic.has_netdev).then(|| {
            let mut link = nic.link;
            link.index = self.index_in(HOST, None);
            let new = HardwareAddress(vec![0x02, 0, 0, 0, 0, number]);
            link.mac = link.permanent_mac.unwrap_or(new);
            let physical = link.parent.is_some();
            link.permanent_mac = physical.then(|| link.mac.clone());
            // the firmware keeps the address: the driver reports it again after each bind
            let own = parent.as_ref().and_then(|it| self.nics.get_mut(it));
            if let Some(own) = own {
                own.link.permanent_mac.clone_from(&link.permanent_mac);
            }
            let id = self.insert(HOST, link);
            if let Some(netdev) = self.netdevs.last_mut() {
                let usual = if physical { 9978 } else { 65535 };
                netdev.max_mtu = nic.max_mtu.unwrap_or(usual);
                netdev.link.max_mtu = Some(netdev.max_mtu);
                netdev.mac_needs_down = nic.mac_needs_down;
            }
            id
        });
        let Some(name) = nic.rdma else { return };
        let index = self.next_hca;
        self.next_hca += 1;
        let own = nic.guid.unwrap_or(FIRST_GUID + u64::from(index));
        let [node, port] = self.guids_of(parent.as_ref(), own);
        let groups = node.to_be_bytes();
        let groups = groups
            .chunks(2)
            .map(|it| format!("{:02x}{:02x}", it[0], it[1]));
        let hca = Hca {
            name,
            index,
            guid: groups.collect::<Vec<_>>().join(":"),
            port_guid: Guid(port),
            parent,
            parentless: false,
            netns: HOST,
            netdev,
            movable: nic.movable,
            infiniband,
            ipoib,
            partitions: vec![Pkey(0xffff)],
            uverbs: self.free_uverbs(None),
            umad: nic.umad.then(|| self.free_umad(None)),
            udev: 0,
            gids: Default::default(),
        };
        self.hcas.push(hca);
        if ipoib {
            self.remake_ipoib(self.hcas.len() - 1);
        }
    }
}
