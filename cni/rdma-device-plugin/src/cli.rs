// SPDX-License-Identifier: Apache-2.0
//! The command line.

use crate::{
    conf::{
        Conf, ConfError, Flags, Parsed,
        chain::{KUBELET_DIR, Placement, STATE_DIR, pod_resources},
    },
    probes::ask::Probe,
    refused::RefusedPods,
    report::Topic,
};
use clap::{Args, Parser, Subcommand};
use log::LevelFilter;
use smcr::readout::{self, Target};
use std::{
    io,
    net::{AddrParseError, SocketAddr},
    path::PathBuf,
};

/// Tells kubelet which RDMA devices a node has, and gives them to containers.
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    /// What is done instead of serving
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to advertise: YAML or JSON, in this program's own format or in that of
    /// k8s-rdma-sriov-dev-plugin, k8s-rdma-shared-dev-plugin or sriov-network-device-plugin
    #[arg(long, value_name = "FILE", required_unless_present_any = ["erdma", "release"])]
    pub config: Option<PathBuf>,
    /// Kubelet's directory, with device-plugins in it
    #[arg(long, value_name = "DIRECTORY", default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Where the container runtime looks for CDI specs
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Where /metrics, /healthz and /readyz are served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9102", value_parser = address)]
    pub metrics_address: SocketAddr,
    /// A socket of this daemon alone, where it answers `probe`; without it there is none
    #[arg(long, value_name = "PATH")]
    pub probe_socket: Option<PathBuf>,
    /// Says what would be advertised on this node, and exits
    #[arg(long)]
    pub check_config: bool,
    /// Takes back what it set up of eRDMA NICs, and exits
    #[arg(long, conflicts_with = "check_config")]
    pub release: bool,
    /// Where sysfs is mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Where procfs is mounted, by which NVIDIA's driver tells of its GPUs
    #[arg(long, value_name = "DIRECTORY", default_value = "/proc")]
    pub procfs: PathBuf,
    /// Where the node's device files are
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev")]
    pub dev: PathBuf,
    /// The state directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Keeps rdma-cni in the chain of the networks in this directory; wins over chain.confDir
    #[arg(long, value_name = "DIRECTORY")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Where the runtime keeps how it made pods' networks
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/cni/results")]
    pub cni_cache_dir: PathBuf,
    /// What becomes of pods whose containers may not start, as only another pod could
    #[arg(
        long,
        value_enum,
        value_name = "keep|delete",
        hide_possible_values = true,
        default_value_t
    )]
    pub refused_pods: RefusedPods,
    /// What the API server is told: events of pods, a condition of the node, or both; without it nothing
    #[arg(
        long,
        value_enum,
        value_name = "events,node-condition",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub report: Vec<Topic>,
    /// Where the token and the CA are by which the API server is asked
    #[arg(long, value_name = "DIRECTORY", default_value = kubernetes_api::access::DIRECTORY)]
    pub service_account_dir: PathBuf,
    /// Where node-feature-discovery looks for labels of the node, usually
    /// /etc/kubernetes/node-feature-discovery/features.d; without it none are written
    #[arg(long, value_name = "DIRECTORY")]
    pub node_features: Option<PathBuf>,
    /// Where Multus looks for what is known of exclusive devices, usually
    /// /var/run/k8s.cni.cncf.io/devinfo/dp; without it nothing is written
    #[arg(long, value_name = "DIRECTORY")]
    pub device_info: Option<PathBuf>,
    /// off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level)]
    pub log_level: LevelFilter,
    /// The eRDMA agent's flags
    #[command(flatten)]
    pub erdma: Flags,
}

/// Reads a level of the log.
fn level(text: &str) -> Result<LevelFilter, &'static str> {
    let levels = "must be one of off, error, warn, info, debug, trace";
    text.parse().map_err(|_| levels)
}

/// What is done instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Puts rdma-cni and rdma-ipam onto the node and into the chain of its network
    Install(Install),
    /// Takes away just what install put there
    Uninstall(Uninstall),
    /// Asks the daemon at a socket whether it is ready, or lives: 0 if so, else 1
    Probe(Probe),
    /// Reports what keeps pods of this node from RDMA, and what to do. It changes nothing
    Doctor(doctor::Arguments),
    /// Shows of a network namespace the pnet table, user EIDs, link groups, and for each SMC socket
    /// whether SMC-R or TCP carries it, and why
    Smc(Smc),
    /// Asks rails over RDMA whether they answer: no program is needed on the other side. Exit code 0 if each request
    /// was answered
    Ping(rdma_ping::Arguments),
}

/// `smc`
#[derive(Args, Clone, Debug)]
pub struct Smc {
    /// A namespace's path, its name below /run/netns, or namespace/name of a pod that has rails;
    /// without it the namespace of this program
    #[arg(value_name = "NAMESPACE|POD")]
    target: Option<Target>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Where the records of pods are
    #[arg(long, value_name = "DIRECTORY", default_value = STATE_DIR)]
    state_dir: PathBuf,
}

impl From<&Smc> for readout::Arguments {
    fn from(smc: &Smc) -> Self {
        Self {
            target: smc.target.clone().unwrap_or(Target::Own),
            json: smc.json,
            state_dir: smc.state_dir.clone(),
        }
    }
}

/// `install`
#[derive(Args, Clone, Debug)]
pub struct Install {
    /// Where the runtime looks for CNI plugins, once for each of its directories; ours are put into the
    /// first. Without it as before, else /opt/cni/bin
    #[arg(long, value_name = "DIRECTORY")]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Where the runtime looks for networks; without it chain.confDir, else /etc/cni/net.d
    #[arg(long, value_name = "DIRECTORY")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The daemon's configuration, or a file with chain alone: its chain has the entry and the network
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the entry is; wins over chain.placement
    #[arg(
        long,
        value_enum,
        value_name = "auto|directory|list",
        hide_possible_values = true
    )]
    pub placement: Option<Placement>,
    /// How long NICs are waited for that have no address to make pods' addresses from
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub wait: u64,
    /// Where rdma-cni and rdma-ipam are; without it beside this program
    #[arg(long, value_name = "DIRECTORY")]
    pub from: Option<PathBuf>,
    /// Where sysfs is mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// The state directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Kubelet's directory, with pod-resources in it
    #[arg(long, value_name = "DIRECTORY", default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Does not check kubelet's socket: on an image where kubelet starts later. A node that has no
    /// kubelet needs chain.plugin.devices instead
    #[arg(long)]
    pub without_kubelet: bool,
    /// Fails for the binaries only; what hinders in the network's list is printed, and the daemon
    /// tries it again
    #[arg(long)]
    pub init_container: bool,
}

/// `uninstall`
#[derive(Args, Clone, Debug)]
pub struct Uninstall {
    /// The first directory in which the runtime looks for CNI plugins; without it as before, else
    /// /opt/cni/bin
    #[arg(long, value_name = "DIRECTORY")]
    pub cni_bin_dir: Option<PathBuf>,
    /// Where the runtime looks for networks; without it as install had it
    #[arg(long, value_name = "DIRECTORY")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The state directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Where the daemon's --node-features has its labels
    #[arg(long, value_name = "DIRECTORY")]
    pub node_features: Option<PathBuf>,
    /// Takes it out of the chain although pods have devices, lists are gone, or directories are others
    #[arg(long)]
    pub force: bool,
    /// Tries again until all is done, and waits for SIGTERM then, as a container of a DaemonSet has to
    #[arg(long)]
    pub stay: bool,
    /// Says whether all is done, and changes nothing: the readiness of a container with --stay
    #[arg(long, conflicts_with_all = ["stay", "force"])]
    pub check: bool,
}

/// An address and a port. The address may be in brackets whichever family it is of: a manifest that has
/// it from the node does not know.
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
    /// The same with absolute paths: kubelet is told some of them, and the working directory is
    /// no business of its own.
    ///
    /// # Errors
    /// An empty path, or no working directory.
    pub fn absolute(mut self) -> io::Result<Self> {
        for path in [
            &mut self.kubelet_dir,
            &mut self.cdi_dir,
            &mut self.sysfs,
            &mut self.dev,
            &mut self.state_dir,
            &mut self.cni_cache_dir,
            &mut self.service_account_dir,
        ]
        .into_iter()
        .chain(&mut self.config)
        .chain(&mut self.cni_conf_dir)
        .chain(&mut self.node_features)
        .chain(&mut self.device_info)
        .chain(&mut self.probe_socket)
        {
            *path = std::path::absolute(&*path)?;
        }
        Ok(self)
    }

    /// Where kubelet's registration socket and the plugins' own are.
    pub fn device_plugins(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// Kubelet's socket for questions of who has what.
    pub fn pod_resources(&self) -> PathBuf {
        pod_resources(&self.kubelet_dir)
    }

    /// What is configured.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn conf(&self) -> Result<Parsed, ConfError> {
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
