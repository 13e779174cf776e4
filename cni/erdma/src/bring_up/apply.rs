// SPDX-License-Identifier: Apache-2.0
//! The only place that changes NICs: what is missing is planned, recorded, done, and looked at
//! again, until nothing is missing.

use super::{
    ownership::{ForeignConfig, foreign_config},
    plan::{self, DesiredNic, Obstacle, Siblings},
    put_back::put_back,
    record::{Record, RecordError, Records, has_mac},
};
use crate::Nic;
use rdma_netns::{
    Desired, Kernel, Link, Namespace, ObserveError, Observed, Op, OpError, Plan, Refusal, Unstable,
    reconcile,
};
use std::mem;

/// How often is planned anew: two rounds are enough where nobody else makes changes.
const ROUNDS: usize = 4;

/// A NIC that is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Op(#[from] OpError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It went away meanwhile: into a pod, or out of the machine.
    #[error("its netdev is gone just now")]
    Gone,
    /// Somebody else configured it meanwhile.
    #[error("{0}")]
    Foreign(ForeignConfig),
    #[error(transparent)]
    Unstable(#[from] Unstable),
}

/// A NIC that is as it should be.
#[derive(Debug)]
pub(super) struct Reached {
    /// Its netdev.
    pub(super) link: Link,
    /// How many changes were made.
    pub(super) changes: usize,
    /// The record.
    pub(super) record: Record,
    /// The network that only NICs of ours lead to.
    pub(super) alone: Option<String>,
    /// Settings that were refused: the NIC works without, if not for all.
    pub(super) refused: Vec<OpError>,
}

/// The netdev of `nic`: by its name, as long as its hardware address is that, or by hardware.
pub(super) fn netdev<'a>(nic: &Nic, host: &'a Namespace) -> Option<&'a Link> {
    let is_its = |link: &&Link| nic.mac.as_ref().is_none_or(|mac| has_mac(link, mac));
    let named = nic.netdev.as_ref().and_then(|name| {
        let mut links = host.links.iter();
        links.find(|link| *link.name == **name)
    });
    let by_hardware = || {
        let mut links = host.links.iter();
        links.find(|link| {
            nic.mac.is_some() && is_its(link) && link.kind.is_none() && link.parent.is_some()
        })
    };
    named.filter(is_its).or_else(by_hardware)
}

/// The record of `nic`, if it is of this boot, and of the netdev that is there.
pub(super) fn record_of(
    records: &Records,
    nic: &Nic,
    link: &Link,
    boot_id: &str,
) -> Result<Option<Record>, RecordError> {
    let record = records.read(&nic.address)?;
    Ok(record.filter(|it| it.boot_id == boot_id && it.is_of(link)))
}

/// What `records` say of the NICs beside `nic` whose netdevs are here.
fn siblings(records: &Records, nic: &Nic, observed: &Observed) -> Result<Siblings, RecordError> {
    let mut siblings = Siblings::default();
    // one that cannot be read is told of when its own NIC's turn comes
    for record in records.all()?.into_iter().flatten() {
        if record.boot_id != observed.boot_id || record.address == nic.address {
            continue;
        }
        if let Some(link) = record.link(&observed.host) {
            siblings.links.push(link.index);
            siblings.routes.extend(record.given.routes);
        }
    }
    Ok(siblings)
}

/// Gives `nic` what is `wanted`.
pub(super) fn bring_up<K: Kernel>(
    kernel: &K,
    records: &Records,
    nic: &Nic,
    wanted: &DesiredNic,
) -> Result<Reached, ApplyError> {
    let mut given = Given {
        kernel,
        records,
        nic,
        wanted,
        refused: vec![],
    };
    let (reached, changes) = reconcile(kernel, None, ROUNDS, &mut given)?;
    Ok(Reached { changes, ..reached })
}

/// A NIC with what is wanted of it.
struct Given<'a, K> {
    kernel: &'a K,
    records: &'a Records,
    nic: &'a Nic,
    wanted: &'a DesiredNic,
    /// Settings that were refused.
    refused: Vec<OpError>,
}

impl<K: Kernel> Desired for Given<'_, K> {
    type Reached = Reached;
    type Error = ApplyError;

    fn plan(&mut self) -> Result<Plan<Reached>, ApplyError> {
        let (nic, records) = (self.nic, self.records);
        let observed = self.kernel.observe(None)?;
        let link = netdev(nic, &observed.host).ok_or(ApplyError::Gone)?;
        let before = record_of(records, nic, link, &observed.boot_id)?;
        if let Some(foreign) = foreign_config(link, &observed.host, before.as_ref()) {
            return Err(ApplyError::Foreign(foreign));
        }
        let siblings = siblings(records, nic, &observed)?;
        let given = plan::give(
            link,
            &observed.host,
            self.wanted,
            before.as_ref(),
            &siblings,
        )?;
        let mut record = match before {
            Some(record) => record.regiven(given),
            None => Record::new(&observed.boot_id, &nic.address, link, given),
        };
        let mut ops = plan::missing(link, &record.given, &record.superseded);
        self.refused.retain(|it| ops.contains(&it.op));
        ops.retain(|op| !self.refused.iter().any(|it| *it.op == *op));
        if !ops.is_empty() {
            records.write(&record)?;
            return Ok(Plan::Missing(ops));
        }
        record.superseded.clear();
        records.write(&record)?;
        let alone = plan::alone(link, &observed.host, &record.given, &siblings);
        Ok(Plan::Reached(Reached {
            link: link.clone(),
            changes: 0,
            alone: alone.map(|it| format!("{}/{}", it.destination, it.prefix)),
            record,
            refused: mem::take(&mut self.refused),
        }))
    }

    fn refused(&mut self, error: OpError) -> Refusal<ApplyError> {
        match *error.op {
            Op::SetSysctl { .. } => {
                self.refused.push(error);
                Refusal::DoWithout
            }
            _ => Refusal::PlanAnew(error),
        }
    }
}

/// Takes back what `record` says was given. What stays, in words; whether anything was done.
pub(super) fn release<K: Kernel>(
    kernel: &K,
    record: &Record,
) -> Result<(usize, Vec<String>), ApplyError> {
    let mut released = Released { kernel, record };
    let (left, changes) = reconcile(kernel, None, ROUNDS, &mut released)?;
    Ok((changes, left))
}

/// A NIC without what it was given.
struct Released<'a, K> {
    kernel: &'a K,
    record: &'a Record,
}

impl<K: Kernel> Desired for Released<'_, K> {
    type Reached = Vec<String>;
    type Error = ApplyError;

    fn plan(&mut self) -> Result<Plan<Vec<String>>, ApplyError> {
        let observed = self.kernel.observe(None)?;
        let link = self.record.link(&observed.host).ok_or(ApplyError::Gone)?;
        let back = put_back(link, &observed.host, self.record);
        Ok(match back.ops.is_empty() {
            true => Plan::Reached(back.left),
            false => Plan::Missing(back.ops),
        })
    }

    /// What can be put back is.
    fn refused(&mut self, error: OpError) -> Refusal<ApplyError> {
        Refusal::GoOn(error)
    }
}
