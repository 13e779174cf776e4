// SPDX-License-Identifier: Apache-2.0
//! PCI functions and auxiliary devices (such as sub-functions) that can have netdevs or RDMA devices. Sysfs lists them
//! independently of the namespaces of their netdevs.

use crate::text_type::checked_text;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name of a PCI function (`0000:3b:00.2`) or of an auxiliary device (`mlx5_core.sf.4`) on its bus. The name stays the
/// same when the device's netdev is renamed or moved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceAddress(String);

checked_text!(DeviceAddress);

/// The text is neither a PCI address nor an auxiliary device's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a PCI address (0000:3b:00.2) nor an auxiliary device (mlx5_core.sf.4)")]
pub struct InvalidAddress(String);

impl TryFrom<String> for DeviceAddress {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        if is_pci_address(&text) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        if is_auxiliary_name(&text) {
            Ok(Self(text))
        } else {
            Err(InvalidAddress(text))
        }
    }
}

impl DeviceAddress {
    /// Returns the device's directory in the list of its bus. `sysfs` is the mount point of sysfs.
    pub(crate) fn directory(&self, sysfs: &Path) -> PathBuf {
        sysfs.join(format!("bus/{}/devices/{self}", self.bus()))
    }

    /// Returns the directory of the device's bus below `/sys/bus`.
    pub fn bus(&self) -> &'static str {
        if is_pci_address(&self.0) {
            "pci"
        } else {
            "auxiliary"
        }
    }
}

/// Returns true for `domain:bus:device.function` (`%04x:%02x:%02x.%d` in `drivers/pci/probe.c`). The domains of virtual
/// host bridges, such as VMD's, have more than 4 digits.
fn is_pci_address(text: &str) -> bool {
    let hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let mut parts = text.splitn(3, ':');
    let (Some(domain), Some(bus), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else {
        return false;
    };
    hex(domain, 4..=8)
        && hex(bus, 2..=2)
        && hex(device, 2..=2)
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

/// Returns true for `module.name.id` (`include/linux/auxiliary_bus.h`).
fn is_auxiliary_name(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let word = |part: &&str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    parts.len() == 3 && parts.iter().all(word) && parts[2].bytes().all(|b| b.is_ascii_digit())
}

/// Drivers of functions, each with the module that makes the functions' RDMA devices. Most pairs are from the aliases
/// of auxiliary devices in `drivers/infiniband/hw/*`.
pub const RDMA_DRIVERS: [(&str, &str); 12] = [
    ("bnxt_en", "bnxt_re"),
    ("cxgb4", "iw_cxgb4"),
    ("erdma", "erdma"),
    ("hns3", "hns_roce_hw_v2"),
    ("i40e", "irdma"),
    ("ice", "irdma"),
    ("idpf", "irdma"),
    ("ionic", "ionic_rdma"),
    ("mana", "mana_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("mlx5_core", "mlx5_ib"),
    ("qede", "qedr"),
];

/// Drivers that let a virtual machine or a program use a function directly.
pub(crate) const PASS_THROUGH: [&str; 4] =
    ["vfio-pci", "mlx5_vfio_pci", "pci-stub", "uio_pci_generic"];

/// A PCI function or auxiliary device that has, or can have, a netdev or an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name on the bus.
    pub address: DeviceAddress,
    /// The bound driver, such as `mlx5_core`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// PCI vendor id, such as `15b3`. An auxiliary device has the vendor id of its PCI function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// PCI device id, such as `101e`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// NUMA node. `None`: the firmware reports no NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The physical function of this virtual function or sub-function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_function: Option<DeviceAddress>,
    /// Number of the device's virtual functions that exist now.
    #[serde(default)]
    pub virtual_functions: u32,
    /// True if the device has a netdev of its own, in any namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_netdev: bool,
    /// Names of the device's RDMA devices, in all namespaces (`/sys/class/infiniband_verbs` is not filtered by
    /// namespace).
    #[serde(default)]
    pub rdma: Vec<String>,
    /// Functions that may have made the RDMA device. Set if this device is the netdev's function of an eRDMA NIC, and
    /// the RDMA device has no parent in sysfs ([`pairing`](crate::pairing)). With more than one function in the list,
    /// it is unknown which function made the RDMA device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_functions: Vec<DeviceAddress>,
    /// True if the device manages NVLink's switches, and so is no network device. An [`Inventory`](crate::Inventory)
    /// sets this field of functions with an RDMA device, an observation does not. Device selection sets it by
    /// [`Kernel::manages_nvlink`](crate::Kernel::manages_nvlink).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manages_nvlink: bool,
}

impl Device {
    /// Returns false if the function at `address` is one of several functions that may have made this device's RDMA
    /// device. Such a function may belong to another NIC.
    pub fn has_function(&self, address: &DeviceAddress) -> bool {
        !self.rdma_functions.contains(address) || self.rdma_functions.len() == 1
    }

    /// Returns the reason why this device's RDMA device is never a rail, even if a configured pattern matches the RDMA
    /// device. Returns `None` if the RDMA device can be a rail.
    pub fn no_rail(&self) -> Option<&'static str> {
        const WHY: &str = "it manages NVLink's switches (SW_MNG), and is no network device";
        self.manages_nvlink.then_some(WHY)
    }

    /// Returns true if the driver lets a virtual machine or a program use the device directly. Such a driver makes no
    /// netdev.
    pub fn is_passed_through(&self) -> bool {
        let driver = self.driver.as_deref();
        driver.is_some_and(|driver| PASS_THROUGH.contains(&driver))
    }

    /// Returns the kernel module that makes this device's RDMA device. Returns the driver's name if the driver is not
    /// in [`RDMA_DRIVERS`], and `None` without a driver.
    pub fn rdma_module(&self) -> Option<&str> {
        // `mlx5_core.sf` is the driver of a sub-function
        let driver = self.driver.as_deref()?.split('.').next()?;
        let mut known = RDMA_DRIVERS.iter();
        let known = known.find(|(name, _)| *name == driver);
        Some(known.map_or(driver, |(_, module)| *module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_distinguished() {
        for (text, bus) in [
            ("0000:3b:00.2", "pci"),
            ("10000:01:1f.7", "pci"),
            ("mlx5_core.sf.4", "auxiliary"),
        ] {
            assert_eq!(DeviceAddress::try_from(text.to_owned()).unwrap().bus(), bus);
        }
        let lower = DeviceAddress::try_from("0000:3B:00.2".to_owned()).unwrap();
        assert_eq!(&*lower, "0000:3b:00.2");
        for bad in [
            "",
            "3b:00.2",
            "0000:3b:00",
            "0000:3b:00.8",
            "0000:3g:00.1",
            "../etc",
            "a.b",
            "mlx5.sf.x",
            "0000:3b:00.2/..",
            "a..1",
        ] {
            assert!(
                DeviceAddress::try_from(bad.to_owned()).is_err(),
                "{bad:?} was accepted"
            );
        }
    }
}
