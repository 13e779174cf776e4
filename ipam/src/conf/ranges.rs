// SPDX-License-Identifier: Apache-2.0
//! `runtimeConfig.ipRanges`, `ipam.subnet`… and `ipam.ranges`: the range sets, in the order
//! that host-local has them.

use crate::{
    address::{cidr, plain},
    range::{Pool, Range},
};
use cni_protocol::{ConfError, Fields};
use serde_json::Value;

/// All range sets, checked one by one and against each other. The number of its set is the
/// name of a pool's round robin, as for host-local.
pub(super) fn pools(root: Fields<'_>, ipam: Fields<'_>) -> Result<Vec<Pool>, ConfError> {
    let mut sets = vec![];
    let runtime = root.object("runtimeConfig")?;
    range_sets(runtime, "runtimeConfig", "ipRanges", &mut sets)?;
    if ipam.get("subnet").is_some() {
        sets.push(("ipam".to_owned(), vec![range(ipam)?]));
    } else {
        for name in ["rangeStart", "rangeEnd", "gateway"] {
            if ipam.get(name).is_some() {
                return Err(ipam.wrong(name, "belongs to a subnet; there is no ipam.subnet"));
            }
        }
    }
    range_sets(ipam, "ipam", "ranges", &mut sets)?;
    let mut pools: Vec<Pool> = vec![];
    for (index, (name, ranges)) in sets.into_iter().enumerate() {
        let wrong = |error: crate::range::PoolError| ConfError::Value {
            field: name.clone(),
            value: subnets(&ranges),
            expected: error.to_string(),
        };
        let pool = Pool::new(ranges.clone(), index.to_string()).map_err(wrong)?;
        for other in &pools {
            other.disjoint(&pool).map_err(wrong)?;
        }
        pools.push(pool);
    }
    Ok(pools)
}

fn subnets(ranges: &[Range]) -> String {
    let subnets = ranges.iter().map(|range| range.subnet.to_string());
    Value::from_iter(subnets).to_string()
}

/// The list of lists of ranges called `name`; with each set its full name.
fn range_sets(
    fields: Fields<'_>,
    path: &str,
    name: &str,
    sets: &mut Vec<(String, Vec<Range>)>,
) -> Result<(), ConfError> {
    for (index, set) in fields.list(name)?.into_iter().flatten().enumerate() {
        let set_name = format!("{path}.{name}[{index}]");
        let wrong = |field: &str, value: &Value, expected: &str| ConfError::Value {
            field: field.to_owned(),
            value: value.to_string(),
            expected: expected.to_owned(),
        };
        let Value::Array(list) = set else {
            return Err(wrong(
                &set_name,
                set,
                "must be a list of ranges: a list in a list",
            ));
        };
        let mut ranges = vec![];
        for (index, value) in list.iter().enumerate() {
            let range_name = format!("{set_name}[{index}]");
            let Value::Object(object) = value else {
                return Err(wrong(&range_name, value, "must be an object with a subnet"));
            };
            ranges.push(range(Fields::at(object, &range_name))?);
        }
        sets.push((set_name, ranges));
    }
    Ok(())
}

fn range(fields: Fields<'_>) -> Result<Range, ConfError> {
    let example = "must be a network with its prefix length, as 10.0.0.0/24 or fd00::/64";
    let subnet = fields.string("subnet")?.and_then(cidr);
    let subnet = subnet.ok_or_else(|| fields.wrong("subnet", example))?;
    let address = |name: &str| match fields.string(name)? {
        None | Some("") => Ok(None),
        Some(text) => match plain(text) {
            Some(ip) => Ok(Some(ip)),
            None => Err(fields.wrong(name, "must be an address")),
        },
    };
    let (start, end) = (address("rangeStart")?, address("rangeEnd")?);
    Range::new(subnet, start, end, address("gateway")?)
        .map_err(|error| fields.wrong(error.field(), &error.to_string()))
}
