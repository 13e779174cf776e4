// SPDX-License-Identifier: Apache-2.0
//! The processor socket of each NUMA node. One socket can have several NUMA nodes: parts of its processor (sub-NUMA
//! clustering, NPS), and memory without processors, such as the memory of a GPU at a Grace CPU. A NUMA node without
//! processors belongs to the socket of the nearest NUMA node with processors, by the distances in the firmware's table
//! (ACPI SLIT, `/sys/devices/system/node/nodeN/distance`).

use super::devices::{entries, read};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

/// Returns sockets by NUMA node. Omits NUMA nodes whose socket is unknown.
pub(super) fn of_numa_nodes(sysfs: &Path) -> io::Result<BTreeMap<u32, u32>> {
    let system = sysfs.join("devices/system");
    let directories = entries(&system.join("node"))?;
    let number = |directory: &PathBuf| {
        let name = directory.file_name()?.to_str()?;
        name.strip_prefix("node")?.parse().ok()
    };
    let nodes: BTreeMap<u32, &PathBuf> = directories
        .iter()
        .filter_map(|directory| Some((number(directory)?, directory)))
        .collect();
    let own: BTreeMap<u32, u32> = nodes
        .iter()
        .filter_map(|(node, directory)| Some((*node, of_processors(&system, directory)?)))
        .collect();
    let mut sockets = own.clone();
    for (node, directory) in nodes.iter().filter(|(node, _)| !own.contains_key(node)) {
        let text = read(directory, "distance").unwrap_or_default();
        // the file has one number for each existing NUMA node, in order
        let distances = text.split_ascii_whitespace().map(str::parse::<u32>);
        let nearest = nodes
            .keys()
            .zip(distances)
            .filter_map(|(other, distance)| Some((distance.ok()?, own.get(other)?)))
            .min();
        sockets.extend(nearest.map(|(_, socket)| (*node, *socket)));
    }
    Ok(sockets)
}

/// Returns the socket of the processors of the NUMA node at `directory`. Returns `None` if the NUMA node has no
/// processors.
fn of_processors(system: &Path, directory: &Path) -> Option<u32> {
    let list = read(directory, "cpulist")?;
    let first = list.split([',', '-']).next().filter(|it| !it.is_empty())?;
    let topology = system.join(format!("cpu/cpu{first}/topology"));
    read(&topology, "physical_package_id")?.parse().ok()
}
