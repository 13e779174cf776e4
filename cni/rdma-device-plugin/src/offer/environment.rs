// SPDX-License-Identifier: Apache-2.0
//! Variables for libraries that are known at Allocate: kubelet puts these variables before the variables of the pod's
//! specification, which override them. At Allocate the pod's devices are unknown; libraries that read a file get the
//! devices from that file.

use crate::conf::{Conf, Reader, ResourceConf};
use rdma_resources::container::{LibraryFile, MOUNTED};
use std::collections::{BTreeMap, BTreeSet};

/// Environment of a resource's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    readers: BTreeSet<Reader>,
    /// Prefix of rails' names; `None`: there are no rails, or another netdev's name can begin with the prefix.
    rails: Option<String>,
    /// True if rails have only IPv6 addresses.
    ipv6: bool,
}

impl Environment {
    /// Returns the environment of `resource`; the chain in `conf` makes its rails.
    pub(super) fn of(resource: &ResourceConf, conf: &Conf) -> Self {
        let chain = conf.chain.as_ref();
        let chain = chain.filter(|it| it.attaches(resource.name.as_str()));
        Self {
            readers: resource.environment.clone(),
            rails: chain.and_then(|it| it.rails_names()),
            ipv6: chain.is_some_and(|it| it.gives_ipv6_alone()),
        }
    }

    /// Returns true if containers get variables of their pod's rails.
    pub fn has_rails(&self) -> bool {
        self.readers.contains(&Reader::Rails)
    }

    /// Returns true if containers get this file.
    pub fn has_file(&self, file: LibraryFile) -> bool {
        self.readers.contains(&match file {
            LibraryFile::Nccl => Reader::Nccl,
            LibraryFile::Ucx => Reader::Ucx,
        })
    }

    /// Returns true if containers get a file of any library.
    pub fn has_files(&self) -> bool {
        LibraryFile::ALL.into_iter().any(|file| self.has_file(file))
    }

    /// Returns the variables of a container with the RDMA `devices`, by name, each with its used port.
    pub(super) fn variables(&self, devices: &[(&str, u32)]) -> BTreeMap<String, String> {
        let ports = devices.iter().map(|(name, port)| format!("{name}:{port}"));
        let ports = ports.collect::<Vec<_>>().join(",");
        let mut variables = BTreeMap::new();
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        let family = self.ipv6.then_some("AF_INET6");
        for reader in &self.readers {
            match reader {
                Reader::Rails => {}
                Reader::Nccl => {
                    let file = LibraryFile::Nccl.name();
                    set("NCCL_CONF_FILE", format!("{MOUNTED}/{file}"));
                    if let Some(rails) = &self.rails {
                        // without the variable NCCL itself excludes docker and lo
                        set("NCCL_SOCKET_IFNAME", format!("^{rails},docker,lo"));
                    }
                    if let Some(family) = family {
                        set("NCCL_IB_ADDR_FAMILY", family.to_owned());
                    }
                }
                Reader::Ucx => {
                    set("UCX_CONFIG_DIR", MOUNTED.to_owned());
                }
                Reader::Nvshmem => {
                    set("NVSHMEM_HCA_LIST", ports.clone());
                    if let Some(family) = family {
                        set("NVSHMEM_IB_ADDR_FAMILY", family.to_owned());
                    }
                }
            }
        }
        variables
    }
}
