// SPDX-License-Identifier: Apache-2.0
//! The pools that a configuration means on this host, at this moment.

use super::Node;
use crate::{
    address::Family,
    conf::{Plan, Source},
    error::Error,
    host,
    parent::Parent,
    range::Pool,
    store::Disk,
};
use cni_protocol::ConfError;
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeSet, net::IpAddr};

/// What addresses are given from, and what is told with them.
#[derive(Debug)]
pub(super) struct Offer {
    /// One address is given from each.
    pub(super) pools: Vec<Pool>,
    /// The host's addresses; those of NICs that have left it for a pod, too.
    pub(super) own: Vec<IpAddr>,
    /// Addresses of other machines on the parent's network.
    pub(super) neighbours: BTreeSet<IpAddr>,
    /// `routes` of the result.
    pub(super) routes: Vec<Value>,
}

impl<D: Disk> Node<'_, D> {
    /// Looks at the host, and at the parent if need be.
    pub(super) fn offer(&self, plan: &Plan) -> Result<Offer, Error> {
        let mut own = host::addresses(self.linux)?;
        own.extend(&plan.away);
        let neighbours = self.neighbours(plan)?;
        match &plan.source {
            Source::Ranges(pools) => Ok(Offer {
                pools: pools.clone(),
                own,
                neighbours,
                routes: plan.routes.clone().unwrap_or_default(),
            }),
            Source::Parent {
                name,
                told,
                families,
            } => {
                let parent = self.parent(name.as_deref(), told.as_ref())?;
                own.extend(parent.addresses.iter().map(|address| address.ip()));
                let pools = self.pools(&parent, families, plan)?;
                let routes = match &plan.routes {
                    Some(routes) => routes.clone(),
                    None => parent.routes_for(&pools),
                };
                Ok(Offer {
                    pools,
                    own,
                    neighbours,
                    routes,
                })
            }
        }
    }

    /// Those that the caller tells, else those that this host knows of the parent's network.
    fn neighbours(&self, plan: &Plan) -> Result<BTreeSet<IpAddr>, Error> {
        let known = match (&plan.neighbours, &plan.source) {
            (Some(told), _) => told.clone(),
            (
                None,
                Source::Parent {
                    name: Some(name),
                    told: None,
                    ..
                },
            ) => host::neighbours(self.linux, name)?,
            _ => vec![],
        };
        Ok(known.into_iter().collect())
    }

    fn pools(&self, parent: &Parent, families: &[Family], plan: &Plan) -> Result<Vec<Pool>, Error> {
        let target = self.environment.target.as_ref();
        let rail = target.map(|target| &*target.interface);
        Ok(parent.pools(rail, families, &plan.requested)?)
    }

    fn parent<'a>(
        &self,
        name: Option<&str>,
        told: Option<&'a Parent>,
    ) -> Result<Cow<'a, Parent>, Error> {
        if let Some(told) = told {
            return Ok(Cow::Borrowed(told));
        }
        let name = name.ok_or(ConfError::Missing {
            field: "master",
            expected: "with ipam.from \"parent\" it has to name the netdev whose prefixes are used; \
                       rdma-cni hands it on",
        })?;
        host::parent(self.linux, name)?
            .map(Cow::Owned)
            .ok_or_else(|| Error::NoSuchParent(name.to_owned()))
    }
}
