// SPDX-License-Identifier: Apache-2.0
//! Variables for libraries, as far as they are known at Allocate: kubelet puts them before those of the pod's
//! specification, which win.

use crate::conf::{Conf, Reader, ResourceConf};
use rdma_resources::container::{MOUNTED, NCCL_CONF};
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

    /// Whether containers have a file for NCCL.
    pub fn has_nccl(&self) -> bool {
        self.readers.contains(&Reader::Nccl)
    }

    /// The variables of a container with the RDMA devices `given`, by name, each with the port that it uses.
    pub(super) fn variables(&self, given: &[(&str, u32)]) -> BTreeMap<String, String> {
        let names = given.iter().map(|(name, _)| (*name).to_owned());
        let names = names.collect::<Vec<_>>().join(",");
        let ports = given.iter().map(|(name, port)| format!("{name}:{port}"));
        let ports = ports.collect::<Vec<_>>().join(",");
        let mut variables = BTreeMap::new();
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        let family = self.ipv6.then_some("AF_INET6");
        for reader in &self.readers {
            match reader {
                Reader::Rails => {}
                Reader::Nccl => {
                    set("NCCL_IB_HCA", format!("={names}"));
                    set("NCCL_CONF_FILE", format!("{MOUNTED}/{NCCL_CONF}"));
                    if let Some(rails) = &self.rails {
                        // without the variable NCCL leaves out the other two by itself
                        set("NCCL_SOCKET_IFNAME", format!("^{rails},docker,lo"));
                    }
                    if let Some(family) = family {
                        set("NCCL_IB_ADDR_FAMILY", family.to_owned());
                    }
                }
                Reader::Ucx => {
                    set("UCX_NET_DEVICES", ports.clone());
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
