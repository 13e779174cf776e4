// SPDX-License-Identifier: Apache-2.0
//! Remembers the addresses of other nodes. So ADD avoids the address of a node that is switched off.
//!
//! The notes are not synced to disk. A power loss removes the notes of the last seconds. The next ADD that finds the
//! node in a neighbour table makes the note again.

use super::{Locked, Store, StoreError, is_within, note, walk::names};
use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, time::Duration};

/// Time for which the plugin remembers a node's address after the host last saw it.
pub const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Maximum number of notes. Without a maximum, a machine that answers for every address could fill the disk.
const MOST: usize = 4096;

/// Time after which a note is written again.
const REFRESHED: Duration = Duration::from_secs(24 * 60 * 60);

impl Locked<'_> {
    /// Records that other nodes have `ips` now. Ignores leased addresses, because they belong to pods of this node.
    /// Stops when there are `MOST` notes.
    ///
    /// # Errors
    /// A note cannot be read or written.
    pub fn remember(&self, ips: impl IntoIterator<Item = IpAddr>) -> Result<(), StoreError> {
        let directory = self.store.nodes();
        for ip in ips {
            let earlier = note(&directory.join(ip.to_string()))?;
            let is_fresh = |seen: &String| is_within(seen, REFRESHED);
            if earlier.as_ref().is_some_and(is_fresh) || self.is_held(ip)? {
                continue;
            }
            if earlier.is_none() && self.is_full()? {
                return Ok(());
            }
            self.note_now(&directory, ip)?;
        }
        Ok(())
    }

    /// Returns true if another node had `ip` within [`REMEMBERED`].
    ///
    /// # Errors
    /// The note cannot be read.
    pub fn is_remembered(&self, ip: IpAddr) -> Result<bool, StoreError> {
        let seen = note(&self.store.nodes().join(ip.to_string()))?;
        Ok(seen.is_some_and(|seen| is_within(&seen, REMEMBERED)))
    }

    /// Returns true if another note would exceed [`MOST`], even after the removal of expired notes.
    fn is_full(&self) -> Result<bool, StoreError> {
        let directory = self.store.nodes();
        if names(&directory)?.len() < MOST {
            return Ok(false);
        }
        self.forget_old_nodes()?;
        Ok(names(&directory)?.len() >= MOST)
    }

    /// Removes the notes of addresses that the host has not seen within [`REMEMBERED`].
    pub(super) fn forget_old_nodes(&self) -> Result<(), StoreError> {
        let directory = self.store.nodes();
        let all = names(&directory)?;
        self.forget(&directory, all, |_, seen| !is_within(seen, REMEMBERED))
    }
}

impl Store<'_> {
    /// Returns the addresses that other nodes had within [`REMEMBERED`].
    ///
    /// # Errors
    /// The notes cannot be read.
    pub fn remembered(&self) -> Result<BTreeSet<IpAddr>, StoreError> {
        self.noted_within(&self.nodes(), REMEMBERED)
    }

    fn nodes(&self) -> PathBuf {
        self.own("nodes")
    }
}
