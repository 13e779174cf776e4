// SPDX-License-Identifier: Apache-2.0
//! Configuration formats of other programs. Field names match case-insensitively, as in Go's decoder. An unknown field
//! causes a remark, because the other program ignores the field, too.
//!
//! A field that the other program knows and this daemon does not implement causes an error. The field causes only a
//! remark if pods get the same devices without it.

pub(super) mod config_list;
pub(super) mod mode;
pub(super) mod resource_list;

use super::{
    COMMON, Conf, Erdma, Parsed, ResourceConf, ResourceName,
    selector::{self, Text},
};
use conf_reader::{Field, Texts, Wrong, nearest, one_line};
use rdma_netns::LinkType;

/// Builds the configuration from a file of another program's format.
fn parsed(
    resources: Vec<ResourceConf>,
    file: &Field<'_>,
    remarks: Vec<String>,
) -> Result<Parsed, Wrong> {
    let conf = Conf::read_common(file, resources, Erdma::foreign())?;
    Ok(Parsed { conf, remarks })
}

/// Returns a remark on each unknown top-level field of `file`. Known fields are `own` and the fields that all formats
/// share.
fn passed_over_at_top(file: &Field<'_>, own: &[&str]) -> Vec<String> {
    passed_over(file, &[own, &COMMON].concat())
}

/// Reads the list `name`, and parses each element with `one`. Leaves out an element for which `one` returns `None`: the
/// daemon does not offer this resource.
fn resources(
    file: &Field<'_>,
    name: &str,
    remarks: &mut Vec<String>,
    one: impl Fn(&Field<'_>, &mut Vec<String>) -> Result<Option<ResourceConf>, Wrong>,
) -> Result<Vec<ResourceConf>, Wrong> {
    let list = file.objects(name)?;
    if list.is_empty() {
        return Err(file.at(name).wrong("must have at least one resource"));
    }
    let mut resources = Vec::new();
    for resource in &list {
        resources.extend(one(resource, remarks)?);
    }
    if resources.is_empty() {
        let sentence = format!("no resource is left: {}", remarks.join("; "));
        return Err(file.at(name).refused(sentence));
    }
    Ok(resources)
}

/// Reads the resource's name. Uses the prefix `default` if the file names no prefix.
fn name(resource: &Field<'_>, default: &str) -> Result<ResourceName, Wrong> {
    let field = resource.at("resourceName");
    let name: String = field.read()?;
    let prefix = resource.at("resourcePrefix").text()?;
    ResourceName::at(
        &format!("{}/{name}", prefix.as_deref().unwrap_or(default)),
        &field,
    )
}

fn exactly(texts: &Texts) -> Vec<Text> {
    texts.0.iter().map(|text| Text::exactly(text)).collect()
}

fn link_types(selectors: &Field<'_>) -> Result<Vec<LinkType>, Wrong> {
    let field = selectors.at("linkTypes");
    let words: Texts = field.read()?;
    selector::link_types(&words.0)
        .ok_or_else(|| field.wrong("may contain only ether and infiniband"))
}

/// Returns a remark on each field of `field` that is not in `known`.
fn passed_over(field: &Field<'_>, known: &[&str]) -> Vec<String> {
    let names = field.unknown(known).into_iter();
    names
        .map(|name| {
            let place = field.at(name);
            let place = one_line(place.place());
            match nearest(name, known) {
                Some(it) => format!("{place}: unknown, ignored; did you mean {it}?"),
                None => format!("{place}: unknown, ignored"),
            }
        })
        .collect()
}
