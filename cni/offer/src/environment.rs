// SPDX-License-Identifier: Apache-2.0
//! Environment variables that Allocate sets for libraries, such as NCCL. Variables in the pod's specification override
//! these variables. The pod's rails are still unknown at Allocate. A library that can read a file therefore gets the
//! names of the rails' devices from a file.

use daemon_conf::{Conf, Reader, ResourceConf};
use rdma_resources::container::LibraryFile;
use std::collections::{BTreeMap, BTreeSet};

/// Environment of a resource's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    readers: BTreeSet<Reader>,
    /// Prefix of rails' names. `None`: the pods have no rails, or names of other netdevs may begin with the prefix.
    rails: Option<String>,
    /// True if rails have only IPv6 addresses.
    ipv6: bool,
}

impl Environment {
    /// Returns the environment of the containers of `resource`. The rails of their pods depend on the chain in `conf`.
    pub(super) fn of(resource: &ResourceConf, conf: &Conf) -> Self {
        let chain = conf.chain.as_ref();
        let chain = chain.filter(|it| it.attaches(resource.name.as_str()));
        Self {
            readers: resource.environment.clone(),
            rails: chain.and_then(|it| it.rails_names()),
            ipv6: chain.is_some_and(|it| it.gives_ipv6_alone()),
        }
    }

    /// Returns true if containers get the variable `RDMA_RAILS` with the rails of their pod.
    pub fn has_rails(&self) -> bool {
        self.readers.contains(&Reader::Rails)
    }

    /// Returns true if containers get the file `file`.
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

    /// Returns the variables that do not depend on the pod, for the library that reads `file`.
    fn fixed(&self, file: LibraryFile) -> BTreeMap<&'static str, String> {
        let mut variables = BTreeMap::new();
        if file == LibraryFile::Nccl {
            // add docker and lo: NCCL excludes them itself only if the variable is not set
            let rails = self.rails.iter();
            variables.extend(rails.map(|it| ("NCCL_SOCKET_IFNAME", format!("^{it},docker,lo"))));
            let family = self.ipv6.then(|| "AF_INET6".to_owned());
            variables.extend(family.map(|it| ("NCCL_IB_ADDR_FAMILY", it)));
        }
        variables
    }

    /// Returns the files for a claim's containers, with the variables that are equal for all pods. Variables in the
    /// claim's CDI specification would override the pod's own variables. The values are therefore in files.
    pub fn files(&self) -> BTreeMap<String, String> {
        let all = LibraryFile::ALL.into_iter();
        let own = all.filter(|file| self.has_file(*file));
        own.map(|file| (file.name().to_owned(), LibraryFile::text(self.fixed(file))))
            .collect()
    }

    /// Returns the environment variables of a container with the RDMA devices `devices`. Each device is a name and a
    /// port.
    pub(super) fn variables(&self, devices: &[(&str, u32)]) -> BTreeMap<String, String> {
        let ports = devices.iter().map(|(name, port)| format!("{name}:{port}"));
        let ports = ports.collect::<Vec<_>>().join(",");
        let mut variables = BTreeMap::new();
        for file in LibraryFile::ALL.into_iter().filter(|it| self.has_file(*it)) {
            variables.extend(self.fixed(file));
            variables.extend([file.variable()]);
        }
        if self.readers.contains(&Reader::Nvshmem) {
            variables.insert("NVSHMEM_HCA_LIST", ports);
            let family = self.ipv6.then(|| "AF_INET6".to_owned());
            variables.extend(family.map(|it| ("NVSHMEM_IB_ADDR_FAMILY", it)));
        }
        let variables = variables.into_iter();
        variables
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}
