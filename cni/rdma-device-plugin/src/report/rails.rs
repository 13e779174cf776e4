// SPDX-License-Identifier: Apache-2.0
//! Which pods are to be told what of their rails: by how the devices are, which pods have them, and what was told
//! before. Nothing is asked and nothing is done here.
//!
//! It goes by the state, and not by changes: what could not be told, or was held back, is told later if it is still
//! so. A pod hears at once, and then every ten seconds at most; health's damping keeps what flaps from
//! coming that often.

use super::event::Budget;
use crate::refused::PodName;
use rdma_netns::DeviceAddress;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// A pod is told again after that.
const PAUSE: Duration = Duration::from_secs(10);

/// A pod, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDevices {
    /// Which.
    pub pod: PodKey,
    /// Its devices.
    pub devices: BTreeMap<DeviceAddress, PodDevice>,
}

/// A device, as a pod has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDevice {
    /// Its interface in the pod, where it has one.
    pub interface: Option<String>,
    /// The resources by which the pod has it, as far as kubelet says.
    pub resources: BTreeSet<String>,
}

/// Which pod it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// Its name.
    pub name: PodName,
    /// What tells it from another one of its name; none: not known.
    pub uid: Option<String>,
}

/// A device that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its RDMA device, where that is known.
    pub rdma: Option<String>,
    /// Why.
    pub reason: String,
}

/// Which devices cannot be used, and which can. One that is in neither is not offered any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Those that nobody can use.
    pub devices: BTreeMap<DeviceAddress, Trouble>,
    /// Those that are healthy by themselves, and cannot be used by one resource: its netdev that pods are attached to
    /// is missing or down.
    pub own: BTreeMap<(String, DeviceAddress), Trouble>,
    /// Those that can be used, by resource.
    pub usable: BTreeSet<(String, DeviceAddress)>,
}

impl Troubles {
    /// Whether all that is offered can be used.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.own.is_empty()
    }

    /// What is wrong with `device` for the pod that has it so, and the resource of which that is, if it is one's own.
    fn of(&self, address: &DeviceAddress, device: &PodDevice) -> Option<(&Trouble, Option<&str>)> {
        if let Some(trouble) = self.devices.get(address) {
            return Some((trouble, None));
        }
        let mut resources = device.resources.iter();
        resources.find_map(|resource| {
            let place = (resource.clone(), address.clone());
            let ((resource, _), trouble) = self.own.get_key_value(&place)?;
            Some((trouble, Some(resource.as_str())))
        })
    }

    /// Whether it is offered and can be used: by `resource`, or without one by any.
    fn is_usable(&self, address: &DeviceAddress, resource: Option<&str>) -> bool {
        let mut usable = self.usable.iter().filter(|(_, it)| it == address);
        usable.any(|(name, _)| resource.is_none_or(|it| it == name))
    }
}

/// What one pod is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Which.
    pub pod: PodKey,
    /// What it has lost, and why.
    pub lost: BTreeMap<DeviceAddress, (Lost, String)>,
    /// What it has lost and has again: what that is called.
    pub recovered: BTreeMap<DeviceAddress, String>,
}

/// A device that a pod was told to be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// What it is called.
    pub called: String,
    /// The resource by which it is lost, if the device itself is healthy.
    pub resource: Option<String>,
}

impl News {
    /// What is lost, as a sentence; none: nothing is.
    pub fn loss(&self) -> Option<String> {
        let lost = self.lost.values();
        let lost = lost.map(|(lost, reason)| format!("{}: {reason}", lost.called));
        sentence("cannot be used", lost.collect())
    }

    /// What has come back, as a sentence; none: nothing has.
    pub fn recovery(&self) -> Option<String> {
        sentence(
            "can be used again",
            self.recovered.values().cloned().collect(),
        )
    }
}

fn sentence(what: &str, rails: Vec<String>) -> Option<String> {
    (!rails.is_empty()).then(|| format!("rails that {what}: {}", rails.join("; ")))
}

/// What pods were told.
#[derive(Debug, Default)]
pub struct Told {
    pods: BTreeMap<PodKey, Pod>,
    budget: Budget,
}

#[derive(Debug)]
struct Pod {
    /// The devices whose loss it knows.
    lost: BTreeMap<DeviceAddress, Lost>,
    last: Instant,
}

impl Told {
    /// Whether all pods that were told of a loss were told of its end, and nothing is remembered of any.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// What is to be told at `now`, and in how long there is more to tell, if there is.
    pub fn due(
        &mut self,
        pods: &[PodDevices],
        troubles: &Troubles,
        now: Instant,
    ) -> (Vec<News>, Option<Duration>) {
        self.pods.retain(|key, told| {
            let is_there = pods.iter().any(|it| it.pod == *key);
            is_there && (!told.lost.is_empty() || told.left(now) > Duration::ZERO)
        });
        let (mut due, mut next) = (vec![], None);
        for pod in pods {
            let told = self.pods.get(&pod.pod);
            let news = pod.news(told, troubles);
            if news.lost.is_empty() && news.recovered.is_empty() {
                continue;
            }
            match told.map_or(Duration::ZERO, |told| told.left(now)) {
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

    /// One event of `news` was written.
    pub fn wrote(&mut self, now: Instant) {
        self.budget.spend(now);
    }

    /// Whether another event may be written now.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.budget.room_in(now).is_zero()
    }

    /// The pod was told.
    pub fn told(&mut self, news: News, now: Instant) {
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
    /// How long it is not told again.
    fn left(&self, now: Instant) -> Duration {
        (self.last + PAUSE).saturating_duration_since(now)
    }
}

impl PodDevices {
    fn news(&self, told: Option<&Pod>, troubles: &Troubles) -> News {
        let knows = |address: &DeviceAddress| told.is_some_and(|it| it.lost.contains_key(address));
        let trouble = |address: &DeviceAddress| match self.devices.get(address) {
            Some(device) => troubles.of(address, device),
            None => troubles.of(address, &PodDevice::default()),
        };
        let lost = self.devices.iter().filter(|(address, _)| !knows(address));
        let lost = lost.filter_map(|(address, device)| {
            let (trouble, resource) = trouble(address)?;
            let interface = device.interface.as_deref();
            let lost = Lost {
                called: called(address, interface, trouble.rdma.as_deref()),
                resource: resource.map(str::to_owned),
            };
            Some((address.clone(), (lost, trouble.reason.clone())))
        });
        let known = told.into_iter().flat_map(|it| &it.lost);
        let recovered = known.filter(|(address, lost)| {
            trouble(address).is_none() && troubles.is_usable(address, lost.resource.as_deref())
        });
        let recovered = recovered.map(|(address, lost)| (address.clone(), lost.called.clone()));
        News {
            pod: self.pod.clone(),
            lost: lost.collect(),
            recovered: recovered.collect(),
        }
    }
}

/// `rdma1 (mlx5_1, 0000:5e:00.0)`, `mlx5_1 (0000:5e:00.0)`
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
