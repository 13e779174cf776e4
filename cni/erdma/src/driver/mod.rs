// SPDX-License-Identifier: Apache-2.0
//! Mode of the eRDMA driver, and the change to the configured mode.
//!
//! ```text
//! sysfs, Loader::check → State
//! plan(wanted, State)  → Plan              pure: no change, a change, or the problem
//! users::gather        → users of the driver's devices, who prevent a change
//! binding::Bindings    → binds the driver to functions without it, when a netdev returns from a pod
//! held::hold           → keeps pods' netdevs in their namespaces during a bind
//! change::apply(Change, Loader)            unload, load, observe; after a failure, load the earlier mode
//! ```
//! All NICs of a node have the same driver, and therefore the same mode.
//!
//! | mode | `compat_mode` | RDMA stack | `rdma_cm`, SMC-R |
//! |---|---|---|---|
//! | `default` | N, or no such parameter | any | yes |
//! | `compat` | Y | the kernel's | no |
//! | `ofed` | Y | MLNX_OFED's | no |

pub mod binding;
pub mod change;
pub mod held;
pub mod loader;
mod plan;
pub mod users;

pub use loader::{LoadError, Loader, Modprobe};
pub use plan::{Change, Plan, Problem, plan};
pub use users::User;

use crate::conf::{DRIVER, DriverMode};
use nix::unistd::{AccessFlags, access};
use rdma_netns::{DeviceAddress, ErdmaModule, Inventory};
use std::{collections::BTreeSet, fs, io, path::Path};

/// PCI ID of the eRDMA function that has the RDMA device (`erdma_pci_tbl`, `drivers/infiniband/hw/erdma/erdma_main.c`),
/// in the form of `uevent`.
const PCI_ID: &str = "PCI_ID=1DED:107F";

/// Returns the mode of the loaded driver.
pub fn mode(module: &ErdmaModule) -> DriverMode {
    match (module.compat, module.ofed) {
        (Some(true), true) => DriverMode::Ofed,
        (Some(true), false) => DriverMode::Compat,
        (Some(false) | None, _) => DriverMode::Default,
    }
}

/// Returns the driver's mode if neither `rdma_cm` nor SMC-R works with the device at `address`. Returns `None` if both
/// work in the driver's mode, or if the device is not an eRDMA device.
pub fn limit(inventory: &Inventory, address: &DeviceAddress) -> Option<DriverMode> {
    let driver = &inventory.maker(inventory.function(address)?).driver;
    driver.as_deref().filter(|it| *it == DRIVER)?;
    let mode = mode(inventory.erdma.as_ref()?);
    (mode != DriverMode::Default).then_some(mode)
}

/// State from which a change is planned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The loaded module; `None`: the module is not loaded.
    pub module: Option<ErdmaModule>,
    /// Number of the node's eRDMA functions, with any driver or without one.
    pub functions: usize,
    /// Modules that use the driver. They must be unloaded before the driver.
    pub holders: Vec<String>,
    /// Functions that have no driver although the module is loaded, in the order of their addresses. Leaves out
    /// functions that `driver_override` reserves for another driver.
    pub unbound: Vec<DeviceAddress>,
    /// Devices of any driver whose probe the kernel will repeat. `None`: unknown, or no function is unbound. A function
    /// that an administrator has unbound, or whose probe failed, is not among them.
    pub deferred: Option<BTreeSet<DeviceAddress>>,
    /// Reason why this program cannot bind the driver to an unbound function. `None`: this program can bind it, or
    /// there is no such function.
    pub not_writable: Option<String>,
}

impl State {
    /// Reads the state from sysfs.
    pub fn read(sysfs: &Path, module: Option<ErdmaModule>) -> Self {
        let names = |directory: &str| -> Vec<_> {
            let entries = fs::read_dir(sysfs.join(directory)).into_iter().flatten();
            entries.flatten().collect()
        };
        let is_erdma = |function: &fs::DirEntry| {
            let uevent = fs::read_to_string(function.path().join("uevent"));
            uevent.is_ok_and(|text| text.lines().any(|line| line.eq_ignore_ascii_case(PCI_ID)))
        };
        let mut functions = names("bus/pci/devices");
        functions.retain(is_erdma);
        let mut unbound: Vec<DeviceAddress> = functions
            .iter()
            .filter(|_| module.is_some())
            .filter_map(|function| unbound(&function.path()))
            .collect();
        unbound.sort();
        let bind = sysfs.join("bus/pci/drivers").join(DRIVER).join("bind");
        let write = || access(&bind, AccessFlags::W_OK).err();
        let is_any = !unbound.is_empty();
        let mut holders: Vec<String> = names("module/erdma/holders")
            .into_iter()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        holders.sort();
        Self {
            module,
            functions: functions.len(),
            holders,
            deferred: is_any.then(|| deferred(sysfs)).flatten(),
            not_writable: is_any
                .then(write)
                .flatten()
                .map(|error| io::Error::from(error).to_string()),
            unbound,
        }
    }

    /// Returns the functions without a driver that have a deferred probe.
    fn deferred(&self) -> Vec<DeviceAddress> {
        let deferred = self.deferred.iter().flatten();
        let unbound = deferred.filter(|it| self.unbound.contains(it));
        unbound.cloned().collect()
    }
}

/// Reads the kernel's list of devices with deferred probes (`deferred_devs_show()`, `drivers/base/dd.c`). Each line
/// begins with a device's name.
fn deferred(sysfs: &Path) -> Option<BTreeSet<DeviceAddress>> {
    let text = fs::read_to_string(sysfs.join("kernel/debug/devices_deferred")).ok()?;
    let names = text.lines().filter_map(|it| it.split_whitespace().next());
    Some(
        names
            .filter_map(|it| it.to_owned().try_into().ok())
            .collect(),
    )
}

/// Returns the address of the eRDMA function at `directory`. Returns `None` if a driver is bound to the function, or if
/// the kernel would not bind `erdma` to it (`pci_match_device()`, `drivers/pci/pci-driver.c`).
fn unbound(directory: &Path) -> Option<DeviceAddress> {
    let chosen = fs::read_to_string(directory.join("driver_override")).unwrap_or_default();
    let is_free = matches!(chosen.trim_end(), "" | "(null)" | DRIVER);
    let uevent = fs::read_to_string(directory.join("uevent")).unwrap_or_default();
    let has_driver = uevent.lines().any(|line| line.starts_with("DRIVER="));
    let address = directory.file_name()?.to_str()?.to_owned();
    address.try_into().ok().filter(|_| is_free && !has_driver)
}

/// Configured and present mode of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverStatus {
    /// Configured mode; `None`: any mode.
    pub wanted: Option<DriverMode>,
    /// Present mode; `None`: the driver is not loaded.
    pub loaded: Option<DriverMode>,
    /// Problem of the driver, for example that the present mode differs from the configured mode.
    pub problem: Option<Problem>,
}
