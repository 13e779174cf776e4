// SPDX-License-Identifier: Apache-2.0
//! Record of a new attachment, and the desired state of its rails before IPAM.

use super::addresses;
use crate::{error::Error, node::Node, partition, vf};
use attachments::{Attachment, DesiredLink, Key};
use plan::select::{self, Choice, Remark, Selected};
use rdma_netns::{Kernel, Link, Observed};

/// Returns the record of a new attachment, and the remarks to log about its rails.
pub fn draft<K: Kernel>(
    node: &Node<'_, K>,
    choice: &Choice<'_>,
    key: &Key,
    pod: &K::Pod,
    observed: &Observed,
    others: &[Attachment],
) -> Result<(Attachment, Vec<Remark>), Error> {
    let Selected { mut rails, remarks } = select::rails(node.conf, choice, observed, others)?;
    vf::record(node.kernel, node.conf, observed, &mut rails)?;
    partition::check(node.kernel, node.conf, &rails)?;
    for rail in &mut rails {
        if let Some(host_link) = &rail.host_link {
            rail.unkept_routes = crate::given_up::routes_of(host_link.index, observed);
        }
    }
    let mut attachment = node.record(key, pod, observed, rails);
    plan::choose_tables(&mut attachment, observed, others)?;
    Ok((attachment, remarks))
}

/// Sets the rails' desired state before IPAM: no addresses if an IPAM plugin is configured, else the moved netdevs' own
/// addresses.
pub fn give(attachment: &mut Attachment, observed: &Observed) {
    let kept = |host_link: &Link| match &attachment.ipam {
        Some(_) => DesiredLink::default(),
        None => DesiredLink::kept(host_link, attachment.ipv6()).with_detection(attachment.ipv6()),
    };
    let host_links = attachment.rails.iter().map(|rail| rail.host_link.as_ref());
    let desired = host_links.map(|host_link| host_link.map(kept).unwrap_or_default());
    let desired = plan::routed(attachment, observed, desired.collect());
    addresses::give(attachment, observed, desired);
}
