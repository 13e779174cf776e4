// SPDX-License-Identifier: Apache-2.0
//! Assigns devices to the ids of a resource.

use crate::{OfferedDevice, OfferedId};
use daemon_conf::{Allocate, Ids};
use fnv::FnvHasher;
use std::hash::Hasher;

pub(super) fn ids(
    kind: Ids,
    devices: &[OfferedDevice],
    healthy: &dyn Fn(&OfferedDevice) -> bool,
) -> Vec<OfferedId> {
    let id = |id: String, indices: Vec<usize>| OfferedId {
        id,
        numa_nodes: numa_nodes(&indices, devices),
        healthy: indices.iter().any(|index| healthy(&devices[*index])),
        devices: indices,
    };
    let every: Vec<usize> = (0..devices.len()).collect();
    match kind {
        Ids::Shared {
            count,
            allocate: Allocate::All,
        } => {
            let all = id(String::new(), every);
            (0..count)
                .map(|number| OfferedId {
                    id: number.to_string(),
                    ..all.clone()
                })
                .collect()
        }
        Ids::Shared {
            count,
            allocate: Allocate::Numa,
        } => {
            let chosen = spread(count, devices);
            let numbered = chosen.into_iter().enumerate();
            numbered
                .map(|(number, device)| id(number.to_string(), vec![device]))
                .collect()
        }
        Ids::PerNic { count, allocate } => {
            let of = |index: usize, number: u32| {
                let indices = match allocate {
                    Allocate::All => every.clone(),
                    Allocate::Numa => vec![index],
                };
                id(format!("{}/{number}", devices[index].hca.name), indices)
            };
            (0..devices.len())
                .flat_map(|index| (0..count).map(move |number| (index, number)))
                .map(|(index, number)| of(index, number))
                .collect()
        }
        Ids::Exclusive => every
            .iter()
            .map(|index| id(devices[*index].address.to_string(), vec![*index]))
            .collect(),
    }
}

/// Returns the NUMA node that all devices have in common. Returns an empty list if the NUMA nodes differ, or if the
/// NUMA node of a device is unknown.
fn numa_nodes(indices: &[usize], devices: &[OfferedDevice]) -> Vec<u32> {
    let mut nodes = indices.iter().map(|index| devices[*index].numa_node);
    match nodes.next().flatten() {
        Some(first) if nodes.all(|node| node == Some(first)) => vec![first],
        _ => Vec::new(),
    }
}

/// Returns the device of each of `count` ids. The devices get about equal numbers of ids. When a device appears or
/// disappears, only few ids get another device.
///
/// The function uses rendezvous hashing: every pair of id and device has a weight. The function takes the pairs in
/// descending order of weight. It skips a pair whose id already has a device, or whose device already has its share of
/// ids.
fn spread(count: u32, devices: &[OfferedDevice]) -> Vec<usize> {
    let share = (count as usize).div_ceil(devices.len().max(1));
    let mut pairs: Vec<(u64, usize, usize)> = Vec::new();
    for id in 0..count as usize {
        for (index, device) in devices.iter().enumerate() {
            pairs.push((weight(id as u64, &device.address), id, index));
        }
    }
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    let mut chosen = vec![None; count as usize];
    let mut load = vec![0; devices.len()];
    for (_, id, index) in pairs {
        if chosen[id].is_none() && load[index] < share {
            chosen[id] = Some(index);
            load[index] += 1;
        }
    }
    chosen.into_iter().flatten().collect()
}

/// Returns the weight of an id and an address, which is the same on every node and in every version: FNV-1a over
/// address and id, followed by the last step of MurmurHash3, which mixes all bits.
fn weight(id: u64, address: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(address.as_bytes());
    hasher.write(&id.to_le_bytes());
    let mut hash = hasher.finish();
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
#[path = "ids_tests.rs"]
mod tests;
