// SPDX-License-Identifier: Apache-2.0
//! Observes sockets, the memory that containers can lock, and the daemon's published resources.

use super::{
    super::facts::{Daemon, Memlock, Runtime, Socket},
    view::View,
};
use kubelet_api::pod_resources::{self, AskError};
use lldp::Switches;
use network_conf::{Conf, Devices};
use rdma_resources::{LimitedContainers, Published, limited::CGROUPS};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Time limit for the answer at a socket.
const LIMIT: Duration = Duration::from_secs(1);

/// Container runtimes: name, name of the process from which containers inherit their limits, and CRI socket.
const RUNTIMES: [(&str, &str, &str); 4] = [
    (
        "containerd",
        "containerd",
        "/run/containerd/containerd.sock",
    ),
    (
        "containerd of k3s",
        "containerd",
        "/run/k3s/containerd/containerd.sock",
    ),
    ("CRI-O", "crio", "/run/crio/crio.sock"),
    ("cri-dockerd", "dockerd", "/run/cri-dockerd.sock"),
];

/// Prefix of the daemon's socket files (`kubelet::socket::file_name` of `rdma-device-plugin`).
const SOCKETS: &str = "rdma-device-plugin-";

/// Returns kubelet's pod-resources socket. Returns `None` if `rdma-cni` does not query kubelet with this configuration.
pub(super) fn pod_resources(
    view: &View,
    kubelet_dir: &Path,
    conf: Option<&Conf>,
) -> Option<Socket> {
    let conf = conf?;
    match conf.devices {
        Some(Devices::Resources(_)) if conf.raw.contains_key("podResourcesSocket") => {
            Some(socket(view, &conf.pod_resources_socket))
        }
        Some(Devices::Resources(_)) => Some(socket(
            view,
            &kubelet_dir.join("pod-resources/kubelet.sock"),
        )),
        _ => None,
    }
}

pub(super) fn runtimes(view: &mut View) -> Vec<Runtime> {
    let mut found = vec![];
    for (name, process, path) in RUNTIMES {
        if view.has(path) {
            found.push(Runtime {
                name: name.to_owned(),
                socket: socket(view, Path::new(path)),
                memlock: memlock(view, process),
            });
        }
    }
    found
}

/// Returns the limit of locked memory of the process `name`. Ignores processes that start or end during the search.
fn memlock(view: &mut View, name: &str) -> Memlock {
    let processes = view.names("/proc").unwrap_or_default();
    let mut processes = processes.iter().filter(|it| it.parse::<u32>().is_ok());
    let is_it = |process: &&String| {
        let comm = fs::read_to_string(view.path(format!("/proc/{process}/comm")));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    };
    let Some(process) = processes.find(is_it) else {
        return Memlock::Unknown;
    };
    let limits = view.text(format!("/proc/{process}/limits"));
    limit(&limits.unwrap_or_default())
}

/// Parses the soft limit of locked memory in the table of `/proc/PID/limits` (`proc_pid_limits()`, `fs/proc/base.c`).
pub fn limit(limits: &str) -> Memlock {
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_ascii_whitespace().next()) {
        Some("unlimited") => Memlock::Unlimited,
        word => word
            .and_then(|word| word.parse().ok())
            .map_or(Memlock::Unknown, Memlock::Bytes),
    }
}

pub(super) fn daemon(view: &mut View, kubelet_dir: &Path, state_dir: &Path) -> Daemon {
    // the sockets of resources; with claims also the driver's registration socket
    let directories = ["device-plugins", "plugins_registry"].map(|it| kubelet_dir.join(it));
    let mut sockets = vec![];
    for directory in directories {
        let names = view.names(&directory).unwrap_or_default().into_iter();
        let own = names.filter(|name| name.starts_with(SOCKETS) && name.ends_with(".sock"));
        sockets.extend(own.map(|name| socket(view, &directory.join(name))));
    }
    let state = view.path(state_dir);
    let published = Published::read(&state);
    let written = fs::metadata(state.join("resources.json")).and_then(|it| it.modified());
    let age = written.ok().and_then(|written| written.elapsed().ok());
    Daemon {
        sockets,
        unreadable: published.as_ref().err().map(ToString::to_string),
        published: published.ok().flatten(),
        age: age.unwrap_or_default().as_secs(),
    }
}

/// Returns the switch of each NIC, from the daemon's file with LLDP neighbours.
pub(super) fn switches(view: &mut View, state_dir: &Path) -> Switches {
    let read = Switches::read(&view.path(state_dir));
    view.keep("the NICs' switches", read).unwrap_or_default()
}

/// Returns the pods whose limits of RDMA objects point to freed memory in the kernel.
pub(super) fn limits_left(view: &View, state_dir: &Path) -> Vec<String> {
    let cgroups = view.path(CGROUPS);
    let pods = LimitedContainers::new(&view.path(state_dir), &cgroups).outlasting();
    let names = pods.iter().map(|it| format!("{}/{}", it.namespace, it.pod));
    names.collect()
}

fn socket(view: &View, path: &Path) -> Socket {
    let answer = pod_resources::probe_blocking(&view.path(path), LIMIT);
    let silent = answer.err().map(|error| match error {
        AskError::Away { source, .. } | AskError::NoSocket { source, .. } => source.to_string(),
        AskError::Silent { limit, .. } => format!("no answer within {limit:?}"),
        error => error.to_string(),
    });
    Socket {
        path: PathBuf::from(path),
        silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Shutdown, shutdown};
    use std::os::{fd::AsRawFd, unix::net::UnixListener};

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let line = |value: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max processes             unlimited            unlimited            processes \n\
                 Max locked memory         {value:<20} {value:<20} bytes     \n"
            )
        };
        assert_eq!(limit(&line("8388608")), Memlock::Bytes(8_388_608));
        assert_eq!(limit(&line("unlimited")), Memlock::Unlimited);
        assert_eq!(limit(""), Memlock::Unknown);
        let own = fs::read_to_string("/proc/self/limits").expect("limits");
        assert_ne!(limit(&own), Memlock::Unknown);
    }

    #[test]
    fn a_socket_answers_as_long_as_a_server_listens() {
        let root = tempfile::tempdir().expect("a directory");
        let view = View::new(root.path());
        let path = root.path().join("a.sock");
        let listener = UnixListener::bind(&path).expect("bound");
        assert_eq!(socket(&view, Path::new("/a.sock")).silent, None);
        // shut down the socket, because a child process that another test forks may have it open until exec
        shutdown(listener.as_raw_fd(), Shutdown::Both).expect("shut down");
        drop(listener);
        let silent = socket(&view, Path::new("/a.sock")).silent;
        assert!(silent.is_some_and(|why| why.contains("refused")));
        let silent = socket(&view, Path::new("/b.sock")).silent;
        assert!(silent.is_some_and(|why| why.contains("No such file")));
    }
}
