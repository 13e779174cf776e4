// SPDX-License-Identifier: Apache-2.0
//! Runs `rdma-ipam` inside this process. Otherwise a pod with eight rails would start eight `rdma-ipam` processes.
//!
//! CNI delegation requires the program in `CNI_PATH`. So `rdma-cni` runs the built-in plugin only if that program is
//! the `rdma-ipam` of the same build, with the same behaviour. `scripts/build` appends an identical stamp to both
//! files, after the part that the kernel loads. A wrapper, another version or a manual build has another stamp or
//! none. `rdma-cni` starts such a program as a process.

use cni_protocol::lock::LockDeadline;
use rdma_ipam::store::{Deferred, Disk, RealDisk};
use rdma_netns::Linux;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::OnceLock,
    time::Instant,
};

pub(super) const NAME: &str = "rdma-ipam";

/// Prefix of the build's stamp. A SHA-256 in hexadecimal and a line feed follow.
const STAMP: &[u8] = b"\nrdma-build ";

/// Length of a stamp, bytes.
const LENGTH: usize = STAMP.len() + 64 + 1;

#[derive(Debug)]
pub(super) struct BuiltIn {
    linux: Linux,
}

impl BuiltIn {
    /// Returns the built-in plugin if `program` is the `rdma-ipam` of the same build as this program. `name` is
    /// `ipam.type`.
    pub(super) fn of(name: &str, program: &Path) -> Option<Self> {
        let is_it = name == NAME && {
            static OWN: OnceLock<Option<[u8; LENGTH]>> = OnceLock::new();
            let own = OWN.get_or_init(|| stamp(Path::new("/proc/self/exe")));
            own.is_some() && *own == stamp(program)
        };
        is_it.then(|| Self {
            linux: Linux::for_one_run(),
        })
    }

    /// Runs a verb and returns its output, or the error object if the verb fails. `deadline` limits the wait for
    /// locks. With `later`, the leases' directories are synced when `later` is settled. Without `later`, this
    /// function syncs them before it returns.
    pub(super) fn call(
        &self,
        environment: BTreeMap<String, String>,
        input: &[u8],
        deadline: Instant,
        later: Option<&Deferred>,
    ) -> Result<Vec<u8>, Vec<u8>> {
        let lock_deadline = LockDeadline::until(deadline);
        let disk = later.map_or(&RealDisk as &dyn Disk, |it| it);
        rdma_ipam::call(environment, input, (disk, &self.linux), lock_deadline)
    }
}

fn stamp(path: &Path) -> Option<[u8; LENGTH]> {
    let read = || -> io::Result<[u8; LENGTH]> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-(LENGTH as i64)))?;
        let mut end = [0; LENGTH];
        file.read_exact(&mut end)?;
        Ok(end)
    };
    read().ok().filter(|end| end.starts_with(STAMP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn program(end: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), format!("#!/bin/true{end}")).expect("a program");
        file
    }

    #[test]
    fn a_program_has_the_stamp_of_its_build_or_none() {
        let end = format!("\nrdma-build {}\n", "0123456789abcdef".repeat(4));
        let stamped = program(&end);
        assert_eq!(stamp(stamped.path()).expect("a stamp"), end.as_bytes());
        for other in ["", &end[1..], &format!("{end}\n")] {
            assert_eq!(stamp(program(other).path()), None, "{other:?}");
        }
        assert_eq!(stamp(Path::new("/nowhere")), None);
    }

    #[test]
    fn a_plugin_of_another_build_is_started() {
        let end = format!("\nrdma-build {}\n", "0".repeat(64));
        // the program of this test has no stamp
        for other in ["", &end] {
            assert!(BuiltIn::of("rdma-ipam", program(other).path()).is_none());
        }
    }
}
