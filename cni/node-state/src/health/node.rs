// SPDX-License-Identifier: Apache-2.0
//! Health of all devices, and its log lines.

use super::{
    damper::{Change, DROPS, Damper, Verdict, WINDOW},
    evaluate::{DeviceState, evaluate, with_errors},
};
use offer::Unhealthy;
use rdma_netns::{Device, DeviceAddress};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

#[derive(Debug, Default)]
pub(super) struct Health {
    dampers: BTreeMap<DeviceAddress, Damper>,
    /// Devices for which the log says that they cannot be observed.
    unseen: BTreeSet<DeviceAddress>,
    /// Unhealthy devices whose recovery causes no event. The daemon polls them.
    doubtful: Vec<DeviceAddress>,
}

impl Health {
    /// Returns the time by which the daemon must observe devices again if no event requires it earlier.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.dampers.values().filter_map(Damper::deadline).min()
    }

    /// Returns true if the last observation included the device.
    pub(super) fn knows(&self, address: &DeviceAddress) -> bool {
        self.dampers.contains_key(address)
    }

    pub(super) fn doubtful(&self) -> &[DeviceAddress] {
        &self.doubtful
    }

    /// Applies the observation at the time `now`. `fault` returns the reason why a device with a link is nevertheless
    /// unusable.
    pub(super) fn observe(
        &mut self,
        now: Instant,
        seen: &[(&Device, DeviceState)],
        fault: impl Fn(&Device) -> Option<String>,
    ) {
        let is_there = |address: &DeviceAddress| seen.iter().any(|(it, _)| it.address == *address);
        self.dampers.retain(|address, _| is_there(address));
        self.unseen.retain(is_there);
        self.doubtful.clear();
        let mut verdicts: BTreeMap<&DeviceAddress, Verdict> = BTreeMap::new();
        // first the physical functions: the verdicts on their virtual functions and sub-functions depend on them
        let (virtual_ones, physical_ones): (Vec<_>, Vec<_>) = seen
            .iter()
            .partition(|(device, _)| device.physical_function.is_some());
        for (device, state) in physical_ones.into_iter().chain(virtual_ones) {
            let physical = device.physical_function.as_ref();
            let verdict = evaluate(state, physical.and_then(|address| verdicts.get(address)));
            let verdict = with_errors(verdict, fault(device).as_deref());
            self.take(now, &device.address, state, &verdict);
            verdicts.insert(&device.address, verdict);
        }
    }

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
                    log::info!("the daemon keeps the last health of {address}: {why}");
                }
            }
            Verdict::Up => {
                self.unseen.remove(address);
            }
            Verdict::Down(fault) => {
                self.unseen.remove(address);
                if !fault.end_is_reported {
                    self.doubtful.push(address.clone());
                }
            }
        }
        let damper = self.dampers.entry(address.clone()).or_default();
        let before = damper.fault().is_some();
        let change = damper.observe(now, verdict);
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
            // warn only if the device was reported as up; log a drop during a hold at the level debug
            Change::Held(hold) if before => {
                log::debug!(
                    "{address}{place} went down again: unhealthy until it has been up for {hold:?}"
                );
            }
            Change::Held(hold) => log::warn!(
                "{address}{place} flaps: more than {DROPS} times down within {WINDOW:?}; unhealthy \
                 until it has been up for {hold:?}"
            ),
        }
    }
}
