// SPDX-License-Identifier: Apache-2.0
//! Checks the daemon's capabilities and mounts, and describes the effect of each missing one. The daemon needs no
//! privileged container. It needs two capabilities, a few mounts and the host's network namespace. Counters and port
//! states of devices inside pods need one more capability, receiving LLDP frames needs one, and loading the eRDMA
//! driver needs three.

use crate::{chain::record::Record, cli::Arguments, dra::server};
use daemon_conf::{Conf, Lldp};
use std::{fs, io, path::Path};

/// Bit of `CapEff` (`include/uapi/linux/capability.h`), name of the capability, and effect of its absence.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (
        11,
        "CAP_NET_BROADCAST",
        "netdevs inside pods report no events: they are observed every 2 s",
    ),
    (
        12,
        "CAP_NET_ADMIN",
        "netdevs inside pods are not observable: devices there keep their last health; eRDMA NICs \
         are not brought up",
    ),
    (
        21,
        "CAP_SYS_ADMIN",
        "no access to pods' namespaces: in exclusive mode the counters of RDMA devices in pods are unknown, \
         and the devices' health depends only on their netdevs' carrier",
    ),
];

/// Capabilities for loading the eRDMA driver.
const LOADING: [(u32, &str, &str); 3] = [
    (
        2,
        "CAP_DAC_READ_SEARCH",
        "the open devices of other users' processes are not observable: the eRDMA driver counts \
         as in use, and keeps its mode",
    ),
    (
        16,
        "CAP_SYS_MODULE",
        "the daemon can neither load nor reload the eRDMA driver",
    ),
    (
        19,
        "CAP_SYS_PTRACE",
        "the open devices of other processes are not observable: the eRDMA driver counts as in use, and \
         keeps its mode",
    ),
];

/// Capability for receiving LLDP frames.
const LISTENING: (u32, &str, &str) = (
    13,
    "CAP_NET_RAW",
    "no LLDP frame is received, and the NICs' switches are unknown",
);

/// Directory of pods' network namespaces.
const NETNS: &str = "/run/netns";

/// Returns one sentence for each capability or mount that the daemon lacks for `conf`, with the effect of its absence.
/// Returns an empty list if nothing is missing.
pub fn missing(arguments: &Arguments, conf: &Conf) -> Vec<String> {
    let mut missing = match rdma_netns::capabilities::effective() {
        Ok(Some(set)) => capabilities(set, conf),
        Ok(None) => {
            vec!["/proc/thread-self/status does not list capabilities: the daemon's capabilities are unknown".into()]
        }
        Err(error) => vec![format!("cannot read the daemon's capabilities: {error}")],
    };
    missing.extend(mounts(arguments, conf, Path::new(NETNS)));
    missing
}

fn capabilities(set: u64, conf: &Conf) -> Vec<String> {
    let loading = LOADING.iter().filter(|_| conf.erdma.may_load());
    let listens = conf.lldp == Some(Lldp::Listen);
    let listening = [LISTENING].iter().filter(|_| listens);
    let required = CAPABILITIES.iter().chain(loading).chain(listening);
    let lost = required.filter(|(bit, ..)| set & (1 << bit) == 0);
    lost.map(|(_, name, loss)| format!("{name} is missing: {loss}"))
        .collect()
}

fn mounts(arguments: &Arguments, conf: &Conf, netns_dir: &Path) -> Vec<String> {
    let (kubelet_dir, sysfs) = (&arguments.kubelet_dir, &arguments.sysfs);
    let mut missing = Vec::new();
    let mut want = |what: Result<(), String>, loss: &str| {
        missing.extend(what.err().map(|what| format!("{what}: {loss}")));
    };
    want(
        writable(&kubelet_dir.join("device-plugins")),
        "kubelet is unreachable, and nothing is advertised",
    );
    want(
        directory(&kubelet_dir.join("pod-resources")),
        match conf.chain {
            None => "metrics do not show which pod has which device",
            Some(_) => "no container starts with a resource that the chain attaches",
        },
    );
    want(
        writable(&arguments.state_dir),
        "rdma-cni does not get the devices of an allocation, and the daemon does not know which pods have devices",
    );
    if conf.cdi || conf.dra.is_some() {
        want(
            writable(&arguments.cdi_dir),
            "containers cannot get devices by CDI names",
        );
    }
    if let Some(dra) = &conf.dra {
        for directory in server::directories(kubelet_dir, &dra.driver) {
            want(
                writable(&directory),
                "kubelet cannot reach the DRA driver, and no claim is prepared",
            );
        }
    }
    if let Some(chain) = &conf.chain {
        want(
            directory(&arguments.cni_cache_dir),
            "a pod whose network was made by a list without rdma-cni starts, and has no rails",
        );
        want(
            writable(&chain.conf_dir),
            "rdma-cni is not kept in the list of the node's network",
        );
        let record = Record::read(&arguments.state_dir).ok().flatten();
        for bin_dir in record.iter().flat_map(Record::bin_dirs) {
            want(
                directory(&bin_dir),
                "the daemon cannot check whether the runtime finds the plugins, and does not add rdma-cni to the CNI \
                 list",
            );
        }
    }
    if conf.resources.iter().any(|it| !it.limits.rdma.is_empty()) {
        want(
            writable(&sysfs.join("fs/cgroup")),
            "the daemon cannot lift the limits of pods with hostNetwork; after such a pod ends, the kernel can crash \
             when an RDMA device is removed",
        );
    }
    want(
        directory(netns_dir),
        "devices inside pods are not observable (mount it with HostToContainer propagation)",
    );
    want(
        directory(&sysfs.join("class/net")),
        "no hardware is observable",
    );
    if sysfs.join("class/infiniband_verbs").exists() {
        want(
            directory(&arguments.dev.join("infiniband")),
            "the daemon cannot check whether a character device is in place",
        );
    }
    want(
        host_namespace(sysfs),
        "run with hostNetwork, and mount no other sysfs: health depends on netdevs that are not observable here",
    );
    missing
}

fn directory(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("{path:?} is no directory")),
        Err(error) => Err(absent(path, &error)),
    }
}

/// Checks that the directory at `path` is writable, or that its parent is writable if `path` does not exist.
fn writable(path: &Path) -> Result<(), String> {
    let present = path.ancestors().find(|it| it.exists()).unwrap_or(path);
    let is_child = present.parent().is_some() && path.parent() == Some(present);
    if present != path && !is_child {
        return directory(path);
    }
    directory(present)?;
    let flags = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
    nix::unistd::access(present, flags)
        .map_err(|errno| format!("{present:?} cannot be written: {}", io::Error::from(errno)))
}

fn absent(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{path:?} does not exist (or is not mounted)"),
        _ => format!("{path:?}: {error}"),
    }
}

/// Checks that the daemon runs in the host's network namespace. All RDMA NICs can be in pods, so the check looks for
/// any netdev with a device, such as a virtio or USB NIC. Such a netdev proves the host's namespace.
///
/// Without such a netdev, the check reads the PCI functions. A function has an empty directory `net` if all its netdevs
/// are in other namespaces. The check fails if functions have a directory `net`, and all these directories are empty.
fn host_namespace(sysfs: &Path) -> Result<(), String> {
    let here = fs::read_dir(sysfs.join("class/net"));
    let mut here = here.into_iter().flatten().flatten();
    if here.any(|netdev| netdev.path().join("device").exists()) {
        return Ok(());
    }
    let functions = fs::read_dir(sysfs.join("bus/pci/devices"));
    let functions = functions.into_iter().flatten().flatten();
    let netdevs: Vec<bool> = functions
        .filter_map(|function| fs::read_dir(function.path().join("net")).ok())
        .map(|mut netdevs| netdevs.next().is_some())
        .collect();
    if netdevs.is_empty() || netdevs.contains(&true) {
        return Ok(());
    }
    Err(format!(
        "all netdevs of PCI functions ({}) are in other network namespaces",
        netdevs.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::erdma::conf::DriverMode;
    use serde_json::json;

    /// A node with all required directories.
    struct Node {
        root: tempfile::TempDir,
        arguments: Arguments,
        conf: Conf,
    }

    impl Node {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a directory");
            let at = |below: &str| root.path().join(below);
            for directory in [
                "kubelet/device-plugins",
                "kubelet/pod-resources",
                "kubelet/plugins_registry",
                "kubelet/plugins",
                "cdi",
                "state",
                "netns",
                "results",
                "net.d",
                "bin",
                "sys/class/net",
                "sys/class/infiniband_verbs",
                "sys/bus/pci/devices/0000:3b:00.0/net/eth0",
                "dev/infiniband",
            ] {
                fs::create_dir_all(at(directory)).expect("made");
            }
            let mut record = Record::default();
            record.bin_dir = Some(at("bin"));
            record.write(&at("state")).expect("written");
            let text = json!({"dra": {}, "chain": {"confDir": at("net.d")}, "resources": [
                {"name": "rdma/hca", "kind": "shared"},
            ]});
            let conf = Conf::parse(&text.to_string(), Path::new("config.json"));
            Self {
                arguments: Arguments::below(root.path()),
                conf: conf.expect("a configuration").conf,
                root,
            }
        }

        fn remove(&self, directory: &str) {
            fs::remove_dir_all(self.root.path().join(directory)).expect("removed");
        }

        fn mounts(&self) -> Vec<String> {
            mounts(&self.arguments, &self.conf, &self.root.path().join("netns"))
        }
    }

    #[test]
    fn nothing_is_missing_with_all_mounts() {
        assert_eq!(Node::new().mounts(), [] as [&str; 0]);
    }

    #[test]
    fn without_a_chain_only_the_pods_names_are_lost() {
        let mut node = Node::new();
        node.conf.chain = None;
        node.remove("kubelet/pod-resources");
        let missing = node.mounts().join("\n");
        assert!(missing.contains("which pod has which device"), "{missing}");
    }

    #[test]
    fn a_directory_made_on_first_use_is_not_missing() {
        let node = Node::new();
        node.remove("state");
        assert_eq!(node.mounts(), [] as [&str; 0]);
    }

    #[test]
    fn all_rdma_nics_may_be_in_pods() {
        let node = Node::new();
        node.remove("sys/bus/pci/devices/0000:3b:00.0/net/eth0");
        assert_eq!(node.mounts().len(), 1);
        let virtio = node.root.path().join("sys/class/net/eth0/device");
        fs::create_dir_all(virtio).expect("made");
        assert_eq!(node.mounts(), [] as [&str; 0]);
    }

    #[test]
    fn each_missing_mount_is_reported_with_its_loss() {
        for (directory, what, loss) in [
            (
                "kubelet",
                "device-plugins\" does not exist",
                "nothing is advertised",
            ),
            (
                "kubelet/pod-resources",
                "pod-resources\" does not exist",
                "resource that the chain attaches",
            ),
            (
                "kubelet",
                "plugins_registry\" does not exist",
                "no claim is prepared",
            ),
            ("results", "results\" does not exist", "has no rails"),
            ("bin", "bin\" does not exist", "finds the plugins"),
            ("netns", "netns\" does not exist", "inside pods"),
            ("sys/class/net", "class/net\" does not exist", "no hardware"),
            (
                "dev/infiniband",
                "infiniband\" does not exist",
                "character device",
            ),
            (
                "sys/bus/pci/devices/0000:3b:00.0/net/eth0",
                "all netdevs of PCI functions (1)",
                "hostNetwork",
            ),
        ] {
            let node = Node::new();
            node.remove(directory);
            let missing = node.mounts().join("\n");
            assert!(
                missing.contains(what) && missing.contains(loss),
                "{directory}: {missing}"
            );
        }
    }

    /// Returns the sentences for a daemon with the capabilities `set`.
    fn lost(set: u64, loads_driver: bool, listens: bool) -> Vec<String> {
        let mut conf = Conf::default();
        conf.erdma.prefer_driver = loads_driver.then_some(DriverMode::Default);
        conf.lldp = listens.then_some(Lldp::Listen);
        capabilities(set, &conf)
    }

    #[test]
    fn each_missing_capability_is_reported() {
        assert_eq!(lost(u64::MAX, true, true), [] as [&str; 0]);
        assert_eq!(lost(0, false, false).len(), CAPABILITIES.len());
        let missing = lost(!(1 << 21), true, true);
        assert!(
            matches!(missing.as_slice(), [one] if one.starts_with("CAP_SYS_ADMIN is missing: "))
        );
    }

    #[test]
    fn capabilities_for_loading_and_listening_are_required_only_for_these() {
        let without = !(1 << 2 | 1 << 13);
        assert_eq!(lost(without, false, false), [] as [&str; 0]);
        for (loads, listens, begin) in [
            (true, false, "CAP_DAC_READ_SEARCH is missing: "),
            (false, true, "CAP_NET_RAW is missing: "),
        ] {
            let missing = lost(without, loads, listens);
            assert!(
                matches!(missing.as_slice(), [one] if one.starts_with(begin)),
                "{missing:?}"
            );
        }
    }

    #[test]
    fn dropped_capabilities_are_reported() {
        let without = || {
            // struct __user_cap_header_struct of _LINUX_CAPABILITY_VERSION_3, and its data
            let header = [0x2008_0522_u32, 0];
            let none = [0_u32; 6];
            // SAFETY: header and data have the sizes that this version requires.
            let outcome = unsafe {
                nix::libc::syscall(nix::libc::SYS_capset, header.as_ptr(), none.as_ptr())
            };
            assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
            let (node, conf) = (Node::new(), Conf::default());
            let mounts = mounts(&node.arguments, &conf, Path::new(NETNS));
            (missing(&node.arguments, &conf), mounts)
        };
        let (missing, mounts) = std::thread::spawn(without).join().expect("a report");
        assert_eq!(missing, [lost(0, false, false), mounts].concat());
    }
}
