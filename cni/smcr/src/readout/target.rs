// SPDX-License-Identifier: Apache-2.0
//! Opens the requested network namespace.

use super::arguments::{Arguments, Target};
use attachments::{
    Store,
    pods::netns::{self, PodNetnsError},
};
use rdma_netns::netns::{Netns, OpenError};
use std::{io, path::Path};

/// Directories in which `ip netns` and container runtimes mount network namespaces. On most nodes the second directory
/// is a link to the first.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("there is no network namespace {0:?} below /run/netns or /var/run/netns")]
    Name(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot open the network namespace of this program: {0}")]
    Own(io::Error),
    #[error(transparent)]
    Pod(#[from] PodNetnsError),
}

pub(super) fn open(arguments: &Arguments) -> Result<Netns, TargetError> {
    match &arguments.target {
        Target::Own => Netns::current().map_err(TargetError::Own),
        Target::Path(path) => Ok(Netns::open(path)?),
        Target::Name(name) => named(name),
        Target::Pod(pod) => Ok(netns::open(pod, &Store::new(&arguments.state_dir))?.netns),
    }
}

fn named(name: &str) -> Result<Netns, TargetError> {
    for directory in DIRECTORIES {
        match Netns::open(&Path::new(directory).join(name)) {
            Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok(opened?),
        }
    }
    Err(TargetError::Name(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_file_that_is_no_namespace_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let arguments = Arguments {
            target: Target::Path(file.path().to_owned()),
            json: false,
            state_dir: PathBuf::new(),
        };
        let error = open(&arguments).expect_err("no namespace");
        assert!(
            error.to_string().ends_with("is no network namespace"),
            "{error}"
        );
    }
}
