// SPDX-License-Identifier: Apache-2.0
//! The network configuration, as far as it is this plugin's: host-local's fields with
//! host-local's meaning, and `from`, `strategy`, `family`.
//!
//! [`Place`] is all that DEL and GC need: a mistake in the ranges, made after ADD, must not
//! keep a lease from being given back. [`Plan`] is what ADD and STATUS work with.

mod ranges;
mod wishes;

use crate::{
    address::{Family, cidr, plain},
    parent::{GatewayRoute, Parent},
    range::Pool,
};
use cni_protocol::{ConfError, Environment, Mistakes, Network};
use conf_reader::{AbsolutePath, Field, Wrong};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{net::IpAddr, path::PathBuf};

/// The fields of `ipam` that a user can write.
pub const FIELDS: &[&str] = &[
    "dataDir",
    "family",
    "from",
    "gateway",
    "rangeEnd",
    "rangeStart",
    "ranges",
    "resolvConf",
    "routes",
    "strategy",
    "subnet",
    "type",
];

/// Those of a range of `ipam.ranges`.
pub const RANGE_FIELDS: &[&str] = &["gateway", "rangeEnd", "rangeStart", "subnet"];

/// Those of a route of `ipam.routes`.
pub const ROUTE_FIELDS: &[&str] = &["advmss", "dst", "gw", "mtu", "priority", "scope", "table"];

/// host-local's `dataDir`.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// Where the leases are.
#[derive(Clone, Debug)]
pub struct Place {
    /// What every plugin's configuration has.
    pub network: Network,
    /// `ipam.dataDir`
    pub data_dir: PathBuf,
}

/// How addresses are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Strategy {
    /// Round robin after the last one given.
    Sequential,
    /// RFC 7217.
    Stable,
}

/// Where addresses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// One from each range set.
    Ranges(Vec<Pool>),
    /// One of each family from the parent's prefixes.
    Parent {
        /// `master`; STATUS comes without.
        name: Option<String>,
        /// `masterAddresses` and `masterRoutes`; none: the netdev is looked at.
        told: Option<Parent>,
        /// Which families, IPv4 first.
        families: Vec<Family>,
    },
}

/// What to give.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where from.
    pub source: Source,
    /// In which order.
    pub strategy: Strategy,
    /// `ipam.routes`, as they came; none: not configured.
    pub routes: Option<Vec<Value>>,
    /// `ipam.resolvConf`
    pub resolv_conf: Option<PathBuf>,
    /// The addresses asked for, each of which has to be given.
    pub requested: Vec<IpAddr>,
    /// `hostAddresses`: the host's own, on NICs that are in pods at this moment.
    pub away: Vec<IpAddr>,
    /// `neighbourAddresses`: of other machines, as the parent's neighbour tables have them; none:
    /// not told.
    pub neighbours: Option<Vec<IpAddr>>,
}

impl Place {
    /// Reads what every verb needs. Where the leases are is never passed over: those elsewhere are
    /// not the attachment's.
    pub fn parse(raw: &Map<String, Value>, mistakes: &mut Mistakes) -> Result<Self, ConfError> {
        let network = Network::parse(raw, mistakes)?;
        let ipam = Field::root(raw).object("ipam")?;
        let data_dir = path(&ipam.at("dataDir"))?.unwrap_or_else(|| DATA_DIR.into());
        Ok(Self { network, data_dir })
    }
}

/// Top-level `conflicts`: the attachment's addresses that another machine was found to use.
pub fn conflicts(raw: &Map<String, Value>) -> Result<Vec<IpAddr>, ConfError> {
    let conflicts = list(&Field::root(raw).at("conflicts"), ADDRESSES, address)?;
    Ok(conflicts.unwrap_or_default())
}

const ADDRESSES: &str = "must list addresses";

/// An address without a prefix length.
fn address(value: &Value) -> Option<IpAddr> {
    plain(value.as_str()?)
}

/// The elements of a list, each read by `one`; none: there is no list. Where an element cannot be
/// read, the list is not as it `must` be.
fn list<T>(
    field: &Field<'_>,
    must: &str,
    one: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, Wrong> {
    if !field.is_there() {
        return Ok(None);
    }
    let elements = field.list()?;
    let read: Option<_> = elements.iter().map(|it| one(it.value()?)).collect();
    read.map(Some).ok_or_else(|| field.wrong(must))
}

/// An absolute path; an empty text is none.
fn path(field: &Field<'_>) -> Result<Option<PathBuf>, Wrong> {
    match field.read::<Option<String>>()?.as_deref() {
        None | Some("") => Ok(None),
        Some(_) => field.read().map(|AbsolutePath(path)| Some(path)),
    }
}

impl Plan {
    /// Checks all fields that ADD works with.
    pub fn parse(raw: &Map<String, Value>, environment: &Environment) -> Result<Self, ConfError> {
        let root = &Field::root(raw);
        let ipam = &root.object("ipam")?;
        if !ipam.is_there() {
            return Err(ConfError::Missing {
                field: "ipam",
                expected: "it says where addresses come from: ipam.ranges, or ipam.from: \"parent\"",
            });
        }
        let both = &[Family::V4, Family::V6][..];
        let families = [("ipv4", &both[..1]), ("ipv6", &both[1..]), ("both", both)];
        let strategy = ipam.get("strategy")?;
        let families = ipam.choice("family", &families)?;
        let from_parent = ipam.choice("from", &[("ranges", false), ("parent", true)])?;
        let pools = ranges::pools(root, ipam)?;
        let source = match from_parent {
            Some(true) if !pools.is_empty() => {
                return Err(ipam.at("from").wrong(
                    "the addresses come from the parent's prefixes, so that there can be no ipam.ranges, \
                     ipam.subnet or runtimeConfig.ipRanges: leave out one or the other",
                ).into());
            }
            Some(true) => parent(root, families.unwrap_or(&both[1..]))?,
            _ if pools.is_empty() => {
                return Err(ConfError::Missing {
                    field: "ipam.ranges",
                    expected: "give ranges to take addresses from (or ipam.subnet), or set ipam.from to \
                               \"parent\"",
                });
            }
            _ => Source::Ranges(only(ipam, pools, families)?),
        };
        Ok(Self {
            source,
            // nodes of one network share the parent's prefix
            strategy: strategy.unwrap_or(match from_parent {
                Some(true) => Strategy::Stable,
                _ => Strategy::Sequential,
            }),
            routes: wishes::routes(ipam)?,
            resolv_conf: path(&ipam.at("resolvConf"))?,
            requested: wishes::requested(root, environment)?,
            away: list(&root.at("hostAddresses"), ADDRESSES, address)?.unwrap_or_default(),
            neighbours: list(&root.at("neighbourAddresses"), ADDRESSES, address)?,
        })
    }
}

/// The pools of `families`; each family has to have one.
fn only(
    ipam: &Field<'_>,
    mut pools: Vec<Pool>,
    families: Option<&[Family]>,
) -> Result<Vec<Pool>, Wrong> {
    let Some(families) = families else {
        return Ok(pools);
    };
    pools.retain(|pool| families.contains(&pool.family()));
    for family in families {
        if !pools.iter().any(|pool| pool.family() == *family) {
            let sentence = format!("the ranges have no {family} subnet");
            return Err(ipam.at("family").wrong(sentence));
        }
    }
    Ok(pools)
}

/// `master`, `masterAddresses` and `masterRoutes`, as `rdma-cni` hands them on.
fn parent(root: &Field<'_>, families: &[Family]) -> Result<Source, Wrong> {
    let name: Option<String> = root.get("master")?;
    let name = name.filter(|name| !name.is_empty());
    let must = "must list addresses with their prefix lengths";
    let addresses = list(&root.at("masterAddresses"), must, |it| cidr(it.as_str()?))?;
    let told = match addresses {
        None => None,
        Some(addresses) => Some(Parent {
            name: name.clone().unwrap_or_else(|| "the parent".to_owned()),
            addresses,
            routes: gateway_routes(root)?,
        }),
    };
    Ok(Source::Parent {
        name,
        told,
        families: families.to_vec(),
    })
}

fn gateway_routes(root: &Field<'_>) -> Result<Vec<GatewayRoute>, Wrong> {
    let must = "must list {\"dst\", \"gw\"} objects";
    let routes = list(&root.at("masterRoutes"), must, |route| {
        Some(GatewayRoute {
            destination: cidr(route.get("dst")?.as_str()?)?,
            gateway: plain(route.get("gw")?.as_str()?)?,
        })
    })?;
    Ok(routes.unwrap_or_default())
}
