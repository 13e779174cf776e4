//! `rdma-device-plugin install` and `uninstall`: the CNI plugins' binaries and their place in the
//! chain, put onto a node and taken away again.
//!
//! The order is such that no list ever names a plugin that is not there: the binaries come first
//! and go last.

mod binaries;
mod pods;
mod stay;

use crate::{
    chain::{
        Chain, ChainError, Standing,
        claim::Claim,
        record::{self, BIN_DIR, Record, RecordError},
    },
    cli::{Install, Uninstall},
    conf::{self, Conf, ConfError, Flags, chain::CONF_DIR},
    hardware::{Hardware, HardwareError},
    parents::{self, Parent},
};
use binaries::BinaryError;
use conflist::{Obstacle, TYPE};
use pods::PodsError;
use serde_json::{Map, Value};
use stay::{Ends, is_first};
use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Times that a list may be written by others while our plugin is put into it.
const TRIES: usize = 20;

/// Between them.
const PAUSE: Duration = Duration::from_millis(25);

/// Between two tries of `uninstall --stay`.
const AGAIN: Duration = Duration::from_secs(5);

/// Between two looks for an address.
const TO_HAVE_ADDRESS: Duration = Duration::from_millis(500);

/// The node is not as it is to be.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The configuration is wrong.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// It cannot wait for its end.
    #[error("cannot wait for SIGTERM: {0}")]
    Stay(#[source] io::Error),
    /// The hardware cannot be seen.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// A path cannot be used.
    #[error("a path on the command line cannot be used: {0}")]
    Path(#[source] io::Error),
    /// A binary could not be put there or taken away.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// The list could not be changed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Our plugin cannot be put in or taken out.
    #[error("{0}")]
    Obstacle(Obstacle),
    /// It was put in, and the runtime would not call it.
    #[error("it was put into {dir:?}, and {why}")]
    NotCalled {
        /// The directory.
        dir: PathBuf,
        /// Why.
        why: String,
    },
    /// Others write the list all the time.
    #[error("{dir:?}: others write there all the time, and our plugin is not in it; try again")]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// It was installed for other directories.
    #[error(
        "nothing was changed: this node was installed with {was:?}, and {flag} is {dir:?} now; {remedy}"
    )]
    Elsewhere {
        /// `--cni-bin-dir`
        flag: &'static str,
        /// What it was.
        was: PathBuf,
        /// What it is.
        dir: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// The lists are not where they were.
    #[error(
        "nothing was changed: {TYPE} was put into {}, and nothing of that is in {dir:?}: say with \
         --cni-conf-dir where it is; if somebody took it away, use --force",
        lists.join(", ")
    )]
    Gone {
        /// The directory.
        dir: PathBuf,
        /// The files.
        lists: Vec<String>,
    },
    /// Kubelet is not where the plugin would ask.
    #[error("nothing was changed: {0}; --without-kubelet, where kubelet is started later only")]
    Kubelet(String),
    /// The plugin is to have another state directory than the one that is looked into.
    #[error("chain.plugin.stateDir is {plugin:?}, and --state-dir {ours:?}: both must be the same")]
    StateDir {
        /// The plugin's.
        plugin: String,
        /// Ours.
        ours: PathBuf,
    },
    /// Whether pods have devices cannot be told.
    #[error(transparent)]
    Pods(#[from] PodsError),
    /// What pods that ended have left is not home.
    #[error(
        "nothing was changed: these pods ended without {TYPE}, and what they had could not be brought \
         home: {}; the next pod with RDMA tries it again, or run uninstall on the node itself; --force \
         takes {TYPE} out of the chain, and the plugins' binaries stay",
        pods.join("; ")
    )]
    Left {
        /// `namespace/name: why`
        pods: Vec<String>,
    },
    /// `--check`
    #[error("it is not done: what install put onto this node is there still")]
    NotDone,
    /// Pods were started meanwhile.
    #[error(
        "{TYPE} is out of the chain, and the binaries stay: these pods got devices meanwhile: {}; run \
         uninstall again when they have ended",
        pods.join(", ")
    )]
    Meanwhile {
        /// `namespace/name`
        pods: Vec<String>,
    },
    /// Pods have devices.
    #[error(
        "nothing was changed: these pods have devices that only {TYPE} brings home: {}; delete \
         them first, or use --force: then they keep the devices until they end, and the plugins' \
         binaries stay",
        pods.join(", ")
    )]
    Attached {
        /// `namespace/name`
        pods: Vec<String>,
    },
}

/// Puts the binaries and the list's entry there, and prints what it did.
///
/// # Errors
/// It is not done, and why. As an init container it fails only where the binaries cannot be put there:
/// what hinders in the list must not keep the daemon from its work, which says it too.
pub fn install(arguments: &Install) -> Result<(), InstallError> {
    let configured = match &arguments.config {
        Some(file) => Some(Conf::load(Some(file), &Flags::default())?.conf),
        None => None,
    };
    let hardware = Hardware::new(&arguments.sysfs, Path::new("/dev"));
    let parents = match &configured {
        Some(conf) => parents::of_node(conf, &hardware, &arguments.state_dir)?,
        None => Vec::new(),
    };
    let configured = configured.and_then(|it| it.chain);
    let has_chain = configured.is_some();
    let is_told = has_chain || arguments.cni_conf_dir.is_some();
    let mut conf = configured.unwrap_or_default();
    if let Some(dir) = &arguments.cni_conf_dir {
        conf.conf_dir = absolute(dir)?;
    }
    let state_dir = absolute(&arguments.state_dir)?;
    let of_plugin = state_dir_of(conf.entry.fields());
    if let Some(plugin) = of_plugin.filter(|it| Path::new(it) != state_dir) {
        return Err(InstallError::StateDir {
            plugin: plugin.to_owned(),
            ours: state_dir,
        });
    }
    let conf = conf.located(&state_dir, &absolute(&arguments.kubelet_dir)?);
    let mut chain = Chain {
        conf,
        state_dir,
        needs_kubelet: !arguments.without_kubelet,
    };
    // before anything is made, the lock's file included
    let before = Record::read(&chain.state_dir)?;
    let is_in = before.is_some_and(|it| !it.lists.is_empty());
    let hinders = chain.needs_kubelet && !arguments.init_container && !is_in;
    if let Some(why) = chain.conf.without_kubelet().filter(|_| hinders) {
        return Err(InstallError::Kubelet(why));
    }
    let is_first = {
        let _lock = record::lock(&chain.state_dir)?;
        let mut record = Record::read(&chain.state_dir)?.unwrap_or_default();
        let remedy = "uninstall it first";
        let given = arguments.cni_bin_dir.split_first();
        let bin_dir = chosen(
            "--cni-bin-dir",
            given.map(|(first, _)| first.as_path()),
            record.bin_dir.as_deref(),
            BIN_DIR,
            remedy,
        )?;
        if let (false, Some(was)) = (is_told, &record.conf_dir) {
            chain.conf.conf_dir.clone_from(was);
        }
        same(
            "--cni-conf-dir",
            &chain.conf.conf_dir,
            record.conf_dir.as_deref(),
            remedy,
        )?;
        if let (Some(file), false) = (&arguments.config, has_chain) {
            println!(
                "{file:?} has no chain, so that the defaults count: {TYPE} without fields of its own, put \
                 into {:?} by containerd's rules; the daemon does not keep it there by this file",
                chain.conf.conf_dir
            );
        }
        if let Some((_, further)) = given {
            let further: Result<_, _> = further.iter().map(|it| absolute(it)).collect();
            record.further_bin_dirs = further?;
        }
        record.conf_dir = Some(chain.conf.conf_dir.clone());
        let done = binaries::put(
            arguments.from.as_deref(),
            &bin_dir,
            &chain.state_dir,
            &mut record,
        )?;
        done.iter().for_each(|line| println!("{line}"));
        record.lists.is_empty()
    };
    if is_first {
        await_address(&parents, Duration::from_secs(arguments.wait));
    }
    match put_in(&chain, &parents) {
        Err(error) if arguments.init_container => {
            println!("{TYPE} is not in the chain, and the daemon tries it again: {error}");
            Ok(())
        }
        done => done,
    }
}

/// Puts our plugin into the list, and prints what it did.
fn put_in(chain: &Chain, parents: &[Parent]) -> Result<(), InstallError> {
    let dir = chain.conf.conf_dir.clone();
    let (mut held, mut claim) = (vec![], Claim::default());
    let mut changed = vec![];
    for left in (0..TRIES).rev() {
        let turn = chain.take(&mut held, &mut claim, || parents::hindrance_now(parents))?;
        changed.extend(turn.changed);
        held.extend(turn.held);
        // it may be half-written now
        let is_broken = matches!(turn.obstacle, Some(Obstacle::Broken { .. }));
        if turn.again || (is_broken && left > 0) {
            thread::sleep(PAUSE);
            continue;
        }
        for file in &changed {
            let path = dir.join(file);
            let done = if path.exists() { "written" } else { "removed" };
            println!("{path:?}: {done}");
        }
        return match (turn.obstacle, turn.standing) {
            (None, Standing::NotCalled(why)) if turn.hindered => Err(InstallError::Kubelet(why)),
            (None, Standing::NotCalled(why)) => Err(InstallError::NotCalled { dir, why }),
            (None, standing @ Standing::Withheld(_)) => {
                println!("{standing}");
                Ok(())
            }
            (None, standing) => {
                let as_before = if changed.is_empty() {
                    ", as before"
                } else {
                    ""
                };
                println!("{standing}{as_before}");
                Ok(())
            }
            (Some(obstacle @ Obstacle::Empty), _) => {
                println!("{dir:?}: {obstacle}");
                Ok(())
            }
            (Some(obstacle), _) => Err(InstallError::Obstacle(obstacle)),
        };
    }
    Err(InstallError::Busy { dir })
}

/// A node that has just come gets its addresses a little later (router advertisements, DHCPv6, duplicate
/// address detection): until then a pod would start without rails, and nobody would say so.
fn await_address(parents: &[Parent], limit: Duration) {
    let end = Instant::now() + limit;
    while parents::hindrance_now(parents).is_some() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(TO_HAVE_ADDRESS));
    }
}

/// Takes away what [`install`] and the daemon put there, and prints what it did. If it is to stay, it
/// tries again until that is done, and comes back when it is told to end.
///
/// # Errors
/// Pods have devices still, or something is left, and why.
pub fn uninstall(arguments: &Uninstall) -> Result<(), InstallError> {
    if arguments.check {
        return is_taken_away(arguments);
    }
    let held = || Ends::held().map_err(InstallError::Stay);
    // elsewhere a signal ends it, and what it has started
    let is_held = is_first() || arguments.stay;
    let ends = is_held.then(held).transpose()?;
    let Some(ends) = ends.filter(|_| arguments.stay) else {
        return take_away(arguments);
    };
    let mut said = None;
    while let Err(error) = take_away(arguments) {
        let error = error.to_string();
        if said.as_ref() != Some(&error) {
            eprintln!("rdma-device-plugin: {error}; trying again every {AGAIN:?}");
            said = Some(error);
        }
        if ends.within(AGAIN).map_err(InstallError::Stay)? {
            return Ok(());
        }
    }
    println!("nothing is left to do here; waiting for SIGTERM");
    ends.wait().map_err(InstallError::Stay)
}

/// Whether [`uninstall`] has nothing left to do: nothing is changed, and nothing of a pod is looked at.
fn is_taken_away(arguments: &Uninstall) -> Result<(), InstallError> {
    let state_dir = absolute(&arguments.state_dir)?;
    let Some(record) = Record::read(&state_dir)? else {
        println!("nothing is left to do here");
        return Ok(());
    };
    let given = arguments.cni_conf_dir.as_deref();
    let conf_dir = given.or(record.conf_dir.as_deref());
    let conf = conf::Chain {
        conf_dir: absolute(conf_dir.unwrap_or(Path::new(CONF_DIR)))?,
        ..conf::Chain::default()
    };
    let chain = Chain {
        conf,
        state_dir,
        needs_kubelet: false,
    };
    // what somebody else has in a list keeps the binaries, for good
    match record.lists.is_empty() && !chain.still_named().map_err(ChainError::from)?.is_empty() {
        true => Ok(()),
        false => Err(InstallError::NotDone),
    }
}

fn take_away(arguments: &Uninstall) -> Result<(), InstallError> {
    let state_dir = absolute(&arguments.state_dir)?;
    let lock = record::lock(&state_dir)?;
    let Some(mut record) = Record::read(&state_dir)? else {
        println!("nothing was installed on this node: there is nothing to take away");
        record::unlock_for_good(lock, &state_dir);
        return Ok(());
    };
    let dir = |flag, given: &Option<PathBuf>, was: &Option<PathBuf>, default| {
        let remedy = "leave it out, or use --force if both are the same directory";
        let was = was
            .as_deref()
            .filter(|_| !arguments.force || given.is_none());
        chosen(flag, given.as_deref(), was, default, remedy)
    };
    let (bins, confs) = (&arguments.cni_bin_dir, &arguments.cni_conf_dir);
    let bin_dir = dir("--cni-bin-dir", bins, &record.bin_dir, BIN_DIR)?;
    let mut bin_dirs = vec![bin_dir.clone()];
    bin_dirs.extend(record.further_bin_dirs.iter().cloned());
    let conf_dir = dir("--cni-conf-dir", confs, &record.conf_dir, CONF_DIR)?;
    let chain = Chain {
        conf: conf::Chain {
            conf_dir,
            ..conf::Chain::default()
        },
        state_dir: state_dir.clone(),
        needs_kubelet: false,
    };
    if !arguments.force && chain.has_none_of(&record).map_err(ChainError::from)? {
        return Err(InstallError::Gone {
            dir: chain.conf.conf_dir,
            lists: record.lists.into_keys().collect(),
        });
    }
    // the plugin's own state directory too, where it was given another one
    let mut state_dirs = vec![state_dir.clone()];
    let entries = record.lists.values().flat_map(|it| &it.entries);
    state_dirs.extend(entries.filter_map(state_dir_of).map(PathBuf::from));
    state_dirs.sort();
    state_dirs.dedup();
    let found = pods::look(&state_dirs)?;
    if !found.living.is_empty() && !arguments.force {
        return Err(InstallError::Attached { pods: found.living });
    }
    let left = found.bring_home(&bin_dirs);
    if !left.is_empty() && !arguments.force {
        return Err(InstallError::Left { pods: left });
    }
    let (files, obstacles) = chain.give_back(&mut record)?;
    for file in files {
        println!("{:?}: {TYPE} is out of it", chain.conf.conf_dir.join(file));
    }
    if let Some(obstacle) = obstacles.into_iter().next() {
        return Err(InstallError::Obstacle(obstacle));
    }
    // some may have been started before the runtime saw the list
    let found = pods::look(&state_dirs)?;
    let mut pods = found.living.clone();
    pods.extend(found.bring_home(&bin_dirs));
    if !pods.is_empty() {
        if !arguments.force {
            return Err(InstallError::Meanwhile { pods });
        }
        println!(
            "the binaries stay for {}; run uninstall again when they have ended",
            pods.join(", ")
        );
        return Ok(());
    }
    let named = chain.still_named().map_err(ChainError::from)?;
    if !named.is_empty() {
        println!(
            "the binaries stay: somebody else has {TYPE} in {}; take it out and run uninstall again",
            named.join(", ")
        );
        return Ok(());
    }
    let done = binaries::take(&bin_dir, &state_dir, &record)?;
    done.iter().for_each(|line| println!("{line}"));
    Record::remove(&state_dir)?;
    record::unlock_for_good(lock, &state_dir);
    Ok(())
}

/// The directory that `flag` is for: the one that was `given`, else the one that `was` used, else the
/// default.
fn chosen(
    flag: &'static str,
    given: Option<&Path>,
    was: Option<&Path>,
    default: &str,
    remedy: &'static str,
) -> Result<PathBuf, InstallError> {
    let Some(given) = given else {
        return Ok(was.unwrap_or(Path::new(default)).to_owned());
    };
    let dir = absolute(given)?;
    same(flag, &dir, was, remedy)?;
    Ok(dir)
}

/// Whether it is the directory that was used before: else binaries would go that a list elsewhere
/// names, or lists be forgotten.
fn same(
    flag: &'static str,
    dir: &Path,
    was: Option<&Path>,
    remedy: &'static str,
) -> Result<(), InstallError> {
    match was {
        Some(was) if was != dir => Err(InstallError::Elsewhere {
            flag,
            was: was.to_owned(),
            dir: dir.to_owned(),
            remedy,
        }),
        _ => Ok(()),
    }
}

/// `stateDir` of the plugin's configuration.
fn state_dir_of(entry: &Map<String, Value>) -> Option<&str> {
    entry.get("stateDir")?.as_str()
}

fn absolute(path: &Path) -> Result<PathBuf, InstallError> {
    std::path::absolute(path).map_err(InstallError::Path)
}
