// SPDX-License-Identifier: Apache-2.0
//! What a netdev that came back to the host still lacks.

use super::missing_of;
use attachments::{Attribute, given_up::Note};
use rdma_netns::Observed;

/// Why the netdev of `note` still lacks what it lacks, a sentence for each thing.
pub fn left<'a>(note: &'a Note, observed: &Observed) -> Vec<&'a str> {
    let missing = missing(note, observed);
    let left = note.lacks.iter();
    let left = left.filter(|lack| missing.contains(&lack.attribute));
    left.map(|lack| &*lack.why).collect()
}

/// What differs from the netdev as it was.
pub fn missing(note: &Note, observed: &Observed) -> Vec<Attribute> {
    let link = observed.host.link(&note.host_link.name);
    let link = link.filter(|link| link.parent == note.host_link.parent);
    let Some(link) = link.filter(|_| observed.boot_id == note.boot_id) else {
        return vec![];
    };
    let times = note.observed_at.zip(observed.at);
    let age = times.map_or(0, |(then, now)| now.saturating_sub(then));
    let missing = missing_of(&note.host_link.aged(age), link, observed);
    missing.iter().filter_map(Attribute::of).collect()
}
