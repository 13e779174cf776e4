//! Which ids kubelet had better allocate together: of as few NUMA nodes as possible, on as many
//! NICs as possible, near the accelerators.

use super::{Offer, distance::Distance};
use rdma_netns::Accelerator;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The ids to allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    /// What has to be among them first, then the best first.
    pub ids: Vec<String>,
    /// Why, one line for each.
    pub reasons: Vec<String>,
}

/// An id that may be chosen.
struct Candidate<'a> {
    id: &'a str,
    /// Place in the list of ids; what is not in it comes last.
    place: usize,
    devices: &'a [usize],
    /// NUMA node of all its devices.
    node: Option<u32>,
}

/// How near a device is to accelerators.
struct Near {
    distance: Distance,
    /// The nearest ones, by place.
    accelerators: Vec<usize>,
}

/// What was chosen so far, by place.
#[derive(Default)]
struct Chosen {
    devices: BTreeMap<usize, usize>,
    accelerators: BTreeMap<usize, usize>,
    nodes: BTreeSet<Option<u32>>,
}

impl Offer {
    /// Chooses `size` of `available`, `must_include` first; fewer if there are not as many.
    ///
    /// Kubelet does not say which accelerators the pod was given: `accelerators` are all that
    /// come into question, those of the node for example. The answer is the same each time.
    pub fn prefer(
        &self,
        available: &[String],
        must_include: &[String],
        size: usize,
        accelerators: &[Accelerator],
    ) -> Preference {
        let mut preference = Preference::default();
        let mut chosen = Chosen::default();
        let near = self.near(accelerators);
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
                    .push(format!("{id}: kubelet asks for it"));
                preference.ids.push(id.clone());
            }
        }
        let mut open: Vec<Candidate<'_>> = available
            .iter()
            .filter(|id| seen.insert(id.as_str()))
            .map(|id| self.candidate(id, &places))
            .collect();
        open.sort_by_key(|candidate| candidate.place);
        while preference.ids.len() < size && !open.is_empty() {
            let missing = size - preference.ids.len();
            let (node, why) = node_for(&open, missing, &chosen, &near);
            let best = open
                .iter()
                .enumerate()
                .filter(|(_, candidate)| candidate.node == node)
                .min_by_key(|(_, candidate)| chosen.rank(candidate, &near));
            let Some((index, _)) = best else {
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

    /// For each device the accelerators that are nearest to it.
    fn near(&self, accelerators: &[Accelerator]) -> Vec<Near> {
        let near = |device: &super::OfferedDevice| {
            let distances: Vec<Distance> = accelerators
                .iter()
                .map(|accelerator| {
                    Distance::between(
                        (&device.path, device.numa_node),
                        (&accelerator.path, accelerator.numa_node),
                    )
                })
                .collect();
            let least = distances.iter().copied().min().unwrap_or(Distance::Far);
            let nearest = |(_, distance): &(usize, Distance)| *distance == least;
            let of_least = distances.into_iter().enumerate().filter(nearest);
            Near {
                distance: least,
                accelerators: match least {
                    Distance::Far => Vec::new(),
                    _ => of_least.map(|(place, _)| place).collect(),
                },
            }
        };
        self.devices.iter().map(near).collect()
    }

    fn reason(
        &self,
        candidate: &Candidate<'_>,
        node: &str,
        chosen: &Chosen,
        near: &[Near],
        accelerators: &[Accelerator],
    ) -> String {
        let [index] = candidate.devices else {
            let count = candidate.devices.len();
            return format!("{}: {node}; for {count} devices", candidate.id);
        };
        let times = chosen.devices.get(index).copied().unwrap_or(0);
        let device = self.devices.get(*index).map(|device| &*device.address);
        let near = near.get(*index);
        let gpu = near
            .and_then(|near| near.accelerators.first())
            .and_then(|place| accelerators.get(*place));
        let distance = match (near, gpu) {
            (Some(near), Some(gpu)) => format!("{} {}", near.distance, gpu.address),
            _ => "near no accelerator".to_owned(),
        };
        format!(
            "{}: {node}; {} chosen {times} times before; {distance}",
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

    /// Smaller is better: a device that was not chosen yet, near to accelerators, of which one
    /// has no NIC yet; then the order of the list.
    fn rank(&self, candidate: &Candidate<'_>, near: &[Near]) -> (usize, Distance, usize, usize) {
        let times = |index: &usize| self.devices.get(index).copied().unwrap_or(0);
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
            candidate
                .devices
                .iter()
                .map(times)
                .max()
                .unwrap_or(usize::MAX),
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

/// The NUMA node that the next id is to be of, and why.
///
/// One that has ids already; else one that can hold all, nearest to accelerators, and of these
/// the fullest, so that larger ones stay whole; else the one that holds most.
fn node_for(
    open: &[Candidate<'_>],
    missing: usize,
    chosen: &Chosen,
    near: &[Near],
) -> (Option<u32>, String) {
    let mut nodes: BTreeMap<Option<u32>, (usize, Distance)> = BTreeMap::new();
    for candidate in open {
        let distance = distance_of(candidate.devices.iter().filter_map(|it| near.get(*it)));
        let entry = nodes.entry(candidate.node).or_insert((0, Distance::Far));
        *entry = (entry.0 + 1, entry.1.min(distance));
    }
    let best = nodes.iter().min_by_key(|(node, (count, distance))| {
        let holds_all = *count >= missing;
        (
            !chosen.nodes.contains(*node),
            !holds_all,
            if holds_all { *distance } else { Distance::Far },
            if holds_all {
                *count
            } else {
                usize::MAX - count
            },
            Reverse(node.is_some()),
            **node,
        )
    });
    let Some((node, (count, _))) = best else {
        return (None, String::new());
    };
    let name = match node {
        Some(node) => format!("NUMA node {node}"),
        None => "no one NUMA node".to_owned(),
    };
    let why = if chosen.nodes.contains(node) {
        format!("{name}, as those before")
    } else if *count >= missing {
        format!("{name}, which has all {missing} that are missing")
    } else {
        format!("{name}, which has most, {count} of {missing}")
    };
    (*node, why)
}

#[cfg(test)]
#[path = "prefer_tests.rs"]
mod tests;
