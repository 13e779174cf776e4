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
use cni_protocol::{ConfError, Environment, Fields, Mistakes, Network};
use serde_json::{Map, Value};
use std::{net::IpAddr, path::PathBuf};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let ipam = Fields::root(raw).object("ipam")?;
        let data_dir = match ipam.string("dataDir")? {
            None | Some("") => PathBuf::from(DATA_DIR),
            Some(path) if path.starts_with('/') => PathBuf::from(path),
            Some(_) => return Err(ipam.wrong("dataDir", "must be an absolute path")),
        };
        Ok(Self { network, data_dir })
    }
}

/// Top-level `conflicts`: the attachment's addresses that another machine was found to use.
pub fn conflicts(raw: &Map<String, Value>) -> Result<Vec<IpAddr>, ConfError> {
    addresses(Fields::root(raw), "conflicts")
}

/// A list of addresses without prefix lengths; none, if it is not there.
fn addresses(fields: Fields<'_>, name: &str) -> Result<Vec<IpAddr>, ConfError> {
    let list = fields.list(name)?.into_iter().flatten();
    list.map(|value| value.as_str().and_then(plain))
        .collect::<Option<_>>()
        .ok_or_else(|| fields.wrong(name, "must list addresses"))
}

impl Plan {
    /// Checks all fields that ADD works with.
    pub fn parse(raw: &Map<String, Value>, environment: &Environment) -> Result<Self, ConfError> {
        let root = Fields::root(raw);
        let ipam = root.object("ipam")?;
        if root.get("ipam").is_none() {
            return Err(ConfError::Missing {
                field: "ipam",
                expected: "it says where addresses come from: ipam.ranges, or ipam.from: \"parent\"",
            });
        }
        let strategies = [
            ("sequential", Strategy::Sequential),
            ("stable", Strategy::Stable),
        ];
        let both = &[Family::V4, Family::V6][..];
        let families = [("ipv4", &both[..1]), ("ipv6", &both[1..]), ("both", both)];
        let strategy = ipam.choice("strategy", &strategies)?;
        let families = ipam.choice("family", &families)?;
        let from_parent = ipam.choice("from", &[("ranges", false), ("parent", true)])?;
        let pools = ranges::pools(root, ipam)?;
        let source = match from_parent {
            Some(true) if !pools.is_empty() => {
                return Err(ipam.wrong(
                    "from",
                    "the addresses come from the parent's prefixes, so that there can be no ipam.ranges, \
                     ipam.subnet or runtimeConfig.ipRanges: leave out one or the other",
                ));
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
            resolv_conf: match ipam.string("resolvConf")? {
                Some("") => None,
                _ => ipam.absolute_path("resolvConf")?,
            },
            requested: wishes::requested(root, environment)?,
            away: addresses(root, "hostAddresses")?,
            neighbours: match root.get("neighbourAddresses") {
                None => None,
                Some(_) => Some(addresses(root, "neighbourAddresses")?),
            },
        })
    }
}

/// The pools of `families`; each family has to have one.
fn only(
    ipam: Fields<'_>,
    mut pools: Vec<Pool>,
    families: Option<&[Family]>,
) -> Result<Vec<Pool>, ConfError> {
    let Some(families) = families else {
        return Ok(pools);
    };
    pools.retain(|pool| families.contains(&pool.family()));
    for family in families {
        if !pools.iter().any(|pool| pool.family() == *family) {
            return Err(ipam.wrong("family", &format!("the ranges have no {family} subnet")));
        }
    }
    Ok(pools)
}

/// `master`, `masterAddresses` and `masterRoutes`, as `rdma-cni` hands them on.
fn parent(root: Fields<'_>, families: &[Family]) -> Result<Source, ConfError> {
    let name = root.string("master")?.filter(|name| !name.is_empty());
    let told = match root.list("masterAddresses")? {
        None => None,
        Some(list) => {
            let addresses: Option<Vec<_>> = list.iter().map(|it| cidr(it.as_str()?)).collect();
            let addresses = addresses.ok_or_else(|| {
                root.wrong(
                    "masterAddresses",
                    "must list addresses with their prefix lengths",
                )
            })?;
            Some(Parent {
                name: name.unwrap_or("the parent").to_owned(),
                addresses,
                routes: gateway_routes(root)?,
            })
        }
    };
    Ok(Source::Parent {
        name: name.map(str::to_owned),
        told,
        families: families.to_vec(),
    })
}

fn gateway_routes(root: Fields<'_>) -> Result<Vec<GatewayRoute>, ConfError> {
    let list = root.list("masterRoutes")?.into_iter().flatten();
    list.map(|value| {
        Some(GatewayRoute {
            destination: cidr(value.get("dst")?.as_str()?)?,
            gateway: plain(value.get("gw")?.as_str()?)?,
        })
    })
    .collect::<Option<_>>()
    .ok_or_else(|| root.wrong("masterRoutes", "must list {\"dst\", \"gw\"} objects"))
}
