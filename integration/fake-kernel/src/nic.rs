// SPDX-License-Identifier: Apache-2.0
//! Hardware for a world.

use crate::{
    hca::Hca,
    vfs,
    world::{HOST, Refusal, World, blank},
};
use rdma_netns::{
    Device, DeviceAddress, Guid, HardwareAddress, InterfaceName, Link, LinkFlag, LinkType, Pkey,
};

/// A NIC before it is plugged in.
#[derive(Clone, Debug)]
pub struct Nic {
    function: Option<Device>,
    link: Link,
    rdma: Option<String>,
    movable: bool,
    mac_needs_down: bool,
    umad: bool,
    max_mtu: Option<u32>,
    has_netdev: bool,
    /// The GUID in its firmware. `None`: the GUID derives from [`FIRST_GUID`].
    guid: Option<u64>,
}

impl Nic {
    /// Returns a physical function with its netdev and RDMA device.
    pub fn physical(address: &str, link: &str, rdma: &str) -> Self {
        let mut nic = Self::virtual_link(link, "");
        nic.link.kind = None;
        nic.link.parent = Some(device_address(address));
        nic.function = Some(Device {
            address: device_address(address),
            driver: Some("mlx5_core".to_owned()),
            vendor: Some("15b3".to_owned()),
            device: Some("101d".to_owned()),
            numa_node: Some(0),
            physical_function: None,
            virtual_functions: 0,
            has_netdev: false,
            rdma: vec![],
            rdma_functions: vec![],
            manages_nvlink: false,
        });
        nic.rdma = Some(rdma.to_owned());
        nic
    }

    /// Returns a virtual function of the physical function `of`.
    pub fn virtual_function(address: &str, of: &str, link: &str, rdma: &str) -> Self {
        let mut nic = Self::physical(address, link, rdma);
        if let Some(function) = &mut nic.function {
            function.physical_function = Some(device_address(of));
            function.device = Some("101e".to_owned());
        }
        nic
    }

    /// Returns a sub-function of `of` on the auxiliary bus.
    pub fn sub_function(address: &str, of: &str, link: &str, rdma: &str) -> Self {
        let mut nic = Self::virtual_function(address, of, link, rdma);
        if let Some(function) = &mut nic.function {
            function.driver = Some("mlx5_core.sf".to_owned());
        }
        nic
    }

    /// Returns an InfiniBand port. The kernel makes its IPoIB netdev, with the name `ib%d`.
    pub fn infiniband(address: &str, rdma: &str) -> Self {
        let mut nic = Self::physical(address, "ib", rdma);
        nic.link.link_type = LinkType::Infiniband;
        nic.umad = true;
        nic
    }

    /// Returns a virtual function of the InfiniBand port `of`.
    pub fn infiniband_function(address: &str, of: &str, rdma: &str) -> Self {
        let mut nic = Self::infiniband(address, rdma);
        if let Some(function) = &mut nic.function {
            function.physical_function = Some(device_address(of));
        }
        nic
    }

    /// Sets the GUID in the firmware. 0: the function has no GUID until one is set through its physical function.
    pub fn with_guid(mut self, guid: u64) -> Self {
        self.guid = Some(guid);
        self
    }

    /// Returns a port that manages NVLink's switches, according to its vital product data.
    pub fn nvlink_manager(address: &str, rdma: &str) -> Self {
        let mut nic = Self::infiniband(address, rdma);
        if let Some(function) = &mut nic.function {
            function.manages_nvlink = true;
        }
        nic
    }

    /// Returns a netdev without hardware, for example of the kind `veth`.
    pub fn virtual_link(name: &str, kind: &str) -> Self {
        let mut link = blank(InterfaceName::try_from(name).expect("an interface name"));
        link.kind = Some(kind.to_owned());
        link.flags = vec![LinkFlag::Multicast];
        Self {
            function: None,
            link,
            rdma: None,
            movable: true,
            mac_needs_down: false,
            umad: false,
            max_mtu: None,
            has_netdev: true,
            guid: None,
        }
    }

    /// Adds a software RDMA device to the netdev, like rxe.
    pub fn with_soft_rdma(mut self, rdma: &str) -> Self {
        self.rdma = Some(rdma.to_owned());
        self
    }

    /// Removes the RDMA device.
    pub fn without_rdma(mut self) -> Self {
        self.rdma = None;
        self
    }

    /// Removes the netdev: an InfiniBand port without ib_ipoib, or a function whose driver makes none.
    pub fn without_netdev(mut self) -> Self {
        self.has_netdev = false;
        self
    }

    /// Sets another driver, or none.
    pub fn with_driver(mut self, driver: Option<&str>) -> Self {
        if let Some(function) = &mut self.function {
            function.driver = driver.map(str::to_owned);
        }
        self
    }

    /// Makes the driver one without `disassociate_ucontext`, so that the RDMA device cannot be moved.
    pub fn immovable(mut self) -> Self {
        self.movable = false;
        self
    }

    /// Sets the largest MTU that the driver accepts, in bytes.
    pub fn with_max_mtu(mut self, mtu: u32) -> Self {
        self.max_mtu = Some(mtu);
        self
    }

    /// Makes the driver one that changes the hardware address only while the netdev is down.
    pub fn with_mac_only_while_down(mut self) -> Self {
        self.mac_needs_down = true;
        self
    }
}

/// An RDMA device without a GUID in its firmware has this number plus its index as GUID.
const FIRST_GUID: u64 = 0x1000;

fn device_address(text: &str) -> DeviceAddress {
    DeviceAddress::try_from(text.to_owned()).expect("a PCI address or auxiliary device's name")
}

impl World {
    /// Plugs the cable into the netdev `link` of the host, or pulls it out.
    ///
    /// # Errors
    /// There is no such netdev.
    pub fn cable(&mut self, link: &str, present: bool) -> Result<(), Refusal> {
        let position = self.position(HOST, link)?;
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
