// SPDX-License-Identifier: Apache-2.0
//! [`FakeKernel`], which implements [`rdma_netns::Kernel`] on a [`World`], and the faults that tests inject into it.

use crate::{
    snapshot::Snapshot,
    world::{HOST, Refusal, World},
};
use nix::errno::Errno;
use rdma_netns::{
    Conflict, Device, DeviceAddress, DeviceSettings, GidTable, Kernel, Link, Neighbour, NetnsId,
    ObservationScope, ObserveError, Observed, Op, OpError, OpenPodError, Pkey, Pod, ProbeError,
    Probed, Question, Vf, pairing::ERDMA, smc::SmcState,
};
use std::{
    collections::BTreeSet,
    fmt, io, mem,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A change that the program is about to make.
#[derive(Debug)]
pub struct Step<'a> {
    /// Number of the change, counted from 1 since the process began.
    pub number: usize,
    /// The change.
    pub op: &'a Op,
}

/// A test's decision about a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The world executes or refuses the change.
    Proceed,
    /// The kernel refuses the change.
    Refuse(Errno),
    /// The kernel makes the change, but reports a refusal.
    Deceive(Errno),
    /// The process dies before the change.
    DieBefore,
    /// The process dies after the change.
    DieAfter,
}

/// The payload of the panic that simulates SIGKILL. It unwinds, so that descriptors are closed and locks end, as with a
/// killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

type Script = Box<dyn FnMut(&mut World, Step<'_>) -> Verdict + Send>;
type Manager = Box<dyn FnMut(&mut World) + Send>;
type Meanwhile = Box<dyn FnMut(usize) + Send>;
type Blindness = Box<dyn FnMut(&mut World, usize) -> Option<Errno> + Send>;

struct State {
    world: World,
    script: Option<Script>,
    blindness: Option<Blindness>,
    manager: Option<Manager>,
    meanwhile: Option<Meanwhile>,
    pauses: usize,
    journal: Vec<Op>,
    observations: usize,
    scope: Option<ObservationScope>,
    answered: BTreeSet<String>,
    routes_read: BTreeSet<PathBuf>,
    start: Instant,
    /// Duration of the pauses. Only pauses and [`World::pass_seconds`] advance the clock.
    paused: Duration,
    dead: bool,
}

/// A kernel with its own [`World`]. Clones share the world.
#[derive(Clone)]
pub struct FakeKernel {
    state: Arc<Mutex<State>>,
}

/// An open descriptor of a pod's namespace.
pub struct FakePod {
    state: Arc<Mutex<State>>,
    path: PathBuf,
    id: NetnsId,
    boot: u32,
}

impl FakeKernel {
    /// Returns a kernel with `world`, which is also the node's state after every reboot.
    pub fn new(mut world: World) -> Self {
        world.switch_on();
        let state = State {
            world,
            script: None,
            blindness: None,
            manager: None,
            meanwhile: None,
            pauses: 0,
            journal: vec![],
            observations: 0,
            scope: None,
            answered: BTreeSet::new(),
            routes_read: BTreeSet::new(),
            start: Instant::now(),
            paused: Duration::ZERO,
            dead: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Calls `action` with the world, without going through the trait [`rdma_netns::Kernel`].
    pub fn with<T>(&self, action: impl FnOnce(&mut World) -> T) -> T {
        action(&mut self.lock().world)
    }

    /// Returns the whole world, for comparison.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.lock().world)
    }

    /// Begins a new process: removes counts and faults of the previous one.
    pub fn begin(&self) {
        let mut state = self.lock();
        state.script = None;
        state.blindness = None;
        state.journal.clear();
        state.observations = 0;
        state.scope = None;
        state.answered.clear();
        state.routes_read.clear();
        state.dead = false;
    }

    /// Calls `script` for each change to decide its outcome. `script` may change the world first.
    pub fn intercept(&self, script: impl FnMut(&mut World, Step<'_>) -> Verdict + Send + 'static) {
        self.lock().script = Some(Box::new(script));
    }

    /// Calls `blindness` with the number of each observation, from 1, to decide whether it fails. `blindness` may
    /// change the world first.
    pub fn blind(
        &self,
        blindness: impl FnMut(&mut World, usize) -> Option<Errno> + Send + 'static,
    ) {
        self.lock().blindness = Some(Box::new(blindness));
    }

    /// Adds a network manager to the node, which runs `something` whenever a process pauses.
    pub fn manage(&self, something: impl FnMut(&mut World) + Send + 'static) {
        self.lock().manager = Some(Box::new(something));
    }

    /// Runs `something` in each pause of a process from now on, with the pause's number from 1. `something` can use the
    /// kernel.
    pub fn meanwhile(&self, something: impl FnMut(usize) + Send + 'static) {
        let mut state = self.lock();
        state.meanwhile = Some(Box::new(something));
        state.pauses = 0;
    }

    /// Returns the changes that the process has requested since it began.
    pub fn journal(&self) -> Vec<Op> {
        self.lock().journal.clone()
    }

    /// Returns the number of observations since the process began.
    pub fn observations(&self) -> usize {
        self.lock().observations
    }

    /// Returns the RDMA devices whose ports were queried since the process began.
    pub fn answered(&self) -> Vec<String> {
        self.lock().answered.iter().cloned().collect()
    }

    /// Returns the paths of the pods' namespaces whose routes the process has read since it began.
    pub fn routes_read(&self) -> Vec<PathBuf> {
        self.lock().routes_read.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state if the process lives, and otherwise panics with [`Died`].
    fn alive(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        if state.dead {
            drop(state);
            die();
        }
        state
    }

    /// Executes `made`, which is `op` or its form [`by_index`](Op::by_index). Journal, script and errors show `op`.
    fn make(&self, op: &Op, made: &Op, pod: Option<&FakePod>) -> Result<(), OpError> {
        let mut guard = self.alive();
        let state = &mut *guard;
        state.journal.push(op.clone());
        let step = Step {
            number: state.journal.len(),
            op,
        };
        let verdict = match &mut state.script {
            Some(script) => script(&mut state.world, step),
            None => Verdict::Proceed,
        };
        let pod = pod.map(|pod| pod.id);
        let mut done = match verdict {
            Verdict::Refuse(errno) => Err(errno.into()),
            Verdict::DieBefore => Ok(()),
            _ => state.world.execute(made, pod),
        };
        if let (Verdict::Deceive(errno), Ok(())) = (verdict, done) {
            done = Err(errno.into());
        }
        if matches!(verdict, Verdict::DieBefore | Verdict::DieAfter) {
            state.dead = true;
            drop(guard);
            die();
        }
        done.map_err(|Refusal { errno, message }| OpError {
            op: Box::new(op.clone()),
            source: io::Error::from_raw_os_error(errno as i32),
            message: message.map(str::to_owned),
        })
    }
}

fn die() -> ! {
    resume_unwind(Box::new(Died))
}

impl Kernel for FakeKernel {
    type Pod = FakePod;

    fn boot_id(&self) -> Result<String, ObserveError> {
        Ok(self.alive().world.boot_id())
    }

    fn open_pod(&self, path: &Path) -> Result<FakePod, OpenPodError> {
        let mut state = self.alive();
        let id = match state.world.paths.get(path) {
            None => return Err(OpenPodError::Missing(path.to_owned())),
            Some(None) => return Err(OpenPodError::NotNamespace(path.to_owned())),
            Some(Some(HOST)) => return Err(OpenPodError::HostNamespace(path.to_owned())),
            Some(Some(id)) => *id,
        };
        let boot = state.world.boot;
        let mut namespaces = state.world.namespaces.iter_mut();
        if let Some(netns) = namespaces.find(|netns| netns.id == id) {
            netns.descriptors += 1;
        }
        Ok(FakePod {
            state: Arc::clone(&self.state),
            path: path.to_owned(),
            id,
            boot,
        })
    }

    fn observe(&self, pod: Option<&FakePod>) -> Result<Observed, ObserveError> {
        let mut guard = self.alive();
        let state = &mut *guard;
        state.observations += 1;
        let blind = state.blindness.as_mut();
        let blinded = blind.and_then(|blind| blind(&mut state.world, state.observations));
        if let Some(errno) = blinded {
            return Err(ObserveError {
                what: "the links of the host".to_owned(),
                source: io::Error::from_raw_os_error(errno as i32),
            });
        }
        let mut observed = state.world.observe(pod.map(|pod| pod.id));
        // RDMA devices without a parent, and the functions whose driver may have made them, are observed together
        let parentless = observed
            .devices
            .iter()
            .filter(|it| !it.rdma_functions.is_empty());
        let mut by_driver: BTreeSet<_> = parentless
            .flat_map(|it| it.rdma_functions.iter().chain([&it.address]))
            .cloned()
            .collect();
        // if any namespace has an RDMA device without a parent, all functions of the driver may have made the device
        let mut hcas = state.world.hcas.iter();
        if hcas.any(|it| it.parentless || it.parent.is_none()) {
            let is_erdmas = |it: &&Device| it.driver.as_deref() == Some(ERDMA);
            let functions = observed.devices.iter().filter(is_erdmas);
            by_driver.extend(functions.map(|it| it.address.clone()));
        }
        for namespace in [Some(&mut observed.host), observed.pod.as_mut()] {
            for rdma in namespace.into_iter().flat_map(|it| &mut it.rdma) {
                let is_requested = match (&state.scope, &rdma.parent) {
                    (Some(scope), Some(parent)) => {
                        scope.ports.contains(parent) || by_driver.contains(parent)
                    }
                    _ => true,
                };
                match is_requested {
                    true => drop(state.answered.insert(rdma.name.clone())),
                    false => rdma.ports.clear(),
                }
            }
        }
        let no_routes = state.scope.as_ref().is_some_and(|it| it.no_pod_routes);
        if no_routes && let Some(pod) = &mut observed.pod {
            pod.links.iter_mut().for_each(|link| link.routes.clear());
            pod.unkept_routes.clear();
        }
        let read = pod.filter(|_| !no_routes);
        state.routes_read.extend(read.map(|pod| pod.path.clone()));
        if let Some(scope) = &state.scope {
            let namespaces = observed.pod.iter().chain([&observed.host]);
            let parents =
                namespaces.flat_map(|it| it.links.iter().filter_map(|link| link.parent.clone()));
            let parents: BTreeSet<_> = parents.collect();
            let is_requested = |it: &DeviceAddress| {
                [&scope.ports, &scope.besides, &by_driver]
                    .iter()
                    .any(|all| all.contains(it))
            };
            observed.devices.retain(|it| {
                !it.rdma.is_empty() || parents.contains(&it.address) || is_requested(&it.address)
            });
        }
        state.world.pass_time();
        Ok(observed)
    }

    fn limit_observation(&self, scope: Option<ObservationScope>) -> Option<ObservationScope> {
        mem::replace(&mut self.alive().scope, scope)
    }

    fn manages_nvlink(&self, address: &DeviceAddress) -> bool {
        let state = self.alive();
        let mut functions = state.world.functions.iter();
        functions.any(|it| it.address == *address && it.manages_nvlink)
    }

    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError> {
        let vf = self.alive().world.vf(function);
        vf.map_err(|errno| ObserveError {
            what: format!("the settings of virtual function {function}"),
            source: io::Error::from_raw_os_error(errno as i32),
        })
    }

    fn device_settings(&self, link: &Link) -> DeviceSettings {
        self.alive().world.device_settings(link.index)
    }

    fn gids(
        &self,
        pod: Option<&FakePod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError> {
        let seen = self
            .alive()
            .world
            .gids(pod.map_or(HOST, |pod| pod.id), device, port);
        seen.ok_or_else(|| ObserveError {
            what: format!("the GIDs of {device}, port {port}"),
            source: io::Error::from_raw_os_error(Errno::ENOENT as i32),
        })
    }

    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError> {
        let partitions = self.alive().world.partitions(device);
        partitions.ok_or_else(|| ObserveError {
            what: format!("the P_Keys of {device}, port {port}"),
            source: io::Error::from_raw_os_error(Errno::ENOENT as i32),
        })
    }

    fn has_smc(&self) -> bool {
        self.alive().world.smc.is_some()
    }

    fn smc(&self, pod: Option<&FakePod>) -> Result<Option<SmcState>, ObserveError> {
        Ok(self.alive().world.smc(pod.map(|pod| pod.id)))
    }

    fn is_watched(&self) -> bool {
        self.alive().manager.is_some()
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        Ok(self.alive().world.neighbours.clone())
    }

    fn probe(&self, pod: &FakePod, questions: &[Question]) -> Result<Probed, ProbeError> {
        let probed = self.alive().world.probe(pod.id, questions);
        probed.map_err(|errno| ProbeError(errno.into()))
    }

    fn conflicts_since_probe(
        &self,
        pod: &FakePod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError> {
        let conflicts = self.alive().world.conflicts_since_probe(pod.id, questions);
        conflicts.map_err(|errno| ProbeError(errno.into()))
    }

    fn execute(&self, op: &Op, pod: Option<&FakePod>) -> Result<(), OpError> {
        self.make(op, op, pod)
    }

    fn execute_as_observed(
        &self,
        op: &Op,
        pod: Option<&FakePod>,
        observed: &Observed,
    ) -> Result<(), OpError> {
        self.make(op, &op.by_index(observed), pod)
    }

    fn now(&self) -> Instant {
        let state = self.alive();
        state.start + state.paused + state.world.passed()
    }

    fn uptime(&self) -> u64 {
        let state = self.alive();
        (state.paused + state.world.passed()).as_secs()
    }

    fn pause(&self, time: Duration) {
        let mut guard = self.alive();
        let state = &mut *guard;
        state.paused += time;
        if let Some(manager) = &mut state.manager {
            manager(&mut state.world);
        }
        state.pauses += 1;
        let (pauses, meanwhile) = (state.pauses, state.meanwhile.take());
        drop(guard);
        if let Some(mut meanwhile) = meanwhile {
            meanwhile(pauses);
            self.lock().meanwhile.get_or_insert(meanwhile);
        }
    }
}

impl Pod for FakePod {
    fn path(&self) -> &Path {
        &self.path
    }

    fn id(&self) -> NetnsId {
        self.id
    }
}

impl Drop for FakePod {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let world = &mut state.world;
        if world.boot != self.boot {
            return;
        }
        let mut namespaces = world.namespaces.iter_mut();
        if let Some(netns) = namespaces.find(|netns| netns.id == self.id) {
            netns.descriptors -= 1;
            world.end_if_unused(self.id);
        }
    }
}

impl fmt::Debug for FakeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeKernel").finish_non_exhaustive()
    }
}

impl fmt::Debug for FakePod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FakePod");
        shown.field("path", &self.path).field("id", &self.id);
        shown.finish_non_exhaustive()
    }
}
