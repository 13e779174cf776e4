// SPDX-License-Identifier: Apache-2.0
//! Fields `runtimeConfig.ipRanges`, `ipam.subnet` and its siblings, and `ipam.ranges`: the range sets, in host-local's
//! order.

use crate::{
    address::{cidr, plain},
    range::{Pool, Range},
};
use conf_reader::{Field, Wrong};
use serde_json::Value;
use std::net::IpAddr;

const PARENTS_GATEWAY: &str =
    "the gateway comes from the parent's routes: leave out ipam.gateway, or leave out ipam.from";

/// Reads and checks all range sets, and checks that no two sets overlap. The name of a pool's round-robin file contains
/// the number of the pool's set, as in host-local. If `from_parent` is true, `rangeStart` and `rangeEnd` apply to the
/// parent's prefix.
pub(super) fn pools(
    root: &Field<'_>,
    ipam: &Field<'_>,
    from_parent: bool,
) -> Result<Vec<Pool>, Wrong> {
    let mut sets = range_sets(&root.object("runtimeConfig")?.at("ipRanges"))?;
    let has_subnet = ipam.at("subnet").is_there();
    if has_subnet {
        sets.push((ipam.place().to_owned(), vec![range(ipam)?]));
    }
    sets.extend(range_sets(&ipam.at("ranges"))?);
    if !has_subnet {
        without_subnet(ipam, sets.is_empty(), from_parent)?;
    }
    let mut pools: Vec<Pool> = vec![];
    for (index, (path, ranges)) in sets.into_iter().enumerate() {
        let wrong = |error: crate::range::PoolError| Wrong {
            value: Some(subnets(&ranges)),
            ..Wrong::of(&path, error.to_string())
        };
        let pool = Pool::new(ranges.clone(), index.to_string()).map_err(wrong)?;
        for other in &pools {
            other.disjoint(&pool).map_err(wrong)?;
        }
        pools.push(pool);
    }
    Ok(pools)
}

/// Checks `rangeStart`, `rangeEnd` and `gateway` of a configuration without `ipam.subnet`. Host-local ignores these
/// fields without `ipam.subnet` (`LoadIPAMConfig()`, `plugins/ipam/host-local/backend/allocator/config.go`). This
/// plugin returns an error for them if there is no other range, and otherwise logs a warning. If `from_parent` is true,
/// the bounds need no subnet, and `gateway` is always wrong.
fn without_subnet(ipam: &Field<'_>, has_no_range: bool, from_parent: bool) -> Result<(), Wrong> {
    let bounds = ["rangeStart", "rangeEnd"];
    let bounds = bounds.into_iter().filter(|_| !from_parent);
    for name in bounds.chain(["gateway"]) {
        let field = ipam.at(name);
        if !field.is_there() {
            continue;
        }
        if has_no_range {
            return Err(field.wrong(match from_parent {
                true => PARENTS_GATEWAY,
                false => "needs ipam.subnet, which is missing",
            }));
        }
        if address(ipam, name)?.is_some() {
            log::warn!(
                "ignoring {}: without ipam.subnet it has no effect; move it into a range of ipam.ranges",
                field.place()
            );
        }
    }
    Ok(())
}

/// Reads an address. An empty string counts as a missing field.
fn address(range: &Field<'_>, name: &str) -> Result<Option<IpAddr>, Wrong> {
    match range.get::<String>(name)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => {
            let address = plain(text).map(Some);
            address.ok_or_else(|| range.at(name).wrong("must be an address"))
        }
    }
}

fn subnets(ranges: &[Range]) -> String {
    let subnets = ranges.iter().map(|range| range.subnet.to_string());
    Value::from_iter(subnets).to_string()
}

/// Reads a list of lists of ranges. Returns each set with its path.
fn range_sets(field: &Field<'_>) -> Result<Vec<(String, Vec<Range>)>, Wrong> {
    let sets = field.list()?.into_iter().map(|set| {
        if !set.is_list() {
            return Err(set.wrong("must be a list of ranges: a list in a list"));
        }
        let ranges = set.list()?.into_iter().map(|it| match it.is_object() {
            true => range(&it),
            false => Err(it.wrong("must be an object with a subnet")),
        });
        Ok((set.place().to_owned(), ranges.collect::<Result<_, _>>()?))
    });
    sets.collect()
}

fn range(field: &Field<'_>) -> Result<Range, Wrong> {
    let example = "must be a network with its prefix length, such as 10.0.0.0/24 or fd00::/64";
    let subnet: Option<String> = field.get("subnet")?;
    let subnet = subnet.and_then(|text| cidr(&text));
    let subnet = subnet.ok_or_else(|| field.at("subnet").wrong(example))?;
    let (start, end) = (address(field, "rangeStart")?, address(field, "rangeEnd")?);
    Range::new(subnet, start, end, address(field, "gateway")?)
        .map_err(|error| field.at(error.field()).wrong(error.to_string()))
}
