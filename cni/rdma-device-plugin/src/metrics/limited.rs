// SPDX-License-Identifier: Apache-2.0
//! Use of RDMA devices by pods with limits, as the kernel's rdma controller counts it
//! (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).

use super::{Labels, scrape::Scrape};
use rdma_resources::{LimitedContainers, limited::LimitedContainer};
use std::{collections::BTreeMap, fs, path::Path};

/// A pod with limits, and the lines of `rdma.current` and `rdma.max` of the pod's cgroup.
#[derive(Debug)]
pub(super) struct Usage {
    /// One of the pod's limited containers.
    container: LimitedContainer,
    current: String,
    max: String,
}

#[derive(Debug, Default)]
pub(super) struct Limited {
    pods: Vec<Usage>,
    /// Pods whose cgroup, or its rdma controller, disappeared while the kernel still keeps the limits.
    outlasting: Vec<LimitedContainer>,
}

/// Reads use and limits of all pods that have a record of limits in `state_dir` and a cgroup below `cgroups`. Also
/// returns the pods whose limits outlast their cgroup or its rdma controller.
pub(super) fn read(state_dir: &Path, cgroups: &Path) -> Limited {
    let containers = LimitedContainers::new(state_dir, cgroups);
    let pods = containers.pods().into_iter().filter_map(|container| {
        let cgroup = cgroups.join(&container.pod_cgroup);
        // the pod may have ended since the list of pods was read
        let read = |file: &str| fs::read_to_string(cgroup.join(file)).ok();
        Some(Usage {
            current: read("rdma.current")?,
            max: read("rdma.max")?,
            container,
        })
    });
    Limited {
        pods: pods.collect(),
        outlasting: containers.outlasting(),
    }
}

/// Keys of the rdma controller, each with the metric's noun and help text.
const KINDS: [(&str, &str, &str); 2] = [
    ("hca_handle", "handles", "contexts of an RDMA device"),
    (
        "hca_object",
        "objects",
        "queue pairs, memory regions and other objects of an RDMA device",
    ),
];

/// Adds each pod's limit for a device, and the pod's use of this device. Leaves out devices without a limit. Also adds
/// the pods whose limits outlast their cgroup or its rdma controller.
pub(super) fn add(all: &Limited, scrape: &mut Scrape) {
    for (usage, (key, noun, help)) in all.pods.iter().flat_map(|it| KINDS.map(|kind| (it, kind))) {
        let container = &usage.container;
        let current = values(&usage.current, key);
        for (device, limit) in values(&usage.max, key) {
            let mut labels = of_pod(container);
            labels.insert(0, ("device", device.to_owned()));
            let name = format!("rdma_pod_{noun}");
            if let Some(count) = current.get(device) {
                let help = format!("The pod's {help}");
                scrape.gauge(&name, &help, labels.clone(), *count);
            }
            let help = format!("The pod's limit of {help}");
            scrape.gauge(&format!("{name}_limit"), &help, labels, limit);
        }
    }
    for container in &all.outlasting {
        let help = "1: the pod's cgroup or its rdma controller was removed before its RDMA limits were lifted; the kernel can crash when an RDMA device is removed";
        scrape.gauge("rdma_pod_limits_left", help, of_pod(container), 1);
    }
}

fn of_pod(container: &LimitedContainer) -> Labels {
    vec![
        ("pod", container.pod.clone()),
        ("namespace", container.namespace.clone()),
    ]
}

/// Returns the value of `key` for each device, from lines such as `mlx5_0 hca_handle=2 hca_object=max`. Leaves out the
/// value `max`.
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
