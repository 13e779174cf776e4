// SPDX-License-Identifier: Apache-2.0
//! Notes about attributes that restored netdevs lack.

use crate::apply::{GivenUp, Restored};
use attachments::{
    Attachment, Attribute, Rail, Stage,
    given_up::{Lack, Note, earlier, remove, write},
};
use conf_reader::elided;
use rdma_netns::{
    Observed, Route,
    link::{PROTOCOL_KERNEL, PROTOCOL_STATIC},
};
use std::path::Path;

/// Maximum number of names in a message.
const MAX_NAMED: usize = 8;

/// Maximum number of routes in the note of one netdev.
const MAX_NOTED: usize = 100;

/// `RTPROT_BOOT`: the default protocol of iproute2's routes.
const PROTOCOL_BOOT: u8 = 3;

/// Writes a note for each restored netdev that lacks attributes. Removes the note of a netdev that lacks none. Returns
/// all missing attributes.
pub fn note(root: &Path, attachment: &Attachment, restored: &Restored) -> Vec<Lack> {
    let mut lacks = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let is_home = restored.rails.contains(&index) && rail.stage != Stage::Returned;
        let Some(host_link) = rail.host_link.as_ref().filter(|_| is_home) else {
            continue;
        };
        let own = restored.given_up.iter().filter(|it| it.rail == index);
        let own = own.map(|GivenUp { attribute, why, .. }| Lack {
            attribute: attribute.clone(),
            why: why.clone(),
        });
        let mut note = earlier(root, attachment, host_link).unwrap_or_else(|| Note {
            boot_id: attachment.boot_id.clone(),
            holder: attachment.holder(),
            host_link: host_link.clone(),
            observed_at: attachment.observed_at,
            lacks: vec![],
        });
        let before = note.lacks.clone();
        for lack in unkept(rail) {
            // an earlier version may have written another reason
            let is_noted = note.lacks.iter().any(|it| it.attribute == lack.attribute);
            if !is_noted {
                note.lacks.push(lack);
            }
        }
        let missing = plan::given_up::missing(&note, &restored.observed);
        let is_missing = |it: &Lack| missing.contains(&it.attribute);
        for Lack { why, .. } in note.lacks[before.len()..]
            .iter()
            .filter(|it| is_missing(it))
        {
            log::warn!(
                "{} is back on the host, but not fully restored: {why}",
                rail.name()
            );
        }
        note.lacks.retain(is_missing);
        for lack in own {
            note.lacks.retain(|it| it.attribute != lack.attribute);
            note.lacks.push(lack);
        }
        lacks.extend(note.lacks.iter().cloned());
        let done = match note.lacks.is_empty() {
            true => remove(root, &host_link.name),
            // do not write an unchanged note again: a verb that waits for one rail checks the other rails repeatedly
            false if note.lacks == before => Ok(()),
            false => write(root, &note),
        };
        if let Err(error) = done {
            log::warn!(
                "{}: {error}; the list of its missing attributes is out of date",
                host_link.name
            );
        }
    }
    lacks
}

/// Returns the netdev's routes that the kernel removes permanently when the netdev moves, at most `MAX_NOTED`. Omits
/// routes of a routing daemon, which sets them again.
pub fn routes_of(netdev: u32, observed: &Observed) -> Vec<Route> {
    let by_hand = [PROTOCOL_KERNEL, PROTOCOL_BOOT, PROTOCOL_STATIC];
    let routes = observed.host.unkept_by(netdev);
    let routes = routes.filter(|route| by_hand.contains(&route.protocol));
    routes.take(MAX_NOTED).cloned().collect()
}

/// Describes the routes that a move removes. Returns `None` if there are no such routes.
pub fn routes(unkept: &[Route]) -> Option<String> {
    let destinations: Vec<String> = unkept.iter().map(destination).collect();
    let named = some(&destinations)?;
    Some(format!(
        "routes with several next hops, a nexthop object, an encapsulation or a source prefix ({named})"
    ))
}

/// Returns the first names of `names`, and the number of the remaining names. Returns `None` if there are no names.
pub fn some(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| elided(names, MAX_NAMED, ", ", ", "))
}

fn destination(route: &Route) -> String {
    format!("{}/{}", route.destination, route.prefix)
}

/// Returns the routes that `rail` lost by its move. Returns none if the rail was not moved.
fn unkept(rail: &Rail) -> impl Iterator<Item = Lack> {
    let routes = rail.unkept_routes.iter();
    routes.map(|route| Lack {
        attribute: Attribute::UnkeptRoute(Box::new(route.clone())),
        why: format!(
            "the route of {} to {} has attributes that rdma-cni cannot record, such as several next hops, and is gone \
             or different now: set it again",
            rail.name(),
            destination(route)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_netns::InterfaceName;

    /// A failed ADD joins the reasons of all its rails in one message.
    #[test]
    fn the_reason_for_a_lost_route_names_its_netdev() {
        let mut rail = Rail::new(InterfaceName::try_from("eth1").expect("a name"));
        let route = serde_json::json!({"destination": "10.8.0.0", "prefix": 16});
        rail.unkept_routes = vec![serde_json::from_value(route).expect("a route")];
        let whys: Vec<String> = unkept(&rail).map(|it| it.why).collect();
        assert_eq!(
            whys,
            [
                "the route of eth1 to 10.8.0.0/16 has attributes that rdma-cni cannot record, such as several next \
                 hops, and is gone or different now: set it again"
            ]
        );
    }
}
