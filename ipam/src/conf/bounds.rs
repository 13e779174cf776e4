// SPDX-License-Identifier: Apache-2.0
//! Fields `ipam.rangeStart`, `ipam.rangeEnd`, `ipam.perNode` and `ipam.exclude`, if they do not belong to a range.

use crate::{
    address::{Family, cidr, prefix},
    bounds::{self, Bounds, EXCLUDED, Excluded, Offset},
    range::Pool,
};
use conf_reader::{Field, Number, Wrong};

const NAMES: [(Family, &str); 2] = [(Family::V4, "ipv4"), (Family::V6, "ipv6")];

const OFFSET: &str = "must be an offset into the parent's prefix: +50 counts from its first address, -6 from its last";

const WHICH: &str =
    "must be in an object {\"ipv4\": …, \"ipv6\": …}, because both families are in use";

/// Reads the bounds that apply to the parent's prefixes, for each of `families`.
pub(super) fn of_parent(ipam: &Field<'_>, families: &[Family]) -> Result<Vec<Bounds>, Wrong> {
    let bounds = families.iter().map(|family| {
        let bounds = Bounds {
            start: offset(ipam, "rangeStart", *family, families)?,
            end: offset(ipam, "rangeEnd", *family, families)?,
            per_node: per_node(ipam, *family, families)?,
            excluded: elements(ipam, *family, families)?,
            family: *family,
        };
        let (end, _) = part(ipam, "rangeEnd", *family, families)?;
        bounds
            .checked()
            .map_err(|error| end.wrong(error.to_string()))
    });
    bounds.collect()
}

/// Adds the addresses of `ipam.exclude` to `pools`, which are ranges.
///
/// # Errors
/// An element of `ipam.exclude` is wrong. Or `ipam.perNode` is set, which ranges do not support.
pub(super) fn excluded(ipam: &Field<'_>, mut pools: Vec<Pool>) -> Result<Vec<Pool>, Wrong> {
    if ipam.at("perNode").is_there() {
        return Err(ipam.at("perNode").wrong("needs ipam.from \"parent\""));
    }
    let field = ipam.at("exclude");
    let must = "must be an address, a prefix, or two addresses in order, such as 10.0.0.1..10.0.0.49; offsets need \
                ipam.from \"parent\"";
    for element in field.list()? {
        let text: String = element.read()?;
        let Some(read @ Excluded::Addresses(..)) = Excluded::parse(&text) else {
            return Err(wrong_element(&element, &text, must));
        };
        for pool in &mut pools {
            let prefix = pool.ranges()[0].subnet;
            let numbers = bounds::excluded(&[read], prefix);
            let numbers = numbers.map_err(|error| element.wrong(error.to_string()))?;
            pool.excluded.extend(numbers);
        }
    }
    Ok(pools)
}

/// Returns the part of the field `name` for `family`: the whole field, or the family's member if the field is an
/// object. The second value is true if the part is the whole field, and so applies to several families.
fn part<'a>(
    ipam: &Field<'a>,
    name: &'static str,
    family: Family,
    families: &[Family],
) -> Result<(Field<'a>, bool), Wrong> {
    let field = ipam.at(name);
    if !field.is_object() {
        return Ok((field, families.len() > 1));
    }
    let used = NAMES.iter().filter(|(it, _)| families.contains(it));
    let used: Vec<&str> = used.map(|(_, name)| *name).collect();
    if !field.unknown(&used).is_empty() {
        let must = format!(
            "must name only the families of ipam.family: {}",
            used.join(", ")
        );
        return Err(field.wrong(must));
    }
    let name = NAMES.iter().find(|(it, _)| *it == family);
    let part = name.map_or_else(|| field.clone(), |(_, name)| field.at(name));
    Ok((part, false))
}

/// Reads an offset. An empty string counts as a missing field.
fn offset(
    ipam: &Field<'_>,
    name: &'static str,
    family: Family,
    families: &[Family],
) -> Result<Option<Offset>, Wrong> {
    let (field, is_shared) = part(ipam, name, family, families)?;
    match field.text()? {
        None => Ok(None),
        Some(_) if is_shared => Err(field.wrong(WHICH)),
        Some(text) => match Offset::parse(&text) {
            Some(offset) => Ok(Some(offset)),
            None => Err(field.wrong(OFFSET)),
        },
    }
}

/// Reads the number of addresses of each node.
fn per_node(ipam: &Field<'_>, family: Family, families: &[Family]) -> Result<Option<u32>, Wrong> {
    let (field, is_shared) = part(ipam, "perNode", family, families)?;
    if field.is_there() && is_shared {
        return Err(field.wrong(WHICH));
    }
    let number: Option<Number<1, { u32::MAX }>> = field.read()?;
    Ok(number.map(|Number(number)| number))
}

/// Reads `exclude`. An address itself has a family. For an offset, the field determines the family.
fn elements(ipam: &Field<'_>, family: Family, families: &[Family]) -> Result<Vec<Excluded>, Wrong> {
    let (field, is_shared) = part(ipam, "exclude", family, families)?;
    let read = field.list()?.into_iter().map(|element| {
        let text: String = element.read()?;
        match Excluded::parse(&text) {
            Some(Excluded::Offsets(..)) if is_shared => Err(element.wrong(WHICH)),
            Some(read) => Ok(read),
            None => Err(wrong_element(&element, &text, EXCLUDED)),
        }
    });
    read.collect()
}

/// Returns the error for the element `text` of `exclude`. `must` is the rule for a text that is no prefix.
fn wrong_element(element: &Field<'_>, text: &str, must: &str) -> Wrong {
    match cidr(text) {
        Some(it) => element.wrong(format!(
            "it has host bits set; the network is {}, the address {}",
            prefix(it),
            it.ip()
        )),
        None => element.wrong(must),
    }
}
