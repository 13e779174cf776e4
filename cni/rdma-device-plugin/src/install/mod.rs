// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin install` and `uninstall`. `install` installs the CNI plugins' binaries and adds `rdma-cni` to
//! the chain. `uninstall` removes both.
//!
//! A list never names a plugin that is not installed: the binaries are installed first and removed last.

mod binaries;
mod pods;
mod stay;
mod uninstall;

pub use uninstall::uninstall;

use crate::{
    cannot,
    chain::{
        Chain, ChainStatus,
        claim::Claim,
        record::{self, BIN_DIR, Record},
    },
    cli::Install,
    conf::Conf,
    hardware::Hardware,
    ipv6_prerequisite::{self, Parent},
};
use anyhow::{Error, Result, anyhow, bail};
use conflist::{Obstacle, TYPE};
use serde_json::{Map, Value};
use stay::{Ends, is_first};
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Number of attempts while other programs write the list.
const TRIES: usize = 20;

/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(25);

/// Interval of checks for an address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Installs the binaries and adds the list's entry, and prints the changes.
///
/// # Errors
/// The installation is incomplete, for the reason given. In an init container, only a failure to install the binaries
/// is an error: obstacles in the list must not keep the daemon from its work, and the daemon reports them too.
pub fn install(arguments: &Install) -> Result<()> {
    // other processes are ended by the signal itself
    let ends = is_first().then(Ends::held).transpose();
    let ends = ends.map_err(cannot("wait for SIGTERM"))?;
    let configured = match &arguments.config {
        Some(file) => Some(Conf::read_for_install(file)?.conf),
        None => None,
    };
    let hardware = Hardware::new(&arguments.sysfs, Path::new("/dev"));
    let parents = match &configured {
        Some(conf) => ipv6_prerequisite::of_node(conf, &hardware, &arguments.state_dir)?,
        None => Vec::new(),
    };
    let configured = configured.and_then(|it| it.chain);
    let has_chain = configured.is_some();
    let is_configured = has_chain || arguments.cni_conf_dir.is_some();
    let mut conf = configured.unwrap_or_default();
    if let Some(dir) = &arguments.cni_conf_dir {
        conf.conf_dir.clone_from(dir);
    }
    if let Some(placement) = arguments.placement {
        conf.placement = placement;
        if let Some(why) = conf.misplaced() {
            bail!("nothing was changed: --placement {why}");
        }
    }
    let state_dir = arguments.state_dir.clone();
    let of_plugin = state_dir_of(conf.entry.fields());
    if let Some(plugin) = of_plugin.filter(|it| Path::new(it) != state_dir) {
        bail!(
            "chain.plugin.stateDir is {plugin:?}, and --state-dir {state_dir:?}: both must be the same"
        );
    }
    let conf = conf.located(&state_dir, &arguments.kubelet_dir);
    let mut chain = Chain {
        conf,
        state_dir,
        cni_cache: None,
        needs_kubelet: !arguments.without_kubelet,
    };
    // before any file is made, even the lock file
    let before = Record::read(&chain.state_dir)?;
    let is_in = before.is_some_and(|it| !it.lists.is_empty());
    let hinders = chain.needs_kubelet && !arguments.init_container && !is_in;
    if let Some(why) = chain.conf.without_kubelet().filter(|_| hinders) {
        return Err(without_kubelet(&why));
    }
    let is_in_no_list = {
        let _lock = record::lock(&chain.state_dir)?;
        let mut record = Record::read(&chain.state_dir)?.unwrap_or_default();
        let remedy = "uninstall it first";
        let bin_dirs = arguments.cni_bin_dir.split_first();
        let bin_dir = chosen(
            "--cni-bin-dir",
            bin_dirs.map(|(first, _)| first.as_path()),
            record.bin_dir.as_deref(),
            BIN_DIR,
            remedy,
        )?;
        if let (false, Some(was)) = (is_configured, &record.conf_dir) {
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
                "{file:?} has no chain, so the defaults apply: {TYPE} without fields of its own, added \
                 to {:?} by containerd's rules; with this file the daemon does not keep it there",
                chain.conf.conf_dir
            );
        }
        if let Some((_, further)) = bin_dirs {
            record.further_bin_dirs = further.to_vec();
        }
        record.conf_dir = Some(chain.conf.conf_dir.clone());
        record.network = chain.conf.runtime.network().map(str::to_owned);
        record.withdrawn = false;
        let done = binaries::put(
            arguments.from.as_deref(),
            &bin_dir,
            &chain.state_dir,
            &mut record,
        )?;
        done.iter().for_each(|line| println!("{line}"));
        record.lists.is_empty()
    };
    if is_in_no_list {
        await_address(&parents, Duration::from_secs(arguments.wait), ends.as_ref())?;
    }
    let done = put_in(&chain, &parents);
    let why = chain.conf.without_kubelet();
    if let Some(why) = why.filter(|_| done.is_ok() && !chain.needs_kubelet) {
        println!(
            "no pod of that network starts before kubelet does: {why}; a container that kubelet did not make \
             (podman, nerdctl) never starts: for it name the devices in chain.plugin.devices \
             (docs/install.md#without-kubelet)"
        );
    }
    match done {
        Err(error) if arguments.init_container => {
            println!("{TYPE} is not in the chain, and the daemon retries: {error}");
            Ok(())
        }
        done => done,
    }
}

/// Adds our plugin to the list, and prints the changes.
fn put_in(chain: &Chain, parents: &[Parent]) -> Result<()> {
    let dir = chain.conf.conf_dir.clone();
    let (mut held, mut claim) = (vec![], Claim::default());
    let mut changed = vec![];
    for left in (0..TRIES).rev() {
        let turn = chain.take(&mut held, &mut claim, || {
            ipv6_prerequisite::blocker_now(parents)
        })?;
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
        turn.remark.iter().for_each(|remark| println!("{remark}"));
        return match (turn.obstacle, turn.status) {
            (None, ChainStatus::NotCalled(why)) if turn.hindered => Err(without_kubelet(&why)),
            (None, ChainStatus::NotCalled(why)) => bail!("{TYPE} was added to {dir:?}, and {why}"),
            (None, status @ ChainStatus::Withheld(_)) => {
                println!("{status}");
                Ok(())
            }
            (None, status) => {
                let as_before = if changed.is_empty() {
                    ", as before"
                } else {
                    ""
                };
                println!("{status}{as_before}");
                Ok(())
            }
            (Some(obstacle @ Obstacle::Empty), _) => {
                println!("{dir:?}: {obstacle}");
                Ok(())
            }
            (Some(obstacle), _) => bail!("{dir:?}: {obstacle}"),
        };
    }
    bail!("{dir:?}: other programs write the list all the time, and {TYPE} is not in it; try again")
}

/// Waits for an address. A new node gets its addresses a little later (router advertisements, DHCPv6, duplicate address
/// detection); until then pods would start without rails and without an error.
fn await_address(parents: &[Parent], limit: Duration, ends: Option<&Ends>) -> Result<()> {
    let end = Instant::now() + limit;
    while ipv6_prerequisite::blocker_now(parents).is_some() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let pause = left.min(ADDRESS_INTERVAL);
        let has_ended = ends.map(|ends| ends.within(pause)).transpose();
        match has_ended.map_err(cannot("wait for SIGTERM"))? {
            None => thread::sleep(pause),
            Some(false) => {}
            Some(true) => bail!(
                "ended by a signal before {TYPE} was added to the chain; the plugins' binaries are installed"
            ),
        }
    }
    Ok(())
}

/// Returns the directory for `flag`: `given`, or else the directory of the installation, or else the default.
fn chosen(
    flag: &str,
    requested: Option<&Path>,
    was: Option<&Path>,
    default: &str,
    remedy: &str,
) -> Result<PathBuf> {
    let Some(requested) = requested else {
        return Ok(was.unwrap_or(Path::new(default)).to_owned());
    };
    same(flag, requested, was, remedy)?;
    Ok(requested.to_owned())
}

/// Checks that `dir` is the directory of the installation. With another one, the daemon would remove binaries that
/// another list names, or forget lists.
fn same(flag: &str, dir: &Path, was: Option<&Path>, remedy: &str) -> Result<()> {
    match was {
        Some(was) if was != dir => bail!(
            "nothing was changed: this node was installed with {was:?}, and {flag} is {dir:?} now; {remedy}"
        ),
        _ => Ok(()),
    }
}

/// Returns `stateDir` of the plugin's configuration.
fn state_dir_of(entry: &Map<String, Value>) -> Option<&str> {
    entry.get("stateDir")?.as_str()
}

/// Returns the error of a node where kubelet's socket is not where the plugin would query it.
fn without_kubelet(why: &str) -> Error {
    anyhow!(
        "nothing was changed: {why}; on a node without kubelet (podman, nerdctl) name the devices in \
         chain.plugin.devices of a file, and pass it with --config (docs/install.md#without-kubelet); \
         where kubelet starts later, use --without-kubelet"
    )
}
