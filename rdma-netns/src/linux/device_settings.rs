// SPDX-License-Identifier: Apache-2.0
//! [`DeviceSettings`] of the host's netdevs: attributes in sysfs, ethtool's, and BPF programs.
//!
//! What does this is cold to the compiler: it runs a few times for a rail, so that its size matters more than its speed.

use super::{bpf, devices, ethtool};
use crate::{DeviceSettings, Link};
use std::{fs, io, os::fd::BorrowedFd, path::Path};

/// Attributes of a netdev (`net_class_attrs`, `net/core/net-sysfs.c`) that no move resets and rtnetlink does not report
/// or set for each kind.
const ATTRIBUTES: [&str; 4] = [
    "gro_flush_timeout",
    "napi_defer_hard_irqs",
    "proto_down",
    "threaded",
];

/// Attributes of a queue (`rx_queue_default_attrs`, `netdev_queue_default_attrs` and `dql_attrs` there).
const QUEUE_ATTRIBUTES: [&str; 8] = [
    "rps_cpus",
    "rps_flow_cnt",
    "tx_maxrate",
    "xps_cpus",
    "xps_rxqs",
    "byte_queue_limits/hold_time",
    "byte_queue_limits/limit_max",
    "byte_queue_limits/limit_min",
];

/// What a driver counts the bytes of its queues for.
const LIMITS: &str = "byte_queue_limits";

/// The settings of `link`, of the namespace that `sysfs` shows and `socket` is of. What differs from a queue's default is
/// left out (`default_of()`, `device_settings.rs`), and what its driver does not have.
#[cold]
pub(super) fn read(sysfs: &Path, socket: BorrowedFd<'_>, link: &Link) -> DeviceSettings {
    let mut settings = DeviceSettings::default();
    ethtool::read(socket, link, &mut settings);
    bpf::read(link.index, &mut settings);
    let directory = sysfs.join("class/net").join(&*link.name);
    if devices::read(&directory, "ifindex") != Some(link.index.to_string()) {
        return settings;
    }
    let mut add = |key: &str| {
        if let Some(value) = devices::read(&directory, key) {
            settings.set(key, &value);
        }
    };
    ATTRIBUTES.iter().for_each(|it| add(it));
    let queues = directory.join("queues");
    let has_limits = queues.join("tx-0").join(LIMITS).exists();
    let queues = fs::read_dir(queues);
    for queue in queues.into_iter().flatten().flatten() {
        let queue = queue.file_name();
        let Some(queue) = queue.to_str() else {
            continue;
        };
        let is_of = |it: &&&str| {
            it.starts_with("rps") == queue.starts_with("rx")
                && (has_limits || !it.starts_with(LIMITS))
        };
        for attribute in QUEUE_ATTRIBUTES.iter().filter(is_of) {
            add(&format!("queues/{queue}/{attribute}"));
        }
    }
    settings
}

/// Sets the one called `key` of the netdev `name`, whose number is `index`.
///
/// # Errors
/// The driver's or the kernel's. A BPF program that is to be there and is not cannot be attached again (`NotFound`).
#[cold]
pub(super) fn write(
    sysfs: &Path,
    socket: BorrowedFd<'_>,
    (name, index): (&str, u32),
    (key, value): (&str, &str),
) -> io::Result<()> {
    if let Some(setting) = key.strip_prefix("ethtool/") {
        return ethtool::write(socket, name, setting, value);
    }
    if key.starts_with("tcx/") {
        return bpf::keep(index, key, value);
    }
    let is_known = match key.strip_prefix("queues/") {
        None => ATTRIBUTES.contains(&key),
        Some(rest) => rest
            .split_once('/')
            .is_some_and(|(queue, it)| !queue.starts_with('.') && QUEUE_ATTRIBUTES.contains(&it)),
    };
    if !is_known {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let directory = sysfs.join("class/net").join(name);
    fs::write(directory.join(key), value)
}
