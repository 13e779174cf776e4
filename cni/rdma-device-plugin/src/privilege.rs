// SPDX-License-Identifier: Apache-2.0
//! What the daemon may do and can see, and what is lost without. Nothing here needs a privileged
//! container: two capabilities, a handful of mounts and the host's network namespace are all. One more is for
//! counters of devices inside pods, and three for the eRDMA driver where it is to be loaded.

use crate::{chain::record::Record, cli::Arguments, conf::Conf};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Bits of `CapEff` (`include/uapi/linux/capability.h`), what they are for, and what is lost
/// without.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (
        11,
        "CAP_NET_BROADCAST",
        "netdevs inside pods tell nothing: they are looked at every 2 s",
    ),
    (
        12,
        "CAP_NET_ADMIN",
        "netdevs inside pods are not seen: devices there keep the health that they had; eRDMA NICs \
         are not brought up",
    ),
    (
        21,
        "CAP_SYS_ADMIN",
        "no way into pods' namespaces: the counters of RDMA devices that are a pod's alone (exclusive \
         mode) are not known, and their health goes by their netdevs' carrier",
    ),
];

/// The same, where the eRDMA driver may be loaded.
const LOADING: [(u32, &str, &str); 3] = [
    (
        2,
        "CAP_DAC_READ_SEARCH",
        "which devices the processes of other users have open is not seen: the eRDMA driver counts \
         as in use, and keeps its mode",
    ),
    (
        16,
        "CAP_SYS_MODULE",
        "the eRDMA driver cannot be loaded in another mode",
    ),
    (
        19,
        "CAP_SYS_PTRACE",
        "which devices other processes have open is not seen: the eRDMA driver counts as in use, and \
         keeps its mode",
    ),
];

/// Where the daemon expects what is mounted into its container.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `/var/lib/kubelet`
    pub kubelet_dir: PathBuf,
    /// `/var/run/cdi`; none: containers get devices by path.
    pub cdi_dir: Option<PathBuf>,
    /// `/var/lib/cni/rdma-cni`
    pub state_dir: PathBuf,
    /// `/sys`
    pub sysfs: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
    /// `/run/netns`, where runtimes put pods' namespaces.
    pub netns_dir: PathBuf,
    /// `/var/lib/cni/results`; none: our plugin is not kept in the chain.
    pub cni_cache: Option<PathBuf>,
    /// `/etc/cni/net.d`; none: the same.
    pub cni_conf: Option<PathBuf>,
    /// `/opt/cni/bin`; none: nothing was put there.
    pub cni_bins: Vec<PathBuf>,
    /// Whether the eRDMA driver may be loaded.
    pub loads_driver: bool,
}

/// Where runtimes put pods' namespaces.
const NETNS: &str = "/run/netns";

/// What the daemon may not do, and what is not mounted, by this configuration ([`report`]).
pub fn missing(arguments: &Arguments, conf: &Conf) -> Vec<String> {
    let record = Record::read(&arguments.state_dir).ok().flatten();
    let chain = conf.chain.as_ref();
    report(&Paths {
        kubelet_dir: arguments.kubelet_dir.clone(),
        cdi_dir: conf.cdi.then(|| arguments.cdi_dir.clone()),
        state_dir: arguments.state_dir.clone(),
        sysfs: arguments.sysfs.clone(),
        dev: arguments.dev.clone(),
        netns_dir: NETNS.into(),
        cni_cache: chain.map(|_| arguments.cni_cache_dir.clone()),
        cni_conf: chain.map(|chain| chain.conf_dir.clone()),
        cni_bins: chain.and(record).map_or(vec![], |it| it.bin_dirs()),
        loads_driver: conf.erdma.may_load(),
    })
}

/// What is missing, one sentence each: the capability or mount, and what is lost without it.
/// Nothing: all is there.
pub fn report(places: &Paths) -> Vec<String> {
    let mut missing = match fs::read_to_string("/proc/thread-self/status") {
        Ok(status) => {
            match effective(&status) {
                Some(set) => capabilities(set, places.loads_driver),
                None => {
                    vec!["/proc/thread-self/status tells no capabilities: what is allowed is not known".into()]
                }
            }
        }
        Err(error) => vec![format!(
            "which capabilities there are is not known: {error}"
        )],
    };
    missing.extend(mounts(places));
    missing
}

/// The effective set in a thread's `status`.
fn effective(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// What is lost without those that are not in `set`; `loads`: the eRDMA driver may be loaded.
fn capabilities(set: u64, loads: bool) -> Vec<String> {
    let loading: &[_] = if loads { &LOADING } else { &[] };
    let wanted = CAPABILITIES.iter().chain(loading);
    let lost = wanted.filter(|(bit, ..)| set & (1 << bit) == 0);
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
        "kubelet cannot be reached, and nothing is advertised",
    );
    want(
        directory(&places.kubelet_dir.join("pod-resources")),
        match places.cni_cache {
            None => "metrics do not say which pod has which device",
            Some(_) => "no container that is given what the chain attaches starts",
        },
    );
    want(
        writable(&places.state_dir),
        "rdma-cni is not told what an allocation stands for, and which pods have devices is not known here",
    );
    if let Some(cdi_dir) = &places.cdi_dir {
        want(
            writable(cdi_dir),
            "containers cannot get devices by CDI names",
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
            "whether the runtime finds the plugins is not known, and rdma-cni is not put into its list",
        );
    }
    want(
        directory(&places.netns_dir),
        "devices inside pods are not seen (mount it with HostToContainer propagation)",
    );
    want(
        directory(&places.sysfs.join("class/net")),
        "no hardware is seen",
    );
    if places.sysfs.join("class/infiniband_verbs").exists() {
        want(
            directory(&places.dev.join("infiniband")),
            "whether a character device is in place is not known",
        );
    }
    want(
        host_namespace(&places.sysfs),
        "run with hostNetwork, and mount no other sysfs: health follows netdevs that are not seen here",
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

/// Whether files can be made in the directory at `path`, or the directory itself where it is not
/// there yet.
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
        io::ErrorKind::NotFound => format!("{path:?} is not there (or not mounted)"),
        _ => format!("{path:?}: {error}"),
    }
}

/// A function whose netdevs are all in other namespaces has an empty `net`: where that is so of
/// all functions, this is not the namespace of the hardware. Unless other hardware's netdev is
/// here: all RDMA NICs can be in pods, and the node's own be a virtio or USB device.
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
        "the netdevs of all {} functions are in other network namespaces",
        netdevs.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is wanted, made up.
    fn places(root: &Path) -> Paths {
        for directory in [
            "kubelet/device-plugins",
            "kubelet/pod-resources",
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
            state_dir: root.join("state"),
            sysfs: root.join("sys"),
            dev: root.join("dev"),
            netns_dir: root.join("netns"),
            cni_cache: Some(root.join("results")),
            cni_conf: Some(root.join("net.d")),
            cni_bins: vec![root.join("bin")],
            loads_driver: false,
        }
    }

    #[test]
    fn nothing_is_missing_where_all_is_there() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(mounts(&places(root.path())), [] as [&str; 0]);
    }

    #[test]
    fn without_a_chain_the_pods_names_are_all_that_is_lost() {
        let root = tempfile::tempdir().expect("a directory");
        let mut places = places(root.path());
        places.cni_cache = None;
        fs::remove_dir(root.path().join("kubelet/pod-resources")).expect("removed");
        let missing = mounts(&places).join("\n");
        assert!(missing.contains("which pod has which device"), "{missing}");
    }

    #[test]
    fn what_is_made_on_first_use_is_not_missing() {
        let root = tempfile::tempdir().expect("a directory");
        let places = places(root.path());
        fs::remove_dir(&places.state_dir).expect("removed");
        assert_eq!(mounts(&places), [] as [&str; 0]);
    }

    #[test]
    fn a_node_whose_rdma_nics_are_all_in_pods_is_a_node() {
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
    fn each_mount_that_is_missing_is_told_with_its_loss() {
        for (directory, what, loss) in [
            (
                "kubelet",
                "device-plugins\" is not there",
                "nothing is advertised",
            ),
            (
                "kubelet/pod-resources",
                "pod-resources\" is not there",
                "what the chain attaches starts",
            ),
            ("results", "results\" is not there", "has no rails"),
            ("bin", "bin\" is not there", "finds the plugins"),
            ("netns", "netns\" is not there", "inside pods"),
            ("sys/class/net", "class/net\" is not there", "no hardware"),
            (
                "dev/infiniband",
                "infiniband\" is not there",
                "character device",
            ),
            (
                "sys/bus/pci/devices/0000:3b:00.0/net/eth0",
                "the netdevs of all 1 functions",
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

    #[test]
    fn each_capability_that_is_missing_is_told() {
        assert_eq!(capabilities(u64::MAX, true), [] as [&str; 0]);
        let all = capabilities(0, false);
        assert_eq!(all.len(), CAPABILITIES.len());
        let missing = capabilities(!(1 << 21), true);
        assert!(
            matches!(missing.as_slice(), [one] if one.starts_with("CAP_SYS_ADMIN is missing: "))
        );
    }

    #[test]
    fn what_loading_a_driver_needs_is_told_where_it_is_to_be_loaded() {
        let without = !(1 << 2);
        assert_eq!(capabilities(without, false), [] as [&str; 0]);
        let missing = capabilities(without, true);
        assert!(
            matches!(missing.as_slice(), [one] if one.starts_with("CAP_DAC_READ_SEARCH is missing: "))
        );
    }

    #[test]
    fn the_effective_set_is_read() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000001800\n";
        assert_eq!(effective(status), Some(0x1800));
        assert_eq!(effective("Name:\tx\nCapEff:\tall\n"), None);
    }

    #[test]
    fn what_was_given_up_is_told() {
        let without = || {
            // struct __user_cap_header_struct of _LINUX_CAPABILITY_VERSION_3, and its data
            let header = [0x2008_0522_u32, 0];
            let none = [0_u32; 6];
            // SAFETY: both are of the sizes that this version has.
            let outcome = unsafe {
                nix::libc::syscall(nix::libc::SYS_capset, header.as_ptr(), none.as_ptr())
            };
            assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
            let root = tempfile::tempdir().expect("a directory");
            report(&places(root.path()))
        };
        let told = std::thread::spawn(without).join().expect("a report");
        assert_eq!(told, capabilities(0, false));
    }
}
