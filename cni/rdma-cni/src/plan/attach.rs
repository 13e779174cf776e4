//! From the host into the pod.

use super::{Obstacle, Wanted, draft::Draft, locate, locate::Located};
use crate::{
    attachment::{Attachment, Rail},
    conf::Dad,
};
use rdma_netns::{Link, LinkType, Observed, Op, Place, RdmaDevice};

/// `IPV6_MIN_MTU` (`include/uapi/linux/ipv6.h`): below it the kernel takes IPv6 away.
const IPV6_MIN_MTU: u32 = 1280;

/// What is still to be done until every rail is in the pod with what it is `wanted` to
/// have, rail by rail.
pub fn attach(
    attachment: &Attachment,
    observed: &Observed,
    wanted: &[Wanted],
) -> Result<Vec<Op>, Obstacle> {
    let mut ops = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let wanted = wanted.get(index);
        for op in attach_rail(attachment, rail, observed, wanted)? {
            // ports of one RDMA device move it once
            if !ops.contains(&op) {
                ops.push(op);
            }
        }
    }
    Ok(ops)
}

/// What is still to be done for one of the rails.
pub fn attach_rail(
    attachment: &Attachment,
    rail: &Rail,
    observed: &Observed,
    wanted: Option<&Wanted>,
) -> Result<Vec<Op>, Obstacle> {
    let mut ops = vec![];
    let moved = move_rdma(attachment, rail, observed, &mut ops)?;
    match &rail.home {
        // the kernel makes the IPoIB netdev anew, in the pod: planned when it is seen
        Some(home) if moved && home.link_type == LinkType::Infiniband => {}
        Some(home) => place_link(attachment, rail, home, observed, wanted, &mut ops)?,
        None => {}
    }
    Ok(ops)
}

fn move_rdma(
    attachment: &Attachment,
    rail: &Rail,
    observed: &Observed,
    ops: &mut Vec<Op>,
) -> Result<bool, Obstacle> {
    let Some(home) = rail.rdma.as_ref().filter(|_| attachment.moves_rdma()) else {
        return Ok(false);
    };
    match locate::rdma(home, observed)? {
        Located::At(Place::Pod, _) => Ok(false),
        Located::At(Place::Host, RdmaDevice { name, .. }) => {
            ops.push(Op::MoveRdma {
                device: name.clone(),
                from: Place::Host,
                to: Place::Pod,
            });
            Ok(true)
        }
        Located::Gone => Err(Obstacle::Vanished {
            device: home.name.clone(),
        }),
    }
}

fn place_link(
    attachment: &Attachment,
    rail: &Rail,
    home: &Link,
    observed: &Observed,
    wanted: Option<&Wanted>,
    ops: &mut Vec<Op>,
) -> Result<(), Obstacle> {
    let Located::At(place, link) = locate::link(rail, home, observed)? else {
        let device = format!("{} ({} in the pod)", home.name, rail.pod_name);
        return Err(Obstacle::Vanished { device });
    };
    let in_pod = observed
        .pod
        .as_ref()
        .and_then(|pod| pod.link(&rail.pod_name));
    if in_pod.is_some_and(|other| place == Place::Host || other.index != link.index) {
        return Err(Obstacle::PodNameTaken {
            name: rail.pod_name.clone(),
        });
    }
    let mut draft = Draft::new(place, link, ops);
    draft.relocate(Place::Pod, &rail.pod_name);
    draft.rename(&rail.pod_name);
    let mtu = attachment.mtu.unwrap_or(home.mtu);
    let mut addresses = wanted.iter().flat_map(|wanted| &wanted.addresses);
    if mtu < IPV6_MIN_MTU && addresses.any(|address| address.ip.is_ipv6()) {
        let link = home.name.clone();
        return Err(Obstacle::MtuTooSmall { link, mtu });
    }
    draft.mtu(mtu);
    let has_ipv6 = mtu >= IPV6_MIN_MTU && home.sysctls.keys().any(|key| key.starts_with("ipv6/"));
    if has_ipv6 {
        draft.sysctl("ipv6/accept_ra", i32::from(attachment.accept_ra));
        draft.sysctl("ipv6/accept_dad", i32::from(attachment.dad != Dad::Off));
        if attachment.dad == Dad::Optimistic {
            // without it the kernel drops IFA_F_OPTIMISTIC and says nothing
            draft.sysctl("ipv6/optimistic_dad", 1);
        }
    }
    if attachment.rails.len() > 1 {
        // rails on one segment: each answers for its own addresses only, or a peer's frames
        // take another rail, whose RDMA device drops them
        draft.sysctl("ipv4/arp_ignore", 1);
        draft.sysctl("ipv4/arp_announce", 2);
    }
    draft.up(true);
    draft.addresses(wanted.iter().flat_map(|wanted| &wanted.addresses));
    for route in wanted.iter().flat_map(|wanted| &wanted.routes) {
        draft.route(route);
    }
    Ok(())
}
