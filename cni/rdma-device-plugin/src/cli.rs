// SPDX-License-Identifier: Apache-2.0
//! The command line.

use crate::{probes::ask::Probe, refused::RefusedPods, report::Topic};
use clap::{
    Args, Parser, Subcommand,
    builder::{PathBufValueParser, TypedValueParser},
};
use daemon_conf::{
    Conf, Flags, Parsed,
    chain::{KUBELET_DIR, Placement, STATE_DIR, pod_resources},
};
use log::LevelFilter;
use smcr::readout::{self, Target};
use std::{
    io::Write,
    net::{AddrParseError, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

/// Default directory of libcni's cache (`CacheDir` in `libcni/api.go`).
const CNI_CACHE_DIR: &str = "/var/lib/cni/results";

/// Default directory of Multus' state (`defaultCNIDir` in `pkg/types/conf.go` of k8snetworkplumbingwg/multus-cni).
const MULTUS_DIR: &str = "/var/lib/cni/multus";

/// Advertises the RDMA devices of a node to kubelet, and provides them to containers.
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    /// Command that runs instead of the daemon
    #[command(subcommand)]
    pub command: Option<Command>,
    /// File that selects the advertised devices: YAML or JSON, in this program's own format or the format of
    /// k8s-rdma-sriov-dev-plugin, k8s-rdma-shared-dev-plugin or sriov-network-device-plugin
    #[arg(long, value_name = "FILE", value_parser = path(), required_unless_present_any = ["erdma", "release"])]
    pub config: Option<PathBuf>,
    /// Kubelet's directory, which contains device-plugins
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Directory of the container runtime's CDI specs
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Address of the page /, and of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9102", value_parser = address)]
    pub metrics_address: SocketAddr,
    /// Socket on which this daemon answers `probe`; default: no socket
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub probe_socket: Option<PathBuf>,
    /// Prints the devices that this node would advertise, and exits
    #[arg(long)]
    pub check_config: bool,
    /// Resets the eRDMA NICs that the daemon set up, removes device information and, with --node-features, labels, and exits
    #[arg(long, conflicts_with = "check_config")]
    pub release: bool,
    /// Mount point of sysfs
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Mount point of procfs, where NVIDIA's driver lists its GPUs
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/proc")]
    pub procfs: PathBuf,
    /// Directory of the node's device files
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/dev")]
    pub dev: PathBuf,
    /// The state directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Keeps rdma-cni in the CNI list in this directory, also if the file has no chain; overrides chain.confDir
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directory of libcni's cache of pods' networks
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = CNI_CACHE_DIR)]
    pub cni_cache_dir: PathBuf,
    /// Handling of pods whose containers the daemon does not let start: keep them, or delete those whose controller
    /// creates another pod
    #[arg(
        long,
        value_enum,
        value_name = "keep|delete",
        hide_possible_values = true,
        default_value_t
    )]
    pub refused_pods: RefusedPods,
    /// Reports to the API server: events of pods, a condition of the node, or both; default: no reports
    #[arg(
        long,
        value_enum,
        value_name = "events,node-condition",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub report: Vec<Topic>,
    /// Directory of the token and the CA for the API server
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = kubernetes_api::access::DIRECTORY)]
    pub service_account_dir: PathBuf,
    /// Directory where node-feature-discovery reads labels of the node, usually
    /// /etc/kubernetes/node-feature-discovery/features.d; default: the daemon writes no labels
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub node_features: Option<PathBuf>,
    /// Directory where Multus reads the device information of exclusive devices, usually
    /// /var/run/k8s.cni.cncf.io/devinfo/dp; default: the daemon writes no information
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub device_info: Option<PathBuf>,
    /// Log level: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level)]
    pub log_level: LevelFilter,
    /// Flags of the eRDMA agent
    #[command(flatten)]
    pub erdma: Flags,
}

fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

fn level(text: &str) -> Result<LevelFilter, &'static str> {
    let levels = "must be one of off, error, warn, info, debug, trace";
    text.parse().map_err(|_| levels)
}

/// Commands that run instead of the daemon.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Installs rdma-cni and rdma-ipam on the node, and adds rdma-cni to the CNI list of the node's primary network or
    /// of chain.network
    Install(Install),
    /// Removes the changes of install, the daemon's device information and, with --node-features, its labels
    Uninstall(Uninstall),
    /// Queries the daemon or the fabric watch for readiness or liveness, at a socket; exit code 0 if positive, else 1
    Probe(Probe),
    /// Reports obstacles to RDMA in pods of this node, and remedies. Changes nothing
    Doctor(doctor::Arguments),
    /// Shows the pnet table, user EIDs and link groups of a network namespace, and for each SMC socket whether SMC-R or
    /// TCP carries it, and why
    Smc(Smc),
    /// Sends RDMA requests to the addresses of rails. Exit code 0 if all rails that must reach each other exist at both
    /// ends, and no request between these rails was lost
    Ping(rdma_ping::Arguments),
    /// Watches the fabric: each rail repeatedly sends requests to the same rail of a few other nodes, until SIGTERM
    Fabric(Fabric),
}

/// Arguments of `fabric`.
#[derive(Args, Clone, Debug)]
pub struct Fabric {
    /// Namespace of the ConfigMaps with the rails of nodes
    #[arg(long, value_name = "NAME")]
    pub namespace: String,
    /// Seconds in which each rail sends two requests, 1 to 3600. A node sends at most ten requests a second
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = interval)]
    pub interval: Duration,
    /// Makes an unreachable rail unhealthy for the daemon if the rail itself is at fault, and at most this percentage
    /// of the cluster's rails, or only one rail, is unreachable. 0: makes no rail unhealthy
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub unhealthy_percent: u8,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9103", value_parser = address)]
    pub metrics_address: SocketAddr,
    /// Socket on which this watch answers `probe`; default: no socket
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub probe_socket: Option<PathBuf>,
    /// Directory of the token and the CA for the API server
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = kubernetes_api::access::DIRECTORY)]
    pub service_account_dir: PathBuf,
    /// State directory of rdma-cni, with the daemon's resources
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Mount point of sysfs
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Directory of the device files
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/dev")]
    pub dev: PathBuf,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().filter(|it| (1..=3600).contains(it));
    let must = "must be a whole number of seconds from 1 to 3600";
    seconds.map(Duration::from_secs).ok_or(must)
}

/// Arguments of `smc`.
#[derive(Args, Clone, Debug)]
pub struct Smc {
    /// Network namespace: its path, its name below /run/netns, or namespace/name of a pod with rails; default: this
    /// program's network namespace
    #[arg(value_name = "NAMESPACE|POD")]
    target: Option<Target>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// State directory of rdma-cni, with the records of pods
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = STATE_DIR)]
    state_dir: PathBuf,
}

impl Smc {
    /// Runs the command.
    pub fn run(&self, output: &mut dyn Write, errors: &mut dyn Write) -> ExitCode {
        readout::run(
            self.target.as_ref(),
            self.json,
            &self.state_dir,
            output,
            errors,
        )
    }
}

/// Arguments of `install`.
#[derive(Args, Clone, Debug)]
pub struct Install {
    /// Directory of the runtime's CNI plugins; repeat this option for each directory. install writes the plugins to the
    /// first one. Default: the directory of the last installation, else /opt/cni/bin
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Directory of the runtime's networks; default: chain.confDir; without chain in --config, the directory of the
    /// last installation; else /etc/cni/net.d
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub cni_conf_dir: Option<PathBuf>,
    /// The daemon's configuration, or a file with only the field chain, for the entry and the network
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// Place of the entry of rdma-cni; overrides chain.placement
    #[arg(
        long,
        value_enum,
        value_name = "auto|directory|list",
        hide_possible_values = true
    )]
    pub placement: Option<Placement>,
    /// Longest time to wait until a NIC has the IPv6 address from which pods' addresses derive
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub wait: u64,
    /// Directory of rdma-cni and rdma-ipam; default: the directory of this program
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub from: Option<PathBuf>,
    /// Mount point of sysfs
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = "/sys")]
    pub sysfs: PathBuf,
    /// The state directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Kubelet's directory, which contains pod-resources
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Skips the check of kubelet's socket, for an image where kubelet starts later. A node without kubelet needs
    /// chain.plugin.devices instead
    #[arg(long)]
    pub without_kubelet: bool,
    /// Does not fail if rdma-cni cannot be added to the network's list: prints the reason, and the daemon tries
    /// again
    #[arg(long)]
    pub init_container: bool,
}

/// Arguments of `uninstall`.
#[derive(Args, Clone, Debug)]
pub struct Uninstall {
    /// First directory of the runtime's CNI plugins; default: the directory of the last installation, else /opt/cni/bin
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub cni_bin_dir: Option<PathBuf>,
    /// Directory of the runtime's networks; default: the directory of the last installation, else /etc/cni/net.d
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directory of libcni's cache of pods' networks
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = CNI_CACHE_DIR)]
    pub cni_cache_dir: PathBuf,
    /// Directory of Multus' state (Multus' field cniDir), with the lists of pods' networks
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = MULTUS_DIR)]
    pub multus_dir: PathBuf,
    /// The state directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", value_parser = path(), default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Directory of the daemon's --node-features
    #[arg(long, value_name = "DIRECTORY", value_parser = path())]
    pub node_features: Option<PathBuf>,
    /// Removes rdma-cni from the chain although pods have devices or prepared claims, lists are gone, or directories
    /// differ
    #[arg(long)]
    pub force: bool,
    /// Retries until all is removed, then waits for SIGTERM, as a container of a DaemonSet must
    #[arg(long)]
    pub stay: bool,
    /// Reports whether all is removed, and changes nothing: the readiness probe of a container with --stay
    #[arg(long, conflicts_with_all = ["stay", "force"])]
    pub check: bool,
}

/// Parses an address and a port. Also accepts an IPv4 address in brackets: a manifest that inserts the node's address
/// into brackets does not know whether the address is IPv4 or IPv6.
fn address(text: &str) -> Result<SocketAddr, AddrParseError> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.split_once("]:"));
    match bracketed.filter(|(address, _)| !address.contains(':')) {
        Some((address, port)) => format!("{address}:{port}").parse(),
        None => text.parse(),
    }
}

impl Arguments {
    /// Returns the directory of kubelet's registration socket and of the device plugins' sockets.
    pub fn device_plugins(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// Returns the path of kubelet's pod-resources socket.
    pub fn pod_resources(&self) -> PathBuf {
        pod_resources(&self.kubelet_dir)
    }

    /// Loads the configuration from the file and the flags.
    ///
    /// # Errors
    /// The configuration file cannot be read, or has an error.
    pub fn conf(&self) -> anyhow::Result<Parsed> {
        let mut parsed = Conf::load(self.config.as_deref(), &self.erdma)?;
        if let Some(dir) = &self.cni_conf_dir {
            parsed.conf.chain.get_or_insert_default().conf_dir = dir.clone();
        }
        let chain = parsed.conf.chain.take();
        parsed.conf.chain = chain.map(|it| it.located(&self.state_dir, &self.kubelet_dir));
        Ok(parsed)
    }
}

#[cfg(test)]
impl Arguments {
    /// Returns the arguments of a daemon whose directories are below `root`.
    pub(crate) fn below(root: &std::path::Path) -> Self {
        let directories = [
            ("--kubelet-dir", "kubelet"),
            ("--cdi-dir", "cdi"),
            ("--state-dir", "state"),
            ("--sysfs", "sys"),
            ("--dev", "dev"),
            ("--cni-cache-dir", "results"),
            ("--service-account-dir", "account"),
            ("--config", "none"),
        ];
        let line = directories.map(|(flag, below)| [flag.into(), root.join(below)]);
        Self::parse_from([vec![PathBuf::new()], line.concat()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_address_is_taken_in_brackets() {
        for (text, expected) in [
            ("127.0.0.1:9102", Some("127.0.0.1:9102")),
            ("[192.0.2.7]:9102", Some("192.0.2.7:9102")),
            ("[2001:db8::7]:9102", Some("[2001:db8::7]:9102")),
            ("[::]:0", Some("[::]:0")),
            ("2001:db8::7:9102", None),
            ("[localhost]:9102", None),
            ("[192.0.2.7]", None),
        ] {
            let parsed = address(text).ok();
            assert_eq!(
                parsed.map(|it| it.to_string()).as_deref(),
                expected,
                "{text}"
            );
        }
    }
}
