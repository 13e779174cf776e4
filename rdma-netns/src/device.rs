// SPDX-License-Identifier: Apache-2.0
//! Hardware of netdevs and RDMA devices: PCI functions and auxiliary devices (sub-functions) in sysfs, regardless of
//! the namespace of their netdev.

use serde::{Deserialize, Serialize};
use std::{borrow::Borrow, fmt, ops::Deref};

/// A PCI function (`0000:3b:00.2`) or an auxiliary device (`mlx5_core.sf.4`), by the name
/// it has on its bus. This name stays the same over renames and moves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceAddress(String);

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

impl From<DeviceAddress> for String {
    fn from(address: DeviceAddress) -> Self {
        address.0
    }
}

impl Borrow<str> for DeviceAddress {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Deref for DeviceAddress {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl DeviceAddress {
    /// The directory under `/sys/bus` that has it.
    pub fn bus(&self) -> &'static str {
        if is_pci_address(&self.0) {
            "pci"
        } else {
            "auxiliary"
        }
    }
}

/// `domain:bus:device.function`, `%04x:%02x:%02x.%d` in `drivers/pci/probe.c`; virtual
/// hosts have domains of up to 8 digits.
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

/// `module.name.id` (`include/linux/auxiliary_bus.h`).
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

/// A PCI function or auxiliary device of a network or InfiniBand class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name on its bus.
    pub address: DeviceAddress,
    /// The bound driver, `mlx5_core`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// PCI vendor id, `15b3`; an auxiliary device has that of its PCI function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// PCI device id, `101e`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// NUMA node; none: the firmware does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The physical function it is a virtual function, or a sub-function, of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_function: Option<DeviceAddress>,
    /// Number of its present virtual functions.
    #[serde(default)]
    pub virtual_functions: u32,
    /// True if it has a netdev of its own, in any namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_netdev: bool,
    /// Names of its RDMA devices, in any namespace (`/sys/class/infiniband_verbs` is not filtered by namespace).
    #[serde(default)]
    pub rdma: Vec<String>,
    /// The functions whose driver made its RDMA device, where that has no parent in sysfs and is this
    /// device's by the netdev ([`pairing`](crate::pairing)). Several: which of them is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_functions: Vec<DeviceAddress>,
    /// True if it is no network but manages the switches of NVLink. An [`Inventory`](crate::Inventory) always has it,
    /// an observed device only on request ([`Kernel::manages_nvlink`](crate::Kernel::manages_nvlink)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manages_nvlink: bool,
}

impl Device {
    /// Returns true if the function at `address`, one of this device's NIC, is known to belong to it. None of several
    /// functions that may have made the RDMA device is.
    pub fn has_function(&self, address: &DeviceAddress) -> bool {
        !self.rdma_functions.contains(address) || self.rdma_functions.len() == 1
    }

    /// Returns the reason why its RDMA device is no rail, for any pattern.
    pub fn no_rail(&self) -> Option<&'static str> {
        const WHY: &str = "it manages NVLink's switches (SW_MNG), and is no network";
        self.manages_nvlink.then_some(WHY)
    }

    /// Returns true if its driver passes it through to a virtual machine or a program, and makes no netdev.
    pub fn is_passed_through(&self) -> bool {
        const DRIVERS: [&str; 4] = ["vfio-pci", "mlx5_vfio_pci", "pci-stub", "uio_pci_generic"];
        let driver = self.driver.as_deref();
        driver.is_some_and(|driver| DRIVERS.contains(&driver))
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
