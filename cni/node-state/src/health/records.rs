// SPDX-License-Identifier: Apache-2.0
//! Watches the records of `rdma-cni`, which show the devices that pods have.

use inotify::{Inotify, WatchMask};
use std::{fs, io, path::Path};

/// Watches the records below `attachments`. Makes the directory if it is missing.
pub(super) fn listen(attachments: &Path) -> io::Result<Inotify> {
    fs::create_dir_all(attachments)?;
    let mut inotify = Inotify::init()?;
    inotify.watches().add(attachments, changes())?;
    listen_to_networks(&mut inotify, attachments)?;
    Ok(inotify)
}

/// Watches the directories of the networks that exist at present.
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
