// SPDX-License-Identifier: Apache-2.0
//! Opens the requested network namespace.

use super::{
    Failure,
    arguments::{Arguments, Target},
};
use attachments::{Store, pods::netns};
use rdma_netns::{OpenPodError, netns::Netns};
use std::path::Path;

/// Directories in which `ip netns` and container runtimes mount network namespaces. On most nodes the second directory
/// is a link to the first.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

pub(super) fn open(arguments: &Arguments) -> Result<Netns, Failure> {
    match &arguments.target {
        Target::Own => Netns::current().map_err(Failure::Own),
        Target::Path(path) => Ok(Netns::open(path)?),
        Target::Name(name) => named(name),
        Target::Pod(pod) => Ok(netns::open(pod, &Store::new(&arguments.state_dir))?.netns),
    }
}

fn named(name: &str) -> Result<Netns, Failure> {
    for directory in DIRECTORIES {
        match Netns::open(&Path::new(directory).join(name)) {
            Err(OpenPodError::Missing(_)) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Failure::Name(name.to_owned()))
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
