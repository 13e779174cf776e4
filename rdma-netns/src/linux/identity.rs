// SPDX-License-Identifier: Apache-2.0
//! Identities of the namespaces at paths.

use super::Linux;
use crate::{NetnsId, OpenPodError, netns};
use std::{io, path::Path};

impl Linux {
    /// Returns the identities of the namespaces at `paths`, in their order.
    pub(super) fn ids_at(&self, paths: &[&Path]) -> Vec<Result<NetnsId, OpenPodError>> {
        let host = self.host();
        let visited = host.and_then(|host| netns::ids_at(paths, host.netns()));
        let id = |(path, id): (&&Path, Result<NetnsId, OpenPodError>)| {
            let id = id?;
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
