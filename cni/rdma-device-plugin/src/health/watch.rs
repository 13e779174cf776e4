// SPDX-License-Identifier: Apache-2.0
//! Waits until the node's devices have to be looked at again, and looks.

use super::{
    errors::Errors,
    node::Health,
    observe::Pods,
    ports,
    records::{listen, listen_to_networks},
};
use crate::{conf::ErrorThreshold, offer::Unhealthy, watch::until};
use attachments::{Store, pods};
use inotify::{EventMask, Inotify};
use rdma_netns::{
    Hca, Inventory, Kernel, Link, Linux,
    linux::monitor::{Event, Monitor, Nsid},
};
use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, watch},
};

/// What comes together is looked at together.
const TOGETHER: Duration = Duration::from_millis(50);
/// No two looks are closer, whatever happens.
const APART: Duration = Duration::from_millis(200);
/// What no event tells of is looked at so often; where there is nothing of the kind, nothing is.
const BEAT: Duration = Duration::from_secs(1);
/// The same where it is the state of an InfiniBand port, of which kubelet is to hear within a
/// second: it is told some time later ([`DOWN_AFTER`](super::damper::DOWN_AFTER)).
const BEAT_OF_PORTS: Duration = Duration::from_millis(400);
const _: () = assert!(BEAT_OF_PORTS.as_millis() + super::damper::DOWN_AFTER.as_millis() < 1000);
/// Where there are no events, or none of pods.
const WITHOUT_EVENTS: Duration = Duration::from_secs(2);

/// What is known of the devices' health, and the ears for what changes it.
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
    errors: Errors,
    /// The netdevs that were told of, as they were: an event often says what is known.
    told: HashMap<(Option<Nsid>, u32), Told>,
    /// Whether the records have to be read again.
    records_changed: bool,
    /// When to look, as something was heard.
    due: Option<Instant>,
    looked: Option<Instant>,
    beat: Instant,
    port_states: ports::States,
    /// Whether a device is not well, and neither an event nor the state of a port here tells of its end.
    has_untold: bool,
    /// Whether something was heard since it was last told of.
    heard: bool,
    /// Somebody wants a look.
    asked: Arc<Notify>,
}

/// What matters of a netdev.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    name: String,
    up: bool,
    carrier: bool,
    master: Option<u32>,
    mac: rdma_netns::HardwareAddress,
}

impl Watch {
    /// Listens, from within a tokio runtime that drives I/O and time; `sysfs` is where `/sys` is,
    /// `state_dir` is `rdma-cni`'s. What cannot be heard of is told in words, and done without.
    pub fn open(sysfs: &Path, state_dir: &Path) -> (Self, Vec<String>) {
        let mut losses = Vec::new();
        let monitor = Monitor::open(sysfs).and_then(register);
        let monitor = monitor
            .map_err(|error| {
                losses.push(format!(
                    "no events: {error}; looking every {WITHOUT_EVENTS:?}"
                ))
            })
            .ok();
        if let Some(monitor) = &monitor {
            losses.extend(monitor.get_ref().losses().iter().map(ToString::to_string));
        }
        let mut watch = Self::new(sysfs, state_dir, monitor);
        let inotify = listen(&watch.attachments)
            .and_then(register)
            .map_err(|error| {
                losses.push(format!(
                    "which pods have devices is not told by {:?}: {error}",
                    watch.attachments
                ));
            });
        watch.inotify = inotify.ok();
        (watch, losses)
    }

    /// For one look, and no more: nothing is listened to, and nothing is made.
    pub fn still(sysfs: &Path, state_dir: &Path) -> Self {
        let monitor = Monitor::open(sysfs).and_then(register);
        Self::new(sysfs, state_dir, monitor.ok())
    }

    /// The same, where error counters decide, too, by these thresholds and those that come later.
    pub fn with_errors(mut self, thresholds: watch::Receiver<Vec<ErrorThreshold>>) -> Self {
        self.errors.follow(thresholds);
        self
    }

    /// The same, which looks at once whenever `asked` is notified.
    pub fn asked_by(mut self, asked: Arc<Notify>) -> Self {
        self.asked = asked;
        self
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
            errors: Errors::none(sysfs),
            told: HashMap::new(),
            records_changed: true,
            due: Some(now),
            looked: None,
            beat: now + BEAT,
            port_states: Vec::new(),
            has_untold: false,
            heard: true,
            asked: Arc::default(),
        }
    }

    /// Waits until the hardware and [`unhealthy`](Self::unhealthy) have to be looked at again; the
    /// first time at once. Given up and called again, it misses nothing.
    pub async fn next(&mut self) {
        loop {
            let at = self.next_look();
            tokio::select! {
                biased;
                () = until(at.map(Into::into)) => {
                    let states = match self.beats() && self.beat <= Instant::now() {
                        true => ports::untold_aside(&self.sysfs).await,
                        false => None,
                    };
                    if self.is_time(Instant::now(), states) {
                        return;
                    }
                }
                () = readable(self.monitor.as_mut()) => self.hear(),
                () = readable(self.inotify.as_mut()) => self.hear_of_records(),
                () = self.errors.changed() => self.due = Some(Instant::now()),
                () = self.asked.notified() => self.due = Some(Instant::now()),
            }
        }
    }

    /// What of `inventory` is not healthy. Reads the kernel's state, some milliseconds; call it
    /// where waiting is allowed.
    pub fn unhealthy(&mut self, inventory: &Inventory) -> Unhealthy {
        let mut monitor = self.monitor.as_mut().map(AsyncFd::get_mut);
        if self.records_changed || self.inotify.is_none() {
            self.records_changed = false;
            let placed = pods::read(&Store::new(&self.state_dir), &self.boot_id);
            self.pods.update(placed, monitor.as_deref_mut());
            let pods = &self.pods;
            self.told
                .retain(|(namespace, _), _| namespace.is_none_or(|it| pods.follow(it)));
        }
        if !tells_of_pods(monitor.as_deref()) {
            self.pods.heard_of(None);
        }
        self.pods.look(monitor.as_deref_mut());
        let host = match monitor.map(|monitor| monitor.links(None)) {
            Some(Ok(links)) => links,
            Some(Err(error)) => {
                log::warn!("the host's netdevs cannot be read: {error}");
                self.due = Some(Instant::now() + BEAT);
                Vec::new()
            }
            None => Vec::new(),
        };
        // a NIC without RDMA is none of health's business, unless it had it
        let of_concern = inventory.functions.iter().filter(|function| {
            !function.hcas.is_empty() || self.health.knows(&function.device.address)
        });
        let seen: Vec<_> = of_concern
            .map(|function| (&function.device, self.pods.state(function, &host)))
            .collect();
        let now = Instant::now();
        self.errors.update(inventory);
        self.health.look(now, &seen, self.errors.rates());
        for address in self.health.doubtful() {
            self.pods.doubt(address);
        }
        self.looked = Some(now);
        self.port_states = ports::untold(&self.sysfs);
        self.has_untold = self.has_untold(inventory);
        self.beat = self.beat.min(now + self.pause());
        self.health.unhealthy()
    }

    /// Looks whenever it is time, and tells what it saw, as long as `tell` answers true. `look`
    /// looks at the hardware; none: it could not.
    pub async fn follow<L, T>(
        mut self,
        look: impl Fn() -> L,
        tell: impl Fn(Arc<Inventory>, Unhealthy) -> T,
    ) where
        L: Future<Output = Option<Inventory>>,
        T: Future<Output = bool>,
    {
        let mut told: Option<(Arc<Inventory>, Unhealthy)> = None;
        loop {
            self.next().await;
            let heard = std::mem::take(&mut self.heard);
            let Some(inventory) = look().await.map(Arc::new) else {
                self.heard |= heard;
                self.look_again();
                continue;
            };
            let aside = tokio::task::spawn_blocking(move || {
                let unhealthy = self.unhealthy(&inventory);
                (self, inventory, unhealthy)
            });
            let (watch, inventory, unhealthy) = match aside.await {
                Ok(seen) => seen,
                Err(error) => {
                    log::error!("health is not followed any more: {error}");
                    return;
                }
            };
            self = watch;
            let seen = (inventory, unhealthy);
            if !heard && told.as_ref() == Some(&seen) {
                continue;
            }
            told = Some(seen.clone());
            if !tell(seen.0, seen.1).await {
                return;
            }
        }
    }

    /// Whether something is told of all that is looked at.
    fn hears_all(&self) -> bool {
        let monitor = self.monitor.as_ref().map(AsyncFd::get_ref);
        monitor.is_some() && (tells_of_pods(monitor) || self.pods.are_none())
    }

    /// Whether the end of what is not well is told by nothing: a port of another namespace, or one of Ethernet.
    fn has_untold(&self, inventory: &Inventory) -> bool {
        let is_seen = |hca: &Hca| ports::has_device(&self.port_states, &self.sysfs, &hca.name);
        self.health.doubtful().iter().any(|address| {
            let function = inventory.function(address);
            function.is_none_or(|it| !it.hcas.first().is_some_and(is_seen))
        })
    }

    /// What was to be seen was not.
    fn look_again(&mut self) {
        let now = Instant::now();
        self.looked = Some(now);
        self.due = Some(now + BEAT);
    }

    /// Whether there is something that no event tells of.
    fn beats(&self) -> bool {
        let monitor = self.monitor.as_ref().map(AsyncFd::get_ref);
        !tells_of_pods(monitor)
            || monitor.is_some_and(Monitor::has_more)
            || self.inotify.is_none()
            || self.has_untold
            || !self.port_states.is_empty()
    }

    /// From one beat to the next.
    fn pause(&self) -> Duration {
        match self.port_states.is_empty() {
            true => BEAT,
            false => BEAT_OF_PORTS,
        }
    }

    /// None: not before something is heard.
    fn next_look(&self) -> Option<Instant> {
        let deadline = self.health.deadline();
        let look = self.due.into_iter().chain(deadline).min();
        let look = match self.looked {
            Some(looked) => look.map(|at| at.max(looked + APART)),
            None => look,
        };
        let beat = self.beats().then_some(self.beat);
        look.into_iter().chain(beat).min()
    }

    /// Whether it is time to look; else it was a beat in which nothing was new. `states` are the
    /// ports' by now; none: they were not looked at.
    fn is_time(&mut self, now: Instant, states: Option<ports::States>) -> bool {
        if self.beats() && self.beat <= now {
            self.beat = now + self.pause();
            self.hear(); // what was more than is read at one go
            let since = |pause| self.looked.is_none_or(|at| at + pause <= now);
            let (pause, pause_is_over) = (since(WITHOUT_EVENTS), since(BEAT));
            let unheard = pause && !self.hears_all();
            if unheard
                || self.has_untold && pause_is_over
                || states.is_some_and(|states| states != self.port_states)
            {
                self.due = Some(now);
            }
        }
        let apart = self.looked.is_none_or(|at| at + APART <= now);
        let wanted = self.due.into_iter().chain(self.health.deadline()).min();
        let is_time = apart && wanted.is_some_and(|at| at <= now);
        if is_time {
            self.due = None;
        }
        is_time
    }

    fn look_soon(&mut self) {
        self.heard = true;
        self.due.get_or_insert(Instant::now() + TOGETHER);
    }

    fn hear(&mut self) {
        let Some(monitor) = &mut self.monitor else {
            return;
        };
        let events = match monitor.get_mut().events() {
            Ok(events) => events,
            Err(error) => {
                log::error!("no events any more: {error}; looking every {WITHOUT_EVENTS:?}");
                self.monitor = None;
                return self.look_soon();
            }
        };
        for event in events {
            if self.is_news(&event) {
                log::debug!("heard of {event}");
                self.look_soon();
            }
        }
    }

    /// Whether an event can be about a device's health or presence.
    fn is_news(&mut self, event: &Event) -> bool {
        match event {
            Event::Link { namespace, link } => {
                let told = Told::from(&**link);
                let key = (*namespace, link.index);
                if !self.matters(*namespace, link) || self.told.get(&key) == Some(&told) {
                    return false;
                }
                self.told.insert(key, told);
                self.heard_of(*namespace);
                true
            }
            Event::LinkGone { namespace, link } => {
                let known = self.told.remove(&(*namespace, link.index)).is_some();
                self.heard_of(*namespace);
                known || self.matters(*namespace, link)
            }
            Event::Address => true,
            Event::NamespaceGone(nsid) => {
                self.told
                    .retain(|(namespace, _), _| *namespace != Some(*nsid));
                self.pods.ended(*nsid);
                true
            }
            Event::Device(device) => {
                // a pod's veth, and the like
                let matters = !device.path.starts_with("/devices/virtual/net/");
                if matters && device.subsystem.starts_with("infiniband") {
                    self.pods.heard_of(None);
                }
                matters
            }
            Event::Lost => {
                self.told.clear();
                self.pods.lost(self.monitor.as_mut().map(AsyncFd::get_mut));
                true
            }
        }
    }

    fn heard_of(&mut self, namespace: Option<Nsid>) {
        if namespace.is_some() {
            self.pods.heard_of(namespace);
        }
    }

    fn matters(&self, namespace: Option<Nsid>, link: &Link) -> bool {
        match namespace {
            None => link.parent.is_some() || link.is_bond() || link.is_vlan(),
            Some(nsid) => self.pods.has(nsid, link),
        }
    }

    fn hear_of_records(&mut self) {
        let Some(inotify) = &mut self.inotify else {
            return;
        };
        let mut buffer = [0; 4096];
        let mut networks = false;
        loop {
            match inotify.get_mut().read_events(&mut buffer) {
                Ok(events) => {
                    for event in events {
                        let is_record =
                            |name: &OsStr| Path::new(name).extension() == Some(OsStr::new("json"));
                        networks |= event
                            .mask
                            .intersects(EventMask::ISDIR | EventMask::Q_OVERFLOW);
                        self.records_changed |= networks || event.name.is_some_and(is_record);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    log::error!("records are not told of any more: {error}");
                    self.inotify = None;
                    return;
                }
            }
        }
        if networks && let Err(error) = listen_to_networks(inotify.get_mut(), &self.attachments) {
            log::warn!("records of new networks are not told of: {error}");
        }
        if self.records_changed {
            self.look_soon();
        }
    }
}

impl From<&Link> for Told {
    fn from(link: &Link) -> Self {
        Self {
            name: link.name.to_string(),
            up: link.up,
            carrier: link.carrier,
            master: link.master,
            mac: link.mac.clone(),
        }
    }
}

/// Whether pods' netdevs are told of.
fn tells_of_pods(monitor: Option<&Monitor>) -> bool {
    monitor.is_some_and(|monitor| monitor.losses().is_empty())
}

/// Waits until there is something to read; for ever where there is nothing to read from.
async fn readable<T: AsRawFd>(source: Option<&mut AsyncFd<T>>) {
    match source {
        Some(source) => match source.readable_mut().await {
            // what is there is read to its end, or found at the next turn
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                log::error!("waiting for events: {error}");
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

fn register<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: both kinds of sources own one descriptor, which stays open and the same for life.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}
