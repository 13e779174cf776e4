// SPDX-License-Identifier: Apache-2.0
//! sriov-network-device-plugin's format (`pkg/types/types.go`, `pkg/netdevice`,
//! `pkg/auxnetdevice` there).
//!
//! Resources without RDMA are left to their owner, with a remark.

use super::{
    Ids, Parsed, ResourceConf, Wrong, chain,
    config_list::{exactly, link_types},
    fields::Fields,
    listed,
    selector::{Parent, Selector, Sort, Text},
};

const RESOURCE_KEYS: [&str; 6] = [
    "resourceName",
    "resourcePrefix",
    "deviceType",
    "selectors",
    "excludeTopology",
    "additionalInfo",
];
const SELECTOR_KEYS: [&str; 17] = [
    "vendors",
    "devices",
    "drivers",
    "pciAddresses",
    "pfNames",
    "nicNames",
    "rootDevices",
    "linkTypes",
    "auxTypes",
    "isRdma",
    "needVhostNet",
    "ddpProfiles",
    "pKeys",
    "acpiIndexes",
    "vdpaType",
    "extraSelectors",
    "numaNodes",
];

/// Selectors that would choose fewer devices, and that are not known here: passing over them
/// would give pods devices that were not meant for them.
const NARROWER: [&str; 5] = [
    "ddpProfiles",
    "pKeys",
    "acpiIndexes",
    "extraSelectors",
    "numaNodes",
];

/// The owner's `--resource-prefix`.
const PREFIX: &str = "intel.com";

pub(super) fn read(fields: &Fields<'_>) -> Result<Parsed, Wrong> {
    let remarks = listed::passed_over(fields.others(&["resourceList", chain::FIELD]));
    listed::read(fields, "resourceList", remarks, one)
}

fn one(fields: &Fields<'_>, remarks: &mut Vec<String>) -> Result<Option<ResourceConf>, Wrong> {
    let place = fields.place();
    remarks.extend(listed::passed_over(fields.others(&RESOURCE_KEYS)));
    let name = listed::name(fields, PREFIX)?;
    let types = [
        ("netDevice", Some(Sort::Pci)),
        ("auxNetDevice", Some(Sort::Auxiliary)),
        ("accelerator", None),
    ];
    let sort = match fields.text("deviceType")? {
        None | Some("") => Some(Sort::Pci),
        Some(_) => fields.choice("deviceType", &types)?.flatten(),
    };
    let Some(sort) = sort else {
        remarks.push(format!(
            "{place}.deviceType: accelerators are left to sriov-network-device-plugin, and so is {name}"
        ));
        return Ok(None);
    };
    if fields.get("additionalInfo").is_some() {
        remarks.push(format!(
            "{place}.additionalInfo: passed over, containers get no variable PCIDEVICE_…_INFO"
        ));
    }
    let topology = !fields.boolean("excludeTopology")?.unwrap_or(false);
    let selectors = selectors_of(fields)?;
    let mut devices = Vec::new();
    for selectors in &selectors {
        remarks.extend(listed::passed_over(selectors.others(&SELECTOR_KEYS)));
        if !selectors.boolean("isRdma")?.unwrap_or(false) {
            let place = selectors.place();
            remarks.push(format!(
                "{place}.isRdma: not true, so these devices of {name} are left to sriov-network-device-plugin"
            ));
            continue;
        }
        devices.push(selector(selectors, sort)?);
    }
    // Without a selector it would be of all devices.
    Ok((!devices.is_empty()).then(|| ResourceConf {
        name,
        place: place.to_owned(),
        ids: Ids::Exclusive,
        devices,
        umad: false,
        topology,
        require: None,
    }))
}

/// `selectors`: an object, or a list of them.
fn selectors_of<'a>(fields: &Fields<'a>) -> Result<Vec<Fields<'a>>, Wrong> {
    let found = match fields.get("selectors") {
        Some(value) if value.is_array() => fields.objects("selectors")?.unwrap_or_default(),
        _ => fields.object("selectors")?.into_iter().collect(),
    };
    if found.is_empty() {
        return Err(fields.wrong("selectors", "must have at least one selector with isRdma"));
    }
    Ok(found)
}

fn selector(fields: &Fields<'_>, sort: Sort) -> Result<Selector, Wrong> {
    if fields.boolean("needVhostNet")?.unwrap_or(false) {
        return Err(fields.wrong(
            "needVhostNet",
            "must be left out: /dev/vhost-net and /dev/net/tun are not given to containers",
        ));
    }
    let vdpa = fields.text("vdpaType")?.unwrap_or_default();
    if !vdpa.is_empty() {
        return Err(fields.wrong("vdpaType", "must be left out where isRdma is true"));
    }
    for key in NARROWER {
        if fields.get(key).is_some_and(|value| !is_empty(value)) {
            return Err(fields.wrong(
                key,
                "must be left out: devices cannot be selected by it here",
            ));
        }
    }
    let aux_types = fields.texts("auxTypes")?;
    let auxiliary = sort == Sort::Auxiliary;
    if auxiliary && (aux_types.is_empty() || aux_types.iter().any(|it| *it != "sf")) {
        return Err(fields.wrong("auxTypes", "must be [\"sf\"] with deviceType auxNetDevice"));
    }
    let parents = |key: &str| -> Result<Vec<Parent>, Wrong> {
        let read = |text: &&str| {
            Parent::parse(text, |name| Ok(Text::exactly_or_regex(name)))
                .map_err(|problem| Wrong::new(fields.place_of(key), problem))
        };
        fields.texts(key)?.iter().map(read).collect()
    };
    let texts = |key: &str| Ok(exactly(&fields.texts(key)?));
    Ok(Selector {
        place: fields.place().to_owned(),
        netdev: texts("nicNames")?,
        rdma: Vec::new(),
        address: texts("pciAddresses")?,
        driver: texts("drivers")?,
        vendor: texts("vendors")?,
        device: texts("devices")?,
        link_type: link_types(fields)?,
        pf: parents("pfNames")?,
        root: parents("rootDevices")?,
        sort: Some(sort),
    })
}

fn is_empty(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Array(list) => list.is_empty(),
        serde_json::Value::String(text) => text.is_empty(),
        _ => false,
    }
}
