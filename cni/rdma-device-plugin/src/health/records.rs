// SPDX-License-Identifier: Apache-2.0
//! Observes changes of `rdma-cni`'s records, which assign devices to pods.

use inotify::{Inotify, WatchMask};
use std::{fs, io, path::Path};

/// Watches the records below `attachments`. Makes a missing directory, with the same mode as `rdma-cni`.
pub(super) fn listen(attachments: &Path) -> io::Result<Inotify> {
    fs::create_dir_all(attachments)?;
    let mut inotify = Inotify::init()?;
    inotify.watches().add(attachments, changes())?;
    listen_to_networks(&mut inotify, attachments)?;
    Ok(inotify)
}

/// Watches the directories of the present networks.
pub(super) fn listen_to_networks(inotify: &mut Inotify, attachments: &Path) -> io::Result<()> {
    for network in fs::read_dir(attachments)? {
        match inotify.watches().add(network?.path(), changes()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn changes() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::MOVED_TO
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
}
