// SPDX-License-Identifier: Apache-2.0
//! The mode of the eRDMA driver: which one it is in, and the way to the one that is wanted.
//!
//! ```text
//! sysfs, Loader::check → State
//! plan(wanted, State)  → Plan              pure: keep, change, or why not
//! users::gather        → whoever has a device of it; with one of them nothing is changed
//! change::apply(Change, Loader)            unload, load, look; what fails is loaded as it was
//! ```
//! All NICs of a node have one driver, and so one mode.
//!
//! | mode | `compat_mode` | RDMA stack | `rdma_cm`, SMC-R |
//! |---|---|---|---|
//! | `default` | N, or no such parameter | any | yes |
//! | `compat` | Y | the kernel's | no |
//! | `ofed` | Y | MLNX_OFED's | no |

pub mod change;
pub mod loader;
mod plan;
pub mod users;

pub use loader::{LoadError, Loader, Modprobe};
pub use plan::{Change, Plan, Problem, plan};
pub use users::User;

use crate::conf::{DRIVER, DriverMode};
use rdma_netns::{DeviceAddress, ErdmaModule, Inventory};
use std::{fs, path::Path};

/// The PCI function of an eRDMA NIC's RDMA device (`erdma_pci_tbl`,
/// `drivers/infiniband/hw/erdma/erdma_main.c`), as `uevent` has it.
const PCI_ID: &str = "PCI_ID=1DED:107F";

/// The mode that the driver is in.
pub fn mode(module: &ErdmaModule) -> DriverMode {
    match (module.compat, module.ofed) {
        (Some(true), true) => DriverMode::Ofed,
        (Some(true), false) => DriverMode::Compat,
        (Some(false) | None, _) => DriverMode::Default,
    }
}

/// The mode of an eRDMA device in which neither `rdma_cm` nor SMC-R works with it; none: both do,
/// or it is another's device.
pub fn limit(inventory: &Inventory, address: &DeviceAddress) -> Option<DriverMode> {
    let function = inventory.function(address)?;
    function
        .device
        .driver
        .as_deref()
        .filter(|it| *it == DRIVER)?;
    let mode = mode(inventory.erdma.as_ref()?);
    (mode != DriverMode::Default).then_some(mode)
}

/// What a plan is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The module; none: it is not loaded.
    pub module: Option<ErdmaModule>,
    /// How many PCI functions are eRDMA's, whatever driver they have.
    pub functions: usize,
    /// Modules that use it, and would have to go first.
    pub holders: Vec<String>,
}

impl State {
    /// As sysfs shows it.
    pub fn read(sysfs: &Path, module: Option<ErdmaModule>) -> Self {
        let names = |directory: &str| -> Vec<_> {
            let entries = fs::read_dir(sysfs.join(directory)).into_iter().flatten();
            entries.flatten().collect()
        };
        let is_erdma = |function: &fs::DirEntry| {
            let uevent = fs::read_to_string(function.path().join("uevent"));
            uevent.is_ok_and(|text| text.lines().any(|line| line.eq_ignore_ascii_case(PCI_ID)))
        };
        let functions = names("bus/pci/devices");
        let mut holders: Vec<String> = names("module/erdma/holders")
            .into_iter()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        holders.sort();
        Self {
            module,
            functions: functions.into_iter().filter(is_erdma).count(),
            holders,
        }
    }
}

/// How the driver stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverStatus {
    /// The mode that is wanted; none: any.
    pub wanted: Option<DriverMode>,
    /// The mode that it is in; none: it is not loaded.
    pub loaded: Option<DriverMode>,
    /// Why it is not as it should be.
    pub problem: Option<Problem>,
}
