// SPDX-License-Identifier: Apache-2.0
//! Schedules observations of the node's devices, and performs them.

use super::{
    errors::Errors,
    link_state::LinkState,
    nic_reports::NicReports,
    node::Health,
    observe::Pods,
    ports,
    records::{self, listen, listen_to_networks},
    unreachable::{self, others},
};
use crate::sources::{covers_pods, readable, register};
use crate::{node::Node, watch::until};
use attachments::{Store, pods};
use daemon_conf::Conf;
use inotify::Inotify;
use offer::Unhealthy;
use rdma_netns::{
    Device, Hca, Inventory, Kernel, Link, Linux,
    linux::monitor::{Event, Monitor, Nsid},
};
use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, watch},
};

/// Delay after an event, so that one observation covers all events of this time.
const TOGETHER: Duration = Duration::from_millis(50);
/// Shortest interval between two observations.
const APART: Duration = Duration::from_millis(200);
/// Interval of polling while changes can occur without an event.
const BEAT: Duration = Duration::from_secs(1);
/// Interval of polling ports other than Ethernet ports. Kubelet must learn of a change within a second, and the daemon
/// reports a device as down only after [`DOWN_AFTER`](super::damper::DOWN_AFTER).
const BEAT_OF_PORTS: Duration = Duration::from_millis(400);
const _: () = assert!(BEAT_OF_PORTS.as_millis() + super::damper::DOWN_AFTER.as_millis() < 1000);
/// Interval of observations while the daemon gets no events from the kernel, no events of pods' netdevs, or no events of
/// records, and while a pod cannot be observed.
const WITHOUT_EVENTS: Duration = Duration::from_secs(2);

/// Health of the devices, and the sources of its changes.
#[derive(Debug)]
pub struct Watch {
    sysfs: PathBuf,
    state_dir: PathBuf,
    attachments: PathBuf,
    boot_id: String,
    monitor: Option<AsyncFd<Monitor>>,
    inotify: Option<AsyncFd<Inotify>>,
    pods: Pods,
    health: Health,
    /// Node whose configuration decides which errors affect health. `None`: the configuration no longer changes.
    node: Option<watch::Receiver<Arc<Node>>>,
    errors: Errors,
    reports: NicReports,
    unreachable: Option<watch::Receiver<unreachable::Devices>>,
    /// Last state of each netdev. The daemon ignores an event that repeats this state.
    links: HashMap<(Option<Nsid>, u32), LinkState>,
    /// True if the daemon must read the records again.
    records_changed: bool,
    /// Time of the next observation that an event, a request or a failure caused.
    due: Option<Instant>,
    observed_at: Option<Instant>,
    beat: Instant,
    port_states: ports::States,
    /// True if the daemon must poll an unhealthy device, because neither an event nor a polled port shows its recovery.
    needs_polling: bool,
    /// True if an event came since the last observation.
    had_event: bool,
    requests: Arc<Notify>,
}

impl Watch {
    /// Opens the sources of events. Must run in a tokio runtime with I/O and time. `sysfs` is the mount point of sysfs,
    /// and `state_dir` is the state directory of `rdma-cni`. Also returns a sentence for each missing source.
    pub fn open(sysfs: &Path, state_dir: &Path) -> (Self, Vec<String>) {
        let mut losses = Vec::new();
        let monitor = Monitor::open(sysfs).and_then(register);
        let monitor = monitor
            .map_err(|error| {
                losses.push(format!(
                    "no events from the kernel: {error}; observing the devices every {WITHOUT_EVENTS:?}"
                ))
            })
            .ok();
        if let Some(monitor) = &monitor {
            losses.extend_from_slice(monitor.get_ref().losses());
        }
        let mut watch = Self::new(sysfs, state_dir, monitor);
        let inotify = listen(&watch.attachments)
            .and_then(register)
            .map_err(|error| {
                losses.push(format!(
                    "{:?}: cannot watch the records of pods' devices: {error}; the daemon polls the records",
                    watch.attachments
                ));
            });
        watch.inotify = inotify.ok();
        (watch, losses)
    }

    /// Returns a watch for a single observation. It does not watch the records, and makes no files.
    pub fn still(sysfs: &Path, state_dir: &Path) -> Self {
        let monitor = Monitor::open(sysfs).and_then(register);
        Self::new(sysfs, state_dir, monitor.ok())
    }

    /// Makes error counters and devlink's health reporters affect health as `conf` requires.
    pub fn with_conf(mut self, conf: &Conf) -> Self {
        self.go_by(conf);
        self
    }

    /// Makes error counters and devlink's health reporters affect health as the configuration of `node` requires, also
    /// after the configuration changes.
    pub fn following(mut self, mut node: watch::Receiver<Arc<Node>>) -> Self {
        let conf = node.borrow_and_update().conf.clone();
        self.node = Some(node);
        self.with_conf(&conf)
    }

    /// Makes the verdicts of the fabric watch affect health.
    pub fn with_unreachable(mut self, devices: watch::Receiver<unreachable::Devices>) -> Self {
        self.unreachable = Some(devices);
        self
    }

    /// Observes after each notification of `requests`, as soon as `APART` has passed.
    pub fn observing_on(mut self, requests: Arc<Notify>) -> Self {
        self.requests = requests;
        self
    }

    /// Applies `conf`. Returns true if this ends a device's fault.
    fn go_by(&mut self, conf: &Conf) -> bool {
        let ends = self.errors.go_by(&conf.errors);
        self.reports.judge_by(&conf.reporters) || ends
    }

    fn new(sysfs: &Path, state_dir: &Path, monitor: Option<AsyncFd<Monitor>>) -> Self {
        let now = Instant::now();
        Self {
            sysfs: sysfs.to_owned(),
            attachments: state_dir.join("attachments"),
            state_dir: state_dir.to_owned(),
            boot_id: Linux::new().boot_id().unwrap_or_default(),
            monitor,
            inotify: None,
            pods: Pods::default(),
            health: Health::default(),
            node: None,
            errors: Errors::none(sysfs),
            reports: NicReports::new(sysfs),
            unreachable: None,
            links: HashMap::new(),
            records_changed: true,
            due: Some(now),
            observed_at: None,
            beat: now + BEAT,
            port_states: Vec::new(),
            needs_polling: false,
            had_event: true,
            requests: Arc::default(),
        }
    }

    /// Waits until the caller must observe the hardware and call [`unhealthy`](Self::unhealthy) again. The first call
    /// returns at once. The caller can cancel this call, and call again without missing an event.
    pub async fn next(&mut self) {
        loop {
            let at = self.next_observation();
            tokio::select! {
                biased;
                () = until(at.map(Into::into)) => {
                    let states = match self.beats() && self.beat <= Instant::now() {
                        true => ports::eventless_blocking(&self.sysfs).await,
                        false => None,
                    };
                    if self.is_time(Instant::now(), states) {
                        return;
                    }
                }
                readable = readable(self.monitor.as_mut()) => self.read_events(readable),
                readable = readable(self.inotify.as_mut()) => self.read_record_events(readable),
                node = others(&mut self.node) => if self.go_by(&node.conf) {
                    self.due = Some(Instant::now());
                },
                () = self.errors.changed() => self.due = Some(Instant::now()),
                () = self.reports.changed() => self.due = Some(Instant::now()),
                _ = others(&mut self.unreachable) => self.due = Some(Instant::now()),
                () = self.requests.notified() => self.due = Some(Instant::now()),
            }
        }
    }

    /// Returns the unhealthy devices of `inventory`. Blocks the thread while it reads the kernel's state, usually for
    /// some milliseconds.
    pub fn unhealthy(&mut self, inventory: &Inventory) -> Unhealthy {
        let mut monitor = self.monitor.as_mut().map(AsyncFd::get_mut);
        if self.records_changed || self.inotify.is_none() {
            self.records_changed = false;
            let placed = pods::read(&Store::new(&self.state_dir), &self.boot_id);
            self.pods.update(placed, monitor.as_deref_mut());
            let pods = &self.pods;
            self.links
                .retain(|(namespace, _), _| namespace.is_none_or(|it| pods.follow(it)));
        }
        if !covers_pods(monitor.as_deref()) {
            self.pods.mark_all_stale();
        }
        self.pods.observe(monitor.as_deref_mut());
        let host = match monitor.map(|monitor| monitor.links(None, |_| true)) {
            Some(Ok(links)) => links,
            Some(Err(error)) => {
                log::warn!("cannot read the host's netdevs: {error}");
                self.due = Some(Instant::now() + BEAT);
                Vec::new()
            }
            None => Vec::new(),
        };
        // leave out a NIC without an RDMA device, unless the last observation included the NIC
        let of_concern = inventory.functions.iter().filter(|function| {
            !function.hcas.is_empty() || self.health.knows(&function.device.address)
        });
        let seen: Vec<_> = of_concern
            .map(|function| (&function.device, self.pods.state(function, &host)))
            .collect();
        let now = Instant::now();
        self.errors.update(inventory);
        self.reports.update(inventory);
        let (rates, faults) = (self.errors.rates(), self.reports.faults());
        let fault = |device: &Device| {
            let own = faults.fault(device);
            let own = own.or_else(|| rates.fault(&device.address).map(str::to_owned));
            own.or_else(|| unreachable::fault(self.unreachable.as_ref()?, device, inventory))
        };
        self.health.observe(now, &seen, fault);
        for address in self.health.doubtful() {
            self.pods.doubt(address);
        }
        self.observed_at = Some(now);
        self.port_states = ports::eventless(&self.sysfs);
        self.needs_polling = self.needs_polling(inventory);
        self.beat = self.beat.min(now + self.pause());
        self.health.unhealthy()
    }

    /// Observes whenever an observation is due. Passes the result to `send` if it differs from the last result or
    /// follows an event. Ends when `send` returns false. `observe` observes the hardware, and returns `None` if it
    /// fails.
    pub async fn follow<L, T>(
        mut self,
        observe: impl Fn() -> L,
        send: impl Fn(Arc<Inventory>, Unhealthy) -> T,
    ) where
        L: Future<Output = Option<Inventory>>,
        T: Future<Output = bool>,
    {
        let mut sent: Option<(Arc<Inventory>, Unhealthy)> = None;
        loop {
            self.next().await;
            let had_event = std::mem::take(&mut self.had_event);
            let Some(inventory) = observe().await.map(Arc::new) else {
                self.had_event |= had_event;
                self.retry();
                continue;
            };
            let evaluated = tokio::task::spawn_blocking(move || {
                let unhealthy = self.unhealthy(&inventory);
                (self, inventory, unhealthy)
            });
            let (watch, inventory, unhealthy) = match evaluated.await {
                Ok(seen) => seen,
                Err(error) => {
                    log::error!("health is no longer observed: {error}");
                    return;
                }
            };
            self = watch;
            let seen = (inventory, unhealthy);
            if !had_event && sent.as_ref() == Some(&seen) {
                continue;
            }
            sent = Some(seen.clone());
            if !send(seen.0, seen.1).await {
                return;
            }
        }
    }

    /// Returns true if the daemon gets events for all devices, and for the records of pods' devices, and if it could
    /// observe all pods.
    fn has_all_events(&self) -> bool {
        let monitor = self.monitor.as_ref().map(AsyncFd::get_ref);
        let has_device_events = monitor.is_some() && (covers_pods(monitor) || self.pods.are_none());
        has_device_events && self.inotify.is_some() && !self.pods.have_failed()
    }

    /// Returns true if an unhealthy device can recover without an event, and the daemon does not poll its port, because
    /// the port is an Ethernet port, or in another namespace.
    fn needs_polling(&self, inventory: &Inventory) -> bool {
        let is_seen = |hca: &Hca| ports::has_device(&self.port_states, &self.sysfs, &hca.name);
        self.health.doubtful().iter().any(|address| {
            let function = inventory.function(address);
            function.is_none_or(|it| !it.hcas.first().is_some_and(is_seen))
        })
    }

    fn retry(&mut self) {
        let now = Instant::now();
        self.observed_at = Some(now);
        self.due = Some(now + BEAT);
    }

    /// Returns true if the daemon must poll, because changes can occur without an event.
    fn beats(&self) -> bool {
        let monitor = self.monitor.as_ref().map(AsyncFd::get_ref);
        !covers_pods(monitor)
            || monitor.is_some_and(Monitor::has_more)
            || self.inotify.is_none()
            || self.pods.have_failed()
            || self.needs_polling
            || !self.port_states.is_empty()
    }

    fn pause(&self) -> Duration {
        match self.port_states.is_empty() {
            true => BEAT,
            false => BEAT_OF_PORTS,
        }
    }

    /// Returns the time of the next observation or poll. `None`: the next observation follows an event.
    fn next_observation(&self) -> Option<Instant> {
        let deadline = self.health.deadline();
        let next = self.due.into_iter().chain(deadline).min();
        let next = match self.observed_at {
            Some(observed_at) => next.map(|at| at.max(observed_at + APART)),
            None => next,
        };
        let beat = self.beats().then_some(self.beat);
        next.into_iter().chain(beat).min()
    }

    /// Returns true if an observation is due. A poll makes an observation due only if the ports' `states` changed,
    /// or if no event would report a change. `None`: the caller did not read the states.
    fn is_time(&mut self, now: Instant, states: Option<ports::States>) -> bool {
        if self.beats() && self.beat <= now {
            self.beat = now + self.pause();
            self.read_events(Ok(())); // the events beyond one buffer
            let since = |pause| self.observed_at.is_none_or(|at| at + pause <= now);
            let (pause, pause_is_over) = (since(WITHOUT_EVENTS), since(BEAT));
            let lacks_events = pause && !self.has_all_events();
            if lacks_events
                || self.needs_polling && pause_is_over
                || states.is_some_and(|states| states != self.port_states)
            {
                self.due = Some(now);
            }
        }
        let apart = self.observed_at.is_none_or(|at| at + APART <= now);
        let wanted = self.due.into_iter().chain(self.health.deadline()).min();
        let is_time = apart && wanted.is_some_and(|at| at <= now);
        if is_time {
            self.due = None;
        }
        is_time
    }

    fn observe_soon(&mut self) {
        self.had_event = true;
        self.due.get_or_insert(Instant::now() + TOGETHER);
    }

    /// Reads the kernel's events, unless waiting for them failed. Polling replaces a failed source.
    fn read_events(&mut self, readable: io::Result<()>) {
        let Some(monitor) = &mut self.monitor else {
            return;
        };
        let events = match readable.and_then(|()| monitor.get_mut().events()) {
            Ok(events) => events,
            Err(error) => {
                log::error!(
                    "no more events from the kernel: {error}; observing the devices every {WITHOUT_EVENTS:?}"
                );
                self.monitor = None;
                return self.observe_soon();
            }
        };
        for event in events {
            if self.is_news(&event) {
                log::debug!("event: {event}");
                self.observe_soon();
            }
        }
    }

    /// Returns true if the daemon must observe the devices after `event`.
    fn is_news(&mut self, event: &Event) -> bool {
        match event {
            Event::Link { namespace, link } => {
                let state = LinkState::from(&**link);
                let key = (*namespace, link.index);
                if !self.matters(*namespace, link) || self.links.get(&key) == Some(&state) {
                    return false;
                }
                self.links.insert(key, state);
                if let Some(nsid) = namespace {
                    self.pods.mark_stale(*nsid);
                }
                true
            }
            Event::LinkGone { namespace, link } => {
                let known = self.links.remove(&(*namespace, link.index)).is_some();
                if let Some(nsid) = namespace {
                    self.pods.mark_stale(*nsid);
                }
                known || self.matters(*namespace, link)
            }
            Event::Address => true,
            Event::Devlink => {
                self.reports.request();
                false
            }
            Event::Unread(nsid) => {
                self.forget_links(*nsid);
                self.pods.mark_stale(*nsid);
                self.pods.follow(*nsid)
            }
            Event::NamespaceGone(nsid) => {
                self.forget_links(*nsid);
                self.pods.ended(*nsid);
                true
            }
            Event::Device(device) => {
                // ignore virtual netdevs, such as a pod's veth
                let matters = !device.path.starts_with("/devices/virtual/net/");
                if matters && device.subsystem.starts_with("infiniband") {
                    self.pods.mark_all_stale();
                }
                matters
            }
            Event::Lost => {
                self.links.clear();
                self.pods.lost(self.monitor.as_mut().map(AsyncFd::get_mut));
                true
            }
        }
    }

    fn forget_links(&mut self, of: Nsid) {
        self.links.retain(|key, _| key.0 != Some(of));
    }

    fn matters(&self, namespace: Option<Nsid>, link: &Link) -> bool {
        match namespace {
            None => link.parent.is_some() || link.is_bond() || link.is_vlan(),
            Some(nsid) => self.pods.has(nsid, link),
        }
    }

    /// Reads the events of records, unless waiting for them failed. Polling replaces a failed source.
    fn read_record_events(&mut self, readable: io::Result<()>) {
        let Some(inotify) = &mut self.inotify else {
            return;
        };
        let changes = match readable.and_then(|()| records::read(inotify.get_mut())) {
            Ok(changes) => changes,
            Err(error) => {
                log::error!(
                    "{:?}: cannot read events of records: {error}; the daemon polls the records",
                    self.attachments
                );
                self.inotify = None;
                return;
            }
        };
        if changes.networks
            && let Err(error) = listen_to_networks(inotify.get_mut(), &self.attachments)
        {
            log::warn!(
                "cannot watch records of new networks: {error}; the daemon polls the records"
            );
            self.inotify = None;
        }
        self.records_changed |= changes.records;
        if self.records_changed {
            self.observe_soon();
        }
    }
}
