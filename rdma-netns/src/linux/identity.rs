// SPDX-License-Identifier: Apache-2.0
//! Identities of the namespaces at paths.

use super::Linux;
use crate::{
    NetnsId, OpenPodError,
    netns::{self, OpenError},
};
use nix::libc;
use std::{io, path::Path};

impl Linux {
    /// Returns the identities of the namespaces at `paths`, in their order.
    pub(super) fn ids_at(&self, paths: &[&Path]) -> Vec<Result<NetnsId, OpenPodError>> {
        let host = self.host();
        let visited = host.and_then(|host| netns::ids_at(paths, host.netns()));
        let id = |(path, id): (&&Path, Result<NetnsId, OpenError>)| {
            let id = id.map_err(not_opened)?;
            self.check_not_host(path, id)?;
            Ok(id)
        };
        let none = |error: &io::Error, path: &&Path| OpenPodError::Io {
            path: path.to_path_buf(),
            source: match error.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => error.kind().into(),
            },
        };
        match visited {
            Ok(ids) => paths.iter().zip(ids).map(id).collect(),
            Err(error) => paths.iter().map(|path| Err(none(&error, path))).collect(),
        }
    }

    /// Returns an error if `id`, the identity found at `path`, is the host's namespace.
    pub(super) fn check_not_host(&self, path: &Path, id: NetnsId) -> Result<(), OpenPodError> {
        let host = self.host().map_err(|source| OpenPodError::Io {
            path: path.to_owned(),
            source,
        })?;
        match host.netns().id() == id {
            true => Err(OpenPodError::HostNamespace(path.to_owned())),
            false => Ok(()),
        }
    }
}

pub(super) fn not_opened(error: OpenError) -> OpenPodError {
    match error {
        OpenError::NotNamespace(path) => OpenPodError::NotNamespace(path),
        OpenError::Io { path, source } if is_missing(&source) => OpenPodError::Missing(path),
        OpenError::Io { path, source } => OpenPodError::Io { path, source },
    }
}

/// Returns true if `error` means that the namespace has ended. Opening `/proc/PID/ns/net` of an ended process returns
/// ESRCH.
fn is_missing(error: &io::Error) -> bool {
    let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    missing.contains(&error.kind()) || error.raw_os_error() == Some(libc::ESRCH)
}
