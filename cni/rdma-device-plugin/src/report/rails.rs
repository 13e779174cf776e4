// SPDX-License-Identifier: Apache-2.0
//! Decides which events (reports) are due about the rails of each pod, from the devices' state, the pods' devices and
//! earlier reports. This module has no I/O.
//!
//! Reports depend on states and not on changes. If a report failed or was delayed, the daemon makes it later if the
//! state is still the same. A pod gets the first report at once, and then at most one report in ten seconds. The
//! damping of health further reduces the reports about flapping devices.

use super::event::Budget;
use crate::refused::PodName;
use offer::Loss;
use rdma_netns::DeviceAddress;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Shortest interval between two reports to one pod.
const PAUSE: Duration = Duration::from_secs(10);

/// A pod and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDevices {
    /// The pod.
    pub pod: PodKey,
    /// Devices of the pod.
    pub devices: BTreeMap<DeviceAddress, PodDevice>,
}

/// A device of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDevice {
    /// Interface in the pod, if the device has one.
    pub interface: Option<String>,
    /// Resources by which the pod has the device, according to kubelet.
    pub resources: BTreeSet<String>,
}

/// Identity of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// Name of the pod.
    pub name: PodName,
    /// UID, which distinguishes pods with the same name. `None`: unknown.
    pub uid: Option<String>,
}

/// Unusable and usable devices. A device that is in none of the fields is no longer offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Lost devices.
    pub losses: BTreeSet<Loss>,
    /// Usable devices, each with its resource.
    pub usable: BTreeSet<(String, DeviceAddress)>,
}

impl Troubles {
    /// Returns true if no device is unusable.
    pub fn is_empty(&self) -> bool {
        self.losses.is_empty()
    }

    /// Returns the loss of the device at `address` for a pod that has it as `device`.
    fn of(&self, address: &DeviceAddress, device: &PodDevice) -> Option<&Loss> {
        let concerns = |resource: &String| device.resources.contains(resource);
        let mut losses = self.losses.iter().filter(|it| it.address == *address);
        losses.find(|it| it.resource.as_ref().is_none_or(concerns))
    }

    /// Returns true if `resource` offers the device and can use it. `None` means any resource.
    fn is_usable(&self, address: &DeviceAddress, resource: Option<&str>) -> bool {
        let mut usable = self.usable.iter().filter(|(_, it)| it == address);
        usable.any(|(name, _)| resource.is_none_or(|it| it == name))
    }
}

/// Report to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The pod.
    pub pod: PodKey,
    /// Lost devices, each with the reason.
    pub lost: BTreeMap<DeviceAddress, (Lost, String)>,
    /// Descriptions of recovered devices.
    pub recovered: BTreeMap<DeviceAddress, String>,
}

/// A device whose loss was reported to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Description of the device.
    pub called: String,
    /// Resource that cannot use the healthy device. `None`: the device itself is unusable.
    pub resource: Option<String>,
}

impl News {
    /// Returns a sentence about the lost devices, or `None` if no device is lost.
    pub fn loss(&self) -> Option<String> {
        let lost = self.lost.values();
        let lost = lost.map(|(lost, reason)| format!("{}: {reason}", lost.called));
        sentence("are unusable", lost.collect())
    }

    /// Returns a sentence about the recovered devices, or `None` if no device has recovered.
    pub fn recovery(&self) -> Option<String> {
        sentence(
            "are usable again",
            self.recovered.values().cloned().collect(),
        )
    }
}

fn sentence(what: &str, rails: Vec<String>) -> Option<String> {
    (!rails.is_empty()).then(|| format!("rails that {what}: {}", rails.join("; ")))
}

/// Earlier reports to pods.
#[derive(Debug, Default)]
pub struct Reported {
    pods: BTreeMap<PodKey, Pod>,
    budget: Budget,
}

#[derive(Debug)]
struct Pod {
    /// Lost devices that were reported to the pod.
    lost: BTreeMap<DeviceAddress, Lost>,
    last: Instant,
}

impl Reported {
    /// Returns true if no pod has a reported loss or a recent report.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns the reports that are due at `now`, and the delay until more reports are due.
    pub fn due(
        &mut self,
        pods: &[PodDevices],
        troubles: &Troubles,
        now: Instant,
    ) -> (Vec<News>, Option<Duration>) {
        self.pods.retain(|key, reported| {
            let is_there = pods.iter().any(|it| it.pod == *key);
            is_there && (!reported.lost.is_empty() || reported.left(now) > Duration::ZERO)
        });
        let (mut due, mut next) = (vec![], None);
        for pod in pods {
            let reported = self.pods.get(&pod.pod);
            let news = pod.news(reported, troubles);
            if news.lost.is_empty() && news.recovered.is_empty() {
                continue;
            }
            match reported.map_or(Duration::ZERO, |reported| reported.left(now)) {
                Duration::ZERO => due.push(news),
                left => next = Some(next.unwrap_or(left).min(left)),
            }
        }
        let room = self.budget.room_in(now);
        if !due.is_empty() && !room.is_zero() {
            return (vec![], Some(room));
        }
        (due, next)
    }

    /// Counts an event that was written at `now`.
    pub fn wrote(&mut self, now: Instant) {
        self.budget.spend(now);
    }

    /// Returns true if another event may be written now.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.budget.room_in(now).is_zero()
    }

    /// Stores that a report was made to the pod.
    pub fn reported(&mut self, news: News, now: Instant) {
        let pod = self.pods.entry(news.pod).or_insert_with(|| Pod {
            lost: BTreeMap::new(),
            last: now,
        });
        pod.last = now;
        pod.lost
            .retain(|address, _| !news.recovered.contains_key(address));
        let lost = news.lost.into_iter();
        pod.lost
            .extend(lost.map(|(address, (lost, _))| (address, lost)));
    }
}

impl Pod {
    /// Returns the delay until the pod may get another report.
    fn left(&self, now: Instant) -> Duration {
        (self.last + PAUSE).saturating_duration_since(now)
    }
}

impl PodDevices {
    fn news(&self, reported: Option<&Pod>, troubles: &Troubles) -> News {
        let knows =
            |address: &DeviceAddress| reported.is_some_and(|it| it.lost.contains_key(address));
        let is_lost = |address: &DeviceAddress| {
            let none = PodDevice::default();
            let device = self.devices.get(address).unwrap_or(&none);
            troubles.of(address, device).is_some()
        };
        let lost = self.devices.iter().filter(|(address, _)| !knows(address));
        let lost = lost.filter_map(|(address, device)| {
            let loss = troubles.of(address, device)?;
            let interface = device.interface.as_deref();
            let lost = Lost {
                called: called(address, interface, loss.rdma.as_deref()),
                resource: loss.resource.clone(),
            };
            Some((address.clone(), (lost, loss.reason.clone())))
        });
        let known = reported.into_iter().flat_map(|it| &it.lost);
        let recovered = known.filter(|(address, lost)| {
            !is_lost(address) && troubles.is_usable(address, lost.resource.as_deref())
        });
        let recovered = recovered.map(|(address, lost)| (address.clone(), lost.called.clone()));
        News {
            pod: self.pod.clone(),
            lost: lost.collect(),
            recovered: recovered.collect(),
        }
    }
}

/// Describes a device: `rdma1 (mlx5_1, 0000:5e:00.0)`, or `mlx5_1 (0000:5e:00.0)` without an interface.
fn called(address: &DeviceAddress, interface: Option<&str>, rdma: Option<&str>) -> String {
    match (interface, rdma) {
        (Some(interface), Some(rdma)) => format!("{interface} ({rdma}, {address})"),
        (Some(name), None) | (None, Some(name)) => format!("{name} ({address})"),
        (None, None) => address.to_string(),
    }
}

#[cfg(test)]
#[path = "rails_tests.rs"]
mod tests;
