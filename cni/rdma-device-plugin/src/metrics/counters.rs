// SPDX-License-Identifier: Apache-2.0
//! Counters of RDMA ports in sysfs (`drivers/infiniband/core/sysfs.c`).

use node_state::health::error_files;
use std::{fs, path::Path};

/// A port of an RDMA device and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortFigures {
    /// Number of the port, from 1.
    pub(crate) number: u32,
    /// State of the port (`enum ib_port_state`). `None`: unreadable.
    pub(crate) state: Option<u8>,
    pub(crate) counters: Vec<Counter>,
}

/// One value of a port: a counter or a gauge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Name of the metric without the suffix `_total`, such as `rdma_port_rcv_packets`.
    pub(crate) name: String,
    pub(crate) value: u64,
    /// True for a counter, which only grows.
    pub(crate) counts: bool,
}

/// Reads the ports of the RDMA device `device` below `sysfs`. Returns no port if the device is absent.
pub(crate) fn read(sysfs: &Path, device: &str) -> Vec<PortFigures> {
    let ports = error_files::ports(sysfs, device).into_iter();
    let mut figures: Vec<_> = ports
        .map(|(number, port)| {
            let mut counters = figures_in(&port.join("counters"), port_counter);
            counters.extend(figures_in(&port.join("hw_counters"), hw_counter));
            let state = fs::read_to_string(port.join("state")).ok();
            PortFigures {
                number,
                // the file's format is `4: ACTIVE`
                state: state.and_then(|text| text.split(':').next()?.trim().parse().ok()),
                counters,
            }
        })
        .collect();
    figures.sort_by_key(|port| port.number);
    figures
}

fn figures_in(directory: &Path, named: fn(&str, u64) -> Option<Counter>) -> Vec<Counter> {
    let mut counters: Vec<_> = entries(directory)
        .filter_map(|(name, file)| {
            // ignore a counter that the driver does not support: its file contains `N/A (no PMA)` or cannot be read
            let value = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
            named(&name, value)
        })
        .collect();
    counters.sort_by(|a, b| a.name.cmp(&b.name));
    counters
}

/// Converts a counter of a port. `port_rcv_data` and `port_xmit_data` count words of four bytes (IBTA
/// 16.1.3.5).
fn port_counter(file: &str, value: u64) -> Option<Counter> {
    let name = file.strip_prefix("port_").unwrap_or(file);
    let is_data = matches!(name, "rcv_data" | "xmit_data");
    let (unit, value) = match is_data {
        true => ("_bytes", value.saturating_mul(4)),
        false => ("", value),
    };
    Some(Counter {
        name: format!("rdma_port_{}{unit}", metric(name)),
        value,
        counts: true,
    })
}

fn hw_counter(file: &str, value: u64) -> Option<Counter> {
    // leave out `lifespan`: it is the time in milliseconds for which the driver keeps its values
    if file == "lifespan" {
        return None;
    }
    // gauges: present values and maxima of bnxt_re
    let now = ["active_", "watermark_", "max_"];
    Some(Counter {
        name: format!("rdma_hw_{}", metric(file)),
        value,
        counts: !now.iter().any(|it| file.starts_with(it)),
    })
}

fn metric(name: &str) -> String {
    let name = name.strip_suffix("_total").unwrap_or(name);
    name.chars()
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
            _ => '_',
        })
        .collect()
}

fn entries(directory: &Path) -> impl Iterator<Item = (String, std::path::PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_they_are() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let port = sysfs.path().join("class/infiniband/mlx5_0/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("counters/port_rcv_data", "250\n"),
            ("counters/VL15_dropped", "2\n"),
            ("counters/port_xmit_wait", "N/A (no PMA)\n"),
            ("hw_counters/out_of_sequence", "7\n"),
            ("hw_counters/active_qps", "3\n"),
            ("hw_counters/lifespan", "10\n"),
            ("hw_counters/odd-name total", "1\n"),
        ] {
            let file = port.join(file);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        }
        let ports = read(sysfs.path(), "mlx5_0");
        assert_eq!((ports.len(), ports[0].state), (1, Some(4)));
        let counters: Vec<_> = ports[0]
            .counters
            .iter()
            .map(|it| (it.name.as_str(), it.value, it.counts))
            .collect();
        let wanted = [
            ("rdma_port_rcv_data_bytes", 1000, true),
            ("rdma_port_vl15_dropped", 2, true),
            ("rdma_hw_active_qps", 3, false),
            ("rdma_hw_odd_name_total", 1, true),
            ("rdma_hw_out_of_sequence", 7, true),
        ];
        assert_eq!(counters, wanted);
        assert_eq!(read(sysfs.path(), "mlx5_1"), []);
    }
}
