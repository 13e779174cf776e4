// SPDX-License-Identifier: Apache-2.0
//! Variables for libraries, as far as they are known at Allocate: kubelet puts them before those of the pod's
//! specification, which win. Which devices the pod has is not known then: libraries that read a file are told in that.

use crate::conf::{Conf, Reader, ResourceConf};
use rdma_resources::container::{LibraryFile, MOUNTED};
use std::collections::{BTreeMap, BTreeSet};

/// How the environment of a resource's containers is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    readers: BTreeSet<Reader>,
    /// What the names of rails begin with; none: there are none, or it could be another netdev's.
    rails: Option<String>,
    /// Whether rails' addresses are IPv6 ones alone.
    ipv6: bool,
}

impl Environment {
    /// Of `resource`, whose rails `conf` has the chain make.
    pub(super) fn of(resource: &ResourceConf, conf: &Conf) -> Self {
        let chain = conf.chain.as_ref();
        let chain = chain.filter(|it| it.attaches(resource.name.as_str()));
        Self {
            readers: resource.environment.clone(),
            rails: chain.and_then(|it| it.rails_names()),
            ipv6: chain.is_some_and(|it| it.gives_ipv6_alone()),
        }
    }

    /// Whether containers are told their pod's rails.
    pub fn has_rails(&self) -> bool {
        self.readers.contains(&Reader::Rails)
    }

    /// Whether containers have this file.
    pub fn has_file(&self, file: LibraryFile) -> bool {
        self.readers.contains(&match file {
            LibraryFile::Nccl => Reader::Nccl,
            LibraryFile::Ucx => Reader::Ucx,
        })
    }

    /// Whether containers have a file of any library.
    pub fn has_files(&self) -> bool {
        LibraryFile::ALL.into_iter().any(|file| self.has_file(file))
    }

    /// The variables of a container with the RDMA devices `given`, by name, each with the port that it uses.
    pub(super) fn variables(&self, given: &[(&str, u32)]) -> BTreeMap<String, String> {
        let ports = given.iter().map(|(name, port)| format!("{name}:{port}"));
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
                        // without the variable NCCL leaves out the other two by itself
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
