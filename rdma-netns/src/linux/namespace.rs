// SPDX-License-Identifier: Apache-2.0
//! A namespace's netdevs with their addresses and routes, and its rules.

use super::{
    Space, addresses, cannot_read, inside, links, nexthops, nexthops::Nexthops, routes, rules,
};
use crate::{Link, Namespace, ObserveError, Route, netlink::Answers};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::{io, path::Path};

/// A namespace without its RDMA devices.
pub(super) fn read(space: &Space, whose: &str, sysfs: &Path) -> Result<Namespace, ObserveError> {
    let Links {
        links,
        unkept_routes,
    } = links_of(space, whose, sysfs)?;
    let answers = space.route().dump(&rules::dump());
    let answers = answers.map_err(|error| cannot_read(&format!("the rules of {whose}"), error))?;
    Ok(Namespace {
        id: space.netns().id(),
        links,
        unkept_routes,
        rdma: Vec::new(),
        rules: answers.bodies().filter_map(rules::parse).collect(),
        general_rules: answers.bodies().filter_map(rules::parse_general).collect(),
    })
}

/// The netdevs of a namespace, and the routes that are nobody's alone.
struct Links {
    links: Vec<Link>,
    unkept_routes: Vec<(u32, Route)>,
}

/// All netdevs of a namespace with their addresses and routes.
fn links_of(space: &Space, whose: &str, sysfs: &Path) -> Result<Links, ObserveError> {
    let mut socket = space.route();
    let mut dump = |what: &str, request: RouteNetlinkMessage| -> Result<Answers, ObserveError> {
        socket
            .dump(&request)
            .map_err(|error| cannot_read(&format!("the {what} of {whose}"), error))
    };
    let answers = dump("links", links::dump())?;
    let mut links: Vec<Link> = Vec::with_capacity(answers.bodies().count());
    // places in `links`
    let mut without_hardware: Vec<usize> = Vec::new();
    for body in answers.bodies() {
        let link = match space.is_own() {
            true => links::parse_own(body, sysfs),
            false => links::parse(body, sysfs),
        };
        let Some(link) = link else {
            log::warn!("a netdev of {whose} cannot be understood: {body:?}");
            continue;
        };
        if !space.is_own() && links::hides_hardware(body, &link) {
            without_hardware.push(links.len());
        }
        links.push(link);
    }
    if !without_hardware.is_empty() {
        let failed = |error: io::Error| {
            cannot_read(
                &format!("the hardware of the netdevs of {whose}"),
                error.into(),
            )
        };
        let hidden: Vec<(&str, u32)> = without_hardware
            .iter()
            .map(|place| (&*links[*place].name, links[*place].index))
            .collect();
        let found = inside::hardware(space.netns(), sysfs, &hidden).map_err(failed)?;
        for (place, parent) in without_hardware.into_iter().zip(found) {
            links[place].parent = parent;
        }
    }
    addresses::distribute(&dump("addresses", addresses::dump())?, &mut links);
    let mut unkept_routes = Vec::new();
    let mut by_object = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        for body in dump("routes", routes::dump(family))?.bodies() {
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
        let answers = socket.dump(&nexthops::Dump);
        let answers = answers
            .map_err(|error| cannot_read(&format!("the nexthop objects of {whose}"), error))?;
        let nexthops = Nexthops::of(&answers);
        for (object, route) in by_object {
            let netdevs = nexthops.netdevs(object).into_iter();
            unkept_routes.extend(netdevs.map(|index| (index, route.clone())));
        }
    }
    Ok(Links {
        links,
        unkept_routes,
    })
}
