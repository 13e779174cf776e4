// SPDX-License-Identifier: Apache-2.0
//! Brings NICs up, and releases them. Only this module changes NICs. It plans the missing changes, makes them and
//! observes again, until no change is missing.

use super::{
    ownership::{ForeignConfig, foreign_config},
    plan::{self, AddressTaken, DesiredNic, Siblings},
    put_back::put_back,
    record::{Record, Records, has_mac},
};
use crate::Nic;
use rdma_netns::{
    Desired, InterfaceName, Kernel, Link, LinkChange, Namespace, ObserveError, Observed, Op,
    OpError, Plan, Refusal, Unstable, reconcile,
};
use rdma_resources::FileError;
use std::mem;

/// Largest number of rounds of changes. One round is enough if no other program makes changes.
const ROUNDS: usize = 4;

/// Reason why a NIC is not fully configured or released.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Op(#[from] OpError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    AddressTaken(#[from] AddressTaken),
    #[error(transparent)]
    Record(#[from] FileError),
    /// The netdev moved into a pod, or was removed.
    #[error("its netdev disappeared during the observation")]
    Gone,
    /// Another program has configured the NIC since the last observation.
    #[error("{0}")]
    Foreign(ForeignConfig),
    #[error(transparent)]
    Unstable(#[from] Unstable),
}

/// Result for a fully configured NIC.
#[derive(Debug)]
pub(super) struct Reached {
    /// Netdev of the NIC.
    pub(super) link: Link,
    /// Number of changes that were made.
    pub(super) changes: usize,
    /// Record of the NIC.
    pub(super) record: Record,
    /// Network to which only NICs of this daemon have a route. `None`: other netdevs also have a route to the NIC's
    /// network.
    pub(super) alone: Option<String>,
    /// Settings, and addresses and routes of other programs, that the kernel refused.
    pub(super) refused: Vec<OpError>,
}

/// Returns the netdev of `nic`: the netdev with its name if the MAC matches, otherwise the hardware netdev with its
/// MAC.
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

/// Returns the record of `nic`. Returns `None` if no record of this boot and of the netdev `link` exists.
pub(super) fn record_of(
    records: &Records,
    nic: &Nic,
    link: &Link,
    boot_id: &str,
) -> Result<Option<Record>, FileError> {
    let record = records.read(&nic.address)?;
    Ok(record.filter(|it| it.boot_id == boot_id && it.is_of(link)))
}

/// Returns the recorded configuration of the other NICs whose netdevs are on the host.
fn siblings(records: &Records, nic: &Nic, observed: &Observed) -> Result<Siblings, FileError> {
    let mut siblings = Siblings::default();
    // ignore a record that cannot be read: its own NIC reports the error
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

/// Configures `nic` as `wanted`. Writes the record before the first change.
pub(super) fn bring_up<K: Kernel>(
    kernel: &K,
    records: &Records,
    nic: &Nic,
    wanted: &DesiredNic,
) -> Result<Reached, ApplyError> {
    let mut goal = Given {
        kernel,
        records,
        nic,
        wanted,
        lost: vec![],
        refused: vec![],
    };
    let (reached, changes) = reconcile(kernel, None, ROUNDS, &mut goal)?;
    Ok(Reached { changes, ..reached })
}

/// Desired state of a configured NIC.
struct Given<'a, K> {
    kernel: &'a K,
    records: &'a Records,
    nic: &'a Nic,
    wanted: &'a DesiredNic,
    /// Addresses and routes of other programs in the last plan.
    lost: Vec<LinkChange>,
    /// Changes that the kernel refused.
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
        let settings = plan::give(
            link,
            &observed.host,
            self.wanted,
            before.as_ref(),
            &siblings,
        )?;
        let mut record = match before {
            Some(record) => record.regiven(settings),
            None => Record::new(&observed.boot_id, &nic.address, link, settings),
        };
        let mut ops = plan::missing(link, &record);
        record.lose(&ops);
        self.lost.clone_from(&record.lost);
        self.refused.retain(|it| ops.contains(&it.op));
        ops.retain(|op| !self.refused.iter().any(|it| *it.op == *op));
        if !ops.is_empty() {
            records.write(&record)?;
            return Ok(Plan::Missing(ops));
        }
        record.superseded.clear();
        record.lost.clear();
        records.write(&record)?;
        let alone = plan::exclusive_route(link, &observed.host, &record.given, &siblings);
        Ok(Plan::Reached(Reached {
            link: link.clone(),
            changes: 0,
            alone: alone.map(|it| format!("{}/{}", it.destination, it.prefix)),
            record,
            refused: mem::take(&mut self.refused),
        }))
    }

    fn refused(&mut self, error: OpError) -> Refusal<ApplyError> {
        match &*error.op {
            // such a route had a gateway that this NIC no longer reaches
            Op::Link { change, .. }
                if matches!(change, LinkChange::Sysctl { .. }) || self.lost.contains(change) =>
            {
                self.refused.push(error);
                Refusal::DoWithout
            }
            _ => Refusal::PlanAgain(error),
        }
    }
}

/// Returns a sentence about an address or route of another program that the kernel does not let the daemon set again.
pub(super) fn not_restored(link: &InterfaceName, error: &OpError) -> String {
    format!("the kernel refuses to restore what another program added to {link}: {error}")
}

/// Removes the configuration in `record` from the NIC. Returns the number of changes, and a sentence for each
/// difference that remains because of another program.
pub(super) fn release<K: Kernel>(
    kernel: &K,
    records: &Records,
    record: Record,
) -> Result<(usize, Vec<String>), ApplyError> {
    let mut released = Released {
        kernel,
        records,
        record,
        refused: vec![],
    };
    let (left, changes) = reconcile(kernel, None, ROUNDS, &mut released)?;
    Ok((changes, left))
}

/// Desired state of a released NIC.
struct Released<'a, K> {
    kernel: &'a K,
    records: &'a Records,
    record: Record,
    /// A sentence for each address and route of another program that the kernel refused.
    refused: Vec<String>,
}

impl<K: Kernel> Desired for Released<'_, K> {
    type Reached = Vec<String>;
    type Error = ApplyError;

    fn plan(&mut self) -> Result<Plan<Vec<String>>, ApplyError> {
        let observed = self.kernel.observe(None)?;
        let link = self.record.link(&observed.host).ok_or(ApplyError::Gone)?;
        let mut back = put_back(link, &observed.host, &self.record);
        self.record.lose(&back.ops);
        // the file keeps what the kernel refused: if this release fails, the next one tries again
        if self.refused.is_empty() {
            self.records.write(&self.record)?;
        }
        if back.ops.is_empty() {
            back.left.append(&mut self.refused);
            return Ok(Plan::Reached(back.left));
        }
        Ok(Plan::Missing(back.ops))
    }

    /// Continues with the next change after the kernel has refused a change.
    fn refused(&mut self, error: OpError) -> Refusal<ApplyError> {
        if let Op::Link { link, change, .. } = &*error.op
            && let Some(place) = self.record.lost.iter().position(|it| it == change)
        {
            self.record.lost.remove(place);
            self.refused.push(not_restored(link, &error));
            return Refusal::DoWithout;
        }
        Refusal::GoOn(error)
    }
}
