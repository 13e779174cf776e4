// SPDX-License-Identifier: Apache-2.0
//! Recorded attributes that a netdev on the host still lacks.

use super::missing_of;
use attachments::{Attribute, given_up::Note};
use rdma_netns::{Guid, Link, Observed, VfSetting};

/// Returns the recorded reason for each attribute that the netdev of `note` still lacks, as a sentence.
pub fn left<'a>(note: &'a Note, observed: &Observed) -> Vec<&'a str> {
    let missing = missing(note, observed);
    let left = note.lacks.iter();
    let left = left.filter(|lack| missing.contains(&lack.attribute));
    left.map(|lack| &*lack.why).collect()
}

/// Returns the attributes in which the netdev of `note` differs from its recorded host state. Returns none after a
/// reboot, and if another device has the netdev's name.
pub fn missing(note: &Note, observed: &Observed) -> Vec<Attribute> {
    if observed.boot_id != note.boot_id {
        return vec![];
    }
    let Some(link) = observed.host.link(&note.host_link.name) else {
        return vec![Attribute::Netdev];
    };
    if link.parent != note.host_link.parent {
        return vec![];
    }
    let times = note.observed_at.zip(observed.at);
    let age = times.map_or(0, |(then, now)| now.saturating_sub(then));
    let missing = missing_of(&note.host_link.aged(age), link, observed);
    let rebound = keeps_guids(&note.host_link, link, observed).then_some(Attribute::Rebound);
    let missing = missing.iter().filter_map(Attribute::of);
    let lacks = note.lacks.iter().map(|it| it.attribute.clone());
    let unkept = lacks.filter(|it| match it {
        Attribute::UnkeptRoute(route) => !observed.host.has_unkept(link.index, route),
        Attribute::DeviceSetting(key, value) => {
            let mut settings = observed.device_settings.iter();
            let settings = settings.find(|(index, _)| *index == link.index);
            settings.is_none_or(|(_, it)| !it.has(key, value))
        }
        Attribute::RdmaName(name) => {
            let device = observed.host.rdma_of(link);
            device.is_some_and(|it| it.name != *name)
        }
        _ => false,
    });
    missing.chain(rebound).chain(unkept).collect()
}

/// Returns true if the virtual function of `link` has a GUID that differs from the recorded GUID.
fn keeps_guids(host_link: &Link, link: &Link, observed: &Observed) -> bool {
    let mut devices = observed.host.rdma.iter();
    let device = devices.find(|it| it.parent.is_some() && it.parent == link.parent);
    let settings = host_link.vf.iter().flat_map(|vf| &vf.settings);
    let is_another =
        |own: Option<Guid>, before: Guid| before.is_valid() && own.is_some_and(|own| own != before);
    settings.into_iter().any(|setting| match setting {
        VfSetting::NodeGuid(before) => is_another(device.and_then(Guid::of_node), *before),
        VfSetting::PortGuid(before) => is_another(Guid::of_port(link), *before),
        _ => false,
    })
}
