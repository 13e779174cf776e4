// SPDX-License-Identifier: Apache-2.0
//! Unbinding and binding of drivers, and udev's renames afterwards.

use crate::{
    netdev::Renaming,
    world::{HOST, Refusal, World},
};
use nix::errno::Errno;
use rdma_netns::{DeviceAddress, InterfaceName, VfSetting};

impl World {
    /// Unbinds the driver of the function at `address`, and binds `driver`, which makes no netdev and no RDMA device.
    /// `None` binds no driver. On Linux these are writes to `driver_override`, `unbind` and `bind`.
    pub fn bind(&mut self, address: &str, driver: Option<&str>) {
        let mut functions = self.functions.iter_mut();
        if let Some(function) = functions.find(|function| &*function.address == address) {
            function.driver = driver.map(str::to_owned);
            function.rdma.clear();
        }
        self.lose_devices_of(address);
    }

    /// Makes udev rename the netdev of the function at `address` to `name`, now and after each later bind.
    ///
    /// # Errors
    /// The function has no netdev on the host, or the name is taken.
    pub fn name_by_udev(&mut self, address: &str, name: InterfaceName) -> Result<(), Refusal> {
        let address = DeviceAddress::try_from(address.to_owned()).map_err(|_| Errno::EINVAL)?;
        self.names.insert(address.clone(), name);
        self.rename_by_udev(&address)
    }

    /// Unbinds and binds the driver, like writes of the function's name to the driver's `unbind` and `bind`
    /// (`drivers/base/bus.c`).
    pub(crate) fn rebind_driver(
        &mut self,
        address: &DeviceAddress,
        driver: &str,
    ) -> Result<(), Refusal> {
        if self.driver_of(address)?.as_deref() != Some(driver) {
            return Err(Errno::ENODEV.into());
        }
        self.bind(address, None);
        self.bind_driver(address, driver)
    }

    /// Binds the driver, which makes on the host the devices that the function had when it was plugged in.
    pub(crate) fn bind_driver(
        &mut self,
        address: &DeviceAddress,
        driver: &str,
    ) -> Result<(), Refusal> {
        match self.driver_of(address)? {
            Some(bound) if bound == driver => return Ok(()),
            Some(_) => return Err(Errno::EBUSY.into()),
            None => {}
        }
        if self.broken_drivers.iter().any(|it| it == driver) {
            return Err(Errno::EIO.into());
        }
        let nic = self.nics.get(address).cloned().ok_or(Errno::ENODEV)?;
        let mut functions = self.functions.iter_mut();
        if let Some(function) = functions.find(|it| it.address == *address) {
            function.driver = Some(driver.to_owned());
        }
        self.make_devices(nic);
        self.named_by_udev(address.clone());
        Ok(())
    }

    /// Schedules udev's rename of a new netdev of `function`.
    pub(crate) fn named_by_udev(&mut self, function: DeviceAddress) {
        let left = self.udev;
        self.renaming.push(Renaming { function, left });
        self.udev_passes(0);
    }

    fn driver_of(&self, address: &DeviceAddress) -> Result<Option<String>, Refusal> {
        let mut functions = self.functions.iter();
        let function = functions.find(|it| it.address == *address);
        Ok(function.ok_or(Errno::ENODEV)?.driver.clone())
    }

    /// Counts `observations` for udev's renames, and makes the renames that are due.
    pub(crate) fn udev_passes(&mut self, observations: u32) {
        for renaming in &mut self.renaming {
            renaming.left = renaming.left.saturating_sub(observations);
        }
        let is_due = |it: &Renaming| it.left == 0;
        let (due, left) = self.renaming.drain(..).partition(is_due);
        self.renaming = left;
        let due: Vec<Renaming> = due;
        for Renaming { function, .. } in due {
            // the kernel's name stays if udev's name is taken; the netdev may be gone
            let _ = self.rename_by_udev(&function);
        }
    }

    fn rename_by_udev(&mut self, function: &DeviceAddress) -> Result<(), Refusal> {
        let Some(name) = self.names.get(function).cloned() else {
            return Ok(());
        };
        let mut netdevs = self.netdevs.iter();
        let own = netdevs.find(|it| it.netns == HOST && it.link.parent.as_ref() == Some(function));
        let present = own.ok_or(Errno::ENODEV)?.link.name.clone();
        self.rename_link(HOST, &present, &name)
    }

    /// Returns node GUID and port GUID of a function whose driver is being bound: the values that were set through its
    /// physical function, or else the firmware's (`sriov_restore_guids()`,
    /// `drivers/net/ethernet/mellanox/mlx5/core/sriov.c`).
    pub(crate) fn guids_of(&self, address: Option<&DeviceAddress>, own: u64) -> [u64; 2] {
        let settings = address.and_then(|it| self.vfs.get(it));
        if let Some(stuck) = self.stuck_guids {
            return stuck;
        }
        let mut guids = [own; 2];
        for setting in settings.into_iter().flatten() {
            let (place, guid) = match setting {
                VfSetting::NodeGuid(guid) => (0, guid.0),
                VfSetting::PortGuid(guid) => (1, guid.0),
                _ => continue,
            };
            if guid != 0 {
                guids[place] = guid;
            }
        }
        guids
    }
}
