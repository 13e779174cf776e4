// SPDX-License-Identifier: Apache-2.0
//! Watches the records of `rdma-cni`, which show the devices that pods have.

use crate::watch::with_remedy;
use inotify::{EventMask, Inotify, WatchMask};
use std::{ffi::OsStr, fs, io, path::Path};

/// Watches the records below `attachments`. Makes the directory if it is missing.
pub(super) fn listen(attachments: &Path) -> io::Result<Inotify> {
    fs::create_dir_all(attachments)?;
    let mut inotify = Inotify::init().map_err(with_remedy)?;
    let watched = inotify.watches().add(attachments, changes());
    watched.map_err(with_remedy)?;
    listen_to_networks(&mut inotify, attachments)?;
    Ok(inotify)
}

/// Watches the directories of the networks that exist at present.
pub(super) fn listen_to_networks(inotify: &mut Inotify, attachments: &Path) -> io::Result<()> {
    for network in fs::read_dir(attachments)? {
        match inotify.watches().add(network?.path(), changes()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(with_remedy(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Changes of records.
#[derive(Default)]
pub(super) struct Changes {
    /// True if a record may have changed.
    pub(super) records: bool,
    /// True if the directory of a network changed, or if events were lost.
    pub(super) networks: bool,
}

/// Reads all pending events.
pub(super) fn read(inotify: &mut Inotify) -> io::Result<Changes> {
    let mut buffer = [0; 4096];
    let mut changes = Changes::default();
    let is_record = |name: &OsStr| Path::new(name).extension() == Some(OsStr::new("json"));
    loop {
        let events = match inotify.read_events(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changes),
            events => events?,
        };
        for event in events {
            let networks = EventMask::ISDIR | EventMask::Q_OVERFLOW;
            changes.networks |= event.mask.intersects(networks);
            changes.records |= changes.networks || event.name.is_some_and(is_record);
        }
    }
}

fn changes() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::MOVED_TO
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
}
