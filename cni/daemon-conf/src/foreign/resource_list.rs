// SPDX-License-Identifier: Apache-2.0
//! Format of sriov-network-device-plugin (`pkg/types/types.go`, `pkg/netdevice` and `pkg/auxnetdevice` of that
//! project).
//!
//! This daemon leaves resources without RDMA to sriov-network-device-plugin, with a remark.

use super::{exactly, link_types, name, parsed, passed_over, passed_over_at_top, resources};
use crate::{
    Ids, Parsed, ResourceConf,
    selector::{Parent, Selector, Sort, Text},
};
use conf_reader::{Field, Texts, Wrong};
use serde::Deserialize;
use serde_json::Value;

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

/// Selectors that this daemon does not support. They cause an error: if the daemon ignored them, pods would get devices
/// that the configuration excludes.
const NARROWER: [&str; 5] = [
    "ddpProfiles",
    "pKeys",
    "acpiIndexes",
    "extraSelectors",
    "numaNodes",
];

/// Default of `--resource-prefix` of sriov-network-device-plugin.
const PREFIX: &str = "intel.com";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum DeviceType {
    NetDevice,
    AuxNetDevice,
    Accelerator,
}

pub(crate) fn read(file: &Field<'_>) -> Result<Parsed, Wrong> {
    let mut remarks = passed_over_at_top(file, &["resourceList"]);
    let resources = resources(file, "resourceList", &mut remarks, one)?;
    parsed(resources, file, remarks)
}

fn one(field: &Field<'_>, remarks: &mut Vec<String>) -> Result<Option<ResourceConf>, Wrong> {
    let place = field.place();
    remarks.extend(passed_over(field, &RESOURCE_KEYS));
    let name = name(field, PREFIX)?;
    let device_type = field.at("deviceType");
    let sort = match device_type.read::<Value>()? {
        Value::Null => Sort::Pci,
        Value::String(text) if text.is_empty() => Sort::Pci,
        _ => match device_type.read()? {
            DeviceType::NetDevice => Sort::Pci,
            DeviceType::AuxNetDevice => Sort::Auxiliary,
            DeviceType::Accelerator => {
                remarks.push(format!(
                    "{place}.deviceType: the daemon does not offer {name}: accelerators are left to sriov-network-device-plugin"
                ));
                return Ok(None);
            }
        },
    };
    if field.at("additionalInfo").is_there() {
        remarks.push(format!(
            "{place}.additionalInfo: ignored; PCIDEVICE_…_INFO of a container does not contain it"
        ));
    }
    let topology = !field.get("excludeTopology")?.unwrap_or(false);
    let mut devices = Vec::new();
    for selectors in &selectors_of(field)? {
        remarks.extend(passed_over(selectors, &SELECTOR_KEYS));
        if selectors.get("isRdma")?.unwrap_or(false) {
            devices.push(selector(selectors, sort)?);
        } else {
            let place = selectors.place();
            remarks.push(format!(
                "{place}.isRdma: not true, so these devices of {name} are left to sriov-network-device-plugin"
            ));
        }
    }
    // without a selector, return no resource: an empty list would select all devices
    Ok((!devices.is_empty()).then(|| ResourceConf {
        topology,
        ..ResourceConf::new(name, place, Ids::Exclusive, devices)
    }))
}

/// Reads `selectors`, which is an object or a list of objects.
fn selectors_of<'a>(resource: &Field<'a>) -> Result<Vec<Field<'a>>, Wrong> {
    let field = resource.at("selectors");
    let found = match field.is_list() {
        true => resource.objects("selectors")?,
        false => vec![resource.object("selectors")?],
    };
    match found.iter().any(Field::is_there) {
        true => Ok(found),
        false => Err(field.wrong("must have at least one selector")),
    }
}

fn selector(field: &Field<'_>, sort: Sort) -> Result<Selector, Wrong> {
    if field.get("needVhostNet")?.unwrap_or(false) {
        let sentence =
            "must be left out: the daemon does not give containers /dev/vhost-net and /dev/net/tun";
        return Err(field.at("needVhostNet").refused(sentence));
    }
    if field
        .get("vdpaType")?
        .is_some_and(|it: String| !it.is_empty())
    {
        let must = "must be left out where isRdma is true";
        return Err(field.at("vdpaType").wrong(must));
    }
    for name in NARROWER {
        let field = field.at(name);
        if !is_empty(&field.read()?) {
            return Err(field.refused("must be left out: the daemon cannot select devices by it"));
        }
    }
    let aux_types: Texts = field.at("auxTypes").read()?;
    let is_sf = !aux_types.0.is_empty() && aux_types.0.iter().all(|it| it == "sf");
    if sort == Sort::Auxiliary && !is_sf {
        let must = "must be [\"sf\"] with deviceType auxNetDevice";
        return Err(field.at("auxTypes").wrong(must));
    }
    let parents = |name: &str| -> Result<Vec<Parent>, Wrong> {
        let field = field.at(name);
        let texts: Texts = field.read()?;
        let parents = texts.0.iter().map(|text| {
            let parent = Parent::parse(text, |name| Ok(Text::exactly_or_regex(name)));
            parent.map_err(|problem| field.refused(problem))
        });
        parents.collect()
    };
    let texts = |name: &str| Ok(exactly(&field.at(name).read()?));
    Ok(Selector {
        place: field.place().to_owned(),
        netdev: texts("nicNames")?,
        rdma: Vec::new(),
        address: texts("pciAddresses")?,
        driver: texts("drivers")?,
        vendor: texts("vendors")?,
        device: texts("devices")?,
        link_type: link_types(field)?,
        pf: parents("pfNames")?,
        root: parents("rootDevices")?,
        sort: Some(sort),
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
