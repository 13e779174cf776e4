// SPDX-License-Identifier: Apache-2.0
//! Texts of notes. A note contains the addresses of an attachment, or the time at which another machine's address was
//! seen.

use std::{net::IpAddr, time::Duration};

/// Returns the text of a note with `ips`.
pub fn text_of(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    ips.join(",")
}

/// Parses the addresses in the `text` of a note. Returns `None` if the text is malformed.
pub fn addresses(text: &str) -> Option<Vec<IpAddr>> {
    text.split(',').map(|ip| ip.parse().ok()).collect()
}

/// Returns true if `seen` is less than `time` before `now`. Times are in seconds since 1970. Also returns true if
/// `seen` is less than `time` after `now`, because the clock may have been set back.
pub fn is_within(seen: &str, now: u64, time: Duration) -> bool {
    seen.parse()
        .is_ok_and(|seen: u64| now.abs_diff(seen) < time.as_secs())
}
