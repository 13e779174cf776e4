// SPDX-License-Identifier: Apache-2.0
//! Metrics, log and probes of the fabric watch.

use super::{Labels, Latency, added, scrape::Scrape};
use node_state::log_once::LogOnce;
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use rdma_ping::fabric::{Event, RailState};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Upper bounds of the buckets for the time from a request to its answer, in seconds.
const TIMES: [f64; 5] = [0.000_1, 0.001, 0.01, 0.1, 1.0];

/// Returns the longest normal time between two events of a watch that sends requests at this interval. A request to the
/// API server may take 180 s.
pub(crate) fn event_timeout(interval: Duration) -> Duration {
    interval + Duration::from_secs(180)
}

/// Metrics of a fabric watch. Clones share the values.
#[derive(Clone)]
pub struct Fabric(Arc<Figures>);

struct Figures {
    registry: Registry,
    requests: Family<Labels, Counter>,
    times: Latency,
    /// Longest normal time between two events.
    event_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    rails: Vec<RailState>,
    last: Instant,
    /// True if the API server has accepted this node's rails and listed the peers at least once.
    is_listed: bool,
    /// Last problem with the API server or this node's rails, which is logged once.
    problem: LogOnce,
    /// Last reason why a rail sent no request, which is logged once.
    not_sent: LogOnce,
}

fn of(device: &str) -> Labels {
    vec![("device", device.to_owned())]
}

impl Fabric {
    /// Returns the metrics of a watch with this interval.
    pub fn new(interval: Duration) -> Self {
        let mut registry = Registry::default();
        let all = &mut registry;
        let help = "Requests to the same rail of other nodes";
        let requests = added(all, "rdma_fabric_requests", help, Family::default());
        let times = Latency::new_with_constructor(|| Histogram::new(TIMES));
        let help = "Time from a request to its answer";
        let times = added(all, "rdma_fabric_answer_seconds", help, times);
        Self(Arc::new(Figures {
            registry,
            requests,
            times,
            event_timeout: event_timeout(interval),
            state: Mutex::new(State {
                rails: vec![],
                last: Instant::now(),
                is_listed: false,
                problem: LogOnce::default(),
                not_sent: LogOnce::default(),
            }),
        }))
    }

    /// Applies an event of the watch to metrics, log and probes.
    pub fn take(&self, event: Event<'_>) {
        let mut state = self.0.state.lock();
        state.last = Instant::now();
        match event {
            Event::Sent(device, time) => {
                let result = time.map_or("lost", |_| "answered");
                let labels = [of(device), vec![("result", result.to_owned())]].concat();
                self.0.requests.get_or_create(&labels).inc();
                if let Some(time) = time {
                    let times = self.0.times.get_or_create(&of(device));
                    times.observe(time.as_secs_f64());
                }
            }
            Event::NotSent(device, error) => {
                let line = format!("{device} sends no requests: {error}");
                state.not_sent.warn(&line);
            }
            Event::Verdict(device, true) => {
                log::warn!(
                    "{device} reaches no rail of other nodes: 12 requests in a row are lost"
                );
            }
            Event::Verdict(device, false) => {
                log::info!("{device} reaches rails of other nodes again")
            }
            Event::States(rails) => state.rails = rails,
            Event::Listed => {
                state.is_listed = true;
                if state.problem.ends() {
                    log::info!("rails and peers are up to date again");
                }
            }
            Event::Problem(line) => {
                if state.problem.is_news(&line) {
                    log::error!("cannot publish rails or list peers: {line}");
                }
            }
        }
    }

    /// Checks that the watch still makes progress.
    ///
    /// # Errors
    /// The watch has made no progress for too long.
    pub(super) fn live(&self) -> Result<String, String> {
        let silent = self.0.state.lock().last.elapsed();
        match silent > self.0.event_timeout {
            true => Err(format!(
                "the fabric watch made no progress for {} s\n",
                silent.as_secs()
            )),
            false => Ok("the fabric watch makes progress\n".to_owned()),
        }
    }

    /// Checks that the fabric watch has published its rails and listed its peers at least once.
    ///
    /// # Errors
    /// The watch has not published its rails, or has not listed its peers.
    pub(super) fn ready(&self) -> Result<String, String> {
        let state = self.0.state.lock();
        let unreachable = state.rails.iter().filter(|it| it.is_unreachable).count();
        match state.is_listed {
            true => Ok(format!(
                "{} rails, {unreachable} unreachable\n",
                state.rails.len()
            )),
            false => {
                Err("the fabric watch has not yet published its rails and listed its peers; see the log\n".to_owned())
            }
        }
    }

    pub(super) fn render(&self) -> Result<String, fmt::Error> {
        let rails = self.0.state.lock().rails.clone();
        let mut scrape = Scrape::default();
        for RailState {
            device,
            is_unreachable,
            peers,
            not_asked,
            ..
        } in rails
        {
            let labels = of(&device);
            let help = "1 if the rail reaches no rail of other nodes";
            scrape.gauge(
                "rdma_fabric_unreachable",
                help,
                labels.clone(),
                is_unreachable.into(),
            );
            let help = "Rails of other nodes to which the rail sends requests";
            scrape.gauge("rdma_fabric_peers", help, labels.clone(), peers as u64);
            if let Some(reason) = not_asked {
                let labels = [labels, vec![("reason", reason)]].concat();
                let help = "1 if the last request could not be sent";
                scrape.gauge("rdma_fabric_not_asked", help, labels, 1);
            }
        }
        scrape.text(&self.0.registry)
    }
}
