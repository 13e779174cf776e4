// SPDX-License-Identifier: Apache-2.0
//! Selects the preferred ids of an allocation: on as many NICs as possible, and close to the container's own
//! accelerators if they are known. Otherwise the ids are on as few NUMA nodes as possible, on the shared NICs with the
//! fewest users, and close to any accelerators.

use crate::{
    Offer,
    accelerators::{Accelerators, Near},
    distance::Distance,
};
use rdma_resources::Sharing;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// Preferred ids, with reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    /// Required ids, followed by the other ids, the best id first.
    pub ids: Vec<String>,
    /// One line for each id with the reason.
    pub reasons: Vec<String>,
}

/// An id that can be chosen.
struct Candidate<'a> {
    id: &'a str,
    /// Position of the id in the offer's list. An id that is not in the list has the last position.
    place: usize,
    devices: &'a [usize],
    /// Common NUMA node of the id's devices.
    node: Option<u32>,
}

/// Number of ids that are already chosen, for each device and for each accelerator near these devices.
#[derive(Default)]
struct Chosen {
    devices: BTreeMap<usize, usize>,
    accelerators: BTreeMap<usize, usize>,
    nodes: BTreeSet<Option<u32>>,
    /// Number of ids that containers have, for each device. `None`: the ids are not shared.
    in_use: Option<BTreeMap<usize, usize>>,
}

/// A NUMA node from which the next id may be chosen.
#[derive(Default)]
struct NodeIds {
    /// Number of candidate ids on the NUMA node.
    count: usize,
    /// Distance of the nearest device from the accelerators.
    distance: Option<Distance>,
    devices: BTreeSet<usize>,
}

impl Offer {
    /// Chooses `size` ids of `available`. The ids in `must_include` come first. If there are too few ids, chooses all
    /// of them. The result is deterministic. It depends on `accelerators`:
    /// - If the container's own accelerators are known, NICs close to them are preferred: one NIC for each accelerator
    ///   before a second one.
    /// - Otherwise, any accelerator of the node may be the container's. For shared ids, few users are then more
    ///   important than a short distance.
    pub fn prefer(
        &self,
        available: &[String],
        must_include: &[String],
        size: usize,
        accelerators: &Accelerators<'_>,
    ) -> Preference {
        let mut preference = Preference::default();
        let mut chosen = Chosen::default();
        let near = accelerators.near(&self.devices);
        let places: BTreeMap<&str, usize> = self
            .ids
            .iter()
            .enumerate()
            .map(|(place, id)| (id.id.as_str(), place))
            .collect();
        let mut seen = BTreeSet::new();
        for id in must_include {
            if preference.ids.len() < size && seen.insert(id.as_str()) {
                let candidate = self.candidate(id, &places);
                chosen.add(&candidate, &near);
                preference
                    .reasons
                    .push(format!("{id}: kubelet requires it"));
                preference.ids.push(id.clone());
            }
        }
        let mut open: Vec<Candidate<'_>> = available
            .iter()
            .filter(|id| seen.insert(id.as_str()))
            .map(|id| self.candidate(id, &places))
            .collect();
        open.sort_by_key(|candidate| candidate.place);
        if self.sharing == Sharing::Shared {
            let in_use = self.in_use(&open, &seen);
            // do not count other containers' ids as NICs of the container's own accelerators: they serve other
            // accelerators
            let near = if accelerators.own {
                &[]
            } else {
                near.as_slice()
            };
            chosen.use_up(in_use, near);
        }
        while preference.ids.len() < size && !open.is_empty() {
            let missing = size - preference.ids.len();
            let own = accelerators
                .own
                .then(|| chosen.nearest(&open, &near))
                .flatten();
            let best = match own {
                Some(index) => Some((index, "near the container's accelerators".to_owned())),
                None => {
                    let (node, why) = node_for(&open, missing, &chosen, &near);
                    let best = open
                        .iter()
                        .enumerate()
                        .filter(|(_, candidate)| candidate.node == node)
                        .min_by_key(|(_, candidate)| chosen.rank(candidate, &near));
                    best.map(|(index, _)| (index, why))
                }
            };
            let Some((index, why)) = best else {
                break;
            };
            let candidate = open.remove(index);
            let reason = self.reason(&candidate, &why, &chosen, &near, accelerators);
            chosen.add(&candidate, &near);
            preference.reasons.push(reason);
            preference.ids.push(candidate.id.to_owned());
        }
        preference
    }

    fn candidate<'a>(&'a self, id: &'a str, places: &BTreeMap<&str, usize>) -> Candidate<'a> {
        let place = places.get(id).copied().unwrap_or(usize::MAX);
        let devices = self
            .ids
            .get(place)
            .map_or(&[] as &[usize], |id| id.devices.as_slice());
        let mut nodes = devices
            .iter()
            .map(|index| self.devices.get(*index).and_then(|device| device.numa_node));
        let node = nodes.next().flatten();
        Candidate {
            id,
            place,
            devices,
            node: node.filter(|_| nodes.all(|other| other == node)),
        }
    }

    /// Returns the number of ids that containers have, for each device of `open`: the healthy ids that kubelet does not
    /// offer. Leaves out devices without an offered id: kubelet may hold back their ids because the topology manager
    /// requires another NUMA node.
    fn in_use(&self, open: &[Candidate<'_>], offered: &BTreeSet<&str>) -> BTreeMap<usize, usize> {
        let devices = open.iter().flat_map(|candidate| candidate.devices);
        let mut in_use: BTreeMap<usize, usize> = devices.map(|index| (*index, 0)).collect();
        let used = self.ids.iter();
        for id in used.filter(|id| id.healthy && !offered.contains(id.id.as_str())) {
            for index in &id.devices {
                if let Some(count) = in_use.get_mut(index) {
                    *count += 1;
                }
            }
        }
        in_use
    }

    fn reason(
        &self,
        candidate: &Candidate<'_>,
        node: &str,
        chosen: &Chosen,
        near: &[Near],
        accelerators: &Accelerators<'_>,
    ) -> String {
        let [index] = candidate.devices else {
            let count = candidate.devices.len();
            return format!("{}: {node}; for {count} devices", candidate.id);
        };
        let times = chosen.times(*index);
        let used = match chosen.used(*index) {
            Some(count) => format!("has {count} in use, "),
            None => String::new(),
        };
        let device = self.devices.get(*index).map(|device| &*device.address);
        let near = near.get(*index);
        let gpu = near
            .and_then(|near| near.accelerators.first())
            .and_then(|place| accelerators.all.get(*place));
        let distance = match (near, gpu) {
            (Some(near), Some(gpu)) => format!("{} {}", near.distance, gpu.address),
            _ => "near no accelerator".to_owned(),
        };
        format!(
            "{}: {node}; {} {used}chosen {times} times before; {distance}",
            candidate.id,
            device.unwrap_or_default()
        )
    }
}

impl Chosen {
    fn add(&mut self, candidate: &Candidate<'_>, near: &[Near]) {
        self.nodes.insert(candidate.node);
        for index in candidate.devices {
            *self.devices.entry(*index).or_default() += 1;
            for accelerator in near.get(*index).into_iter().flat_map(|it| &it.accelerators) {
                *self.accelerators.entry(*accelerator).or_default() += 1;
            }
        }
    }

    /// Counts the ids that containers have. Each of these ids also counts as a NIC of the accelerators near its device.
    fn use_up(&mut self, in_use: BTreeMap<usize, usize>, near: &[Near]) {
        for (index, count) in &in_use {
            for accelerator in near.get(*index).into_iter().flat_map(|it| &it.accelerators) {
                *self.accelerators.entry(*accelerator).or_default() += count;
            }
        }
        self.in_use = Some(in_use);
    }

    /// Returns the number of chosen ids that contain the device.
    fn times(&self, index: usize) -> usize {
        self.devices.get(&index).copied().unwrap_or(0)
    }

    /// Returns the number of the device's ids that containers have, or `None` if the ids are not shared.
    fn used(&self, index: usize) -> Option<usize> {
        let in_use = self.in_use.as_ref()?;
        Some(in_use.get(&index).copied().unwrap_or(0))
    }

    /// Returns the highest number of users of a device after distributing `missing` more ids over `devices`.
    fn busiest(&self, devices: &BTreeSet<usize>, missing: usize) -> usize {
        let used = devices.iter().filter_map(|index| self.used(*index));
        let mut used: Vec<usize> = used.collect();
        used.sort_unstable();
        let share = missing.div_ceil(used.len().max(1));
        let last = missing.min(used.len()).checked_sub(1);
        last.and_then(|last| used.get(last))
            .map_or(0, |used| used + share)
    }

    /// Returns the index of the best id of `open` for the container's own accelerators, or `None` if no device is near.
    /// The criteria in order:
    /// - the device that was chosen least often
    /// - an accelerator with the fewest NICs
    /// - the nearest device
    /// - the device with the fewest users
    /// - the earliest id in the list
    fn nearest(&self, open: &[Candidate<'_>], near: &[Near]) -> Option<usize> {
        let candidates = open.iter().enumerate().filter_map(|(index, candidate)| {
            let (times, used, distance, served, place) = self.rank(candidate, near);
            let is_near = distance != Distance::Far;
            is_near.then_some(((times, served, distance, used, place), index))
        });
        candidates.min().map(|(_, index)| index)
    }

    /// Returns the rank of a candidate. The smallest rank is the best. The criteria in order:
    /// - the device was chosen less often
    /// - the device has fewer users
    /// - the device is nearer to an accelerator
    /// - a near accelerator has fewer NICs already
    /// - the id is earlier in the list
    fn rank(
        &self,
        candidate: &Candidate<'_>,
        near: &[Near],
    ) -> (usize, usize, Distance, usize, usize) {
        let devices = candidate.devices.iter();
        let near = || {
            candidate
                .devices
                .iter()
                .filter_map(|index| near.get(*index))
        };
        let served = near()
            .flat_map(|near| &near.accelerators)
            .map(|place| self.accelerators.get(place).copied().unwrap_or(0));
        (
            devices
                .clone()
                .map(|index| self.times(*index))
                .max()
                .unwrap_or(usize::MAX),
            devices
                .filter_map(|index| self.used(*index))
                .max()
                .unwrap_or(0),
            distance_of(near()),
            served.min().unwrap_or(0),
            candidate.place,
        )
    }
}

fn distance_of<'a>(near: impl Iterator<Item = &'a Near>) -> Distance {
    near.map(|near| near.distance)
        .min()
        .unwrap_or(Distance::Far)
}

/// Returns the NUMA node for the next id, and the reason:
///
/// - a NUMA node that already has chosen ids
/// - otherwise the best NUMA node that has enough ids for the rest of the request
/// - otherwise the NUMA node with the most ids
///
/// The best NUMA node has the devices with the fewest users. Among several such NUMA nodes, it is nearest to the
/// accelerators. If the distance is equal, too, it has the fewest free ids, so that the other NUMA nodes stay free for
/// large requests, or for shared ids the most free ids.
fn node_for(
    open: &[Candidate<'_>],
    missing: usize,
    chosen: &Chosen,
    near: &[Near],
) -> (Option<u32>, String) {
    let mut nodes: BTreeMap<Option<u32>, NodeIds> = BTreeMap::new();
    for candidate in open {
        let distance = distance_of(candidate.devices.iter().filter_map(|it| near.get(*it)));
        let entry = nodes.entry(candidate.node).or_default();
        entry.count += 1;
        entry.distance = entry.distance.into_iter().chain([distance]).min();
        entry.devices.extend(candidate.devices);
    }
    let best = nodes.iter().min_by_key(|(node, ids)| {
        let holds_all = ids.count >= missing;
        (
            !chosen.nodes.contains(*node),
            !holds_all,
            if holds_all {
                chosen.busiest(&ids.devices, missing)
            } else {
                0
            },
            ids.distance.filter(|_| holds_all).unwrap_or(Distance::Far),
            if holds_all && chosen.in_use.is_none() {
                ids.count
            } else {
                usize::MAX - ids.count
            },
            Reverse(node.is_some()),
            **node,
        )
    });
    let Some((node, NodeIds { count, .. })) = best else {
        return (None, String::new());
    };
    let name = match node {
        Some(node) => format!("NUMA node {node}"),
        None => "the group of ids on several or unknown NUMA nodes".to_owned(),
    };
    let why = if chosen.nodes.contains(node) {
        format!("{name}, as the previous ids")
    } else if *count >= missing {
        let least = match chosen.in_use {
            Some(_) => " and the NICs with the fewest users",
            None => "",
        };
        format!("{name}, which has enough ids ({missing} still to choose){least}")
    } else {
        format!("{name}, which has the most ids: {count} of the {missing} still to choose")
    };
    (*node, why)
}

#[cfg(test)]
#[path = "prefer_tests.rs"]
mod tests;
