// SPDX-License-Identifier: Apache-2.0
//! A namespace's netdevs with their addresses and routes, and its rules.

use super::{
    Space, addresses, cannot_read, inside, link_messages, links, monitor::nsid, nexthops,
    nexthops::Nexthops, routes, rules,
};
use crate::{Link, Namespace, ObserveError, Route, netlink::Answers};
use netlink_packet_core::NetlinkSerializable;
use netlink_packet_route::{AddressFamily, route::RouteType};
use std::{collections::BTreeSet, path::Path};

/// Reads a namespace's netdevs and rules, and its routes if `has_routes` is true. Leaves `rdma`, `sub_devices` and
/// `other_number` empty.
pub(super) fn read(
    space: &Space,
    whose: &str,
    sysfs: &Path,
    has_routes: bool,
) -> Result<Namespace, ObserveError> {
    let mut links = links_of(space, whose, sysfs)?;
    let mut tables = BTreeSet::new();
    let unkept_routes = match has_routes {
        true => routes_of(space, whose, &mut links, &mut tables)?,
        false => vec![],
    };
    let answers = dump(space, whose, "rules", &rules::dump())?;
    tables.extend(answers.bodies().filter_map(rules::table));
    Ok(Namespace {
        id: space.netns().id(),
        links,
        unkept_routes,
        rdma: Vec::new(),
        rules: answers.bodies().filter_map(rules::parse).collect(),
        sub_devices: Vec::new(),
        general_rules: answers.bodies().filter_map(rules::parse_general).collect(),
        other_number: None,
        tables,
    })
}

/// Returns the number that the namespace `other` has in `space`. Returns `None` if `other` has no number, or if none of
/// `links`, the netdevs of `space`, has a lower netdev in another namespace.
pub(super) fn number_of(
    other: &Space,
    space: &Space,
    links: &[Link],
) -> Result<Option<i32>, ObserveError> {
    let is_on_another = |link: &Link| {
        let netns = link.origin.map_or(-1, |it| it.netns);
        link.lower.is_some() && netns >= 0
    };
    if !links.iter().any(is_on_another) {
        return Ok(None);
    }
    let number = nsid::ask(&mut space.route(), other.netns().file());
    let number = number.map_err(cannot_read("the number of a namespace"))?;
    Ok(number.map(|it| it.0))
}

/// Sends `request`, and returns the kernel's objects of the kind `what`.
pub(super) fn dump(
    space: &Space,
    whose: &str,
    what: &str,
    request: &impl NetlinkSerializable,
) -> Result<Answers, ObserveError> {
    let answers = space.route().dump(request);
    answers.map_err(cannot_read(format_args!("the {what} of {whose}")))
}

/// Returns all netdevs of a namespace with their addresses.
fn links_of(space: &Space, whose: &str, sysfs: &Path) -> Result<Vec<Link>, ObserveError> {
    let answers = dump(space, whose, "links", &link_messages::dump())?;
    let mut links: Vec<Link> = Vec::with_capacity(answers.bodies().count());
    // indexes in `links`
    let mut without_hardware: Vec<usize> = Vec::new();
    for body in answers.bodies() {
        let Some(mut link) = links::parse_in(body, sysfs, space.is_own()) else {
            log::warn!("cannot parse a netdev of {whose}: {body:?}");
            continue;
        };
        link.alt_names = links::alt_names(body);
        if !space.is_own() && links::hides_hardware(body, &link) {
            without_hardware.push(links.len());
        }
        links.push(link);
    }
    if !without_hardware.is_empty() {
        let hidden: Vec<(&str, u32)> = without_hardware
            .iter()
            .map(|place| (&*links[*place].name, links[*place].index))
            .collect();
        let found = inside::hardware(space.netns(), sysfs, &hidden);
        let what = format_args!("the hardware of the netdevs of {whose}");
        let found = found.map_err(cannot_read(what))?;
        for (place, parent) in without_hardware.into_iter().zip(found) {
            links[place].parent = parent;
        }
    }
    let answers = dump(space, whose, "addresses", &addresses::dump())?;
    addresses::distribute(&answers, &mut links);
    Ok(links)
}

/// Adds the routes of a namespace to its netdevs, and the tables of the routes to `tables`. Returns the routes that
/// `rdma-cni` cannot set again unchanged.
fn routes_of(
    space: &Space,
    whose: &str,
    links: &mut [Link],
    tables: &mut BTreeSet<u32>,
) -> Result<Vec<(u32, Route)>, ObserveError> {
    let mut unkept_routes = Vec::new();
    let mut by_object = Vec::new();
    // the host can have thousands of local routes, and no caller searches for a free table on the host
    let kind = match space.is_own() {
        true => RouteType::Unicast,
        false => RouteType::Unspec,
    };
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        for body in dump(space, whose, "routes", &routes::dump(family, kind))?.bodies() {
            tables.extend(routes::table(body));
            let parsed = routes::parse(body).unwrap_or_default();
            if !parsed.kept {
                unkept_routes.extend(parsed.hops);
                by_object.extend(parsed.by_object);
                continue;
            }
            for (index, route) in parsed.hops {
                if let Some(link) = links.iter_mut().find(|link| link.index == index) {
                    link.routes.push(route);
                }
            }
        }
    }
    if !by_object.is_empty() {
        let answers = dump(space, whose, "nexthop objects", &nexthops::dump())?;
        let nexthops = Nexthops::of(answers.bodies());
        for (object, route) in by_object {
            let netdevs = nexthops.netdevs(object).into_iter();
            unkept_routes.extend(netdevs.map(|index| (index, route.clone())));
        }
    }
    Ok(unkept_routes)
}
