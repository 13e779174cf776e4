// SPDX-License-Identifier: Apache-2.0
//! Checks kubelet, the daemon, the runtime, and the limits of locked memory.

use super::{
    super::facts::{Facts, Memlock, Part, Socket},
    Findings, ago, count, named, some,
};
use network_conf::{Conf, Devices};
use rdma_resources::Published;
use std::path::Path;

pub(super) fn examine(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    runtimes(facts, findings);
    limits_left(facts, findings);
    if let Some(socket) = &facts.pod_resources {
        match &socket.silent {
            None => findings.ok("kubelet's pod-resources"),
            Some(why) => {
                let what = format!(
                    "kubelet's pod-resources API does not answer at {}: {why}",
                    socket.path.display()
                );
                match conf.is_some_and(Conf::takes_device_id) {
                    true => findings.warning(
                        format!("{what}; rdma-cni queries kubelet if the runtime passes no deviceID"),
                        "have Multus call rdma-cni; without Multus, name the devices in the entry \
                         (docs/install.md#without-kubelet)",
                    ),
                    false => findings.error(
                        format!("{what}; rdma-cni queries kubelet for a pod's devices: ADD fails (103, or 11 while \
                                 kubelet restarts)"),
                        "start kubelet; if its socket has another path, set podResourcesSocket; on a node without \
                         kubelet (podman, nerdctl), name the devices in the entry (docs/install.md#without-kubelet)",
                    ),
                }
            }
        }
    }
    let is_away = |socket: &Socket| socket.silent.is_some();
    let is_without_kubelet = facts.pod_resources.as_ref().is_some_and(is_away);
    let daemon_is_there = facts.daemon.published.is_some() || !facts.daemon.sockets.is_empty();
    match conf.and_then(|conf| conf.devices.as_ref()) {
        // a node without kubelet needs no daemon
        Some(Devices::Resources(_)) if is_without_kubelet && !daemon_is_there => {}
        Some(Devices::Resources(names)) if !conf.is_some_and(Conf::takes_device_id) => {
            daemon(facts, names, findings);
        }
        _ if !facts.daemon.sockets.is_empty() => daemon(facts, &[], findings),
        _ => {}
    }
}

fn runtimes(facts: &Facts, findings: &mut Findings<'_>) {
    if facts.runtimes.is_empty() && !facts.hidden.contains(&Part::Runtimes) {
        findings.note("no socket of containerd, CRI-O or cri-dockerd is at its usual path");
    }
    for runtime in &facts.runtimes {
        let Socket { path, silent } = &runtime.socket;
        match silent {
            None => findings.ok(runtime.name.clone()),
            Some(why) => findings.error(
                format!(
                    "{} does not answer at {}: {why}",
                    runtime.name,
                    path.display()
                ),
                format!("start {}", runtime.name),
            ),
        }
        if let Memlock::Bytes(bytes) = runtime.memlock {
            findings.advice(
                format!(
                    "containers of {} can lock {} KiB of memory, unless their resource has memlock",
                    runtime.name,
                    bytes / 1024
                ),
                "set memlock of the resource, or LimitMEMLOCK=infinity in the runtime's unit; pods with root can \
                 request IPC_LOCK (docs/node.md)",
            );
        }
    }
}

fn daemon(facts: &Facts, names: &[String], findings: &mut Findings<'_>) {
    let daemon = &facts.daemon;
    let answering = daemon.sockets.iter().filter(|it| it.silent.is_none());
    if let Some(why) = &daemon.unreadable {
        findings.error(
            format!("{why}: pods with RDMA do not start"),
            "install one release on the node; if it has only one, restart the DaemonSet's pod, which writes the file",
        );
        return;
    }
    let Some(published) = &daemon.published else {
        findings.error(
            "rdma-device-plugin has published nothing in stateDir: kubelet has no RDMA resource, or the daemon has \
             another state directory than rdma-cni",
            "start the DaemonSet on this node, with the same state directory mounted",
        );
        return;
    };
    match named(answering.map(|socket| resource(&socket.path))) {
        None => findings.warning(
            format!(
                "rdma-device-plugin does not answer; it last wrote its list of resources {}",
                ago(daemon.age)
            ),
            "check the DaemonSet's pod on this node: new pods with RDMA wait until that pod runs",
        ),
        Some(resources) => findings.ok(format!("rdma-device-plugin serves {resources}")),
    }
    let advertised = |name: &String| published.resources.contains_key(name);
    let all = published.resources.keys();
    let left_out: Vec<String> = all.filter(|it| !names.contains(it)).cloned().collect();
    if names.iter().any(advertised) && !left_out.is_empty() {
        findings.warning(
            format!(
                "{} advertised here, but not among the chain's resources ({}): pods with such a resource start without \
                 RDMA netdevs",
                are(&left_out),
                some(names)
            ),
            match published.chain_names_resources {
                true => "add such a resource to chain.plugin.resources unless Multus attaches it, and restart the \
                         daemon",
                false => "restart the daemon: the entry of rdma-cni names the resources that the daemon offered at its \
                          start",
            },
        );
    }
    if !names.is_empty() && !names.iter().any(advertised) {
        let others = named(published.resources.keys());
        let others = others.unwrap_or_else(|| "nothing".to_owned());
        findings.warning(
            format!(
                "the daemon advertises none of the chain's resources ({}); it advertises {others}",
                some(names)
            ),
            "list the advertised resources in resources of the entry (chain.plugin), or correct the daemon's \
             configuration: pods get no RDMA until then",
        );
    }
    gone(facts, published, findings);
    let limited = published.resources.iter().filter(|(_, it)| it.limited);
    if let Some((what, remedy)) = facts.rdma_cgroup.lack()
        && let Some(limited) = named(limited.map(|(name, _)| name))
    {
        findings.error(
            format!("{what}: pods do not start here if their resource has limits ({limited})"),
            format!("{remedy}, or leave limits out of the daemon's configuration"),
        );
    }
}

/// Reports pods whose limits of RDMA objects point to freed memory in the kernel
/// ([`rdma_resources::limited`]).
fn limits_left(facts: &Facts, findings: &mut Findings<'_>) {
    if let Some(pods) = named(&facts.limits_left) {
        findings.warning(
            format!(
                "a program removed the cgroups of {pods}, or the rdma controller of these cgroups, before rdma-cni or \
                 the daemon lifted the limits of RDMA objects: the kernel can crash when an RDMA device is removed"
            ),
            "reboot the node before you remove an RDMA device or unload its driver",
        );
    }
}

/// Reports advertised devices that no longer exist on the node.
fn gone(facts: &Facts, published: &Published, findings: &mut Findings<'_>) {
    let Some(observed) = &facts.observed else {
        return;
    };
    let resources = published.resources.values();
    let mut gone: Vec<String> = resources
        .flat_map(|resource| resource.all_devices())
        .filter(|address| observed.device(address).is_none())
        .map(|address| address.to_string())
        .collect();
    gone.sort();
    gone.dedup();
    if !gone.is_empty() {
        findings.warning(
            format!(
                "{} advertised that the node does not have: {}",
                count(gone.len(), "device"),
                some(&gone)
            ),
            "restart the DaemonSet's pod on this node; if this does not help, search for the device in dmesg",
        );
    }
}

/// Joins names and a verb: `rdma/a is` or `rdma/a, rdma/b are`.
fn are(names: &[String]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", some(names))
}

/// Returns the resource whose name is in the file name of a socket.
fn resource(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = name.strip_prefix("rdma-device-plugin-").unwrap_or(&name);
    // `~` or `@` begins the part of the name that identifies the daemon
    let name = name.split(['~', '@']).next().unwrap_or(name);
    name.replacen('_', "/", 1)
}
