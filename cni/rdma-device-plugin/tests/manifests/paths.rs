// SPDX-License-Identifier: Apache-2.0
//! Tests of the node's files in each container: all files that the daemon uses, and no other files.

use crate::{
    chain::{bin_dirs, installer},
    cluster::{Cluster, cluster},
    platforms,
    wanted::ALL,
};
use daemon_conf::Lldp;
use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};
use rdma_device_plugin::{cli::Command, refused::RefusedPods};
use std::{collections::BTreeMap, path::Path};

/// Mounts: path in the container → (path on the node, true if read-only).
pub(crate) type Mounts = BTreeMap<String, (String, bool)>;

/// Directory that Multus reads (Device Information Specification 1.1.0, section 4.1).
pub(crate) const DEVICE_INFO: &str = "/var/run/k8s.cni.cncf.io/devinfo/dp";

/// Value of [`Mounts`] in place of a path on the node, for a volume that exists only as long as the pod.
pub(crate) const OF_POD: &str = "emptyDir";

pub(crate) fn mounts(cluster: &Cluster, container: &Container) -> Mounts {
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .map(|mount| {
            let from = source(&volume(cluster, mount));
            let read_only = mount.read_only == Some(true);
            (mount.mount_path.clone(), (from, read_only))
        })
        .collect()
}

fn volume(cluster: &Cluster, mount: &VolumeMount) -> Volume {
    let volumes = cluster.pod().volumes.iter().flatten();
    let mut named = volumes.filter(|it| it.name == mount.name);
    let volume = named.next();
    let volume = volume.unwrap_or_else(|| panic!("{}: no volume {}", cluster.file, mount.name));
    assert!(
        named.next().is_none(),
        "{}: two volumes {}",
        cluster.file,
        mount.name
    );
    volume.clone()
}

fn source(volume: &Volume) -> String {
    match (&volume.host_path, &volume.config_map, &volume.empty_dir) {
        (Some(host), None, None) => host.path.clone(),
        (None, Some(map), None) => format!("configMap {}", map.name),
        (None, None, Some(_)) => OF_POD.to_owned(),
        (None, None, None) if volume.projected.is_some() => "a token".to_owned(),
        _ => panic!("{} is of another kind", volume.name),
    }
}

#[test]
fn the_daemon_sees_only_files_that_it_uses() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let arguments = cluster.arguments();
        let mut needed = Mounts::new();
        let mut need = |path: &Path, from: &str, read_only: bool| {
            needed.insert(path.display().to_string(), (from.to_owned(), read_only));
        };
        let same = |path: &Path| path.display().to_string();
        let config = arguments.config.as_deref().expect("a configuration");
        assert_eq!(config.file_name().expect("a name"), "config.json");
        // mount the directory, because the mount of a single file would not follow a change of the
        // ConfigMap
        need(
            config.parent().expect("a directory"),
            "configMap rdma-devices",
            true,
        );
        // kubelet uses this directory whatever its --root-dir is
        let sockets = "/var/lib/kubelet/device-plugins";
        need(&arguments.device_plugins(), sockets, false);
        // these directories have the same paths in the container, because kubelet, rdma-cni and the runtime use the
        // node's paths
        let pod_resources = arguments.pod_resources();
        let pod_resources = pod_resources.parent().expect("a directory");
        need(pod_resources, &same(pod_resources), true);
        need(&arguments.state_dir, &same(&arguments.state_dir), false);
        let conf = cluster.conf().0;
        if conf.cdi || conf.dra.is_some() {
            need(&arguments.cdi_dir, &same(&arguments.cdi_dir), false);
        }
        if conf.resources.iter().any(|it| !it.limits.rdma.is_empty()) {
            let cgroups = arguments.sysfs.join("fs/cgroup");
            need(&cgroups, &same(&cgroups), false);
        }
        if let Some(chain) = cluster.conf().0.chain {
            need(&chain.conf_dir, &same(&chain.conf_dir), false);
            let cache = &arguments.cni_cache_dir;
            need(cache, &same(cache), true);
            let ipam = chain.entry.fields().get("ipam");
            let data_dir = ipam.and_then(|it| it["dataDir"].as_str());
            let leases = Path::new(data_dir.unwrap_or("/var/lib/cni/networks"));
            need(leases, &same(leases), true);
            let install = installer(&cluster).and_then(|(_, it)| it.command);
            let Some(Command::Install(install)) = install else {
                panic!("{}: no installer", wanted.file)
            };
            for bin_dir in bin_dirs(&install) {
                need(&bin_dir, &same(&bin_dir), true);
            }
        }
        need(
            Path::new("/run/netns"),
            platforms::netns_dir(wanted.file),
            true,
        );
        // two pods run on one node: no daemon must answer the other daemon's probes
        let probes = arguments.probe_socket.expect("a socket for probes");
        need(probes.parent().expect("a directory"), OF_POD, false);
        need(&arguments.dev, "/dev", true);
        if let Some(features) = &arguments.node_features {
            need(features, &same(features), false);
        }
        if let Some(Lldp::File(file)) = &conf.lldp {
            // mount the directory, because the writer may replace the file
            let directory = file.parent().expect("a directory");
            need(directory, &same(directory), true);
        }
        if let Some(device_info) = &arguments.device_info {
            assert_eq!(device_info, Path::new(DEVICE_INFO));
            need(device_info, &same(device_info), false);
        }
        if let Some(dra) = &conf.dra {
            let registry = arguments.kubelet_dir.join("plugins_registry");
            need(&registry, &same(&registry), false);
            let plugin = arguments.kubelet_dir.join("plugins").join(&dra.driver);
            need(&plugin, &same(&plugin), false);
        }
        let reports = !arguments.report.is_empty();
        if arguments.refused_pods == RefusedPods::Delete || conf.dra.is_some() || reports {
            need(&arguments.service_account_dir, "a token", true);
        }
        if cluster.pod().host_pid == Some(true) {
            need(Path::new("/lib/modules"), "/lib/modules", true);
            need(Path::new("/etc/modprobe.d"), "/etc/modprobe.d", true);
            let drivers = "/sys/bus/pci/drivers";
            need(Path::new(drivers), drivers, false);
            let debugfs = "/sys/kernel/debug";
            need(Path::new(debugfs), debugfs, true);
        }
        assert_eq!(
            mounts(&cluster, cluster.daemon()),
            needed,
            "{}",
            wanted.file
        );
    }
}

#[test]
fn namespaces_of_pods_that_start_later_are_seen() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let mounts = cluster.daemon().volume_mounts.as_ref().expect("mounts");
        let netns = mounts.iter().find(|it| it.mount_path == "/run/netns");
        let propagation = netns.and_then(|it| it.mount_propagation.as_deref());
        assert_eq!(propagation, Some("HostToContainer"), "{}", wanted.file);
    }
}

#[test]
fn every_volume_has_a_user() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let pod = cluster.pod();
        let containers = pod
            .containers
            .iter()
            .chain(pod.init_containers.iter().flatten());
        let mounted: Vec<_> = containers
            .flat_map(|it| it.volume_mounts.iter().flatten())
            .collect();
        for volume in pod.volumes.iter().flatten() {
            let used = mounted.iter().any(|it| it.name == volume.name);
            assert!(used, "{}: {} is mounted nowhere", wanted.file, volume.name);
        }
    }
}
