// SPDX-License-Identifier: Apache-2.0
//! Reads error counters from sysfs (`drivers/infiniband/core/sysfs.c`). Reads only counters that have a threshold,
//! because each read queries the firmware.

use super::error_rates::Reading;
use daemon_conf::ErrorThreshold;
use rdma_netns::{DeviceAddress, Inventory, rdma::name};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// Directories with a port's counters: counters of the port, and counters of its driver.
const DIRECTORIES: [&str; 2] = ["counters", "hw_counters"];

/// Devices, each with the name of its RDMA device.
pub type Devices = Vec<(DeviceAddress, String)>;

#[derive(Debug)]
pub(super) struct Readings {
    pub(super) at: Instant,
    /// Indices of the thresholds whose counters were read.
    pub(super) due: Vec<usize>,
    /// Values of counters. A counter that the driver does not support has no value: the read returns `N/A (no PMA)` or
    /// fails.
    pub(super) values: Vec<Reading>,
}

/// Returns a sentence for each threshold whose counter exists in no visible RDMA device. Returns nothing if no RDMA
/// device is visible in this net namespace. Only checks that the counters' files exist.
pub fn unknown_counters(
    sysfs: &Path,
    thresholds: &[ErrorThreshold],
    inventory: &Inventory,
) -> Vec<String> {
    if thresholds.is_empty() {
        return Vec::new();
    }
    let devices = devices(inventory);
    let ports: Vec<PathBuf> = devices
        .iter()
        .flat_map(|(_, rdma)| ports(sysfs, rdma))
        .map(|(_, port)| port)
        .collect();
    let has = |counter: &str| ports.iter().any(|port| file(port, counter).is_some());
    let unknown = thresholds.iter().filter(|it| !has(&it.counter));
    let unknown = unknown.map(|it| {
        let ErrorThreshold { place, counter, .. } = it;
        format!(
            "{place}: no RDMA device of this node has {counter} in ports/N/counters or ports/N/hw_counters, so \
             this threshold has no effect"
        )
    });
    match ports.is_empty() {
        true => Vec::new(),
        false => unknown.collect(),
    }
}

/// Returns the devices of `inventory` that have an RDMA device.
pub(super) fn devices(inventory: &Inventory) -> Devices {
    let functions = inventory.functions.iter();
    functions
        .filter_map(|it| Some((it.device.address.clone(), it.hcas.first()?.name.clone())))
        .collect()
}

/// Reads `counters` of `devices`. Waits for the devices' firmware.
pub fn read(sysfs: &Path, devices: &Devices, counters: &[String]) -> Vec<Reading> {
    let mut readings = Vec::new();
    for (device, rdma) in devices {
        for (number, port) in ports(sysfs, rdma) {
            readings.extend(counters.iter().filter_map(|counter| {
                let (file, maximum) = file(&port, counter)?;
                let value = fs::read_to_string(file).ok()?.trim().parse().ok()?;
                Some(Reading {
                    device: device.clone(),
                    rdma: rdma.clone(),
                    port: number,
                    counter: counter.clone(),
                    value,
                    maximum,
                })
            }));
        }
    }
    readings
}

/// Returns numbers and directories of the RDMA device's ports. Returns nothing if the device is in another net
/// namespace.
pub fn ports(sysfs: &Path, rdma: &str) -> Vec<(u32, PathBuf)> {
    let ports = name::directory(sysfs, rdma).join("ports");
    let entries = fs::read_dir(ports).into_iter().flatten().flatten();
    entries
        .filter_map(|port| Some((port.file_name().to_str()?.parse().ok()?, port.path())))
        .collect()
}

/// Returns the counter's file, and the value at which the counter stops.
fn file(port: &Path, counter: &str) -> Option<(PathBuf, u64)> {
    DIRECTORIES.iter().find_map(|directory| {
        let file = port.join(directory).join(counter);
        let bits = match *directory {
            "counters" => bits(counter),
            _ => 32,
        };
        file.exists().then_some((file, (1 << bits) - 1))
    })
}

/// Returns the width of a counter in bits. A port's counter stays at its maximum until it is reset (`PortCounters`,
/// IBTA 16.1.3.5). The widths are in `PORT_PMA_ATTR` in `drivers/infiniband/core/sysfs.c`.
fn bits(counter: &str) -> u32 {
    match counter {
        "local_link_integrity_errors" | "excessive_buffer_overrun_errors" => 4,
        "link_error_recovery"
        | "link_downed"
        | "port_xmit_constraint_errors"
        | "port_rcv_constraint_errors" => 8,
        "symbol_error"
        | "port_rcv_errors"
        | "port_rcv_remote_physical_errors"
        | "port_rcv_switch_relay_errors"
        | "port_xmit_discards"
        | "VL15_dropped" => 16,
        _ => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().expect("a directory");
        for (file, text) in files {
            let file = sysfs.path().join("class/infiniband").join(file);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        }
        sysfs
    }

    fn device(rdma: &str) -> (DeviceAddress, String) {
        let address = DeviceAddress::try_from("0000:3b:00.0".to_owned());
        (address.expect("an address"), rdma.to_owned())
    }

    #[test]
    fn configured_counters_are_read_of_every_port() {
        let sysfs = sysfs(&[
            ("mlx5_0/ports/1/counters/symbol_error", "65535\n"),
            ("mlx5_0/ports/1/counters/link_downed", "N/A (no PMA)\n"),
            ("mlx5_0/ports/1/hw_counters/out_of_sequence", "7\n"),
            ("mlx5_0/ports/2/counters/symbol_error", "3\n"),
            ("mlx5_0/ports/2/counters/port_rcv_errors", "5\n"),
        ]);
        let counters = ["symbol_error", "link_downed", "out_of_sequence"].map(str::to_owned);
        let devices = vec![device("mlx5_0"), device("mlx5_9")];
        let mut read: Vec<_> = read(sysfs.path(), &devices, &counters)
            .into_iter()
            .map(|it| (it.port, it.counter, it.value, it.maximum))
            .collect();
        read.sort();
        let wanted = [
            (1, "out_of_sequence".to_owned(), 7, u64::from(u32::MAX)),
            (1, "symbol_error".to_owned(), 65535, 65535),
            (2, "symbol_error".to_owned(), 3, 65535),
        ];
        assert_eq!(read, wanted);
    }

    #[test]
    fn a_counter_that_no_device_has_is_reported() {
        let sysfs = sysfs(&[("mlx5_0/ports/1/counters/symbol_error", "0\n")]);
        let threshold = |place: &str, counter: &str| ErrorThreshold {
            place: place.to_owned(),
            counter: counter.to_owned(),
            above: 0,
            per: std::time::Duration::from_secs(60),
        };
        let thresholds = [
            threshold("errors[0]", "symbol_error"),
            threshold("errors[1]", "symbol_eror"),
        ];
        let inventory = |rdma: &str| -> Inventory {
            let function = serde_json::json!({"address": "0000:3b:00.0", "hcas": [{"name": rdma}]});
            serde_json::from_value(serde_json::json!({"functions": [function]})).expect("it")
        };
        let remarks = unknown_counters(sysfs.path(), &thresholds, &inventory("mlx5_0"));
        assert_eq!(
            remarks,
            [
                "errors[1]: no RDMA device of this node has symbol_eror in ports/N/counters or \
                 ports/N/hw_counters, so this threshold has no effect"
            ]
        );
        // the device is in a pod, and the daemon cannot see its counters
        let remarks = unknown_counters(sysfs.path(), &thresholds, &inventory("mlx5_1"));
        assert!(remarks.is_empty(), "{remarks:?}");
    }
}
