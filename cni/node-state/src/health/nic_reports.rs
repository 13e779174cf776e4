// SPDX-License-Identifier: Apache-2.0
//! Schedules the readings of NICs' reports: devlink's health reporters, and AER's counters.

use super::{
    errors::answered,
    nic_faults::{NicFaults, Reports},
};
use crate::watch::until;
use rdma_netns::{
    DeviceAddress, Inventory,
    linux::{
        aer,
        devlink::{self, Reporter},
    },
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Shortest interval between two readings.
const APART: Duration = Duration::from_secs(1);

/// Longest time for which the first observation of health waits for the reports.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct NicReports {
    sysfs: PathBuf,
    addresses: BTreeSet<DeviceAddress>,
    faults: NicFaults,
    /// Time of the next reading. `None`: the next reading follows an event.
    due: Option<Instant>,
    last: Option<Instant>,
    reading: Option<oneshot::Receiver<Reports>>,
}

impl NicReports {
    /// Returns a `NicReports` that has read no report. No reporter decides on health yet.
    pub(super) fn new(sysfs: &Path) -> Self {
        Self {
            sysfs: sysfs.to_owned(),
            addresses: BTreeSet::new(),
            faults: NicFaults::default(),
            due: None,
            last: None,
            reading: None,
        }
    }

    /// Lets only the reporters with the names `judges` decide on health. Requests a reading if the names differ from
    /// the present ones. Returns true if a device's fault ends by this change.
    pub(super) fn judge_by(&mut self, judges: &[String]) -> bool {
        if self.last.is_some() && self.faults.judges != judges {
            self.request();
        }
        self.faults.judge_by(judges.to_vec())
    }

    pub(super) fn faults(&self) -> &NicFaults {
        &self.faults
    }

    /// Replaces the node's devices, and requests a reading. The first call makes the reading itself: kubelet's first
    /// list then includes faults from before the daemon's start.
    pub(super) fn update(&mut self, inventory: &Inventory) {
        self.addresses = addresses(inventory);
        // keep a device whose RDMA device is missing: a driver that recovers its device removes the RDMA device for a
        // while
        self.faults.keep(|address| {
            self.addresses.contains(address) || inventory.function(address).is_some()
        });
        if self.last.is_some() {
            return self.request();
        }
        let (answer, reports) = mpsc::channel();
        let now = Instant::now();
        self.last = Some(now);
        // ignore the error: the receiver may be dropped
        self.start(move |it| drop(answer.send(it)));
        match reports.recv_timeout(REPORT_TIMEOUT) {
            Ok(reports) => drop(self.faults.take(now, reports)),
            Err(_) => {
                log::warn!(
                    "devlink and the counters of PCI errors do not answer within {REPORT_TIMEOUT:?}"
                );
                self.request();
            }
        }
    }

    pub(super) fn request(&mut self) {
        let now = Instant::now();
        let at = self.last.map_or(now, |last| now.max(last + APART));
        self.due.get_or_insert(at);
    }

    /// Waits until reports or the end of a fault change a device's health. The caller can cancel this call, and call
    /// again without missing a change.
    pub(super) async fn changed(&mut self) {
        loop {
            let next = self.due.filter(|_| self.reading.is_none());
            let end = self.faults.end();
            tokio::select! {
                reports = answered(&mut self.reading) => {
                    if self.faults.take(Instant::now(), reports.unwrap_or_default()) {
                        return;
                    }
                }
                () = until(next.map(Into::into)) => self.read(),
                () = until(end.map(Into::into)) => {
                    self.faults.expire(Instant::now());
                    return;
                }
            }
        }
    }

    fn read(&mut self) {
        self.due = None;
        self.last = Some(Instant::now());
        let (answer, reading) = oneshot::channel();
        // ignore the error: the receiver may be dropped
        self.start(move |it| drop(answer.send(it)));
        self.reading = Some(reading);
    }

    /// Reads the reports on a separate thread. A driver that recovers its device can hold devlink's lock for minutes.
    fn start(&self, answer: impl FnOnce(Reports) + Send + 'static) {
        let (sysfs, addresses) = (self.sysfs.clone(), self.addresses.clone());
        let reader = std::thread::Builder::new().name("nics".into());
        let started = reader.spawn(move || answer(read(&sysfs, &addresses)));
        if let Err(error) = started {
            log::warn!("health reporters and PCI errors cannot be read: {error}");
        }
    }
}

/// Returns the functions whose reports the daemon reads: functions with an RDMA device, and their physical functions.
pub fn addresses(inventory: &Inventory) -> BTreeSet<DeviceAddress> {
    let functions = inventory.functions.iter().filter(|it| !it.hcas.is_empty());
    let devices = functions.map(|it| &it.device);
    devices
        .flat_map(|it| [Some(&it.address), it.physical_function.as_ref()])
        .flatten()
        .cloned()
        .collect()
}

/// Reads the reports. Waits while a driver recovers its device.
pub fn read(sysfs: &Path, addresses: &BTreeSet<DeviceAddress>) -> Reports {
    let reporters = devlink::reporters();
    let own = |it: &Reporter| addresses.iter().any(|address| it.is_of(address));
    Reports {
        reporters: reporters
            .inspect_err(|error| log::warn!("devlink's health reporters cannot be read: {error}"))
            .map(|all| all.into_iter().filter(own).collect())
            .ok(),
        pci: addresses
            .iter()
            .filter_map(|it| Some((it.clone(), aer::pci_errors(sysfs, it)?)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A node with one NIC, whose RDMA devices have these names.
    fn node(hcas: &[&str]) -> Inventory {
        let hcas: Vec<_> = hcas
            .iter()
            .map(|it| serde_json::json!({"name": it}))
            .collect();
        let function = serde_json::json!({"address": "0000:3b:00.0", "hcas": hcas});
        serde_json::from_value(serde_json::json!({"functions": [function]})).expect("a node")
    }

    #[tokio::test]
    async fn an_error_while_the_rdma_device_is_gone_counts() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let directory = sysfs.path().join("bus/pci/devices/0000:3b:00.0");
        fs::create_dir_all(&directory).expect("made");
        let write =
            |file: &str, text: &str| fs::write(directory.join(file), text).expect("written");
        write("aer_dev_correctable", "TOTAL_ERR_COR 0\n");
        write("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0\n");
        write("aer_dev_fatal", "TOTAL_ERR_FATAL 1\n");
        let mut reports = NicReports::new(sysfs.path());
        let with = node(&["mlx5_0"]);
        reports.update(&with);
        reports.update(&node(&[]));
        write("aer_dev_fatal", "TOTAL_ERR_FATAL 2\n");
        reports.update(&with);
        let changed = tokio::time::timeout(Duration::from_secs(10), reports.changed());
        changed.await.expect("an error is news");
        let device = &with.functions[0].device;
        assert!(reports.faults().fault(device).is_some());
        // the NIC is gone: forget its fault, because another NIC may later be in the slot
        reports.update(&Inventory::default());
        assert_eq!(reports.faults().fault(device), None);
    }
}
