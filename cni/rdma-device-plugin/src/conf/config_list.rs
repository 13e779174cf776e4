// SPDX-License-Identifier: Apache-2.0
//! k8s-rdma-shared-dev-plugin's format (`pkg/types/types.go`, `ValidateConfigs` in
//! `pkg/resources/resources_manager.go` there).

use super::{
    Allocate, Ids, MOST_IDS, Parsed, ResourceConf, Wrong, chain,
    fields::Fields,
    listed,
    selector::{Selector, Sort, Text},
};
use rdma_netns::LinkType;

const KEYS: [&str; 3] = ["periodicUpdateInterval", "configList", chain::FIELD];
const RESOURCE_KEYS: [&str; 5] = [
    "resourceName",
    "resourcePrefix",
    "rdmaHcaMax",
    "devices",
    "selectors",
];
const SELECTOR_KEYS: [&str; 5] = ["vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"];

pub(super) fn read(fields: &Fields<'_>) -> Result<Parsed, Wrong> {
    let mut remarks = listed::passed_over(fields.others(&KEYS));
    if fields
        .number("periodicUpdateInterval", 0, u32::MAX)?
        .is_some()
    {
        remarks.push(
            "periodicUpdateInterval: passed over, devices are noticed as they come and go"
                .to_owned(),
        );
    }
    listed::read(fields, "configList", remarks, one)
}

fn one(fields: &Fields<'_>, remarks: &mut Vec<String>) -> Result<Option<ResourceConf>, Wrong> {
    remarks.extend(listed::passed_over(fields.others(&RESOURCE_KEYS)));
    let name = listed::name(fields, "rdma")?;
    // Go's zero where there is none: the owner advertises an empty resource.
    let count = fields.number("rdmaHcaMax", 0, MOST_IDS)?.unwrap_or(0);
    let devices = selector(fields, remarks)?;
    if count == 0 {
        let place = fields.place_of("rdmaHcaMax");
        remarks.push(format!(
            "{place}: 0 or missing, so {name} has no ids and is left out"
        ));
        return Ok(None);
    }
    Ok(Some(ResourceConf {
        name,
        place: fields.place().to_owned(),
        ids: Ids::Shared {
            count,
            allocate: Allocate::All,
        },
        devices: vec![devices],
        umad: false,
        topology: true,
        require: None,
    }))
}

fn selector(fields: &Fields<'_>, remarks: &mut Vec<String>) -> Result<Selector, Wrong> {
    let deprecated = fields.texts("devices")?;
    let selectors = fields.object("selectors")?;
    let mut found = Selector {
        place: fields.place_of("selectors"),
        sort: Some(Sort::Pci),
        ..Selector::default()
    };
    let empty = found.clone();
    if let Some(selectors) = &selectors {
        remarks.extend(listed::passed_over(selectors.others(&SELECTOR_KEYS)));
        let texts = |key: &str| -> Result<Vec<Text>, Wrong> { Ok(exactly(&selectors.texts(key)?)) };
        found.vendor = texts("vendors")?;
        found.device = texts("deviceIDs")?;
        found.driver = texts("drivers")?;
        found.netdev = texts("ifNames")?;
        found.link_type = link_types(selectors)?;
    }
    match (found == empty, deprecated.is_empty()) {
        (true, true) => Err(Wrong::new(
            found.place,
            "must select devices by one of vendors, deviceIDs, drivers, ifNames, linkTypes",
        )),
        (false, false) => Err(Wrong::new(
            fields.place_of("devices"),
            "cannot be there beside selectors; write the names into selectors.ifNames",
        )),
        (true, false) => {
            let place = fields.place_of("devices");
            remarks.push(format!(
                "{place}: deprecated, taken as selectors.ifNames as its owner does"
            ));
            found.place = place;
            found.netdev = exactly(&deprecated);
            Ok(found)
        }
        (false, true) => Ok(found),
    }
}

/// `linkTypes`, as netlink calls them.
pub(super) fn link_types(selectors: &Fields<'_>) -> Result<Vec<LinkType>, Wrong> {
    let words = selectors.texts("linkTypes")?;
    let types = words.iter().map(|word| match *word {
        "ether" => Ok(LinkType::Ether),
        "infiniband" => Ok(LinkType::Infiniband),
        _ => Err(selectors.wrong("linkTypes", "must be of ether and infiniband")),
    });
    types.collect()
}

pub(super) fn exactly(texts: &[&str]) -> Vec<Text> {
    texts.iter().map(|text| Text::exactly(text)).collect()
}
