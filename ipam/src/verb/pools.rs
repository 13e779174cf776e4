// SPDX-License-Identifier: Apache-2.0
//! The pools that a configuration results in on this host.

use super::Node;
use crate::{
    conf::{Plan, Source},
    error::Error,
    host,
    parent::Parent,
    range::Pool,
};
use cni_protocol::ConfError;
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeSet, net::IpAddr};

/// The pools, and the other data that an ADD needs.
#[derive(Debug)]
pub(super) struct Offer {
    /// Pools. ADD assigns one address from each.
    pub(super) pools: Vec<Pool>,
    /// Addresses of the host, including addresses on NICs that are in pods.
    pub(super) own: Vec<IpAddr>,
    /// Addresses of other machines on the parent's network.
    pub(super) neighbours: BTreeSet<IpAddr>,
    /// Addresses of other nodes, which ADD remembers.
    pub(super) nodes: Vec<IpAddr>,
    /// Value of `routes` in the result.
    pub(super) routes: Vec<Value>,
}

impl Node<'_> {
    /// Returns the pools and data for an ADD. Observes the host, and the parent if the configuration needs it.
    pub(super) fn offer(&self, plan: &Plan) -> Result<Offer, Error> {
        let mut own = self.linux.addresses()?;
        own.extend(&plan.away);
        let (neighbours, nodes) = self.neighbours(plan)?;
        let (pools, routes) = match &plan.source {
            Source::Ranges(pools) => (pools.clone(), vec![]),
            Source::Parent {
                name,
                passed,
                families,
            } => {
                let parent = self.parent(name.as_deref(), passed.as_ref())?;
                own.extend(parent.addresses.iter().map(|address| address.ip()));
                let target = self.environment.target.as_ref();
                let rail = target.map(|target| &*target.interface);
                let pools = parent.pools(rail, families, &plan.requested)?;
                // rdma-cni passes the parent, and can set IPv4 routes with an IPv6 gateway; macvlan and bridge refuse them
                let routes = parent.routes_for(&pools, passed.is_some());
                (pools, routes)
            }
        };
        Ok(Offer {
            pools,
            own,
            neighbours,
            nodes,
            routes: plan.routes.clone().unwrap_or(routes),
        })
    }

    /// Returns the addresses of neighbours, and the addresses of other nodes. Uses the addresses that the caller
    /// passed. Without them, reads the host's neighbour table of the parent, if the plugin itself observes the parent.
    fn neighbours(&self, plan: &Plan) -> Result<(BTreeSet<IpAddr>, Vec<IpAddr>), Error> {
        let known = match (&plan.neighbours, &plan.source) {
            (Some(passed), _) => {
                return Ok((passed.iter().copied().collect(), plan.nodes.clone()));
            }
            (
                None,
                Source::Parent {
                    name: Some(name),
                    passed: None,
                    ..
                },
            ) => host::neighbours(self.linux, name)?,
            _ => vec![],
        };
        let nodes = known.iter().filter(|it| host::is_a_nics(&it.mac));
        let nodes = nodes.map(|it| it.address).collect();
        Ok((known.into_iter().map(|it| it.address).collect(), nodes))
    }

    fn parent<'a>(
        &self,
        name: Option<&str>,
        passed: Option<&'a Parent>,
    ) -> Result<Cow<'a, Parent>, Error> {
        if let Some(passed) = passed {
            return Ok(Cow::Borrowed(passed));
        }
        let name = name.ok_or(ConfError::Missing {
            field: "master",
            expected: "ipam.from \"parent\" needs the netdev whose prefixes are used; rdma-cni passes it",
        })?;
        host::parent(self.linux, name)?
            .map(Cow::Owned)
            .ok_or_else(|| Error::NoSuchParent(name.to_owned()))
    }
}
