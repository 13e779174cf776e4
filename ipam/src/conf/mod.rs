// SPDX-License-Identifier: Apache-2.0
//! The plugin's fields of the network configuration. They are host-local's fields, with the same meaning, and
//! `exclude`, `family`, `from`, `perNode`, `strategy`.
//!
//! DEL and GC need only [`Place`]. So a mistake in the ranges after ADD does not prevent the removal of a lease. ADD
//! and STATUS need [`Plan`].

mod bounds;
mod ranges;
mod requests;

use crate::{
    address::{Family, cidr, plain},
    bounds::Bounds,
    parent::{GatewayRoute, Parent},
    range::Pool,
};
use cni_protocol::{ConfError, Environment, Mistakes, Network};
use conf_reader::{AbsolutePath, Field, Wrong};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{net::IpAddr, path::PathBuf};

/// Fields of `ipam`.
pub const FIELDS: &[&str] = &[
    "dataDir",
    "exclude",
    "family",
    "from",
    "gateway",
    "perNode",
    "rangeEnd",
    "rangeStart",
    "ranges",
    "resolvConf",
    "routes",
    "strategy",
    "subnet",
    "type",
];

/// Fields of an element of `ipam.ranges`.
pub const RANGE_FIELDS: &[&str] = &["gateway", "rangeEnd", "rangeStart", "subnet"];

/// Fields of an element of `ipam.routes`.
pub const ROUTE_FIELDS: &[&str] = &["advmss", "dst", "gw", "mtu", "priority", "scope", "table"];

/// Default of `dataDir`, as in host-local.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// The network, and the directory with the leases of all networks.
#[derive(Clone, Debug)]
pub struct Place {
    /// Fields that every plugin's configuration has.
    pub network: Network,
    /// Value of `ipam.dataDir`.
    pub data_dir: PathBuf,
}

/// The order in which the plugin tries addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Strategy {
    /// Round robin: the order starts after the last assigned address.
    Sequential,
    /// The stable addresses of RFC 7217.
    Stable,
}

/// The source of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Range sets. The plugin assigns one address from each.
    Ranges(Vec<Pool>),
    /// The parent's prefixes. The plugin assigns one address of each family.
    Parent {
        /// Value of `master`. STATUS may have none.
        name: Option<String>,
        /// Values of `masterAddresses` and `masterRoutes`. `None`: the plugin observes the netdev itself.
        passed: Option<Parent>,
        /// Requested families with their bounds. IPv4 comes first.
        families: Vec<Bounds>,
    },
}

/// The checked request of an ADD.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Source of the addresses.
    pub source: Source,
    /// Order in which the plugin tries addresses.
    pub strategy: Strategy,
    /// Value of `ipam.routes`, unchanged. `None`: the field is missing.
    pub routes: Option<Vec<Value>>,
    /// Value of `ipam.resolvConf`.
    pub resolv_conf: Option<PathBuf>,
    /// Requested addresses. ADD fails if it cannot assign all of them.
    pub requested: Vec<IpAddr>,
    /// Value of `hostAddresses`: addresses of the host on NICs that are in pods now.
    pub away: Vec<IpAddr>,
    /// Value of `neighbourAddresses`: addresses of other machines in the parent's neighbour tables. `None`: the caller
    /// did not pass the field.
    pub neighbours: Option<Vec<IpAddr>>,
    /// Value of `nodeAddresses`: addresses of other nodes. ADD remembers them.
    pub nodes: Vec<IpAddr>,
}

impl Place {
    /// Reads the fields that every verb needs. A wrong `dataDir` is an error for every verb, because leases in another
    /// directory belong to other attachments.
    pub fn parse(raw: &Map<String, Value>, mistakes: &mut Mistakes) -> Result<Self, ConfError> {
        let network = Network::parse(raw, mistakes)?;
        let ipam = Field::root(raw).object("ipam")?;
        let data_dir = path(&ipam.at("dataDir"))?.unwrap_or_else(|| DATA_DIR.into());
        Ok(Self { network, data_dir })
    }
}

/// Returns the top-level field `conflicts`: those addresses of the attachment that another machine uses.
pub fn conflicts(raw: &Map<String, Value>) -> Result<Vec<IpAddr>, ConfError> {
    let conflicts = list(&Field::root(raw).at("conflicts"), ADDRESSES, address)?;
    Ok(conflicts.unwrap_or_default())
}

const ADDRESSES: &str = "must list addresses";

fn address(value: &Value) -> Option<IpAddr> {
    plain(value.as_str()?)
}

/// Returns the elements of a list, each parsed by `one`. Returns `None` if the list is missing. For a wrong element,
/// `must` is the text of the error about the list.
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

/// Reads an absolute path. An empty string counts as a missing field.
fn path(field: &Field<'_>) -> Result<Option<PathBuf>, Wrong> {
    match field.text()? {
        None => Ok(None),
        Some(_) => field.read().map(|AbsolutePath(path)| Some(path)),
    }
}

impl Plan {
    /// Checks all fields that ADD needs.
    pub fn parse(raw: &Map<String, Value>, environment: &Environment) -> Result<Self, ConfError> {
        let root = &Field::root(raw);
        let ipam = &root.object("ipam")?;
        if !ipam.is_there() {
            return Err(ConfError::Missing {
                field: "ipam",
                expected: "set ipam.ranges, or ipam.from to \"parent\"",
            });
        }
        let both = &[Family::V4, Family::V6][..];
        let families = [("ipv4", &both[..1]), ("ipv6", &both[1..]), ("both", both)];
        let strategy = ipam.get("strategy")?;
        let families = ipam.choice("family", &families)?;
        let from_parent = ipam.choice("from", &[("ranges", false), ("parent", true)])?;
        let pools = ranges::pools(root, ipam, from_parent == Some(true))?;
        let source = match from_parent {
            Some(true) if !pools.is_empty() => {
                return Err(ipam.at("from").wrong(
                    "the addresses come from the parent's prefixes: leave out ipam.ranges, ipam.subnet and \
                     runtimeConfig.ipRanges, or leave out ipam.from",
                ).into());
            }
            Some(true) => parent(
                root,
                bounds::of_parent(ipam, families.unwrap_or(&both[1..]))?,
            )?,
            _ if pools.is_empty() => {
                return Err(ConfError::Missing {
                    field: "ipam.ranges",
                    expected: "set ipam.ranges or ipam.subnet, or set ipam.from to \"parent\"",
                });
            }
            _ => Source::Ranges(bounds::excluded(ipam, only(ipam, pools, families)?)?),
        };
        Ok(Self {
            source,
            // the nodes of a network share the parent's prefix, so they would try the same sequential addresses
            strategy: strategy.unwrap_or(match from_parent {
                Some(true) => Strategy::Stable,
                _ => Strategy::Sequential,
            }),
            routes: requests::routes(ipam)?,
            resolv_conf: path(&ipam.at("resolvConf"))?,
            requested: requests::requested(root, environment)?,
            away: list(&root.at("hostAddresses"), ADDRESSES, address)?.unwrap_or_default(),
            neighbours: list(&root.at("neighbourAddresses"), ADDRESSES, address)?,
            nodes: list(&root.at("nodeAddresses"), ADDRESSES, address)?.unwrap_or_default(),
        })
    }
}

/// Returns the pools of `families`, or all pools if `families` is `None`.
///
/// # Errors
/// A family has no pool.
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

/// Reads `master`, `masterAddresses` and `masterRoutes`, as `rdma-cni` passes them.
fn parent(root: &Field<'_>, families: Vec<Bounds>) -> Result<Source, Wrong> {
    let name = root.at("master").text()?;
    let must = "must list addresses with their prefix lengths";
    let addresses = list(&root.at("masterAddresses"), must, |it| cidr(it.as_str()?))?;
    let passed = match addresses {
        None => None,
        Some(addresses) => Some(Parent {
            name: name.clone().unwrap_or_else(|| "the parent".to_owned()),
            addresses,
            routes: gateway_routes(root)?,
        }),
    };
    Ok(Source::Parent {
        name,
        passed,
        families,
    })
}

fn gateway_routes(root: &Field<'_>) -> Result<Vec<GatewayRoute>, Wrong> {
    let must = "must list {\"dst\", \"gw\"} objects, dst with its prefix length";
    let routes = list(&root.at("masterRoutes"), must, |route| {
        Some(GatewayRoute {
            destination: cidr(route.get("dst")?.as_str()?)?,
            gateway: plain(route.get("gw")?.as_str()?)?,
        })
    })?;
    Ok(routes.unwrap_or_default())
}
