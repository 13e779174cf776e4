// SPDX-License-Identifier: Apache-2.0
//! Reads ports whose state changes without an event.

use rdma_netns::rdma::name;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// States of ports, by file.
pub type States = Vec<(PathBuf, String)>;

/// Reads the states of all ports on the host except Ethernet ports. A subnet manager, for example, changes the states
/// of InfiniBand ports without an event.
///
/// Events report the changes of RoCE ports: a RoCE port is active while its netdev runs and has a carrier
/// (`ib_get_curr_port_state()`, `include/rdma/ib_verbs.h`).
pub fn eventless(sysfs: &Path) -> States {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let devices = entries(&sysfs.join("class/infiniband"));
    let ports = devices.flat_map(|device| entries(&device.path().join("ports")));
    let mut states: Vec<_> = ports
        .filter_map(|port| {
            let link = fs::read_to_string(port.path().join("link_layer"));
            if link.is_ok_and(|it| it.trim_end() == "Ethernet") {
                return None;
            }
            let file = port.path().join("state");
            let state = fs::read_to_string(&file).ok()?;
            Some((file, state))
        })
        .collect();
    states.sort();
    states
}

/// Returns true if `states` has a port of `device`.
pub(super) fn has_device(states: &States, sysfs: &Path, device: &str) -> bool {
    let directory = name::directory(sysfs, device);
    states.iter().any(|(file, _)| file.starts_with(&directory))
}

/// Calls [`eventless`] on a separate thread: firmware that does not answer must not block the thread that answers
/// kubelet. Returns `None` if the system refused a thread.
pub(super) async fn eventless_blocking(sysfs: &Path) -> Option<States> {
    let (answer, read) = tokio::sync::oneshot::channel();
    let sysfs = sysfs.to_owned();
    let reader = std::thread::Builder::new().name("ports".into());
    let started = reader.spawn(move || {
        // ignore the error: the receiver may be dropped
        let _ = answer.send(eventless(&sysfs));
    });
    if let Err(error) = started {
        log::warn!("cannot start the thread that reads the states of ports: {error}");
        return None;
    }
    read.await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_ethernet_ports() {
        let sysfs = tempfile::tempdir().expect("a directory");
        for (device, link) in [
            ("mlx5_0", Some("Ethernet\n")),
            ("mlx5_1", Some("InfiniBand\n")),
            ("efa_0", Some("Unspecified\n")),
            ("odd_0", None),
        ] {
            let port = format!("class/infiniband/{device}/ports/1");
            let port = sysfs.path().join(port);
            fs::create_dir_all(&port).expect("made");
            fs::write(port.join("state"), "4: ACTIVE\n").expect("written");
            if let Some(link) = link {
                fs::write(port.join("link_layer"), link).expect("written");
            }
        }
        let states = eventless(sysfs.path());
        let device = |(file, _): &(PathBuf, String)| {
            let below = file.strip_prefix(sysfs.path()).expect("below");
            below
                .iter()
                .nth(2)
                .and_then(|it| it.to_str())
                .map(str::to_owned)
        };
        let devices: Vec<_> = states.iter().filter_map(device).collect();
        assert_eq!(devices, ["efa_0", "mlx5_1", "odd_0"]);
    }
}
