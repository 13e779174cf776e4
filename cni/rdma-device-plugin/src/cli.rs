//! The command line.

use crate::conf::{Conf, ConfError, Flags, Parsed};
use clap::Parser;
use log::LevelFilter;
use std::{io, path::PathBuf};

/// Tells kubelet which RDMA devices a node has, and gives them to containers.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Arguments {
    /// What to advertise: YAML or JSON, in this program's own format or in that of
    /// k8s-rdma-sriov-dev-plugin, k8s-rdma-shared-dev-plugin or sriov-network-device-plugin
    #[arg(long, value_name = "FILE", required_unless_present_any = ["erdma", "release"])]
    pub config: Option<PathBuf>,
    /// Kubelet's directory, with device-plugins and plugins_registry in it
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Where the container runtime looks for CDI specs
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Where /metrics and /healthz are served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9102")]
    pub metrics_address: std::net::SocketAddr,
    /// Says what would be advertised on this node, and exits
    #[arg(long)]
    pub check_config: bool,
    /// Takes back what it set up of eRDMA NICs, and exits
    #[arg(long, conflicts_with = "check_config")]
    pub release: bool,
    /// Where sysfs is mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Where the node's device files are
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev")]
    pub dev: PathBuf,
    /// The state directory of rdma-cni
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "/var/lib/cni/rdma-cni"
    )]
    pub state_dir: PathBuf,
    /// off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LevelFilter,
    /// The eRDMA agent's flags
    #[command(flatten)]
    pub erdma: Flags,
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
        ]
        .into_iter()
        .chain(&mut self.config)
        {
            *path = std::path::absolute(&*path)?;
        }
        Ok(self)
    }

    /// Where kubelet's registration socket and the plugins' own are.
    pub fn device_plugins(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// Where kubelet's plugin watcher looks for sockets.
    pub fn plugins_registry(&self) -> PathBuf {
        self.kubelet_dir.join("plugins_registry")
    }

    /// Kubelet's socket for questions of who has what.
    pub fn pod_resources(&self) -> PathBuf {
        self.kubelet_dir.join("pod-resources/kubelet.sock")
    }

    /// What is configured.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn conf(&self) -> Result<Parsed, ConfError> {
        Conf::load(self.config.as_deref(), &self.erdma)
    }
}
