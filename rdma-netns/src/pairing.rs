// SPDX-License-Identifier: Apache-2.0
//! Pairing of the netdev and the RDMA device of one NIC. [`Namespace::rdma_of`](crate::Namespace::rdma_of) and the
//! [inventory](crate::inventory) apply the first rule that matches:
//!
//! 1. The kernel reports the netdev as the RDMA device's port.
//! 2. Netdev and RDMA device belong to the same PCI function or auxiliary device.
//! 3. The RDMA device's node GUID derives from the netdev's hardware address. An eRDMA NIC has two PCI functions: one
//!    with the virtio netdev, the other with the RDMA device. The driver finds the netdev by its address, and derives
//!    the GUID from this address (`erdma_enum_and_get_netdev()`, `erdma_device_register()` in
//!    `drivers/infiniband/hw/erdma/erdma_main.c`). A VLAN or macvlan can have its lower netdev's address, so this rule
//!    applies only to netdevs with hardware and without another RDMA device. The inventory applies this rule to an RDMA
//!    device with a parent in sysfs only if the parent's driver is `erdma`.
//!
//! An RDMA device can have no parent in sysfs (`/sys/class/infiniband_verbs/uverbs0/device` is missing): mainline's
//! `erdma` sets no parent, Alibaba's own driver sets one. An RDMA device without a parent gets the function of its
//! netdev, by rule 1 or 3. One of the functions that are bound to [`ERDMA`] and have no RDMA device made it. Sysfs does
//! not show which of them: the kernel names interrupts by function and RDMA devices by a separate number, and the order
//! changes when a function is bound again. Pairing by this order could exchange two NICs. Pairing by netdev cannot.
//!
//! Software RDMA devices also have no parent, and their GUID derives from the netdev's address. Only the driver
//! distinguishes them from eRDMA devices. The inventory applies only rule 1 to them: a pod can make a software RDMA
//! device on a netdev whose name and address the pod chooses.

use crate::{Device, DeviceAddress, Guid, HardwareAddress};

/// The driver of eRDMA's PCI functions (`DRV_MODULE_NAME`, `drivers/infiniband/hw/erdma/erdma.h`).
pub const ERDMA: &str = "erdma";

/// Driver id of eRDMA (`RDMA_DRIVER_ERDMA` of `enum rdma_driver_id`, `include/uapi/rdma/ib_user_ioctl_verbs.h`).
pub const ERDMA_ID: u32 = 19;

/// Returns true if the RDMA device called `name` has eRDMA's driver. Decides by the driver id if the kernel reports
/// one, else by the name that the driver gives to its devices (`erdma_%d`, `erdma_device_register()`).
pub fn is_erdma(driver: Option<u32>, name: &str) -> bool {
    driver.map_or_else(|| name.starts_with(ERDMA), |it| it == ERDMA_ID)
}

/// Returns true if vendor and device are the PCI ids of an eRDMA NIC's second function (`erdma_pci_tbl`,
/// `drivers/infiniband/hw/erdma/erdma_main.c`).
pub fn is_erdma_function(vendor: Option<&str>, device: Option<&str>) -> bool {
    vendor == Some("1ded") && device == Some("107f")
}

/// Returns the functions that may have made an eRDMA device that has no parent.
pub fn makers<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Vec<DeviceAddress> {
    let devices = devices.into_iter();
    let bare = devices.filter(|it| it.driver.as_deref() == Some(ERDMA) && it.rdma.is_empty());
    bare.map(|it| it.address.clone()).collect()
}

/// Returns true if the node GUID `guid` (`0216:3eff:fe0a:0b01`) is the EUI-64 of `mac`. The bit "locally administered"
/// may be inverted (RFC 4291, appendix A): the kernel's `addrconf_addr_eui48()` inverts the bit,
/// `addrconf_addr_eui48_base()` does not.
pub fn is_guid_of(guid: &str, mac: &HardwareAddress) -> bool {
    let &[first, b, c, d, e, f] = mac.0.as_slice() else {
        return false;
    };
    // a software device without hardware has this address
    if mac.0.iter().all(|byte| *byte == 0) {
        return false;
    }
    let eui = |first: u8| Guid(u64::from_be_bytes([first, b, c, 0xff, 0xfe, d, e, f]));
    Guid::of_groups(guid).is_some_and(|guid| guid == eui(first) || guid == eui(first ^ 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_made_of_one_address() {
        for (guid, mac, wanted) in [
            ("0216:3eff:fe0a:0b01", "00:16:3e:0a:0b:01", true),
            ("0016:3eff:fe0a:0b01", "00:16:3e:0a:0b:01", true),
            ("0016:3eff:fe0a:0b01\n", "02:16:3e:0a:0b:01", true),
            ("02163efffe0a0b01", "00:16:3e:0a:0b:01", false),
            ("216:3eff:fe0a:0b01", "00:16:3e:0a:0b:01", false),
            ("0:216:3eff:fe:0a0b01", "00:16:3e:0a:0b:01", false),
            ("0216:3eff:fe0a:0b02", "00:16:3e:0a:0b:01", false),
            ("0616:3eff:fe0a:0b01", "00:16:3e:0a:0b:01", false),
            // GUIDs of mlx5 have other bytes in the middle
            ("0c42:a103:0061:2b32", "0c:42:a1:61:2b:32", false),
            ("0000:00ff:fe00:0000", "00:00:00:00:00:00", false),
            ("0216:3eff:fe0a", "00:16:3e:0a:0b:01", false),
            ("0216:3eff:fe0a:0b01:00", "00:16:3e:0a:0b:01", false),
            ("0216:3eff:fe0a:xxxx", "00:16:3e:0a:0b:01", false),
            ("", "00:16:3e:0a:0b:01", false),
            ("0216:3eff:fe0a:0b01", "", false),
        ] {
            let address: HardwareAddress = mac.parse().expect("an address");
            assert_eq!(is_guid_of(guid, &address), wanted, "{guid:?} of {mac:?}");
        }
    }
}
