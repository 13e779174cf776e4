// SPDX-License-Identifier: Apache-2.0
//! The daemon's own format. The fields of the structures are the fields of the file. `docs/device-plugin-conf.md`
//! describes them.

mod erdma;

use super::{
    Allocate, COMMON, Chain, Conf, Erdma, Ids, MOST_IDS, MOST_NIC_IDS, NIC_IDS, Parsed, Reader,
    Require, ResourceConf, ResourceName, SHARED_IDS, chain,
    erdma::RESOURCE,
    selector::{Parent, Selector, Text, link_types},
};
use conf_reader::{Field, Number, Texts, Wrong, not_known};
use rdma_netns::DeviceAddress;
use rdma_resources::{ContainerLimits, Memlock, RdmaLimits};
use serde::Deserialize;
use serde_json::Value;

pub(crate) use erdma::MTU;

/// Fields by which the daemon recognizes its own format. `erdma` identifies the format only if the file has no field of
/// another format, because the programs of other formats ignore `erdma`.
pub(super) const MARKS: [&str; 2] = ["resources", ERDMA];
pub(super) const ERDMA: &str = "erdma";

/// Largest number of devices that a resource can require.
const MOST_DEVICES: u32 = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    name: ResourceName,
    kind: Kind,
    count: Option<Value>,
    allocate: Option<Allocate>,
    devices: Option<Vec<Device>>,
    parents: Option<Globs>,
    umad: Option<bool>,
    memlock: Option<Memlock>,
    limits: Option<Limits>,
    topology: Option<bool>,
    environment: Option<Vec<Reader>>,
    require: Option<Require>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    handles: Option<Number<1, { RdmaLimits::MOST }>>,
    objects: Option<Number<1, { RdmaLimits::MOST }>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Shared,
    PerNic,
    Exclusive,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Device {
    netdev: Globs,
    rdma: Globs,
    pci: Globs,
    driver: Globs,
    vendor: Globs,
    device: Globs,
    link_type: Texts,
    pf: Texts,
}

/// Shell patterns, written as a list or as a single string.
#[derive(Deserialize)]
#[serde(try_from = "Texts")]
struct Globs(Vec<Text>);

/// Reads a file that has only `chain`, for `install`. The daemon refuses such a file.
pub(super) fn read_chain(file: &Field<'_>) -> Result<Parsed, Wrong> {
    has_only(&[chain::FIELD], file)?;
    let conf = Conf {
        chain: chain::read(file)?,
        ..Conf::default()
    };
    Ok(Parsed {
        conf,
        remarks: vec![],
    })
}

pub(super) fn read(file: &Field<'_>) -> Result<Parsed, Wrong> {
    has_only(&[&MARKS[..], &COMMON].concat(), file)?;
    let mut remarks = Vec::new();
    let erdma = match file.get::<erdma::Section>(ERDMA)? {
        Some(section) => section.checked(&file.at(ERDMA), &mut remarks)?,
        None => Erdma::default(),
    };
    let list = file.at("resources");
    let resources = match list.read::<Option<Vec<Resource>>>()? {
        Some(resources) if resources.is_empty() => {
            return Err(list.wrong("must have at least one resource"));
        }
        Some(resources) => list.each(resources, Resource::checked)?,
        None if file.has("resources") => {
            return Err(list.refused(
                "must have at least one resource, and is null; remove this field to offer only aliyun/erdma",
            ));
        }
        None => vec![erdma.resource(ResourceName::at(RESOURCE, &file.at(ERDMA))?)],
    };
    let mut conf = Conf::read_common(file, resources, erdma)?;
    let moves = conf.chain.as_ref().is_some_and(Chain::moves);
    for resource in &mut conf.resources {
        resource.bonds = !moves;
    }
    for (number, resource) in conf.resources.iter().enumerate() {
        check_resource(resource, &list.element(number), &conf)?;
    }
    Ok(Parsed { conf, remarks })
}

fn has_only(known: &[&str], file: &Field<'_>) -> Result<(), Wrong> {
    match file.unknown(known).first() {
        Some(name) => Err(file.at(name).refused(not_known(name, known))),
        None => Ok(()),
    }
}

/// Checks `resource` together with `conf`: some fields of a resource need another setting.
fn check_resource(resource: &ResourceConf, field: &Field<'_>, conf: &Conf) -> Result<(), Wrong> {
    if resource.environment.contains(&Reader::Rails) && !conf.cdi {
        return Err(field.at("environment").refused(
            "has rails, which only containers with CDI names can get; set cdi to true, or leave rails out",
        ));
    }
    if !resource.parents.is_empty() && conf.chain.as_ref().is_some_and(Chain::moves) {
        return Err(field.at("parents").refused(
            "needs netdevs that stay on the host, and chain.plugin.mode is move; set it to auto or share, or leave \
             parents out",
        ));
    }
    if resource.limits.is_empty() {
        return Ok(());
    }
    let name = resource.limits.memlock.map_or("limits", |_| "memlock");
    let by_claims = conf
        .dra
        .as_ref()
        .is_some_and(|it| it.serves(resource.name.as_str()));
    if !conf.cdi && !by_claims {
        return Err(field.at(name).refused(format!(
            "needs devices by CDI names, whose entries have the hook that sets the limit; set cdi to true, or \
             leave {name} out"
        )));
    }
    if conf.chain.is_none() {
        return Err(field.at(name).refused(format!(
            "needs rdma-cni on the node, which the container runtime runs as the hook that sets the limit; \
             add chain, or leave {name} out"
        )));
    }
    Ok(())
}

impl Resource {
    fn checked(mut self, field: &Field<'_>) -> Result<ResourceConf, Wrong> {
        Ok(ResourceConf {
            ids: self.ids(field)?,
            has_default_count: self.count.is_none(),
            parents: self.parents(field)?,
            name: self.name,
            place: field.place().to_owned(),
            devices: selectors(self.devices, &field.at("devices"))?,
            umad: self.umad.unwrap_or(false),
            limits: ContainerLimits {
                memlock: self.memlock,
                rdma: self.limits.map_or(Ok(RdmaLimits::default()), |it| {
                    it.checked(&field.at("limits"))
                })?,
            },
            bonds: false,
            topology: self.topology.unwrap_or(true),
            environment: self.environment.into_iter().flatten().collect(),
            require: self.require,
        })
    }

    fn parents(&mut self, field: &Field<'_>) -> Result<Vec<Text>, Wrong> {
        let Some(Globs(parents)) = self.parents.take() else {
            return Ok(Vec::new());
        };
        let parents_at = field.at("parents");
        if matches!(self.kind, Kind::Exclusive) {
            return Err(parents_at.refused(
                "must be left out with kind exclusive, because a child netdev would share the device; use kind shared or perNic",
            ));
        }
        if parents.is_empty() {
            let sentence = "must name at least one netdev; remove this field to attach pods to the NIC or bond itself";
            return Err(parents_at.refused(sentence));
        }
        Ok(parents)
    }

    fn ids(&self, field: &Field<'_>) -> Result<Ids, Wrong> {
        let allocate = self.allocate;
        match self.kind {
            Kind::Shared => {
                let count: Option<Number<1, MOST_IDS>> = field.get("count")?;
                Ok(Ids::Shared {
                    count: count.map_or(SHARED_IDS, |count| count.0),
                    allocate: allocate.unwrap_or(Allocate::All),
                })
            }
            Kind::PerNic => {
                let count: Option<Number<1, MOST_NIC_IDS>> = field.get("count")?;
                Ok(Ids::PerNic {
                    count: count.map_or(NIC_IDS, |count| count.0),
                    allocate: allocate.unwrap_or(Allocate::Numa),
                })
            }
            Kind::Exclusive => {
                let surplus = match &self.count {
                    Some(_) => field.at("count"),
                    None if allocate.is_some() => field.at("allocate"),
                    None => return Ok(Ids::Exclusive),
                };
                let sentence =
                    "must be left out with kind exclusive: there is one id for each device";
                Err(surplus.refused(sentence))
            }
        }
    }
}

impl Limits {
    fn checked(self, field: &Field<'_>) -> Result<RdmaLimits, Wrong> {
        let limits = RdmaLimits {
            handles: self.handles.map(|it| it.0),
            objects: self.objects.map(|it| it.0),
        };
        if limits.is_empty() {
            return Err(field.wrong("must have handles, objects or both"));
        }
        Ok(limits)
    }
}

/// Checks `read`, the value of the field `devices`, and returns the selectors. `None`: the file does not have the
/// field.
fn selectors(read: Option<Vec<Device>>, devices: &Field<'_>) -> Result<Vec<Selector>, Wrong> {
    match read {
        Some(read) if read.is_empty() => {
            let sentence =
                "must have at least one selector; remove this field for the default selection";
            Err(devices.refused(sentence))
        }
        read => devices.each(read.unwrap_or_default(), Device::checked),
    }
}

impl Device {
    fn checked(self, field: &Field<'_>) -> Result<Selector, Wrong> {
        let pf = field.at("pf");
        let (mut parents, mut roots) = (Vec::new(), Vec::new());
        for text in &self.pf.0 {
            let parent = Parent::parse(text, Text::glob).map_err(|problem| pf.refused(problem))?;
            let name = text.split('#').next().unwrap_or_default();
            match DeviceAddress::try_from(name.to_owned()) {
                Ok(_) => roots.push(parent),
                Err(_) => parents.push(parent),
            }
        }
        if !parents.is_empty() && !roots.is_empty() {
            let sentence =
                "has netdevs and PCI addresses; write a second selector for the PCI addresses";
            return Err(pf.refused(sentence));
        }
        let link_type = field.at("linkType");
        let selector = Selector {
            place: field.place().to_owned(),
            netdev: self.netdev.0,
            rdma: self.rdma.0,
            address: self.pci.0,
            driver: self.driver.0,
            vendor: self.vendor.0,
            device: self.device.0,
            link_type: link_types(&self.link_type.0)
                .ok_or_else(|| link_type.wrong("must be ether or infiniband"))?,
            pf: parents,
            root: roots,
            sort: None,
        };
        if selector.selects_all() {
            return Err(field.refused(
                "must have at least one of netdev, rdma, pci, driver, vendor, device, linkType, pf: \
                 otherwise it selects every device",
            ));
        }
        Ok(selector)
    }
}

impl TryFrom<Texts> for Globs {
    type Error = String;

    fn try_from(texts: Texts) -> Result<Self, String> {
        let globs = texts.0.iter().map(|text| Text::glob(text));
        globs.collect::<Result<_, _>>().map(Self)
    }
}

/// Parses `all` or a number of devices.
impl TryFrom<Value> for Require {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().map(u32::try_from);
        match number {
            Some(Ok(number @ 1..=MOST_DEVICES)) => Ok(Self::Number(number)),
            Some(_) => Err(format!(
                "must be a whole number from 1 to {MOST_DEVICES}, and is {value}"
            )),
            None if value == "all" => Ok(Self::All),
            None => Err(format!(
                "must be all, or a whole number from 1 to {MOST_DEVICES}, and is {value}"
            )),
        }
    }
}
