// SPDX-License-Identifier: Apache-2.0
//! The reservation of all addresses of an ADD.

use super::{Change, Draft, Locked, StoreError, note};
use std::net::IpAddr;

/// The error of a failed reservation.
#[derive(Debug)]
pub enum ReserveError {
    /// None of the addresses is leased.
    Undone(StoreError),
    /// The leases that were already made could not be removed.
    StillHeld {
        /// Reason of the failure.
        cause: StoreError,
        /// Addresses that may still be leased.
        ips: Vec<IpAddr>,
        /// Reason why they could not be released.
        source: StoreError,
    },
}

impl Locked<'_> {
    /// Leases all of `ips` to the owner of `draft`, which has no leases yet. [`Draft::settle`] syncs the leases to
    /// disk.
    ///
    /// # Errors
    /// The note or a lease cannot be made. This function then removes the leases made so far, and the error says
    /// whether the removal failed too.
    pub fn reserve(&self, draft: &Draft, ips: &[IpAddr]) -> Result<(), ReserveError> {
        let Err(cause) = self.try_reserve(draft, ips) else {
            return Ok(());
        };
        let owner = draft.owner();
        let Err(source) = self.release(owner, ips) else {
            return Err(ReserveError::Undone(cause));
        };
        // a lease that cannot be read may be the owner's
        let may_be_held = |ip: &IpAddr| match self.lease(*ip) {
            Ok(lease) => lease.is_some_and(|lease| lease.is_of(owner)),
            Err(_) => true,
        };
        let ips: Vec<IpAddr> = ips.iter().copied().filter(may_be_held).collect();
        if ips.is_empty() {
            log::warn!(
                "{source}; the attachment's next ADD, DEL or GC removes this note without leases"
            );
            return Err(ReserveError::Undone(cause));
        }
        Err(ReserveError::StillHeld { cause, ips, source })
    }

    fn try_reserve(&self, draft: &Draft, ips: &[IpAddr]) -> Result<(), StoreError> {
        self.make(Change::Note {
            path: self.store.note_of(draft.owner()),
            text: note::text_of(ips),
        })?;
        for ip in ips {
            self.make(Change::Link {
                from: draft.path().to_owned(),
                to: self.store.lease(*ip),
            })?;
        }
        Ok(())
    }
}
