// SPDX-License-Identifier: Apache-2.0
//! The health of all devices, and what is said about it in the log.

use super::{
    damper::{Change, DROPS, Damper, Verdict, WINDOW},
    error_rates::ErrorRates,
    evaluate::{DeviceState, evaluate, with_errors},
};
use crate::offer::Unhealthy;
use rdma_netns::{Device, DeviceAddress};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// The dampers of a node's devices.
#[derive(Debug, Default)]
pub(super) struct Health {
    dampers: BTreeMap<DeviceAddress, Damper>,
    /// What it was said of that it cannot be seen.
    unseen: BTreeSet<DeviceAddress>,
    /// Devices that are not well, and whose end no event tells.
    doubtful: Vec<DeviceAddress>,
}

impl Health {
    /// When to look again, if nothing is heard.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.dampers.values().filter_map(Damper::deadline).min()
    }

    /// Whether the device was looked at last time.
    pub(super) fn knows(&self, address: &DeviceAddress) -> bool {
        self.dampers.contains_key(address)
    }

    /// The devices to look at again from time to time.
    pub(super) fn doubtful(&self) -> &[DeviceAddress] {
        &self.doubtful
    }

    /// Takes in what was seen at `now`, and what the error counters say by then.
    pub(super) fn look(
        &mut self,
        now: Instant,
        seen: &[(&Device, DeviceState)],
        errors: &ErrorRates,
    ) {
        let is_there = |address: &DeviceAddress| seen.iter().any(|(it, _)| it.address == *address);
        self.dampers.retain(|address, _| is_there(address));
        self.unseen.retain(is_there);
        self.doubtful.clear();
        let mut verdicts: BTreeMap<&DeviceAddress, Verdict> = BTreeMap::new();
        // those without a physical function first: the others may be as they are
        let (virtual_ones, physical_ones): (Vec<_>, Vec<_>) = seen
            .iter()
            .partition(|(device, _)| device.physical_function.is_some());
        for (device, state) in physical_ones.into_iter().chain(virtual_ones) {
            let physical = device.physical_function.as_ref();
            let verdict = evaluate(state, physical.and_then(|address| verdicts.get(address)));
            let verdict = with_errors(verdict, errors.fault(&device.address));
            self.take(now, &device.address, state, &verdict);
            verdicts.insert(&device.address, verdict);
        }
    }

    /// The devices that are said to be unhealthy, each with the reason.
    pub(super) fn unhealthy(&self) -> Unhealthy {
        let faulty = self.dampers.iter();
        faulty
            .filter_map(|(address, it)| Some((address.clone(), it.fault()?.to_owned())))
            .collect()
    }

    fn take(
        &mut self,
        now: Instant,
        address: &DeviceAddress,
        state: &DeviceState,
        verdict: &Verdict,
    ) {
        match verdict {
            Verdict::Unknown(why) => {
                if !state.moving && self.unseen.insert(address.clone()) {
                    log::info!("{address} keeps the health it had: {why}");
                }
            }
            Verdict::Up => {
                self.unseen.remove(address);
            }
            Verdict::Down(fault) => {
                self.unseen.remove(address);
                if !fault.end_is_told {
                    self.doubtful.push(address.clone());
                }
            }
        }
        let damper = self.dampers.entry(address.clone()).or_default();
        let before = damper.fault().is_some();
        let change = damper.look(now, verdict);
        let place = state
            .pod
            .as_ref()
            .map_or_else(String::new, |pod| format!(" (in pod {pod})"));
        match change {
            Change::None => {}
            Change::Up => log::info!("{address}{place} is healthy again"),
            Change::Down => log::warn!(
                "{address}{place} is unhealthy: {}",
                damper.fault().unwrap_or_default()
            ),
            // each time it went down it would be the same again
            Change::Held(hold) if before => {
                log::debug!("{address}{place} went down again: held until it is up for {hold:?}");
            }
            Change::Held(hold) => log::warn!(
                "{address}{place} flaps: more than {DROPS} times down within {WINDOW:?}; unhealthy \
                 until it has been up for {hold:?}"
            ),
        }
    }
}
