// SPDX-License-Identifier: Apache-2.0
//! ADD: assigns one free address of each pool.

use super::{Node, pools::Offer};
use crate::{
    address::number,
    choose::{self, Choice, Segment},
    conf::{Plan, Strategy},
    error::{Error, list},
    forbidden::Forbidden,
    occupancy,
    range::Pool,
    resolv, secret,
    stable::{self, Identity, SECRET},
    store::{AVOIDED, Draft, Holding, Locked, Owner},
};
use cni_protocol::{result, state_file};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, io, net::IpAddr};

/// An ADD whose addresses are on disk. Its result is not written yet.
#[derive(Debug)]
pub struct Added {
    /// Result of the ADD.
    pub result: Value,
    owner: Owner,
    ips: Vec<IpAddr>,
}

/// Assigns addresses to the attachment.
pub fn add(node: &Node<'_>) -> Result<Added, Error> {
    let owner = node.owner()?;
    let plan = Plan::parse(node.raw, node.environment)?;
    let dns = dns(&plan)?;
    let offer = node.offer(&plan)?;
    let requests = requests(&offer, &plan.requested)?;
    let secret = match plan.strategy {
        Strategy::Sequential => None,
        Strategy::Stable => Some(secret::secret(node.disk, &node.place.data_dir)?),
    };
    let draft = node.store.draft(&owner)?;
    let ips = match give(node, &plan, &offer, requests, secret.as_ref(), &draft) {
        Ok(ips) => ips,
        Err(error) => {
            node.store.discard(draft);
            return Err(error);
        }
    };
    let settled = draft.settle(&node.store);
    let added = Added {
        result: answer(node, &offer, &ips, dns),
        owner,
        ips,
    };
    if let Err(error) = settled {
        let error = added.take_back(node, error.into());
        node.store.discard(draft);
        return Err(error);
    }
    log::info!("{} given to {}", list(&added.ips), added.owner);
    Ok(added)
}

impl Added {
    /// Releases the addresses after the caller did not get the result, for the reason `cause`. Returns the error of
    /// ADD.
    pub fn take_back(self, node: &Node<'_>, cause: Error) -> Error {
        let cause = Box::new(cause);
        let back = node.store.lock();
        let back = back.and_then(|locked| locked.release(&self.owner, &self.ips));
        match back.and_then(|_| node.store.sync()) {
            Ok(()) => Error::TakenBack { cause },
            Err(source) => Error::StillHeld {
                cause,
                ips: self.ips,
                source,
            },
        }
    }
}

/// Runs the steps that need the lock. Afterwards no other attachment can get the addresses. The leases are on disk
/// after `draft` is settled.
fn give(
    node: &Node<'_>,
    plan: &Plan,
    offer: &Offer,
    requests: Vec<Option<IpAddr>>,
    secret: Option<&[u8; SECRET]>,
    draft: &Draft,
) -> Result<Vec<IpAddr>, Error> {
    let owner = draft.owner();
    let locked = node.store.lock()?;
    match locked.holding(owner)? {
        Holding::Nothing => {}
        Holding::Complete(ips) => {
            return Err(Error::Holds {
                owner: owner.clone(),
                ips,
            });
        }
        Holding::Partial => {
            log::warn!("an earlier ADD or DEL of {owner} was interrupted: releasing its addresses");
            locked.release(owner, &locked.leases_of(owner)?)?;
        }
    }
    let is_in_pool = |ip: &IpAddr| offer.pools.iter().any(|it| it.range_of(*ip).is_some());
    let nodes = offer.nodes.iter().copied().filter(is_in_pool);
    if let Err(error) = locked.remember(nodes) {
        log::warn!("{error}; ADD may assign a pod the address of a node that is off");
    }
    let mut ips = vec![];
    let mut pointers = vec![];
    for (pool, request) in offer.pools.iter().zip(requests) {
        let pointer = match plan.strategy {
            Strategy::Sequential => Some(Pointer::of(&locked, pool)),
            Strategy::Stable => None,
        };
        let search = Search {
            locked: &locked,
            neighbours: &offer.neighbours,
            pool,
            forbidden: Forbidden::of(pool, &offer.own),
        };
        ips.push(match (request, secret) {
            (Some(ip), _) => search.requested(ip)?,
            (None, Some(secret)) => search.stable(&node.identity(), secret)?,
            (None, None) => search.sequential(pointer.as_ref().and_then(|it| it.last))?,
        });
        pointers.extend(pointer);
    }
    locked.reserve(draft, &ips)?;
    for (pointer, ip) in pointers.iter().zip(&ips) {
        // after a failure the file has the address of an earlier ADD, or does not exist
        if let Err(error) = locked.set_last(&pointer.name, *ip) {
            log::warn!(
                "last_reserved_ip.{}: {error}; the next ADD may start its search at an earlier address",
                pointer.name
            );
        }
    }
    Ok(ips)
}

/// The last assigned address of a pool's round robin, and the name of the file with this address.
struct Pointer {
    name: String,
    last: Option<IpAddr>,
}

impl Pointer {
    /// Returns host-local's round-robin file. If its address is outside the pool, returns a file of this pool alone:
    /// another plugin of the list may use host-local's file for its own range set of the same number. If both plugins
    /// wrote one file, each ADD would start at the lowest free address.
    fn of(locked: &Locked<'_>, pool: &Pool) -> Self {
        match locked.last(&pool.pointer) {
            Some(ip) if pool.range_of(ip).is_none() => {
                let name = pool.own_pointer();
                let last = locked.last(&name);
                Self { name, last }
            }
            last => Self {
                name: pool.pointer.clone(),
                last,
            },
        }
    }
}

/// Returns the requested address of each pool.
///
/// # Errors
/// A requested address belongs to no pool, or two belong to one pool.
fn requests(offer: &Offer, requested: &[IpAddr]) -> Result<Vec<Option<IpAddr>>, Error> {
    let mut requests = vec![None; offer.pools.len()];
    for ip in requested {
        let index = offer.pools.iter().position(|pool| {
            let is_there = |range: &crate::range::Range| range.subnet.contains(*ip);
            pool.range_of(*ip).is_some()
                // also accepts excluded addresses of the subnet: a later error then names the reason, such as the
                // broadcast address
                || (pool.ranges().iter().any(is_there)
                    && Forbidden::of(pool, &offer.own).why(number(*ip)).is_some())
        });
        let Some(index) = index else {
            let pools: Vec<String> = offer.pools.iter().map(ToString::to_string).collect();
            return Err(Error::Outside {
                ip: *ip,
                pools: pools.join(" or "),
            });
        };
        if let Some(other) = requests[index].replace(*ip) {
            return Err(Error::Several {
                ips: [other, *ip],
                pool: offer.pools[index].to_string(),
            });
        }
    }
    Ok(requests)
}

/// The search for an address of one pool.
struct Search<'a> {
    locked: &'a Locked<'a>,
    /// Addresses of other machines on the network.
    neighbours: &'a BTreeSet<IpAddr>,
    pool: &'a Pool,
    forbidden: Forbidden,
}

impl Search<'_> {
    /// Checks the requested address `ip`.
    fn requested(&self, ip: IpAddr) -> Result<IpAddr, Error> {
        if let Some(why) = self.forbidden.why(number(ip)) {
            return Err(Error::Forbidden { ip, why });
        }
        if let Some(holder) = self.locked.lease(ip)? {
            return Err(Error::Taken { ip, holder });
        }
        match self.locked.is_avoided(ip, AVOIDED)? {
            true => Err(Error::Conflict(ip)),
            false => Ok(ip),
        }
    }

    /// Chooses an address by the strategy `sequential`. If another machine uses the last assigned address, the search
    /// starts at a random address. Otherwise two nodes that share a range would try the same addresses one after the
    /// other.
    fn sequential(&self, mut last: Option<IpAddr>) -> Result<IpAddr, Error> {
        if let Some(ip) = last
            && self.locked.is_avoided(ip, AVOIDED)?
        {
            let start = self.pool.at(secret::number()? % self.pool.size());
            last = Some(self.pool.family().address(start));
        }
        let segments = choose::round_robin(self.pool, last);
        let tries = segments.iter().flat_map(|it| it.first..=it.last);
        self.first_free(tries, &segments)
    }

    /// Chooses an address by the strategy `stable`. If all tried addresses are unavailable, chooses the first free
    /// address after the first try.
    fn stable(&self, identity: &Identity, secret: &[u8; SECRET]) -> Result<IpAddr, Error> {
        let tries = stable::addresses(self.pool, identity, secret);
        let first = tries.clone().next();
        let first = first.map(|number| self.pool.family().address(number));
        self.first_free(tries, &choose::round_robin(self.pool, first))
    }

    fn first_free(
        &self,
        tries: impl Iterator<Item = u128> + Clone,
        segments: &[Segment],
    ) -> Result<IpAddr, Error> {
        let Self {
            locked,
            neighbours,
            pool,
            forbidden,
        } = self;
        match occupancy::choose(locked, neighbours, pool, forbidden, tries, segments)? {
            Choice::Free(ip) => Ok(ip),
            Choice::Full { held } => Err(Error::Exhausted {
                pool: pool.to_string(),
                held,
            }),
        }
    }
}

impl Node<'_> {
    /// Returns the identity for which stable addresses are computed.
    fn identity(&self) -> Identity {
        let target = self.environment.target.as_ref();
        let (container, interface) = target
            .map(|target| (target.container.clone(), target.interface.to_string()))
            .unwrap_or_default();
        let pod = self.environment.pod().unwrap_or_else(|| {
            log::warn!(
                "CNI_ARGS does not have both K8S_POD_NAMESPACE and K8S_POD_NAME: the address is stable for this \
                 container only"
            );
            container
        });
        Identity {
            network: self.place.network.name.clone(),
            interface,
            pod,
        }
    }
}

fn dns(plan: &Plan) -> Result<Value, Error> {
    let Some(path) = &plan.resolv_conf else {
        return Ok(json!({}));
    };
    let text = state_file::read_linked(path).and_then(|text| {
        String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    });
    let text = text.map_err(|source| Error::ResolvConf {
        path: path.clone(),
        source,
    })?;
    Ok(resolv::dns(&text))
}

/// Returns the result without interfaces. The caller adds the interfaces.
fn answer(node: &Node<'_>, offer: &Offer, ips: &[IpAddr], dns: Value) -> Value {
    let version = node.place.network.version;
    let addresses = offer.pools.iter().zip(ips).map(|(pool, ip)| {
        let ranges = pool.ranges();
        let range = pool.range_of(*ip).unwrap_or(&ranges[0]);
        let mut address = json!({ "address": format!("{ip}/{}", range.subnet.prefix()) });
        if let Some(gateway) = range.gateway {
            address["gateway"] = gateway.to_string().into();
        }
        result::address(&address, version)
    });
    let mut answer = Map::new();
    answer.insert("cniVersion".into(), version.as_str().into());
    answer.insert("ips".into(), addresses.collect());
    if !offer.routes.is_empty() {
        let routes = offer.routes.iter();
        let routes = routes.map(|route| result::route(route, version));
        answer.insert("routes".into(), routes.collect());
    }
    answer.insert("dns".into(), dns);
    Value::Object(answer)
}
