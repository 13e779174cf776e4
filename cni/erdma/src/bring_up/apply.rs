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
use rdma_netns::{Kernel, Link, Namespace, ObserveError, Observed, Op, OpError};

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
    #[error("done, and yet undone again by somebody else: {0}")]
    Unstable(String),
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
    let mut refused: Vec<OpError> = vec![];
    let mut changes = 0;
    let mut failed = None;
    for _ in 0..ROUNDS {
        let observed = kernel.observe(None)?;
        let link = netdev(nic, &observed.host).ok_or(ApplyError::Gone)?;
        let before = record_of(records, nic, link, &observed.boot_id)?;
        if let Some(foreign) = foreign_config(link, &observed.host, before.as_ref()) {
            return Err(ApplyError::Foreign(foreign));
        }
        let siblings = siblings(records, nic, &observed)?;
        let given = plan::give(link, &observed.host, wanted, before.as_ref(), &siblings)?;
        let mut record = match before {
            Some(record) => record.regiven(given),
            None => Record::new(&observed.boot_id, &nic.address, link, given),
        };
        let mut ops = plan::missing(link, &record.given, &record.superseded);
        refused.retain(|it| ops.contains(&it.op));
        ops.retain(|op| !refused.iter().any(|it| *it.op == *op));
        if ops.is_empty() {
            record.superseded.clear();
            records.write(&record)?;
            let alone = plan::alone(link, &observed.host, &record.given, &siblings);
            return Ok(Reached {
                link: link.clone(),
                changes,
                alone: alone.map(|it| format!("{}/{}", it.destination, it.prefix)),
                record,
                refused,
            });
        }
        records.write(&record)?;
        failed = None;
        for op in ops {
            log::debug!("{op}");
            match kernel.execute(&op, None) {
                Ok(()) => changes += 1,
                Err(error) if matches!(op, Op::SetSysctl { .. }) => refused.push(error),
                // what was refused, and what builds upon it, is planned anew
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
    }
    Err(match failed {
        Some(error) => error.into(),
        None => ApplyError::Unstable(left(kernel, records, nic, wanted)?),
    })
}

/// What still is missing, in words.
fn left<K: Kernel>(
    kernel: &K,
    records: &Records,
    nic: &Nic,
    wanted: &DesiredNic,
) -> Result<String, ApplyError> {
    let observed = kernel.observe(None)?;
    let link = netdev(nic, &observed.host).ok_or(ApplyError::Gone)?;
    let record = record_of(records, nic, link, &observed.boot_id)?;
    let siblings = siblings(records, nic, &observed)?;
    let given = plan::give(link, &observed.host, wanted, record.as_ref(), &siblings)?;
    Ok(words(&plan::missing(link, &given, &[])))
}

/// Takes back what `record` says was given. What stays, in words; whether anything was done.
pub(super) fn release<K: Kernel>(
    kernel: &K,
    record: &Record,
) -> Result<(usize, Vec<String>), ApplyError> {
    let mut changes = 0;
    let mut failed = vec![];
    for _ in 0..ROUNDS {
        let observed = kernel.observe(None)?;
        let Some(link) = record.link(&observed.host) else {
            return Err(ApplyError::Gone);
        };
        let back = put_back(link, &observed.host, record);
        if back.ops.is_empty() {
            return Ok((changes, back.left));
        }
        failed.clear();
        for op in back.ops {
            log::debug!("{op}");
            // goes on: what can be put back is
            match kernel.execute(&op, None) {
                Ok(()) => changes += 1,
                Err(error) => failed.push(error),
            }
        }
    }
    Err(match failed.pop() {
        Some(error) => error.into(),
        None => {
            let observed = kernel.observe(None)?;
            let link = record.link(&observed.host).ok_or(ApplyError::Gone)?;
            ApplyError::Unstable(words(&put_back(link, &observed.host, record).ops))
        }
    })
}

fn words(ops: &[Op]) -> String {
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join("; ")
}
