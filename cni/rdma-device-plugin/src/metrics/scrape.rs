// SPDX-License-Identifier: Apache-2.0
//! Metrics of one scrape: gauges and counters that are set once.

use super::Labels;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::collections::BTreeMap;

/// Families with a value, in the order of their first one.
#[derive(Default)]
pub(super) struct Scrape {
    /// Registry for the encoder.
    pub(super) registry: Registry,
    gauges: BTreeMap<String, Family<Labels, Gauge>>,
    counters: BTreeMap<String, Family<Labels, Counter>>,
}

impl Scrape {
    /// Sets a gauge of the family described by `help`.
    pub(super) fn gauge(&mut self, name: &str, help: &str, labels: Labels, value: u64) {
        let family = self.gauges.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::default();
            self.registry.register(name, help, family.clone());
            family
        });
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        family.get_or_create(&labels).set(value);
    }

    /// Sets a counter of the family described by `help`.
    pub(super) fn counter(&mut self, name: &str, help: &str, labels: &Labels, value: u64) {
        let family = self.counters.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::default();
            self.registry.register(name, help, family.clone());
            family
        });
        family.get_or_create(labels).inc_by(value);
    }
}
