// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin uninstall`: removes the installation from a node, beginning with the entries in lists.

use super::{
    binaries, chosen, pods, state_dir_of,
    stay::{Ends, is_first},
};
use crate::{
    chain::{
        Chain, evidence,
        programs::is_mounted,
        record::{self, BIN_DIR, Record},
        sandbox,
    },
    cli::Uninstall,
    device_info, node_features,
    release::remove_files,
};
use anyhow::{Result, bail};
use conflist::TYPE;
use daemon_conf::chain::CONF_DIR;
use dra::Claims;
use rdma_ping::fabric::Report;
use rdma_resources::limited::{CGROUPS, LimitedContainers};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Interval between attempts of `uninstall --stay`.
const AGAIN: Duration = Duration::from_secs(5);

/// Interval of checks whether another program has installed the files again.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Undoes the changes of [`install`](super::install), removes the daemon's labels (with `--node-features`) and device
/// information, and prints the changes. With `--stay`, repeats this while files of the installation remain or come
/// back, and returns only after a signal. With `--check`, only checks that nothing is left.
///
/// # Errors
/// Pods still have devices or prepared claims, or a change cannot be undone.
pub fn uninstall(arguments: &Uninstall) -> Result<()> {
    if arguments.check {
        return check(arguments);
    }
    // only `--stay` and the first process of a container need handlers: without a handler, a signal ends any other
    // process and its children
    let is_held = is_first() || arguments.stay;
    let ends = is_held.then(Ends::held).transpose()?;
    let Some(ends) = ends.filter(|_| arguments.stay) else {
        return take_away(arguments).map(|left| left.into_iter().for_each(|it| println!("{it}")));
    };
    let state_dir = arguments.state_dir.clone();
    let (mut printed, mut is_done) = (None, false);
    // the check needs no lock
    let is_gone = || Record::read(&state_dir).is_ok_and(|it| it.is_none()) && !has_files(arguments);
    loop {
        // repeat, because another program may install the files again
        if !(is_done && is_gone()) {
            let done = take_away(arguments);
            let was_done = std::mem::replace(&mut is_done, done.is_ok());
            let sentence = done.unwrap_or_else(|error| {
                Some(format!(
                    "rdma-device-plugin: {error}; trying again every {AGAIN:?}"
                ))
            });
            if let Some(sentence) = sentence.filter(|it| printed.as_ref() != Some(it)) {
                match is_done {
                    true => println!("{sentence}"),
                    false => eprintln!("{sentence}"),
                }
                printed = Some(sentence);
            }
            match is_done && is_gone() {
                true => println!("nothing is left to remove; waiting for SIGTERM"),
                false if is_done && !was_done => println!("waiting for SIGTERM"),
                false => {}
            }
        }
        let pause = if is_done && is_gone() {
            CHECK_INTERVAL
        } else {
            AGAIN
        };
        if ends.within(pause)? {
            return Ok(());
        }
    }
}

/// Error of `--check` if files remain.
const NOT_DONE: &str =
    "uninstall is not complete: files of install or of the daemon are still on this node";

/// Checks that [`uninstall`] is complete, and changes nothing. Does not check whether pods still have devices.
fn check(arguments: &Uninstall) -> Result<()> {
    if has_files(arguments) {
        bail!(NOT_DONE);
    }
    let state_dir = arguments.state_dir.clone();
    let Some(record) = Record::read(&state_dir)? else {
        println!("nothing is left to remove");
        return Ok(());
    };
    let conf_dir = arguments.cni_conf_dir.as_deref();
    let conf_dir = conf_dir.or(record.conf_dir.as_deref());
    let chain = chain(conf_dir.unwrap_or(Path::new(CONF_DIR)), state_dir);
    // `uninstall` is complete: the binaries stay, because another program's entry of `rdma-cni` in a list needs them
    match record.lists.is_empty() && !chain.still_named()?.is_empty() {
        true => Ok(()),
        false => bail!(NOT_DONE),
    }
}

fn chain(conf_dir: &Path, state_dir: PathBuf) -> Chain {
    Chain {
        conf: daemon_conf::Chain {
            conf_dir: conf_dir.to_owned(),
            ..daemon_conf::Chain::default()
        },
        state_dir,
        cni_cache: None,
        needs_kubelet: false,
    }
}

/// Returns true if the daemon's labels or its device information still exist.
fn has_files(arguments: &Uninstall) -> bool {
    let directory = arguments.node_features.as_deref();
    directory.is_some_and(node_features::is_there) || device_info::is_there(&arguments.state_dir)
}

/// Undoes the changes of `install`. Removes labels and device information last, because they are valid while pods have
/// devices. Returns a sentence if files remain, or if nothing was installed.
fn take_away(arguments: &Uninstall) -> Result<Option<String>> {
    let left = take_chain_away(arguments)?;
    remove_files(arguments.node_features.as_deref(), &arguments.state_dir)?;
    Ok(left)
}

/// Returns the reason why the binaries must stay if no pod has devices. Returns `None` if nothing needs the binaries.
///
/// # Errors
/// The lists or a cache cannot be read, or the directory of a cache is not mounted into this container.
fn reason_to_stay(chain: &Chain, record: &Record, it: &Uninstall) -> Result<Option<String>> {
    let named = chain.still_named()?;
    if !named.is_empty() {
        return Ok(Some(format!(
            "the binaries stay: {TYPE} or rdma-ipam is still in {}; remove it there and run uninstall again",
            named.join(", ")
        )));
    }
    // `uninstall` leaves the binaries of another installation
    let installed: Vec<_> = record.binaries.keys().map(String::as_str).collect();
    let (libcni, multus) = (&it.cni_cache_dir, &it.multus_dir);
    let crio = ("CRI-O", libcni, libcni.clone(), "--cni-cache-dir");
    let multus = ("Multus", multus, multus.join("results"), "--multus-dir");
    let crio = record.deletes_by_cache.then_some(crio);
    for (caller, dir, cache, flag) in crio.into_iter().chain([multus]) {
        // the node has no `dir` if this process sees the directory above it
        let is_hidden = || !dir.exists() && !dir.parent().is_some_and(is_mounted);
        let pods = match sandbox::of_cached_lists(&cache, &installed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Err(_) if is_mounted(&it.state_dir) && is_hidden() => bail!(
                "{TYPE} is out of the chain, and the binaries stay: {dir:?} is not mounted here, so uninstall cannot \
                 find the pods whose DEL calls the binaries; mount the node's directory, or name it with {flag}"
            ),
            pods => Vec::from_iter(pods.into_iter().flatten()),
        };
        if !pods.is_empty() {
            return Ok(Some(format!(
                "the binaries stay: {caller} calls them when it ends these pods, according to {cache:?}: {}; run \
                 uninstall again when the pods have ended",
                pods.join(", ")
            )));
        }
    }
    Ok(None)
}

fn take_chain_away(arguments: &Uninstall) -> Result<Option<String>> {
    let state_dir = arguments.state_dir.clone();
    let lock = record::lock(&state_dir)?;
    let Some(mut record) = Record::read(&state_dir)? else {
        record::unlock_for_good(lock, &state_dir)?;
        let nothing = "nothing was installed on this node: there is nothing to remove";
        return Ok(Some(nothing.to_owned()));
    };
    let dir = |flag, requested: &Option<PathBuf>, was: &Option<PathBuf>, default| {
        let remedy = "omit the flag, or use --force if both paths lead to the same directory";
        let was = was
            .as_deref()
            .filter(|_| !arguments.force || requested.is_none());
        chosen(flag, requested.as_deref(), was, default, remedy)
    };
    let (bins, confs) = (&arguments.cni_bin_dir, &arguments.cni_conf_dir);
    let bin_dir = dir("--cni-bin-dir", bins, &record.bin_dir, BIN_DIR)?;
    let mut bin_dirs = vec![bin_dir.clone()];
    bin_dirs.extend(record.further_bin_dirs.iter().cloned());
    let conf_dir = dir("--cni-conf-dir", confs, &record.conf_dir, CONF_DIR)?;
    let chain = chain(&conf_dir, state_dir.clone());
    if !arguments.force && chain.has_none_of(&record)? {
        let lists: Vec<&str> = record.lists_with_entry().map(String::as_str).collect();
        bail!(
            "nothing was changed: {TYPE} was added to {}, and {:?} has none of these files: give their directory with \
             --cni-conf-dir, or use --force if they were removed",
            lists.join(", "),
            chain.conf.conf_dir
        );
    }
    // also read the entry's state directory, which may differ from the state directory of this command
    let mut state_dirs = vec![state_dir.clone()];
    let entries = record.lists.values().flat_map(|it| &it.entries);
    state_dirs.extend(entries.filter_map(state_dir_of).map(PathBuf::from));
    state_dirs.sort();
    state_dirs.dedup();
    let found = pods::read(&state_dirs)?;
    if !found.living.is_empty() && !arguments.force {
        bail!(
            "nothing was changed: these pods have devices that only {TYPE} restores to the host: {}; delete \
             them first, or use --force: then they keep the devices until they end, and the plugins' \
             binaries stay",
            found.living.join(", ")
        );
    }
    let (prepared, unreadable) = Claims::new(&state_dir).all();
    let claims = prepared.iter().map(|it| it.claim.to_string());
    let claims = claims.chain(
        unreadable
            .iter()
            .map(|error| format!("an unreadable one ({error})")),
    );
    let claims: Vec<String> = claims.collect();
    if !claims.is_empty() && !arguments.force {
        bail!(
            "nothing was changed: these claims are prepared, and their pods cannot end without the daemon: {}; start \
             it again, delete the pods, and run uninstall then; or use --force: then the pods stay Terminating until a \
             daemon runs here",
            claims.join(", ")
        );
    }
    let left = found.restore_ended(&bin_dirs);
    if !left.is_empty() && !arguments.force {
        bail!(
            "nothing was changed: these pods ended without a DEL of {TYPE}, and their devices could not be restored to \
             the host: {}; let the next ADD restore them, run uninstall on the node itself, or use --force: then \
             {TYPE} is removed from the chain, and the plugins' binaries stay",
            left.join("; ")
        );
    }
    // write this first: if a later step fails, the daemon must not add the entry again
    record.withdrawn = true;
    record.write(&state_dir)?;
    let (files, obstacles) = chain.give_back(&mut record)?;
    for file in files {
        let path = chain.conf.conf_dir.join(file);
        match path.exists() {
            true => println!("{path:?}: removed {TYPE}"),
            false => println!("{path:?}: removed"),
        }
    }
    if let Some(obstacle) = obstacles.into_iter().next() {
        bail!("{:?}: {obstacle}", chain.conf.conf_dir);
    }
    // read the pods again: a pod may have started before the runtime read the changed list
    let found = pods::read(&state_dirs)?;
    let mut pods = found.living.clone();
    pods.extend(found.restore_ended(&bin_dirs));
    if !pods.is_empty() {
        if !arguments.force {
            bail!(
                "{TYPE} is out of the chain, and the binaries stay: these pods got devices meanwhile: {}; run \
                 uninstall again when they have ended",
                pods.join(", ")
            );
        }
        return Ok(Some(format!(
            "the binaries stay, because devices of these pods are not back on the host: {}; run uninstall again on the \
             node itself when all these pods have ended",
            pods.join(", ")
        )));
    }
    // lift the limits before this function waits for pods without RDMA devices: no DEL lifts the limits of a pod with
    // hostNetwork, and limits of a removed cgroup stay until a reboot
    let lifted = LimitedContainers::new(&state_dir, Path::new(CGROUPS)).lift_all();
    match (reason_to_stay(&chain, &record, arguments), lifted) {
        (Ok(None), lifted) => lifted?,
        (reason, Ok(())) => return reason,
        (Ok(Some(reason)), Err(error)) => bail!("{error}; {reason}"),
        (Err(reason), Err(error)) => bail!("{error}; {reason}"),
    }
    pods::sweep(&state_dirs)?;
    let done = binaries::take(&bin_dir, &state_dir, &record)?;
    done.iter().for_each(|line| println!("{line}"));
    evidence::remove(&state_dir)?;
    Report::remove(&state_dir)?;
    Record::remove(&state_dir)?;
    record::unlock_for_good(lock, &state_dir)?;
    Ok(None)
}
