// SPDX-License-Identifier: Apache-2.0
//! Decides on health by the errors that a NIC's driver and PCI link report.
//!
//! | report | verdict |
//! |---|---|
//! | a configured health reporter of devlink is in the state `error` | unhealthy until the state changes |
//! | another reporter is in the state `error` | no effect |
//! | AER counted another fatal error of the PCI function (from Linux 6.16 on) | unhealthy for 300 s after it |
//! | AER counted errors before the daemon's first reading, or non-fatal or corrected errors | no effect |
//! | devlink does not answer, or a function has no AER counters | no change |
//!
//! The setting `reporters` names the reporters that decide on health.
//!
//! A fault of a PF is also a fault of its VFs and sub-functions, which share the PF's firmware and PCI link.

use rdma_netns::{
    Device, DeviceAddress,
    linux::{aer::PciErrors, devlink::Reporter},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Time without another fatal PCI error after which a device is healthy again.
pub(super) const PCI_HOLD: Duration = Duration::from_secs(300);

/// Reports on a node's NICs, from one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Health reporters of the NICs; `None`: the kernel did not answer.
    pub reporters: Option<Vec<Reporter>>,
    /// PCI errors of the functions that count them.
    pub pci: BTreeMap<DeviceAddress, PciErrors>,
}

/// Faults of a node's NICs over time.
#[derive(Debug, Default)]
pub(super) struct NicFaults {
    /// Names of the reporters that decide on health.
    pub(super) judges: Vec<String>,
    /// Reporters among `judges` that are in the state `error`.
    failed: Vec<Reporter>,
    pci: BTreeMap<DeviceAddress, PciLink>,
}

/// PCI errors of one function.
#[derive(Debug)]
struct PciLink {
    fatal: u64,
    /// Time until which the device is unhealthy; `None`: no recent error.
    fault: Option<Instant>,
}

impl NicFaults {
    /// Replaces the names of the reporters that decide on health. Returns true if a device's fault ends by this change.
    pub(super) fn judge_by(&mut self, names: Vec<String>) -> bool {
        self.judges = names;
        let before = self.failed.len();
        self.failed.retain(|it| self.judges.contains(&it.name));
        self.failed.len() != before
    }

    /// Applies the reports at the time `now`. Returns true if a device's fault changed.
    pub(super) fn take(&mut self, now: Instant, reports: Reports) -> bool {
        let mut is_news = false;
        if let Some(mut reporters) = reports.reporters {
            reporters.retain(|it| it.is_error && self.judges.contains(&it.name));
            let place = |it: &Reporter| it.to_string();
            is_news = !reporters
                .iter()
                .map(place)
                .eq(self.failed.iter().map(place));
            self.failed = reporters;
        }
        for (address, PciErrors { fatal, .. }) in reports.pci {
            let link = self
                .pci
                .entry(address)
                .or_insert(PciLink { fatal, fault: None });
            if fatal > std::mem::replace(&mut link.fatal, fatal) {
                is_news |= link.fault.replace(now + PCI_HOLD).is_none();
            }
        }
        is_news
    }

    /// Returns the time when the next fault ends without another report.
    pub(super) fn end(&self) -> Option<Instant> {
        self.pci.values().filter_map(|it| it.fault).min()
    }

    /// Ends the faults whose time is over at `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        for link in self.pci.values_mut() {
            link.fault = link.fault.filter(|end| *end > now);
        }
    }

    /// Removes the PCI errors of all devices for which `is_there` returns false.
    pub(super) fn keep(&mut self, is_there: impl Fn(&DeviceAddress) -> bool) {
        self.pci.retain(|address, _| is_there(address));
    }

    /// Returns the reason why the device is unhealthy. `None`: the device has no fault.
    pub(super) fn fault(&self, device: &Device) -> Option<String> {
        let physical = || {
            let reason = self.own_fault(device.physical_function.as_ref()?)?;
            Some(format!("its physical function: {reason}"))
        };
        self.own_fault(&device.address).or_else(physical)
    }

    fn own_fault(&self, address: &DeviceAddress) -> Option<String> {
        if let Some(reporter) = self.failed.iter().find(|it| it.is_of(address)) {
            let name = &reporter.name;
            return Some(format!(
                "devlink's reporter {name} has an error without recovery (devlink health show {reporter})"
            ));
        }
        self.pci.get(address)?.fault?;
        Some("its PCI link had a fatal error (aer_dev_fatal)".to_owned())
    }
}

#[cfg(test)]
#[path = "nic_faults_tests.rs"]
mod tests;
