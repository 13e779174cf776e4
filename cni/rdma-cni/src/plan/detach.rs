//! From wherever everything is back to the host, as it was.

use super::{Obstacle, RailPlan, draft::Draft, locate, locate::Located, routing};
use crate::attachment::{Attachment, Rail};
use rdma_netns::{Address, InterfaceName, Link, LinkType, Observed, Op, Place};

/// What still differs from the recorded state, a plan for each rail: one that cannot come
/// home does not keep the others away.
pub fn detach(attachment: &Attachment, observed: &Observed) -> Vec<RailPlan> {
    let rails = attachment.rails.iter().enumerate();
    let rails = rails.map(|(index, rail)| {
        let rules = rules(attachment, index, observed);
        match rail_home(attachment, rail, observed) {
            // first what is possible
            Err(_) if !rules.is_empty() => Ok(rules),
            home => home.map(|home| rules.into_iter().chain(home).collect()),
        }
    });
    rails.collect()
}

/// The netdevs that exist no more, by the names that they had on the host.
pub fn gone<'a>(attachment: &'a Attachment, observed: &Observed) -> Vec<&'a InterfaceName> {
    let homes = attachment
        .rails
        .iter()
        .filter_map(|rail| Some((rail, rail.home.as_ref()?)));
    homes
        .filter(|(rail, home)| matches!(locate::link(rail, home, observed), Ok(Located::Gone)))
        .map(|(_, home)| &home.name)
        .collect()
}

/// Takes the rules of rail `index` away: unlike routes they stay when its netdev goes.
fn rules(attachment: &Attachment, index: usize, observed: &Observed) -> Vec<Op> {
    let rules = observed.pod.iter().flat_map(|pod| &pod.rules);
    let ours = rules.filter(|rule| routing::is_rule_of(attachment, index, rule));
    ours.map(|rule| Op::RemoveRule {
        at: Place::Pod,
        rule: rule.clone(),
    })
    .collect()
}

fn rail_home(attachment: &Attachment, rail: &Rail, observed: &Observed) -> RailPlan {
    let mut ops = vec![];
    if let Some(home) = rail.rdma.as_ref().filter(|_| attachment.moves_rdma())
        && let Located::At(Place::Pod, device) = locate::rdma(home, observed)?
    {
        let (from, to) = (Place::Pod, Place::Host);
        ops.push(Op::MoveRdma {
            device: device.name.clone(),
            from,
            to,
        });
    }
    if let Some(shared) = &rail.shared {
        ops.extend(
            locate::child(rail, shared, observed).map(|link| Op::RemoveLink {
                at: Place::Pod,
                link: link.name.clone(),
            }),
        );
    }
    let Some(home) = &rail.home else {
        return Ok(ops);
    };
    if !ops.is_empty() && home.link_type == LinkType::Infiniband {
        // the kernel makes the IPoIB netdev anew, on the host: planned when it is seen
        return Ok(ops);
    }
    let Located::At(place, link) = locate::link(rail, home, observed)? else {
        return Ok(ops);
    };
    if let Some(other) = observed.host.link(&home.name)
        && (place == Place::Pod || other.index != link.index)
    {
        let (link, name) = (link.name.clone(), home.name.clone());
        return Err(Obstacle::HostNameTaken { link, name });
    }
    restore_link(home, place, link, &mut ops);
    Ok(ops)
}

fn restore_link(home: &Link, place: Place, link: &Link, ops: &mut Vec<Op>) {
    let mut draft = Draft::new(place, link, ops);
    if place == Place::Pod {
        // names that the pod gave it could be taken on the host
        draft.drop_alt_names(&home.alt_names);
        if home.parent.is_none() {
            // a virtual netdev is known by its address on the host
            draft.mac(&home.mac);
        }
        // the move resets the rest: planned when it is seen on the host
        draft.relocate(Place::Host, &home.name);
        return;
    }
    // the pod may have made its name on the host an alternative one
    draft.drop_alt_names(&home.alt_names);
    draft.rename(&home.name);
    draft.mac(&home.mac);
    draft.mtu(home.mtu);
    draft.tx_queue_len(home.tx_queue_len);
    draft.flags(&home.flags);
    draft.alias(home.alias.as_deref());
    draft.add_alt_names(&home.alt_names);
    for (key, value) in &home.sysctls {
        draft.sysctl(key, *value);
    }
    draft.up(home.up);
    let lasting = |address: &&Address| !address.automatic;
    draft.addresses(home.addresses.iter().filter(lasting));
    // a route by an address that the kernel makes comes back with that address at most
    let to_be: Vec<_> = home
        .addresses
        .iter()
        .filter(|it| !it.automatic)
        .cloned()
        .collect();
    for route in home.lasting_routes() {
        let can_have = home.can_have(route, &to_be) || link.can_have(route, &link.addresses);
        if can_have {
            draft.route(route);
        }
    }
}
