// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin install` and `uninstall`. `install` installs the CNI plugins' binaries and adds `rdma-cni` to
//! the chain. `uninstall` removes `rdma-cni` from the chain, and then the binaries. A list therefore never names a
//! plugin that is not installed.

mod binaries;
mod pods;
mod stay;
mod uninstall;

pub use uninstall::uninstall;

use crate::{
    chain::{
        Chain, ChainStatus,
        kept_entry::KeptEntry,
        record::{self, BIN_DIR, Record},
    },
    cli::Install,
};
use anyhow::{Error, Result, anyhow, bail};
use conflist::{Obstacle, Runtime, TYPE};
use daemon_conf::Conf;
use node_state::{
    hardware::Hardware,
    ipv6_prerequisite::{self, Parent},
};
use serde_json::{Map, Value};
use stay::{Ends, is_first};
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Maximum number of attempts while other programs write the list.
const TRIES: usize = 20;

/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(25);

/// Interval of checks for an IPv6 address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Installs the binaries, adds the entry to the list, and prints the changes.
///
/// # Errors
/// The installation is incomplete, for the reason given. In an init container, a failure to add the entry is no error,
/// because it must not prevent the daemon's start: the daemon tries again and reports the failure, too.
pub fn install(arguments: &Install) -> Result<()> {
    // only the first process of a container needs handlers: without a handler, a signal ends any other process
    let ends = is_first().then(Ends::held).transpose()?;
    let configured = match &arguments.config {
        Some(file) => Conf::read_for_install(file)?.conf,
        None => Conf::default(),
    };
    let hardware = Hardware::new(&arguments.sysfs, Path::new("/dev"));
    let parents = ipv6_prerequisite::of_node(&configured, &hardware, &arguments.state_dir)?;
    let has_chain = configured.chain.is_some();
    let is_configured = has_chain || arguments.cni_conf_dir.is_some();
    let mut conf = configured.chain.unwrap_or_default();
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
            "chain.plugin.stateDir is {plugin:?}, and --state-dir is {state_dir:?}: set both to the same directory"
        );
    }
    let conf = conf.located(&state_dir, &arguments.kubelet_dir);
    let mut chain = Chain {
        conf,
        state_dir,
        cni_cache: None,
        needs_kubelet: !arguments.without_kubelet,
    };
    // check before making the first file, even before the lock file
    let before = Record::read(&chain.state_dir)?;
    let is_in = before.is_some_and(|it| !it.lists.is_empty());
    let hinders = chain.needs_kubelet && !arguments.init_container && !is_in;
    if let Some(why) = chain.conf.without_kubelet().filter(|_| hinders) {
        return Err(without_kubelet(&why));
    }
    let is_in_no_list = {
        let _lock = record::lock(&chain.state_dir)?;
        let mut record = Record::read(&chain.state_dir)?.unwrap_or_default();
        let remedy = "run uninstall first";
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
            match arguments.cni_conf_dir {
                Some(_) => "--cni-conf-dir",
                None => "chain.confDir",
            },
            &chain.conf.conf_dir,
            record.conf_dir.as_deref(),
            remedy,
        )?;
        if let (Some(file), false) = (&arguments.config, has_chain) {
            println!(
                "{file:?} has no chain, so install uses the defaults: it adds {TYPE} without further fields to a list \
                 in {:?}, by containerd's rules; a daemon with this file does not keep {TYPE} in the list",
                chain.conf.conf_dir
            );
        }
        if let Some((_, further)) = bin_dirs {
            record.further_bin_dirs = further.to_vec();
        }
        record.conf_dir = Some(chain.conf.conf_dir.clone());
        record.network = chain.conf.runtime.network().map(str::to_owned);
        record.deletes_by_cache = matches!(chain.conf.runtime, Runtime::Crio { .. });
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
            "no pod of the network starts before kubelet does: {why}; a container that kubelet did not make \
             (podman, nerdctl) never starts; for such containers, name the devices in chain.plugin.devices \
             (docs/install.md#without-kubelet)"
        );
    }
    match done {
        Err(error) if arguments.init_container => {
            println!("the runtime does not call {TYPE} yet, and the daemon retries: {error}");
            Ok(())
        }
        done => done,
    }
}

fn put_in(chain: &Chain, parents: &[Parent]) -> Result<()> {
    let dir = chain.conf.conf_dir.clone();
    let (mut held, mut kept) = (vec![], KeptEntry::default());
    let mut changed = vec![];
    for left in (0..TRIES).rev() {
        let turn = chain.take(&mut held, &mut kept, || {
            ipv6_prerequisite::blocker_now(parents)
        })?;
        changed.extend(turn.changed);
        held.extend(turn.held);
        // try again: another program may just be writing the file
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
            (None, ChainStatus::NotCalled(why)) => {
                bail!("{TYPE} was added to {dir:?}, but the runtime does not call it: {why}")
            }
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

/// Waits until a NIC has an IPv6 address, at most for `limit`. A new node gets its addresses some time after its start
/// (router advertisements, DHCPv6, duplicate address detection). Without the wait, pods would start without rails, and
/// no error would be reported.
fn await_address(parents: &[Parent], limit: Duration, ends: Option<&Ends>) -> Result<()> {
    let end = Instant::now() + limit;
    while ipv6_prerequisite::blocker_now(parents).is_some() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let pause = left.min(ADDRESS_INTERVAL);
        match ends.map(|ends| ends.within(pause)).transpose()? {
            None => thread::sleep(pause),
            Some(false) => {}
            Some(true) => bail!(
                "ended by a signal before {TYPE} was added to the chain; the plugins' binaries are installed"
            ),
        }
    }
    Ok(())
}

/// Returns the directory for `flag`: `requested`, otherwise the directory of the last installation, otherwise the
/// default.
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

/// Checks that `dir` is the directory of the last installation. With another directory, `uninstall` would remove
/// binaries that a list in the earlier directory still names, or the record would lose lists.
fn same(flag: &str, dir: &Path, was: Option<&Path>, remedy: &str) -> Result<()> {
    match was {
        Some(was) if was != dir => bail!(
            "nothing was changed: this node was installed with {was:?}, and {flag} is {dir:?} now; {remedy}"
        ),
        _ => Ok(()),
    }
}

fn state_dir_of(entry: &Map<String, Value>) -> Option<&str> {
    entry.get("stateDir")?.as_str()
}

/// Returns the error for a node where `rdma-cni` would not find kubelet's socket.
fn without_kubelet(why: &str) -> Error {
    anyhow!(
        "the network's list was not changed: {why}; on a node without kubelet (podman, nerdctl) name the devices in \
         chain.plugin.devices of a file, and pass it with --config (docs/install.md#without-kubelet); where kubelet \
         starts later, use --without-kubelet"
    )
}
