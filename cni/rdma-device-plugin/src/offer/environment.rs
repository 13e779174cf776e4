// SPDX-License-Identifier: Apache-2.0
//! Variables for libraries, as far as Allocate knows them. Variables in the pod's specification override them. Allocate
//! does not know the pod's rails. Libraries that can read a file therefore get the devices from a file.

use crate::conf::{Conf, Reader, ResourceConf};
use rdma_resources::container::LibraryFile;
use std::collections::{BTreeMap, BTreeSet};

/// Environment of a resource's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    readers: BTreeSet<Reader>,
    /// Prefix of rails' names. `None`: there are no rails, or another netdev's name may begin with the prefix.
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

    /// Returns the variables of `file`'s library that do not depend on the pod.
    fn fixed(&self, file: LibraryFile) -> BTreeMap<&'static str, String> {
        let mut variables = BTreeMap::new();
        if file == LibraryFile::Nccl {
            // without the variable NCCL itself excludes docker and lo
            let rails = self.rails.iter();
            variables.extend(rails.map(|it| ("NCCL_SOCKET_IFNAME", format!("^{it},docker,lo"))));
            let family = self.ipv6.then(|| "AF_INET6".to_owned());
            variables.extend(family.map(|it| ("NCCL_IB_ADDR_FAMILY", it)));
        }
        variables
    }

    /// Returns the files of a claim's containers, with the variables that do not depend on the pod. A claim cannot set
    /// them as variables, because variables of its CDI specification would override the pod's own.
    pub fn files(&self) -> BTreeMap<String, String> {
        let all = LibraryFile::ALL.into_iter();
        let own = all.filter(|file| self.has_file(*file));
        own.map(|file| (file.name().to_owned(), LibraryFile::text(self.fixed(file))))
            .collect()
    }

    /// Returns the variables, by name, of a container with the RDMA `devices`. Each device is given with its port.
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
