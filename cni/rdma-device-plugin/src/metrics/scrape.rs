// SPDX-License-Identifier: Apache-2.0
//! Metrics of one scrape: gauges and counters with fixed values.

use super::{Labels, added};
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{collections::BTreeMap, fmt};

#[derive(Default)]
pub(super) struct Scrape {
    pub(super) registry: Registry,
    gauges: BTreeMap<String, Family<Labels, Gauge>>,
    counters: BTreeMap<String, Family<Labels, Counter>>,
}

impl Scrape {
    pub(super) fn gauge(&mut self, name: &str, help: &str, labels: Labels, value: u64) {
        let new = || added(&mut self.registry, name, help, Family::default());
        let family = self.gauges.entry(name.to_owned()).or_insert_with(new);
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        family.get_or_create(&labels).set(value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, labels: &Labels, value: u64) {
        let new = || added(&mut self.registry, name, help, Family::default());
        let family = self.counters.entry(name.to_owned()).or_insert_with(new);
        family.get_or_create(labels).inc_by(value);
    }

    /// Returns the metrics of `own` and of this scrape as OpenMetrics text.
    pub(super) fn text(&self, own: &Registry) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, own)?;
        encode_registry(&mut text, &self.registry)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}
