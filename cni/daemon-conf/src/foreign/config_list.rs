// SPDX-License-Identifier: Apache-2.0
//! Format of k8s-rdma-shared-dev-plugin (`pkg/types/types.go`, and `ValidateConfigs` in
//! `pkg/resources/resources_manager.go` of that project).

use super::{exactly, link_types, name, parsed, passed_over, passed_over_at_top, resources};
use crate::{
    Allocate, Ids, MOST_IDS, Parsed, ResourceConf,
    selector::{Selector, Sort},
};
use conf_reader::{Field, Number, Texts, Wrong};

const RESOURCE_KEYS: [&str; 5] = [
    "resourceName",
    "resourcePrefix",
    "rdmaHcaMax",
    "devices",
    "selectors",
];
const SELECTOR_KEYS: [&str; 5] = ["vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"];

pub(crate) fn read(file: &Field<'_>) -> Result<Parsed, Wrong> {
    let mut remarks = passed_over_at_top(file, &["periodicUpdateInterval", "configList"]);
    let interval: Option<Number<0, { u32::MAX }>> = file.get("periodicUpdateInterval")?;
    if interval.is_some() {
        remarks.push(
            "periodicUpdateInterval: ignored, because the kernel reports added and removed devices"
                .to_owned(),
        );
    }
    let resources = resources(file, "configList", &mut remarks, one)?;
    parsed(resources, file, remarks)
}

fn one(field: &Field<'_>, remarks: &mut Vec<String>) -> Result<Option<ResourceConf>, Wrong> {
    remarks.extend(passed_over(field, &RESOURCE_KEYS));
    let name = name(field, "rdma")?;
    // as in Go, a missing count is zero: k8s-rdma-shared-dev-plugin then advertises a resource without ids
    let count = field
        .get("rdmaHcaMax")?
        .map_or(0, |Number::<0, MOST_IDS>(count)| count);
    let devices = selector(field, remarks)?;
    if count == 0 {
        remarks.push(format!(
            "{}.rdmaHcaMax: 0 or missing, so {name} has no ids and is left out",
            field.place()
        ));
        return Ok(None);
    }
    let allocate = Allocate::All;
    let ids = Ids::Shared { count, allocate };
    let devices = vec![devices];
    Ok(Some(ResourceConf::new(name, field.place(), ids, devices)))
}

fn selector(resource: &Field<'_>, remarks: &mut Vec<String>) -> Result<Selector, Wrong> {
    let deprecated = resource.at("devices");
    let netdevs: Texts = deprecated.read()?;
    let field = resource.object("selectors")?;
    remarks.extend(passed_over(&field, &SELECTOR_KEYS));
    let texts = |name: &str| Ok(exactly(&field.at(name).read()?));
    let mut found = Selector {
        place: field.place().to_owned(),
        vendor: texts("vendors")?,
        device: texts("deviceIDs")?,
        driver: texts("drivers")?,
        netdev: texts("ifNames")?,
        link_type: link_types(&field)?,
        sort: Some(Sort::Pci),
        ..Selector::default()
    };
    match (found.selects_all(), netdevs.0.is_empty()) {
        (true, true) => Err(field.refused(
            "must select devices by one of vendors, deviceIDs, drivers, ifNames, linkTypes",
        )),
        (false, false) => Err(deprecated.refused(
            "must be left out if selectors is set; write the names into selectors.ifNames",
        )),
        (true, false) => {
            found.place = deprecated.place().to_owned();
            found.netdev = exactly(&netdevs);
            remarks.push(format!(
                "{}: deprecated; read as selectors.ifNames",
                found.place
            ));
            Ok(found)
        }
        (false, true) => Ok(found),
    }
}
