// SPDX-License-Identifier: Apache-2.0
//! The daemon's own format.
//!
//! ```yaml
//! resources:
//! - name: rdma/hca
//!   kind: shared          # or perNic, exclusive
//!   count: 1000           # ids; perNic: of each NIC, 200
//!   allocate: all         # or numa: an id stands for one device; perNic: numa if not given
//!   devices:              # any of these; without it all RDMA devices
//!   - netdev: bond*       # all of these; each a pattern, or a list of patterns
//!     rdma: mlx5_bond_*
//!     pci: "0000:3b:*"
//!     driver: mlx5_core
//!     vendor: 15b3
//!     device: "101e"
//!     linkType: ether     # or infiniband
//!     pf: ens1f0#0-3,5    # virtual or sub-functions of this netdev or PCI function
//!   umad: false           # umad and issm character devices too
//!   topology: true        # tell kubelet the NUMA nodes
//!   require: all          # or a number: with fewer healthy devices, no pod gets any
//! cdi: false              # containers get devices by CDI names
//! erdma: {}               # see own_erdma; resources may be left out then
//! chain: {}               # see chain
//! ```

use super::{
    Allocate, Conf, Erdma, Ids, MOST_IDS, MOST_NIC_IDS, NIC_IDS, Parsed, Require, ResourceConf,
    SHARED_IDS, Wrong, chain, erdma,
    fields::{Fields, one_of},
    name_at, own_erdma,
    selector::{Parent, Selector, Text},
};
use rdma_netns::{DeviceAddress, LinkType};

/// Fields at the top; the last two are no format's mark.
const FIELDS: [&str; 4] = ["resources", "erdma", "cdi", chain::FIELD];
/// Those by which the format is known.
pub(super) const KEYS: [&str; 2] = ["resources", ERDMA];
/// It is ours only where no other format's field is: their owners pass over it.
pub(super) const ERDMA: &str = "erdma";
const RESOURCE_KEYS: [&str; 8] = [
    "name", "kind", "count", "allocate", "devices", "umad", "topology", "require",
];
/// No node has more devices of a resource.
const MOST_DEVICES: u32 = 10_000;
const SELECTOR_KEYS: [&str; 8] = [
    "netdev", "rdma", "pci", "driver", "vendor", "device", "linkType", "pf",
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Shared,
    PerNic,
    Exclusive,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Parsed, Wrong> {
    none_else(fields, &FIELDS)?;
    let mut remarks = Vec::new();
    let erdma = match fields.object("erdma")? {
        Some(erdma) => own_erdma::read(&erdma, &mut remarks)?,
        None => Erdma::default(),
    };
    let resources = match fields.objects("resources")? {
        Some(list) if list.is_empty() => {
            return Err(fields.wrong("resources", "must have at least one resource"));
        }
        Some(list) => list.iter().map(resource).collect::<Result<_, _>>()?,
        None if fields.has("resources") => {
            let problem = "must have at least one resource, and is null; leave it out for \
                           aliyun/erdma alone";
            return Err(Wrong::new("resources", problem));
        }
        None => vec![erdma.resource(name_at(erdma::RESOURCE, "erdma".to_owned())?)],
    };
    Ok(Parsed {
        conf: Conf {
            resources,
            cdi: fields.boolean("cdi")?.unwrap_or(false),
            erdma,
            chain: chain::of(fields)?,
        },
        remarks,
    })
}

fn resource(fields: &Fields<'_>) -> Result<ResourceConf, Wrong> {
    none_else(fields, &RESOURCE_KEYS)?;
    let Some(name) = fields.text("name")? else {
        return Err(fields.wrong("name", "must be a text"));
    };
    let kinds = [
        ("shared", Kind::Shared),
        ("perNic", Kind::PerNic),
        ("exclusive", Kind::Exclusive),
    ];
    let Some(kind) = fields.choice("kind", &kinds)? else {
        return Err(fields.wrong("kind", &one_of(kinds.map(|(word, _)| word))));
    };
    let most = if kind == Kind::PerNic {
        MOST_NIC_IDS
    } else {
        MOST_IDS
    };
    let count = fields.number("count", 1, most)?;
    let allocate = fields.choice(
        "allocate",
        &[("all", Allocate::All), ("numa", Allocate::Numa)],
    )?;
    let ids = match kind {
        Kind::Shared => Ids::Shared {
            count: count.unwrap_or(SHARED_IDS),
            allocate: allocate.unwrap_or(Allocate::All),
        },
        Kind::PerNic => Ids::PerNic {
            count: count.unwrap_or(NIC_IDS),
            allocate: allocate.unwrap_or(Allocate::Numa),
        },
        Kind::Exclusive => {
            for key in ["count", "allocate"] {
                if fields.get(key).is_some() {
                    return Err(fields.wrong(
                        key,
                        "must be left out with kind exclusive: there is one id for each device",
                    ));
                }
            }
            Ids::Exclusive
        }
    };
    Ok(ResourceConf {
        name: name_at(name, fields.place_of("name"))?,
        place: fields.place().to_owned(),
        ids,
        devices: selectors(fields)?.unwrap_or_default(),
        umad: fields.boolean("umad")?.unwrap_or(false),
        topology: fields.boolean("topology")?.unwrap_or(true),
        require: require(fields)?,
    })
}

fn require(fields: &Fields<'_>) -> Result<Option<Require>, Wrong> {
    match fields.get("require") {
        None => Ok(None),
        Some(value) if value == "all" => Ok(Some(Require::All)),
        Some(value) if value.is_u64() => {
            let number = fields.number("require", 1, MOST_DEVICES)?;
            Ok(number.map(Require::Number))
        }
        Some(_) => Err(fields.wrong("require", "must be all, or a number of devices")),
    }
}

/// `devices`; none: it was left out.
pub(super) fn selectors(fields: &Fields<'_>) -> Result<Option<Vec<Selector>>, Wrong> {
    let Some(devices) = fields.objects("devices")? else {
        return Ok(None);
    };
    if devices.is_empty() {
        return Err(fields.wrong(
            "devices",
            "must have at least one selector; leave it out to select all RDMA devices",
        ));
    }
    let selectors = devices.iter().map(selector);
    selectors.collect::<Result<_, _>>().map(Some)
}

fn selector(fields: &Fields<'_>) -> Result<Selector, Wrong> {
    none_else(fields, &SELECTOR_KEYS)?;
    let wrong = |key: &str| {
        let place = fields.place_of(key);
        |problem: String| Wrong::new(place, problem)
    };
    let globs = |key: &str| -> Result<Vec<Text>, Wrong> {
        let texts = fields.texts(key)?;
        let globs = texts.iter().map(|text| Text::glob(text));
        globs.collect::<Result<_, _>>().map_err(wrong(key))
    };
    let link_type = |word: &&str| match *word {
        "ether" => Ok(LinkType::Ether),
        "infiniband" => Ok(LinkType::Infiniband),
        _ => Err(fields.wrong("linkType", "must be ether or infiniband")),
    };
    let mut parents = Vec::new();
    let mut roots = Vec::new();
    for text in fields.texts("pf")? {
        let parent = Parent::parse(text, Text::glob).map_err(wrong("pf"))?;
        let name = text.split('#').next().unwrap_or_default();
        match DeviceAddress::try_from(name.to_owned()) {
            Ok(_) => roots.push(parent),
            Err(_) => parents.push(parent),
        }
    }
    if !parents.is_empty() && !roots.is_empty() {
        return Err(fields.wrong(
            "pf",
            "must be all netdevs or all PCI addresses; write a second selector",
        ));
    }
    let selector = Selector {
        place: fields.place().to_owned(),
        netdev: globs("netdev")?,
        rdma: globs("rdma")?,
        address: globs("pci")?,
        driver: globs("driver")?,
        vendor: globs("vendor")?,
        device: globs("device")?,
        link_type: fields
            .texts("linkType")?
            .iter()
            .map(link_type)
            .collect::<Result<_, _>>()?,
        pf: parents,
        root: roots,
        sort: None,
    };
    let empty = Selector {
        place: selector.place.clone(),
        ..Selector::default()
    };
    if selector == empty {
        return Err(Wrong::new(
            selector.place,
            format!(
                "must have at least one of {}: it would select every device",
                SELECTOR_KEYS.join(", ")
            ),
        ));
    }
    Ok(selector)
}

/// An unknown field would be a wish that is not fulfilled.
pub(super) fn none_else(fields: &Fields<'_>, known: &[&str]) -> Result<(), Wrong> {
    match fields.others(known).into_iter().next() {
        None => Ok(()),
        Some(place) => Err(Wrong::new(
            place,
            format!("not known; the fields here are {}", known.join(", ")),
        )),
    }
}
