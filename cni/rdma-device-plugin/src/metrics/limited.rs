// SPDX-License-Identifier: Apache-2.0
//! Use of RDMA devices by containers with limits, as the kernel's rdma controller counts it
//! (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).

use super::scrape::Scrape;
use rdma_resources::{LimitedContainers, limited::LimitedContainer};
use std::{collections::BTreeMap, fs, path::Path};

/// A container, with the lines of `rdma.current` and `rdma.max` of its cgroup.
#[derive(Debug)]
pub(super) struct Usage {
    container: LimitedContainer,
    current: String,
    max: String,
}

/// Reads the files of all containers in `state_dir` whose cgroup is in the hierarchy at `cgroups`.
pub(super) fn read(state_dir: &Path, cgroups: &Path) -> Vec<Usage> {
    let containers = LimitedContainers::new(state_dir).all();
    let usage = containers.into_iter().filter_map(|container| {
        let cgroup = cgroups.join(&container.cgroup);
        // the container has ended, or the node's hierarchy is not mounted here
        let read = |file: &str| fs::read_to_string(cgroup.join(file)).ok();
        Some(Usage {
            current: read("rdma.current")?,
            max: read("rdma.max")?,
            container,
        })
    });
    usage.collect()
}

/// The controller's resources, with the metrics' nouns and helps.
const KINDS: [(&str, &str, &str); 2] = [
    ("hca_handle", "handles", "Contexts of an RDMA device"),
    (
        "hca_object",
        "objects",
        "Queue pairs, memory regions and other objects of an RDMA device",
    ),
];

/// Adds a container's use of each device and its limit, where it has one.
pub(super) fn add(all: &[Usage], scrape: &mut Scrape) {
    for (usage, (key, noun, help)) in all.iter().flat_map(|it| KINDS.map(|kind| (it, kind))) {
        let container = &usage.container;
        let current = values(&usage.current, key);
        for (device, limit) in values(&usage.max, key) {
            let labels = vec![
                ("device", device.to_owned()),
                ("pod", container.pod.clone()),
                ("namespace", container.namespace.clone()),
                ("container", container.container.clone()),
            ];
            let name = format!("rdma_pod_{noun}");
            if let Some(count) = current.get(device) {
                let help = format!("{help} that the container has");
                scrape.gauge(&name, &help, labels.clone(), *count);
            }
            let help = format!("{help} that the container can have");
            scrape.gauge(&format!("{name}_limit"), &help, labels, limit);
        }
    }
}

/// Returns each device's value of `key` in lines such as `mlx5_0 hca_handle=2 hca_object=max`; none for `max`.
fn values<'a>(text: &'a str, key: &str) -> BTreeMap<&'a str, u64> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let device = words.next()?;
        let mut values = words.filter_map(|word| word.split_once('='));
        let (_, value) = values.find(|(name, _)| *name == key)?;
        Some((device, value.parse().ok()?))
    });
    lines.collect()
}
