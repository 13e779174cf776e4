// SPDX-License-Identifier: Apache-2.0
//! Counters of the kernel that grow if a pod was not removed completely.

use std::fs;

/// Returns the number of network namespaces in the kernel, with or without processes. `None`: this kernel does not
/// report it.
pub fn network_namespaces() -> Option<usize> {
    let text = fs::read_to_string("/sys/kernel/slab/net_namespace/objects").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the sum of the kernel's unreclaimable memory and its per-CPU memory, in KiB.
#[track_caller]
pub fn unreclaimable_memory() -> usize {
    let text = fs::read_to_string("/proc/meminfo").expect("procfs");
    let of = |name: &str| -> usize {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|it| it.parse().ok()).expect("a number")
    };
    of("SUnreclaim:") + of("Percpu:")
}
