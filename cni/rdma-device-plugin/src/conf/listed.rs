// SPDX-License-Identifier: Apache-2.0
//! What k8s-rdma-shared-dev-plugin's and sriov-network-device-plugin's formats have in common: a
//! list of resources that have a name and a prefix, and unknown fields that mean nothing.

use super::{
    Conf, Erdma, Parsed, ResourceConf, ResourceName, Wrong, chain, fields::Fields, name_at,
};

/// The resources of the list at `list`, each read by `one`, which leaves out what is another
/// plugin's with a remark.
pub(super) fn read(
    fields: &Fields<'_>,
    list: &str,
    mut remarks: Vec<String>,
    one: impl Fn(&Fields<'_>, &mut Vec<String>) -> Result<Option<ResourceConf>, Wrong>,
) -> Result<Parsed, Wrong> {
    let listed = fields.objects(list)?.unwrap_or_default();
    if listed.is_empty() {
        return Err(fields.wrong(list, "must have at least one resource"));
    }
    let mut resources = Vec::new();
    for resource in &listed {
        resources.extend(one(resource, &mut remarks)?);
    }
    if resources.is_empty() {
        let problem = format!("no resource is left: {}", remarks.join("; "));
        return Err(Wrong::new(list, problem));
    }
    Ok(Parsed {
        conf: Conf {
            resources,
            cdi: false,
            erdma: Erdma::foreign(),
            chain: chain::of(fields)?,
        },
        remarks,
    })
}

/// The resource's name, whose prefix is `prefix` if none is given.
pub(super) fn name(fields: &Fields<'_>, prefix: &str) -> Result<ResourceName, Wrong> {
    let Some(name) = fields.text("resourceName")? else {
        return Err(fields.wrong("resourceName", "must be a text"));
    };
    let given = fields.text("resourcePrefix")?.filter(|it| !it.is_empty());
    name_at(
        &format!("{}/{name}", given.unwrap_or(prefix)),
        fields.place_of("resourceName"),
    )
}

/// A remark on each field that the format does not have.
pub(super) fn passed_over(places: Vec<String>) -> Vec<String> {
    let remark = |place| format!("{place}: not known, passed over");
    places.into_iter().map(remark).collect()
}
