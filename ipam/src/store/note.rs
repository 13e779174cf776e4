// SPDX-License-Identifier: Apache-2.0
//! The texts of notes: the addresses of an attachment, or the time of a conflict.

use std::{net::IpAddr, time::Duration};

/// Returns the text of a note with `ips`.
pub fn text_of(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    ips.join(",")
}

/// Parses the addresses in the `text` of a note. `None`: the text is malformed.
pub fn addresses(text: &str) -> Option<Vec<IpAddr>> {
    text.split(',').map(|ip| ip.parse().ok()).collect()
}

/// Reports whether a conflict at `seen` is no more than `time` from `now`. Both times are seconds since 1970. Since the
/// clock may have been set back, a conflict in the near future counts.
pub fn is_within(seen: &str, now: u64, time: Duration) -> bool {
    seen.parse()
        .is_ok_and(|seen: u64| now.abs_diff(seen) < time.as_secs())
}
