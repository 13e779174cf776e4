// SPDX-License-Identifier: Apache-2.0
//! Maintains the eRDMA NICs in a running daemon: queries the instance's id, changes the driver's mode, brings NICs up,
//! and reports the results to the daemon. The reconciler runs after each change of the node. While a step is not yet
//! possible, it also runs periodically.

use super::Report;
use crate::{
    node::{Node, Signal},
    watch::until,
};
use ::erdma::{
    bring_up::BringUp,
    conf::{DRIVER, DriverMode},
    driver::{
        Change, DriverStatus, LoadError, Loader, Plan, Problem, State,
        binding::{self, Bindings, candidates},
        change, held, mode, plan,
        users::{self, Advertised, Paths, WatchedDevice},
    },
    metadata::Metadata,
};
use daemon_conf::Origin;
use offer::Offer;
use rdma_netns::{DeviceAddress, ErdmaModule, Inventory, Kernel, Linux, Op};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};

/// Interval between queries for the instance's id, and between checks whether devices still have users, or functions
/// still lack the driver: the end of a pod causes no event. If the driver's module cannot be loaded, the next attempt
/// follows after six intervals.
pub const AGAIN: Duration = Duration::from_secs(10);

/// Divisor of [`AGAIN`]. For this part of the interval, the reconciler does not bind a function that has lost its
/// driver, because a program may just be loading or unloading the driver.
const SETTLING: u32 = 5;

/// Loader of kernel modules. `None`: the sysfs directory is not the kernel's sysfs.
pub type AnyLoader = Option<Arc<Mutex<dyn Loader + Send>>>;

/// Dependencies of the reconciler.
pub struct ReconcilerContext {
    /// Latest state of the node.
    pub node: watch::Receiver<Arc<Node>>,
    /// Signals to the daemon.
    pub signals: mpsc::Sender<Signal>,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// Directory of device files.
    pub dev: PathBuf,
    /// Paths by which the reconciler finds users of devices.
    pub paths: Paths,
    /// Loader of kernel modules.
    pub loader: AnyLoader,
    /// Retry interval, [`AGAIN`] in the daemon.
    pub again: Duration,
}

struct Tried {
    change: Change,
    problem: Problem,
    /// Time of the next attempt. `None`: the reconciler tries again only when it plans another change.
    until: Option<Instant>,
}

/// Reconciler of the eRDMA NICs.
pub struct Reconciler {
    context: ReconcilerContext,
    kernel: Arc<Linux>,
    reported: Report,
    metadata: Option<(String, Metadata)>,
    bring_up: Option<(::erdma::conf::BringUp, BringUp<Linux>)>,
    tried: Option<Tried>,
    bindings: Bindings,
}

impl Reconciler {
    /// Returns a reconciler. It sends a report only if the report differs from the previous one, which at first is the
    /// report in `context.node`.
    pub fn new(context: ReconcilerContext) -> Self {
        let kernel = Linux::with_roots(&context.sysfs, &context.dev);
        let reported = Report::clone(&context.node.borrow().erdma.report);
        Self {
            kernel: Arc::new(kernel),
            reported,
            context,
            metadata: None,
            bring_up: None,
            tried: None,
            bindings: Bindings::default(),
        }
    }

    /// Runs until the sender of `context.node` is dropped.
    pub async fn run(mut self) {
        loop {
            let node = self.context.node.borrow_and_update().clone();
            let again = self.reconcile(&node).await;
            tokio::select! {
                changed = self.context.node.changed() => if changed.is_err() {
                    return;
                },
                () = until(again.map(|it| tokio::time::Instant::now() + it)) => {}
            }
        }
    }

    /// Makes the changes that are possible now. Returns the delay after which the next attempt follows if no event
    /// starts it earlier.
    async fn reconcile(&mut self, node: &Node) -> Option<Duration> {
        let mut report = Report {
            instance: self.reported.instance.clone(),
            ..Report::default()
        };
        let mut again = Vec::new();
        if node.erdma.discovery.needs_instance && report.instance.is_none() {
            match self.instance_id(&node.conf.erdma.metadata).await {
                Ok(instance) => {
                    log::info!("this instance is {instance}");
                    self.keep(&instance).await;
                    report.instance = Some(instance);
                }
                Err(error) => {
                    report.remarks.push(format!(
                        "erdma.exposedLocalERIs: the daemon does not yet use NICs whose selection depends on the instance's id: {error}"
                    ));
                    again.push(self.context.again);
                }
            }
        }
        report.driver = self.drive(node).await;
        if let Some(problem) = &report.driver.problem {
            let until = self.tried.as_ref().and_then(|tried| tried.until);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let passes = problem.passes(self.context.again);
            again.extend(passes.map(|passes| left.map_or(passes, |left| left.min(passes))));
        }
        report.outcomes = self.bring_up(node, &mut report.remarks).await;
        for outcome in &report.outcomes {
            outcome.log();
            again.extend(outcome.retry_after());
        }
        self.send(report).await;
        again.into_iter().min()
    }

    /// Stores the instance's id for the daemon's next start.
    async fn keep(&self, instance: &str) {
        let (state_dir, instance) = (self.context.paths.state_dir.clone(), instance.to_owned());
        let kept =
            tokio::task::spawn_blocking(move || ::erdma::instance::keep(&state_dir, &instance));
        if let Ok(Err(error)) = kept.await {
            log::warn!(
                "cannot store the instance's id; the daemon queries it again at its next start: {error}"
            );
        }
    }

    async fn send(&mut self, report: Report) {
        if !report.is_like(&self.reported) {
            self.reported = report.clone();
            // ignore the error: an ending daemon does not receive the report
            let _ = self.context.signals.send(Signal::Erdma(report)).await;
        }
    }

    async fn instance_id(&mut self, base: &str) -> Result<String, String> {
        if self.metadata.as_ref().is_none_or(|(of, _)| of != base) {
            let metadata = Metadata::new(base).map_err(|error| error.to_string())?;
            self.metadata = Some((base.to_owned(), metadata));
        }
        match &mut self.metadata {
            Some((_, metadata)) => metadata
                .instance_id()
                .await
                .map_err(|error| error.to_string()),
            None => Err("the metadata service has no address".to_owned()),
        }
    }

    async fn bring_up(
        &mut self,
        node: &Node,
        remarks: &mut Vec<String>,
    ) -> Vec<::erdma::bring_up::Outcome> {
        let nics = &node.erdma.discovery.nics;
        let wanted = node.conf.erdma.bring_up.as_ref();
        let Some(wanted) = wanted.filter(|_| !nics.is_empty() || self.bring_up.is_some()) else {
            // without a configuration, the NICs keep their settings until `--release` restores them
            self.bring_up = None;
            return Vec::new();
        };
        if self.bring_up.as_ref().is_none_or(|(of, _)| of != wanted) {
            // drop the previous `BringUp` first, because it holds the lock that the new one needs
            self.bring_up = None;
            let state_dir = &self.context.paths.state_dir;
            match BringUp::new(wanted.clone(), state_dir, self.kernel.clone()) {
                Ok(bring_up) => self.bring_up = Some((wanted.clone(), bring_up)),
                Err(error) => remarks.push(error.to_string()),
            }
        }
        match &mut self.bring_up {
            Some((_, bring_up)) => bring_up.settle(nics).await,
            None => Vec::new(),
        }
    }

    /// Changes the driver's mode to the required mode and binds functions without a driver, if this is possible.
    /// Returns the driver's status.
    async fn drive(&mut self, node: &Node) -> DriverStatus {
        let erdma = &node.conf.erdma;
        let wanted = erdma.prefer_driver;
        let Some(state) = self.driver_state().await else {
            return self.reported.driver.clone();
        };
        let problem = match planned(erdma, &state) {
            Plan::Keep => None,
            Plan::Problem(problem) => Some(problem),
            Plan::Change(change) => self.attempt(node, change).await.err(),
        };
        if problem.is_none() {
            self.tried = None;
        }
        let unbound = self.bind(node, state).await.err();
        let loaded = self.kernel.erdma_module();
        DriverStatus {
            wanted,
            loaded: loaded.as_ref().map(mode),
            problem: problem.or(unbound),
        }
    }

    /// Reads the driver's state from sysfs; `None`: the thread panicked.
    async fn driver_state(&self) -> Option<State> {
        let (sysfs, kernel) = (self.context.sysfs.clone(), self.kernel.clone());
        let seen = tokio::task::spawn_blocking(move || State::read(&sysfs, kernel.erdma_module()));
        let seen = seen.await;
        seen.inspect_err(|error| log::error!("cannot observe the eRDMA driver: {error}"))
            .ok()
    }

    /// Binds the driver to functions whose probe the driver deferred. Their netdevs may have returned to the host
    /// since.
    async fn bind(&mut self, node: &Node, mut state: State) -> Result<(), Problem> {
        if node.conf.erdma.origin == Origin::Foreign || self.context.loader.is_none() {
            return Ok(());
        }
        if self.bindings.has_news(&state) {
            tokio::time::sleep(self.context.again / SETTLING).await;
            match self.driver_state().await {
                Some(now) => state = now,
                None => return Ok(()),
            }
        }
        let kernel = self.kernel.clone();
        let state_dir = self.context.paths.state_dir.clone();
        let (sysfs, netdevs) = (self.context.sysfs.clone(), candidates(&node.inventory));
        let mut bindings = std::mem::take(&mut self.bindings);
        let done = tokio::task::spawn_blocking(move || {
            let hold = || held::hold(&kernel, &state_dir);
            let done = bindings.settle(&state, netdevs, &hold, &mut |function| {
                bind(&kernel, &sysfs, function)
            });
            (bindings, done)
        });
        match done.await {
            Ok((bindings, done)) => {
                self.bindings = bindings;
                done
            }
            Err(error) => {
                log::error!("cannot bind functions to the eRDMA driver: {error}");
                Ok(())
            }
        }
    }

    /// Makes `change`. If the last attempt of the same change failed, and the next one is not due yet, only returns its
    /// error.
    async fn attempt(&mut self, node: &Node, change: Change) -> Result<(), Problem> {
        if let Some(tried) = &self.tried
            && tried.change == change
            && tried.until.is_none_or(|until| Instant::now() < until)
        {
            return Err(tried.problem.clone());
        }
        let done = self.change(node, change.clone()).await;
        self.tried = done.clone().err().map(|problem| Tried {
            until: problem
                .passes(self.context.again)
                .map(|passes| Instant::now() + passes),
            change,
            problem,
        });
        done
    }

    async fn change(&mut self, node: &Node, change: Change) -> Result<(), Problem> {
        let wanted = change.to;
        let checked = self.blocking(wanted, move |loader, _| {
            let why = |error: LoadError| error.to_string();
            let not_loadable = |why| Problem::NotLoadable { wanted, why };
            loader.check(DRIVER).map_err(why).map_err(not_loadable)
        });
        checked.await?;
        if change.from.is_some() {
            self.nobody_uses(node, &change).await?;
            // withhold the devices, so that kubelet allocates none of them, and the next check finds all users
            let Some(now) = self.withhold().await else {
                return Ok(());
            };
            // do nothing: the end of this round causes an event, and the next round plans with the new configuration
            if now.conf.erdma != node.conf.erdma {
                return Ok(());
            }
            self.nobody_uses(&now, &change).await?;
        }
        log::info!("the eRDMA driver is being loaded in mode {wanted}");
        let requested = change.clone();
        let done = self.blocking(wanted, move |loader, kernel| {
            change::apply(&requested, loader, &|| kernel.erdma_module())
        });
        done.await?;
        log::info!("the eRDMA driver is in mode {wanted}");
        Ok(())
    }

    /// Runs `work` on a thread that may block.
    async fn blocking(
        &self,
        wanted: DriverMode,
        work: impl FnOnce(&mut dyn Loader, &Linux) -> Result<(), Problem> + Send + 'static,
    ) -> Result<(), Problem> {
        let Some(loader) = self.context.loader.clone() else {
            let why =
                "the daemon loads no modules, because --sysfs is not the kernel's sysfs".to_owned();
            return Err(Problem::NotLoadable { wanted, why });
        };
        let kernel = self.kernel.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut loader = loader.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut *loader, &kernel)
        });
        done.await.unwrap_or_else(|error| {
            let why = error.to_string();
            Err(Problem::Failed { wanted, why })
        })
    }

    async fn nobody_uses(&self, node: &Node, change: &Change) -> Result<(), Problem> {
        let Some(from) = &change.from else {
            return Ok(());
        };
        let offers: Vec<Advertised> = node.offers.iter().map(advertised).collect();
        let paths = &self.context.paths;
        let users = users::gather(paths, &devices(&node.inventory), mode(from), &offers).await;
        change.hindered(users).map_or(Ok(()), Err)
    }

    /// Withholds the driver's devices from kubelet until the end of this round. Returns the state of the node
    /// afterwards, or `None` if the sender of `node` is dropped.
    async fn withhold(&mut self) -> Option<Arc<Node>> {
        let report = Report {
            changing: true,
            ..self.reported.clone()
        };
        self.send(report).await;
        let is_known = |node: &Arc<Node>| node.erdma.report.changing;
        let node = self.context.node.wait_for(is_known).await;
        node.ok().map(|node| node.clone())
    }
}

/// Binds the driver to `function`. Blocks during the driver's probe, which waits for firmware. Returns true if the
/// driver is bound afterwards. A deferred probe looks like a success in kernels before 5.11, and fails with `EAGAIN` in
/// later kernels (`device_driver_attach()`, `drivers/base/dd.c`).
fn bind(kernel: &Linux, sysfs: &Path, function: &DeviceAddress) -> io::Result<bool> {
    let op = Op::BindDriver {
        device: function.clone(),
        driver: DRIVER.to_owned(),
    };
    match kernel.execute(&op, None) {
        Err(error) if error.source.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.source),
        Ok(()) => {
            let devices = sysfs.join("bus/pci/devices");
            Ok(devices.join(&**function).join("driver").exists())
        }
    }
}

fn advertised(offer: &Offer) -> Advertised {
    let ids = offer.ids.iter().map(|id| {
        let devices = offer.devices_at(&id.devices);
        (
            id.id.clone(),
            devices.map(|it| it.address.clone()).collect(),
        )
    });
    Advertised {
        resource: offer.name.to_string(),
        ids: ids.collect(),
    }
}

/// Plans the change of the driver. Keeps the driver if the configuration file has the format of another program.
fn planned(erdma: &daemon_conf::Erdma, state: &State) -> Plan {
    match erdma.origin {
        Origin::Foreign => Plan::Keep,
        Origin::User | Origin::Defaults => plan(erdma.prefer_driver, state, erdma.reload_driver),
    }
}

/// Returns the driver's devices. Includes devices whose RDMA device is missing at present, because they can have users:
/// the driver makes the RDMA device again when a pod's netdev moves to another namespace.
fn devices(inventory: &Inventory) -> Vec<WatchedDevice> {
    let functions = inventory.functions.iter();
    let of_driver = functions.filter(|it| {
        let mut drivers = inventory.functions_of(it).map(|it| it.driver.as_deref());
        drivers.any(|driver| driver == Some(DRIVER))
    });
    let wanted = of_driver.map(|function| {
        let hca = function.hcas.first();
        let own = function.device.address.clone();
        let char_devices = hca.into_iter().flat_map(|hca| &hca.char_devices);
        WatchedDevice {
            addresses: std::iter::once(own)
                .chain(function.netdev_function.clone())
                .chain(function.device.rdma_functions.clone())
                .collect(),
            rdma: hca.map(|hca| hca.name.clone()),
            numbers: char_devices.map(|it| (it.major, it.minor)).collect(),
        }
    });
    wanted.collect()
}

/// Returns true if `sysfs` is the kernel's sysfs. Only then may the daemon load modules.
pub fn is_the_kernels(sysfs: &Path) -> bool {
    use nix::sys::statfs::{SYSFS_MAGIC, statfs};
    statfs(sysfs).is_ok_and(|found| found.filesystem_type() == SYSFS_MAGIC)
}

/// Returns the driver's status and the planned change. Does not make the change.
pub fn driver_status(
    sysfs: &Path,
    module: Option<ErdmaModule>,
    erdma: &daemon_conf::Erdma,
) -> (DriverStatus, Option<DriverMode>) {
    let state = State::read(sysfs, module);
    let (problem, to) = match planned(erdma, &state) {
        Plan::Keep => (None, None),
        Plan::Problem(problem) => (Some(problem), None),
        Plan::Change(change) => (None, Some(change.to)),
    };
    let waiting = binding::waiting(&state).filter(|_| erdma.origin != Origin::Foreign);
    let status = DriverStatus {
        wanted: erdma.prefer_driver,
        loaded: module.as_ref().map(mode),
        problem: problem.or(waiting),
    };
    (status, to)
}
