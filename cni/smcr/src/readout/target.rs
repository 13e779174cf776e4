// SPDX-License-Identifier: Apache-2.0
//! Opens the requested network namespace.

use super::{Failure, Target};
use attachments::{Store, pods::netns};
use rdma_netns::{OpenPodError, netns::Netns};
use std::path::Path;

/// Directories in which `ip netns` and container runtimes mount network namespaces. On most nodes the second directory
/// is a link to the first.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

pub(super) fn open(target: Option<&Target>, state_dir: &Path) -> Result<Netns, Failure> {
    match target {
        None => Netns::current().map_err(Failure::Own),
        Some(Target::Path(path)) => Ok(Netns::open(path)?),
        Some(Target::Name(name)) => named(name),
        Some(Target::Pod(pod)) => Ok(netns::open(pod, &Store::new(state_dir))?.netns),
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

    #[test]
    fn a_file_that_is_no_namespace_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let target = Target::Path(file.path().to_owned());
        let error = open(Some(&target), Path::new("")).expect_err("no namespace");
        assert!(
            error.to_string().ends_with("is no network namespace"),
            "{error}"
        );
    }
}
