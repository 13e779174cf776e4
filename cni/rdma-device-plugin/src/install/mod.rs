//! `rdma-device-plugin install` and `uninstall`: the CNI plugins' binaries and their place in the
//! chain, put onto a node and taken away again.
//!
//! The order is such that no list ever names a plugin that is not there: the binaries come first
//! and go last.

mod binaries;

use crate::{
    chain::{
        Chain, ChainError, Standing,
        record::{self, Record, RecordError},
    },
    cli::{Install, Uninstall},
    conf::{self, Conf, ConfError, Flags},
    health,
};
use binaries::BinaryError;
use conflist::{Obstacle, TYPE};
use rdma_netns::{Kernel, Linux};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Times that a list may be written by others while our plugin is put into it.
const TRIES: usize = 20;

/// Between them.
const PAUSE: Duration = Duration::from_millis(25);

/// The node is not as it is to be.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The configuration is wrong.
    #[error(transparent)]
    Conf(#[from] ConfError),
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
/// It is not done, and why.
pub fn install(arguments: &Install) -> Result<(), InstallError> {
    let mut conf = match &arguments.config {
        Some(file) => Conf::load(Some(file), &Flags::default())?.conf.chain,
        None => None,
    }
    .unwrap_or_default();
    if let Some(dir) = &arguments.cni_conf_dir {
        conf.conf_dir = absolute(dir)?;
    }
    let state_dir = absolute(&arguments.state_dir)?;
    let chain = Chain { conf, state_dir };
    {
        let _lock = record::lock(&chain.state_dir)?;
        let mut record = Record::read(&chain.state_dir)?.unwrap_or_default();
        let bin_dir = absolute(&arguments.cni_bin_dir)?;
        let done = binaries::put(
            arguments.from.as_deref(),
            &bin_dir,
            &chain.state_dir,
            &mut record,
        )?;
        done.iter().for_each(|line| println!("{line}"));
    }
    let mut held = vec![];
    let mut changed = vec![];
    for _ in 0..TRIES {
        let turn = chain.take(&mut held)?;
        changed.extend(turn.changed);
        held.extend(turn.held);
        if turn.again {
            thread::sleep(PAUSE);
            continue;
        }
        for file in &changed {
            let path = chain.conf.conf_dir.join(file);
            let done = if path.exists() { "written" } else { "removed" };
            println!("{path:?}: {done}");
        }
        return match (turn.obstacle, turn.standing) {
            (None, Standing::NotCalled(why)) => Err(InstallError::NotCalled {
                dir: chain.conf.conf_dir,
                why,
            }),
            (None, standing) => {
                println!(
                    "{standing}{}",
                    if changed.is_empty() {
                        ", as before"
                    } else {
                        ""
                    }
                );
                Ok(())
            }
            (Some(obstacle @ Obstacle::Empty), _) => {
                println!("{:?}: {obstacle}", chain.conf.conf_dir);
                Ok(())
            }
            (Some(obstacle), _) => Err(InstallError::Obstacle(obstacle)),
        };
    }
    Err(InstallError::Busy {
        dir: chain.conf.conf_dir,
    })
}

/// Takes away what [`install`] and the daemon put there, and prints what it did.
///
/// # Errors
/// Pods have devices still, or something is left, and why.
pub fn uninstall(arguments: &Uninstall) -> Result<(), InstallError> {
    let state_dir = absolute(&arguments.state_dir)?;
    let chain = Chain {
        conf: conf::Chain {
            conf_dir: absolute(&arguments.cni_conf_dir)?,
            ..conf::Chain::default()
        },
        state_dir: state_dir.clone(),
    };
    let lock = record::lock(&state_dir)?;
    let Some(mut record) = Record::read(&state_dir)? else {
        println!("nothing was installed on this node: there is nothing to take away");
        drop_lock(lock, &state_dir);
        return Ok(());
    };
    let boot_id = Linux::new().boot_id().unwrap_or_default();
    let pods = health::pods(&state_dir.join("attachments"), &boot_id);
    if !pods.is_empty() && !arguments.force {
        return Err(InstallError::Attached { pods });
    }
    let (files, obstacles) = chain.give_back(&mut record)?;
    for file in files {
        println!("{:?}: {TYPE} is out of it", chain.conf.conf_dir.join(file));
    }
    if let Some(obstacle) = obstacles.into_iter().next() {
        return Err(InstallError::Obstacle(obstacle));
    }
    if !pods.is_empty() {
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
    let bin_dir = absolute(&arguments.cni_bin_dir)?;
    let done = binaries::take(&bin_dir, &state_dir, &record)?;
    done.iter().for_each(|line| println!("{line}"));
    Record::remove(&state_dir)?;
    drop_lock(lock, &state_dir);
    Ok(())
}

/// The last of ours goes: the lock's file, and the directory if nothing else is in it.
fn drop_lock(lock: File, state_dir: &Path) {
    // a killed run left a part of the record
    for name in ["install.json.new", "install.lock"] {
        let _ = fs::remove_file(state_dir.join(name));
    }
    let _ = fs::remove_dir(state_dir);
    drop(lock);
}

fn absolute(path: &Path) -> Result<PathBuf, InstallError> {
    std::path::absolute(path).map_err(InstallError::Path)
}
