// SPDX-License-Identifier: Apache-2.0
//! LLDP frames of a switch, or of a pod that poses as one, and lldpd's output with the same texts.

use crate::assert_comes_back;
use ::lldp::Neighbour;

/// A frame, or the output of lldpcli.
///
/// # Panics
/// A text is empty, too long or has unprintable characters, or a truncated frame is accepted.
pub fn neighbours(input: &[u8]) {
    if let Ok(neighbour) = ::lldp::parse(input) {
        assert_is_printable(&neighbour);
        // destination, source and type, and three TLVs of the shortest length
        assert!(input.len() >= 14 + 4 + 4 + 4);
    }
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    for (_, neighbour) in ::lldp::neighbours(text).into_iter().flatten() {
        assert_is_printable(&neighbour);
    }
}

fn assert_is_printable(neighbour: &Neighbour) {
    let ids = [&neighbour.chassis, &neighbour.port_id].into_iter();
    for text in ids.chain(&neighbour.name).chain(&neighbour.description) {
        assert!((1..=255).contains(&text.len()), "{text:?}");
        assert!(
            text.bytes().all(|it| (b' '..=b'~').contains(&it)),
            "{text:?}"
        );
    }
    assert!(!neighbour.switch().is_empty() && !neighbour.port().is_empty());
    assert_comes_back(neighbour);
}
