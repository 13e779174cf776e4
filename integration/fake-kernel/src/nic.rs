// SPDX-License-Identifier: Apache-2.0
//! A NIC before it is plugged in.

use crate::netdev::blank;
use rdma_netns::{Device, DeviceAddress, InterfaceName, Link, LinkFlag, LinkType};

/// A NIC before it is plugged in.
#[derive(Clone, Debug)]
pub struct Nic {
    pub(crate) function: Option<Device>,
    pub(crate) link: Link,
    pub(crate) rdma: Option<String>,
    pub(crate) movable: bool,
    pub(crate) mac_needs_down: bool,
    pub(crate) umad: bool,
    pub(crate) max_mtu: Option<u32>,
    pub(crate) has_netdev: bool,
    /// The GUID in its firmware. `None`: the GUID derives from [`FIRST_GUID`].
    pub(crate) guid: Option<u64>,
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
pub(crate) const FIRST_GUID: u64 = 0x1000;

fn device_address(text: &str) -> DeviceAddress {
    DeviceAddress::try_from(text.to_owned()).expect("a PCI address or auxiliary device's name")
}
