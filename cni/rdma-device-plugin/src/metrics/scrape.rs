// SPDX-License-Identifier: Apache-2.0
//! Metrics of one scrape: gauges and counters with fixed values.

use super::Labels;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Scrape {
    pub(super) registry: Registry,
    gauges: BTreeMap<String, Family<Labels, Gauge>>,
    counters: BTreeMap<String, Family<Labels, Counter>>,
}

impl Scrape {
    pub(super) fn gauge(&mut self, name: &str, help: &str, labels: Labels, value: u64) {
        let family = self.gauges.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::default();
            self.registry.register(name, help, family.clone());
            family
        });
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        family.get_or_create(&labels).set(value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, labels: &Labels, value: u64) {
        let family = self.counters.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::default();
            self.registry.register(name, help, family.clone());
            family
        });
        family.get_or_create(labels).inc_by(value);
    }
}
