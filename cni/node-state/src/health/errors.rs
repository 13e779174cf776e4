// SPDX-License-Identifier: Apache-2.0
//! Schedules the readings of the error counters that have thresholds.

use super::{
    error_files::{self, Devices, Readings},
    error_rates::ErrorRates,
};
use crate::watch::until;
use daemon_conf::ErrorThreshold;
use rdma_netns::Inventory;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use tokio::sync::oneshot;

#[derive(Debug)]
pub(super) struct Errors {
    sysfs: PathBuf,
    devices: Devices,
    rates: ErrorRates,
    reading: Option<oneshot::Receiver<Readings>>,
}

impl Errors {
    /// Returns an `Errors` without thresholds, which reads no counter.
    pub(super) fn none(sysfs: &Path) -> Self {
        Self {
            sysfs: sysfs.to_owned(),
            devices: Devices::new(),
            rates: ErrorRates::default(),
            reading: None,
        }
    }

    /// Replaces the thresholds. Returns true if this ends a device's fault.
    pub(super) fn go_by(&mut self, thresholds: &[ErrorThreshold]) -> bool {
        self.rates.go_by(thresholds.to_vec(), Instant::now())
    }

    pub(super) fn rates(&self) -> &ErrorRates {
        &self.rates
    }

    pub(super) fn update(&mut self, inventory: &Inventory) {
        self.devices = error_files::devices(inventory);
        let functions = &inventory.functions;
        self.rates
            .keep(|address| functions.iter().any(|it| it.device.address == *address));
    }

    /// Waits until error counters change a device's health. The caller can cancel this call, and call again without
    /// missing a change.
    pub(super) async fn changed(&mut self) {
        loop {
            let free = self.reading.is_none() && !self.devices.is_empty();
            let next = self.rates.next().filter(|_| free);
            tokio::select! {
                readings = answered(&mut self.reading) => {
                    let is_news = readings
                        .is_some_and(|it| self.rates.take(it.at, &it.due, &it.values));
                    if is_news {
                        return;
                    }
                }
                () = until(next.map(Into::into)) => self.read(),
            }
        }
    }

    /// Reads the counters on a separate thread. Firmware that does not answer must delay neither answers to kubelet nor
    /// the observation of links.
    fn read(&mut self) {
        let at = Instant::now();
        let due = self.rates.due(at);
        let counters = due.iter().map(|it| self.rates.counter(*it).to_owned());
        let mut counters: Vec<String> = counters.collect();
        counters.sort();
        counters.dedup();
        let (sysfs, devices) = (self.sysfs.clone(), self.devices.clone());
        let (answer, reading) = oneshot::channel();
        let reader = std::thread::Builder::new().name("errors".into());
        let started = reader.spawn(move || {
            let values = error_files::read(&sysfs, &devices, &counters);
            // ignore the error: the receiver may be dropped
            let _ = answer.send(Readings { at, due, values });
        });
        match started {
            Ok(_) => self.reading = Some(reading),
            Err(error) => log::warn!("error counters cannot be read: {error}"),
        }
    }
}

/// Waits for the reading in progress. Waits forever if no reading is in progress. Returns `None` if the reading's
/// thread ended without an answer.
pub(super) async fn answered<T>(reading: &mut Option<oneshot::Receiver<T>>) -> Option<T> {
    let Some(answer) = reading else {
        return std::future::pending().await;
    };
    let readings = answer.await.ok();
    *reading = None;
    readings
}
