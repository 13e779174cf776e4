// SPDX-License-Identifier: Apache-2.0
//! What notes say: the addresses of an attachment, or when a conflict was seen.

use std::{net::IpAddr, time::Duration};

/// The text of a note that tells `ips`.
pub fn text_of(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    ips.join(",")
}

/// The addresses that a note with this `text` tells; none: it makes no sense.
pub fn addresses(text: &str) -> Option<Vec<IpAddr>> {
    text.split(',').map(|ip| ip.parse().ok()).collect()
}

/// Whether a conflict that was seen at `seen`, seconds since 1970 as `now` is, is no older than `time`. The clock may have
/// been set: one in the future counts if it is near.
pub fn is_within(seen: &str, now: u64, time: Duration) -> bool {
    seen.parse()
        .is_ok_and(|seen: u64| now.abs_diff(seen) < time.as_secs())
}
