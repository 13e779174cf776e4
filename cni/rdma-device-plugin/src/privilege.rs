// SPDX-License-Identifier: Apache-2.0
//! Checks the daemon's capabilities and mounts, and describes the effect of each missing one. The daemon needs no
//! privileged container. It needs two capabilities, a few mounts and the host's network namespace. Counters and port
//! states of devices inside pods need one more capability, receiving LLDP frames needs one, and loading the eRDMA
//! driver needs three.

use crate::{chain::record::Record, cli::Arguments, dra::server};
use daemon_conf::{Conf, Lldp};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

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

/// Directories that the daemon's container mounts.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Kubelet's directory: `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Directory of CDI specs: `/var/run/cdi`; `None`: containers get devices by path.
    pub cdi_dir: Option<PathBuf>,
    /// Directories of the DRA driver's sockets ([`server::Paths`]); empty: the daemon serves no claims.
    pub dra_dirs: Vec<PathBuf>,
    /// State directory: `/var/lib/cni/rdma-cni`.
    pub state_dir: PathBuf,
    /// Mount point of sysfs: `/sys`.
    pub sysfs: PathBuf,
    /// Directory of device files: `/dev`.
    pub dev: PathBuf,
    /// Directory of pods' namespaces: `/run/netns`.
    pub netns_dir: PathBuf,
    /// Cache of libcni: `/var/lib/cni/results`; `None`: the daemon does not manage the chain.
    pub cni_cache: Option<PathBuf>,
    /// Directory of CNI lists: `/etc/cni/net.d`; `None`: the daemon does not manage the chain.
    pub cni_conf: Option<PathBuf>,
    /// Directories of CNI plugins: `/opt/cni/bin`; empty: no plugin is installed, or the daemon does not manage the
    /// chain.
    pub cni_bins: Vec<PathBuf>,
    /// The host's cgroups: `/sys/fs/cgroup`; `None`: no resource has `limits`.
    pub cgroups: Option<PathBuf>,
    /// True if the daemon may load the eRDMA driver.
    pub loads_driver: bool,
    /// True if the daemon listens to LLDP frames.
    pub listens: bool,
}

const NETNS: &str = "/run/netns";

/// Returns the missing capabilities and mounts for `conf` ([`report`]).
pub fn missing(arguments: &Arguments, conf: &Conf) -> Vec<String> {
    let record = Record::read(&arguments.state_dir).ok().flatten();
    let chain = conf.chain.as_ref();
    let limits = conf.resources.iter().any(|it| !it.limits.rdma.is_empty());
    report(&Paths {
        kubelet_dir: arguments.kubelet_dir.clone(),
        cdi_dir: (conf.cdi || conf.dra.is_some()).then(|| arguments.cdi_dir.clone()),
        dra_dirs: conf
            .dra
            .iter()
            .flat_map(|dra| server::directories(&arguments.kubelet_dir, &dra.driver))
            .collect(),
        state_dir: arguments.state_dir.clone(),
        sysfs: arguments.sysfs.clone(),
        dev: arguments.dev.clone(),
        netns_dir: NETNS.into(),
        cni_cache: chain.map(|_| arguments.cni_cache_dir.clone()),
        cni_conf: chain.map(|chain| chain.conf_dir.clone()),
        cni_bins: chain.and(record).map_or(vec![], |it| it.bin_dirs()),
        cgroups: limits.then(|| arguments.sysfs.join("fs/cgroup")),
        loads_driver: conf.erdma.may_load(),
        listens: conf.lldp == Some(Lldp::Listen),
    })
}

/// Returns one sentence for each missing capability or mount, with the effect of its absence. Returns an empty list if
/// nothing is missing.
pub fn report(places: &Paths) -> Vec<String> {
    let mut missing = match fs::read_to_string("/proc/thread-self/status") {
        Ok(status) => match effective(&status) {
            Some(set) => capabilities(set, places),
            None => {
                vec!["/proc/thread-self/status does not list capabilities: the daemon's capabilities are unknown".into()]
            }
        },
        Err(error) => vec![format!("cannot read the daemon's capabilities: {error}")],
    };
    missing.extend(mounts(places));
    missing
}

fn effective(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

fn capabilities(set: u64, places: &Paths) -> Vec<String> {
    let loading = LOADING.iter().filter(|_| places.loads_driver);
    let listening = [LISTENING].iter().filter(|_| places.listens);
    let required = CAPABILITIES.iter().chain(loading).chain(listening);
    let lost = required.filter(|(bit, ..)| set & (1 << bit) == 0);
    lost.map(|(_, name, loss)| format!("{name} is missing: {loss}"))
        .collect()
}

fn mounts(places: &Paths) -> Vec<String> {
    let mut missing = Vec::new();
    let mut want = |what: Result<(), String>, loss: &str| {
        missing.extend(what.err().map(|what| format!("{what}: {loss}")));
    };
    want(
        writable(&places.kubelet_dir.join("device-plugins")),
        "kubelet is unreachable, and nothing is advertised",
    );
    want(
        directory(&places.kubelet_dir.join("pod-resources")),
        match places.cni_cache {
            None => "metrics do not show which pod has which device",
            Some(_) => "no container starts with a resource that the chain attaches",
        },
    );
    want(
        writable(&places.state_dir),
        "rdma-cni does not get the devices of an allocation, and the daemon does not know which pods have devices",
    );
    if let Some(cdi_dir) = &places.cdi_dir {
        want(
            writable(cdi_dir),
            "containers cannot get devices by CDI names",
        );
    }
    for dra_dir in &places.dra_dirs {
        want(
            writable(dra_dir),
            "kubelet cannot reach the DRA driver, and no claim is prepared",
        );
    }
    if let Some(cni_cache) = &places.cni_cache {
        want(
            directory(cni_cache),
            "a pod whose network was made by a list without rdma-cni starts, and has no rails",
        );
    }
    if let Some(cni_conf) = &places.cni_conf {
        want(
            writable(cni_conf),
            "rdma-cni is not kept in the list of the node's network",
        );
    }
    for cni_bin in &places.cni_bins {
        want(
            directory(cni_bin),
            "the daemon cannot check whether the runtime finds the plugins, and does not add rdma-cni to the CNI list",
        );
    }
    if let Some(cgroups) = &places.cgroups {
        want(
            writable(cgroups),
            "the daemon cannot lift the limits of pods with hostNetwork; after such a pod ends, the kernel can crash \
             when an RDMA device is removed",
        );
    }
    want(
        directory(&places.netns_dir),
        "devices inside pods are not observable (mount it with HostToContainer propagation)",
    );
    want(
        directory(&places.sysfs.join("class/net")),
        "no hardware is observable",
    );
    if places.sysfs.join("class/infiniband_verbs").exists() {
        want(
            directory(&places.dev.join("infiniband")),
            "the daemon cannot check whether a character device is in place",
        );
    }
    want(
        host_namespace(&places.sysfs),
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

    /// Makes all required directories below `root`, and returns their paths.
    fn places(root: &Path) -> Paths {
        for directory in [
            "kubelet/device-plugins",
            "kubelet/pod-resources",
            "kubelet/plugins_registry",
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
            fs::create_dir_all(root.join(directory)).expect("made");
        }
        Paths {
            kubelet_dir: root.join("kubelet"),
            cdi_dir: Some(root.join("cdi")),
            dra_dirs: vec![root.join("kubelet/plugins_registry")],
            state_dir: root.join("state"),
            sysfs: root.join("sys"),
            dev: root.join("dev"),
            netns_dir: root.join("netns"),
            cni_cache: Some(root.join("results")),
            cni_conf: Some(root.join("net.d")),
            cni_bins: vec![root.join("bin")],
            cgroups: None,
            loads_driver: false,
            listens: false,
        }
    }

    #[test]
    fn nothing_is_missing_with_all_mounts() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(mounts(&places(root.path())), [] as [&str; 0]);
    }

    #[test]
    fn without_a_chain_only_the_pods_names_are_lost() {
        let root = tempfile::tempdir().expect("a directory");
        let mut places = places(root.path());
        places.cni_cache = None;
        fs::remove_dir(root.path().join("kubelet/pod-resources")).expect("removed");
        let missing = mounts(&places).join("\n");
        assert!(missing.contains("which pod has which device"), "{missing}");
    }

    #[test]
    fn a_directory_made_on_first_use_is_not_missing() {
        let root = tempfile::tempdir().expect("a directory");
        let places = places(root.path());
        fs::remove_dir(&places.state_dir).expect("removed");
        assert_eq!(mounts(&places), [] as [&str; 0]);
    }

    #[test]
    fn all_rdma_nics_may_be_in_pods() {
        let root = tempfile::tempdir().expect("a directory");
        let places = places(root.path());
        let function = root.path().join("sys/bus/pci/devices/0000:3b:00.0/net");
        fs::remove_dir(function.join("eth0")).expect("moved");
        assert_eq!(mounts(&places).len(), 1);
        let virtio = root.path().join("sys/class/net/eth0/device");
        fs::create_dir_all(virtio).expect("made");
        assert_eq!(mounts(&places), [] as [&str; 0]);
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
            let root = tempfile::tempdir().expect("a directory");
            let places = places(root.path());
            fs::remove_dir_all(root.path().join(directory)).expect("removed");
            let missing = mounts(&places).join("\n");
            assert!(
                missing.contains(what) && missing.contains(loss),
                "{directory}: {missing}"
            );
        }
    }

    /// Returns the sentences for a daemon with the capabilities `set`.
    fn lost(set: u64, loads_driver: bool, listens: bool) -> Vec<String> {
        let root = tempfile::tempdir().expect("a directory");
        let places = Paths {
            loads_driver,
            listens,
            ..places(root.path())
        };
        capabilities(set, &places)
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
    fn the_effective_set_is_read() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000001800\n";
        assert_eq!(effective(status), Some(0x1800));
        assert_eq!(effective("Name:\tx\nCapEff:\tall\n"), None);
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
            let root = tempfile::tempdir().expect("a directory");
            report(&places(root.path()))
        };
        let missing = std::thread::spawn(without).join().expect("a report");
        assert_eq!(missing, lost(0, false, false));
    }
}
