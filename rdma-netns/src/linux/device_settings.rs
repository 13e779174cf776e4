// SPDX-License-Identifier: Apache-2.0
//! Reads and writes [`DeviceSettings`] of the host's netdevs: attributes in sysfs, settings below `/proc/sys/net`,
//! ethtool settings, BPF programs, and settings of the netdevs' kinds.
//!
//! The code is marked cold: it runs only a few times for each rail, so the compiler optimizes it for size.

use super::{bpf, devices, ethtool, kind_data};
use crate::{
    DeviceSettings, Link,
    netlink::{NetlinkError, Socket},
};
use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

/// Attributes of a netdev (`net_class_attrs`, `net/core/net-sysfs.c`) that survive a move. For some or all kinds of
/// netdevs, rtnetlink does not report or cannot set them.
const ATTRIBUTES: [&str; 4] = [
    "gro_flush_timeout",
    "napi_defer_hard_irqs",
    "proto_down",
    "threaded",
];

/// Attributes of a queue (`rx_queue_default_attrs`, `netdev_queue_default_attrs` and `dql_attrs` in
/// `net/core/net-sysfs.c`).
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

/// Settings below `/proc/sys/net/ipv{4,6}/neigh/NETDEV` (`neigh_sysctl_table`, `net/core/neighbour.c`). The list has
/// one name for each value, although the kernel has two names for some values. The kernel resets these settings when
/// the netdev moves.
const NEIGHBOUR_SETTINGS: [&str; 14] = [
    "anycast_delay",
    "app_solicit",
    "base_reachable_time_ms",
    "delay_first_probe_time",
    "gc_stale_time",
    "interval_probe_time_ms",
    "locktime",
    "mcast_resolicit",
    "mcast_solicit",
    "proxy_delay",
    "proxy_qlen",
    "retrans_time_ms",
    "ucast_solicit",
    "unres_qlen_bytes",
];

/// Settings below `/proc/sys/net/ipv6/conf/NETDEV` that netlink does not report, or reports in another form.
const IPV6_SETTINGS: [&str; 4] = [
    "ioam6_id_wide",
    "ra_honor_pio_life",
    "ra_honor_pio_pflag",
    "regen_min_advance",
];

/// Directory of the byte limits of a driver's queues.
const LIMITS: &str = "byte_queue_limits";

/// Returns the settings of `link`, which is in the namespace of `sysfs` and `socket`. Omits settings with default
/// values (`default_of()`, `device_settings.rs`) and settings that the driver does not support. If the name of `link`
/// is no longer its own, also omits the settings that have a file.
#[cold]
pub(super) fn read(sysfs: &Path, socket: &mut Socket, link: &Link) -> DeviceSettings {
    let mut settings = DeviceSettings::default();
    kind_data::read(socket, link, &mut settings);
    ethtool::read(socket.as_fd(), link, &mut settings);
    bpf::read(link.index, &mut settings);
    let directory = sysfs.join("class/net").join(&*link.name);
    if devices::read(&directory, "ifindex") != Some(link.index.to_string()) {
        return settings;
    }
    for key in sysctls() {
        if let Some(value) = sysctl(&link.name, &key).and_then(|it| fs::read_to_string(it).ok()) {
            settings.set(&key, value.trim_end());
        }
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

/// Sets the setting `key` of the netdev `name`, whose index is `index`.
///
/// # Errors
/// The error of the driver or the kernel. `NotFound`: a BPF program is missing, and cannot be attached again.
/// `InvalidInput`: `key` is no known key.
#[cold]
pub(super) fn write(
    sysfs: &Path,
    socket: &mut Socket,
    (name, index): (&str, u32),
    (key, value): (&str, &str),
) -> Result<(), NetlinkError> {
    if let Some(setting) = key.strip_prefix("kind/") {
        return kind_data::write(socket, index, (setting, value));
    }
    if let Some(setting) = key.strip_prefix("ethtool/") {
        return Ok(ethtool::write(socket.as_fd(), name, setting, value)?);
    }
    if key.starts_with("tcx/") {
        return Ok(bpf::keep(index, key, value)?);
    }
    if let Some(path) = sysctl(name, key) {
        return Ok(fs::write(path, value)?);
    }
    let is_known = match key.strip_prefix("queues/") {
        None => ATTRIBUTES.contains(&key),
        Some(rest) => rest
            .split_once('/')
            .is_some_and(|(queue, it)| !queue.starts_with('.') && QUEUE_ATTRIBUTES.contains(&it)),
    };
    if !is_known {
        return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
    }
    let directory = sysfs.join("class/net").join(name);
    Ok(fs::write(directory.join(key), value)?)
}

/// Returns the keys of all settings below `/proc/sys/net`: `sysctl/ipv4/neigh/gc_stale_time`.
fn sysctls() -> impl Iterator<Item = String> {
    let neighbours = ["ipv4", "ipv6"].into_iter().flat_map(|family| {
        let keys = NEIGHBOUR_SETTINGS.iter();
        keys.map(move |it| format!("sysctl/{family}/neigh/{it}"))
    });
    let ipv6 = IPV6_SETTINGS.iter();
    neighbours.chain(ipv6.map(|it| format!("sysctl/ipv6/conf/{it}")))
}

/// Returns the file of the setting `key` for the netdev `name` in the calling thread's namespace. Returns `None` if
/// `key` is not one of [`sysctls`].
fn sysctl(name: &str, key: &str) -> Option<PathBuf> {
    let mut parts = key.strip_prefix("sysctl/")?.split('/');
    let (family, table, setting) = (parts.next()?, parts.next()?, parts.next()?);
    let known: &[&str] = match (family, table) {
        ("ipv4" | "ipv6", "neigh") => &NEIGHBOUR_SETTINGS,
        ("ipv6", "conf") => &IPV6_SETTINGS,
        _ => &[],
    };
    let path = || Path::new("/proc/sys/net").join(family).join(table);
    (parts.next().is_none() && known.contains(&setting)).then(|| path().join(name).join(setting))
}
