// SPDX-License-Identifier: Apache-2.0
//! STATUS: checks whether ADD would work. It checks configuration, data directory, secret, free addresses and
//! parent. It writes nothing and takes no lock, because runtimes call it every few seconds.

use super::Node;
use crate::{
    choose,
    conf::{Plan, Source, Strategy},
    error::Error,
    forbidden::Forbidden,
    secret,
    store::{REFUSED, StoreError},
};
use cni_protocol::SpecVersion;

/// Finds the reasons why ADD would fail for every pod.
pub fn status(node: &Node<'_>) -> Result<(), Error> {
    node.place.network.since("STATUS", SpecVersion::V1_1_0)?;
    let plan = Plan::parse(node.raw, node.environment)?;
    let mut reasons = vec![];
    if let Err(error) = leases(node, &plan, &mut reasons) {
        reasons.push(error.to_string());
    }
    if plan.strategy == Strategy::Stable
        && let Err(error) = secret::check(&node.place.data_dir)
    {
        reasons.push(error.to_string());
    }
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(Error::NotReady(reasons)),
    }
}

fn leases(node: &Node<'_>, plan: &Plan, reasons: &mut Vec<String>) -> Result<(), StoreError> {
    node.store.probe()?;
    for warning in node.store.foreign()? {
        log::warn!("{warning}");
    }
    if let Source::Parent { name, passed, .. } = &plan.source
        && name.is_none()
        && passed.is_none()
    {
        // the parent is unknown at STATUS: the caller passes it at each ADD
        return Ok(());
    }
    let offer = match node.offer(plan) {
        Ok(offer) => offer,
        Err(error) => {
            reasons.push(error.to_string());
            return Ok(());
        }
    };
    let taken = node.store.taken(REFUSED)?;
    for pool in &offer.pools {
        let forbidden = Forbidden::of(pool, &offer.own);
        if let Some(held) = choose::exhausted(pool, &forbidden, &taken) {
            let pool = pool.to_string();
            reasons.push(Error::Exhausted { pool, held }.to_string());
        }
    }
    Ok(())
}
