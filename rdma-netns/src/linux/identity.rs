// SPDX-License-Identifier: Apache-2.0
//! Which namespace is at a path, if there is one.

use super::{Linux, resident::Visitor};
use crate::{
    NetnsId, OpenPodError,
    netns::{Netns, OpenError},
};
use nix::libc;
use std::{io, path::Path, sync::PoisonError};

impl Linux {
    /// The namespace at `path`, which is not worked in: many are looked at by one thread.
    pub(super) fn id_at(&self, path: &Path) -> Result<NetnsId, OpenPodError> {
        let mut visitor = self.visitor.lock().unwrap_or_else(PoisonError::into_inner);
        let cookie = |netns: &Netns| {
            let visitor = match &mut *visitor {
                Some(visitor) => visitor,
                none => none.insert(Visitor::at_home_in(self.host()?)?),
            };
            visitor.cookie(netns)
        };
        let id = Netns::open_by(path, cookie).map_err(not_opened)?.id();
        self.check_not_host(path, id)?;
        Ok(id)
    }

    /// An error if `id` is the host's own namespace, which was found at `path`.
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

/// Whether nothing is there: `/proc/PID/ns/net` of a process that has ended answers ESRCH.
fn is_missing(error: &io::Error) -> bool {
    let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    missing.contains(&error.kind()) || error.raw_os_error() == Some(libc::ESRCH)
}
