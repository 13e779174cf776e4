// SPDX-License-Identifier: Apache-2.0
//! Plans the changes of the CNI directory. This module is pure: (directory, entry, placement) → changes.

use crate::{
    Directory, Entry, IPAM, TYPE,
    list::{Broken, List, Refused},
    pick::{Choice, Picked, Runtime, Skip, Skipped, follow, pick},
    placement::{self, Placement, Wanted},
    programs::{self, Programs, either, joined},
    single::{self, SUFFIX, Single},
};
use std::{collections::BTreeSet, path::PathBuf};

/// One change of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes a file, and replaces an existing file.
    Write {
        /// Name of the file.
        file: String,
        /// New text of the whole file.
        text: String,
        /// The file from which the text was made. The new file gets this file's mode and owner. For a file in a
        /// network's own directory, this is the network's list.
        like: String,
    },
    /// Removes a file.
    Remove {
        /// Name of the file.
        file: String,
    },
}

/// The reason why the daemon cannot make the runtime call our plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The directory has no network configuration that the runtime uses.
    #[error(
        "there is no network configuration yet; the daemon adds {TYPE} when there is one; without the daemon, run \
         install again after you have added a network"
    )]
    Empty,
    /// No network has the configured name, by which the runtime chooses a network.
    #[error(
        "no network in the directory is named {network:?} (networks there: {}); create it (podman network \
         create, nerdctl network create), or correct chain.network, and run install again",
        listed(.names)
    )]
    NoNetwork {
        /// The configured name.
        network: String,
        /// Names of the existing networks.
        names: Vec<String>,
    },
    /// The runtime cannot use the file.
    #[error("the runtime cannot use {file}: {why}; correct or remove that file")]
    Broken {
        /// Name of the file.
        file: String,
        /// Defect of the file.
        why: Broken,
    },
    /// Our entry cannot be added to the file that the runtime uses, or to the network's own directory.
    #[error("rdma-device-plugin does not change {file}: {why}")]
    Refused {
        /// Name of the file.
        file: String,
        /// Reason.
        why: Refused,
    },
    /// A program that the list names is missing in all plugin directories that this project knows. So the runtime
    /// probably uses other directories.
    #[error(
        "{file} names {}, not in {}: the runtime uses other plugin directories, or the network is incomplete; see \
         bin_dir or bin_dirs of `containerd config dump`, plugin_dirs of `crio config`, or cni_plugin_dirs of podman's \
         containers.conf, and install with --cni-bin-dir for each directory (the chart's chain.binDir); install writes \
         rdma-cni and rdma-ipam into the first directory: run uninstall before you make another directory the first \
         one",
        joined(.programs),
        either(.dirs)
    )]
    Elsewhere {
        /// Name of the file with the list.
        file: String,
        /// Plugin types that have no program.
        programs: BTreeSet<String>,
        /// Plugin directories.
        dirs: Vec<PathBuf>,
    },
    /// A program that our entry needs is missing.
    #[error("{} not in {}, where the runtime looks for plugins; {}", is(.programs), either(.dirs), remedy(.programs))]
    Gone {
        /// Missing programs.
        programs: BTreeSet<String>,
        /// Plugin directories.
        dirs: Vec<PathBuf>,
    },
    /// The plugin directories cannot be read.
    #[error(
        "the plugins in {} are unknown ({why}), so the network's list stays unchanged; mount that directory of the \
         node read-only into the container", either(.dirs)
    )]
    Unseen {
        /// Plugin directories.
        dirs: Vec<PathBuf>,
        /// Reason why the directories cannot be read.
        why: String,
    },
}

impl Obstacle {
    /// Returns true if the obstacle is a missing program, or plugin directories that cannot be read. The runtime may
    /// then be unable to call our plugin, even if the list has the entry.
    pub fn is_of_programs(&self) -> bool {
        matches!(
            self,
            Self::Elsewhere { .. } | Self::Gone { .. } | Self::Unseen { .. }
        )
    }

    /// Returns true if our plugin's program is missing. Every pod whose list has our entry then fails.
    pub fn is_ours_gone(&self) -> bool {
        matches!(self, Self::Gone { programs, .. } if programs.contains(TYPE))
    }
}

/// Returns advice about missing programs of the entry. `install` copies this project's two programs. The provider of
/// any other program must install it.
fn remedy(programs: &BTreeSet<String>) -> String {
    let (ours, theirs): (Vec<&String>, Vec<&String>) = programs
        .iter()
        .partition(|it| [TYPE, IPAM].contains(&it.as_str()));
    let theirs = theirs.iter().map(|it| {
        format!("install the IPAM plugin {it} there, or set ipam.type in the entry of {TYPE} to another \
                 plugin")
    });
    let ours = (!ours.is_empty()).then(|| "run install again".to_owned());
    theirs.chain(ours).collect::<Vec<_>>().join("; ")
}

fn listed(names: &[String]) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

fn is(programs: &BTreeSet<String>) -> String {
    let verb = if programs.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", joined(programs))
}

/// Planned changes, and the obstacle that prevents our plugin from being called.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Changes, in order. Without an obstacle, the runtime calls our plugin after these changes
    /// ([`called`](crate::called)).
    pub changes: Vec<Change>,
    /// The reason why the daemon cannot add our plugin.
    pub obstacle: Option<Obstacle>,
}

impl Change {
    /// Returns the change that replaces the text of `file` by `text`.
    pub(crate) fn rewrite(file: &str, text: String) -> Self {
        Self::Write {
            file: file.to_owned(),
            text,
            like: file.to_owned(),
        }
    }
}

/// Plans the changes that make the runtime call our plugin with `entry`. `placed` are the files to which this project
/// has added its entry. In any other file, the entry belongs to the file's author. If [`lacking`] finds an obstacle,
/// the plan has this obstacle and no changes.
///
/// `placement` does not apply to a single plugin's configuration: such a network has no own directory, and the list
/// beside the configuration belongs to this project.
pub fn attach(
    directory: &Directory,
    runtime: &Runtime,
    (entry, placement): (&Entry, &Placement),
    placed: &BTreeSet<String>,
    present: &Programs,
) -> Plan {
    if let Some(obstacle) = lacking(directory, runtime, entry, present) {
        return Plan {
            changes: vec![],
            obstacle: Some(obstacle),
        };
    }
    let others = directory.without(|file| file.name.ends_with(SUFFIX));
    let choice = pick(&others, runtime);
    let picked = match choice.choice {
        Choice::Picked(picked) => Ok(in_use(directory, picked)),
        Choice::Blocked { file, why } => Err(Obstacle::Broken { file, why }),
        Choice::None => Err(nothing(&others, runtime, &choice.skipped)),
    };
    // removes our list if its single configuration was deleted or is no longer used
    let mut changes: Vec<_> = directory
        .files()
        .iter()
        .filter(|file| file.name.ends_with(SUFFIX))
        .filter(|list| match &picked {
            Ok(picked) => !(picked.single && single::is_from(&list.name, &picked.file)),
            Err(_) => !others
                .files()
                .iter()
                .any(|it| single::is_from(&list.name, &it.name)),
        })
        .map(|list| Change::Remove {
            file: list.name.clone(),
        })
        .collect();
    let put = picked.and_then(|picked| {
        changes.extend(placement::stale(&picked, placed));
        put(directory, &picked, (entry, placement), placed)
    });
    let obstacle = put.map(|put| changes.extend(put)).err();
    Plan { changes, obstacle }
}

/// Returns an obstacle if the list with `entry` needs a program that is missing, or if the plugin directories cannot be
/// read.
pub fn lacking(
    directory: &Directory,
    runtime: &Runtime,
    entry: &Entry,
    present: &Programs,
) -> Option<Obstacle> {
    let others = directory.without(|file| file.name.ends_with(SUFFIX));
    let Choice::Picked(first) = pick(&others, runtime).choice else {
        return None;
    };
    let dirs = present.dirs.clone();
    if let Err(why) = &present.names {
        let why = why.clone();
        return Some(Obstacle::Unseen { dirs, why });
    }
    let programs = present.missing(entry.programs());
    if !programs.is_empty() {
        return Some(Obstacle::Gone { programs, dirs });
    }
    // first Multus' own list, then the list that Multus calls
    let last = in_use(directory, first.clone());
    [first, last].into_iter().find_map(|picked| {
        let file = directory.file(&picked.file)?;
        let programs = present.missing(programs::named(file.text.as_ref().ok()?));
        let (file, dirs) = (picked.file, dirs.clone());
        (!programs.is_empty()).then_some(Obstacle::Elsewhere {
            file,
            programs,
            dirs,
        })
    })
}

/// Plans the removal of our entry from the files in `placed`. Also returns the obstacles.
pub fn detach(directory: &Directory, placed: &BTreeSet<String>) -> (Vec<Change>, Vec<Obstacle>) {
    let mut changes = vec![];
    let mut obstacles = vec![];
    for file in directory.all().filter(|file| placed.contains(&file.name)) {
        let name = &file.name;
        if name.ends_with(SUFFIX) || placement::is_ours(name) {
            changes.push(Change::Remove { file: name.clone() });
            continue;
        }
        let without = match &file.text {
            Err(why) => Err(broken(name, why.clone())),
            Ok(text) => List::parse(text)
                .map_err(|why| broken(name, why))
                .and_then(|list| list.without().map_err(|why| refused(name, why))),
        };
        match without {
            Ok(Some(text)) => changes.push(Change::rewrite(name, text)),
            Ok(None) => {}
            Err(obstacle) => obstacles.push(obstacle),
        }
    }
    (changes, obstacles)
}

/// Returns the file whose plugins the runtime finally calls. If this project made the file from a single plugin's
/// configuration, returns the configuration's file.
fn in_use(directory: &Directory, picked: Picked) -> Picked {
    let picked = follow(directory, picked);
    let source = directory.files().iter().find_map(|file| {
        let is_source = single::is_from(&picked.file, &file.name);
        let text = is_source.then_some(file.text.as_deref().ok()?)?;
        Picked::read(&file.name, text).ok()
    });
    source.unwrap_or(picked)
}

/// Plans the changes that put our entry into the file that the runtime uses, or into the own directory of this file's
/// network.
fn put(
    directory: &Directory,
    picked: &Picked,
    (entry, placement): (&Entry, &Placement),
    placed: &BTreeSet<String>,
) -> Result<Vec<Change>, Obstacle> {
    let file = &picked.file;
    let text = directory.file(file).and_then(|it| it.text.as_ref().ok());
    let text = text.map_or("", String::as_str);
    if picked.single {
        let change = put_beside(directory, picked, text, entry)?;
        return Ok(change.into_iter().collect());
    }
    let list = List::parse(text).map_err(|why| broken(file, why))?;
    let wanted = placement.wanted(picked)?;
    let update = placed.contains(file);
    let mut changes = vec![];
    let mut in_directory = placement::in_directory(directory, picked);
    if in_directory.any(|it| !placed.contains(&it.file)) {
        let without = update.then(|| list.without()).transpose();
        let without = without.map_err(|why| refused(file, why))?.flatten();
        changes.extend(without.map(|text| Change::rewrite(file, text)));
        changes.extend(placement::put(directory, picked, None, placed)?);
        return Ok(changes);
    }
    let is_theirs = !update && list.ours().is_some() || list.is_called_otherwise();
    if let (Wanted::Directory, false) = (&wanted, is_theirs) {
        return placement::put_in_directory(directory, picked, (&list, entry), placed);
    }
    let text = match update && is_theirs && list.own().is_some() {
        // another program has added our plugin meanwhile: its entry stays, and ours is removed, because two calls
        // would conflict
        true => list.without(),
        false => list.with(entry, update),
    };
    let text = text.map_err(|why| refused(file, why))?;
    changes.extend(text.map(|text| Change::rewrite(file, text)));
    let detecting = match (wanted, is_theirs) {
        (Wanted::Detection, false) => Some(entry.detecting()),
        _ => None,
    };
    match placement::put(directory, picked, detecting.as_ref(), placed) {
        Ok(change) => changes.extend(change),
        // only the detecting entry failed: the list works without it
        Err(_) => debug_assert!(detecting.is_some()),
    }
    Ok(changes)
}

/// Plans a list with our entry beside the file of the single configuration `text`.
fn put_beside(
    directory: &Directory,
    picked: &Picked,
    text: &str,
    entry: &Entry,
) -> Result<Option<Change>, Obstacle> {
    if picked.ours.is_some() {
        return Ok(None);
    }
    let file = &picked.file;
    let single = Single::parse(text).map_err(|why| broken(file, why))?;
    let list = single::list_name(file);
    let present = directory.file(&list).and_then(|it| it.text.as_deref().ok());
    // keeps plugins that other programs appended to our list
    let parsed = present.and_then(|text| List::parse(text).ok());
    let parsed = parsed.filter(|it| it.is_of(&single) && !it.is_called_otherwise());
    let (like, text) = match parsed {
        Some(parsed) => (&list, parsed.with(entry, true)),
        None => {
            let text = single.list(entry);
            (file, text.map(|it| (present != Some(&it)).then_some(it)))
        }
    };
    let text = text.map_err(|why| refused(like, why))?;
    Ok(text.map(|text| Change::Write {
        file: list.clone(),
        text,
        like: like.clone(),
    }))
}

/// Returns the obstacle for a directory in which the runtime uses no file.
fn nothing(others: &Directory, runtime: &Runtime, skipped: &[Skipped]) -> Obstacle {
    if let Runtime::Named { network } = runtime {
        let names = skipped.iter().filter_map(|it| match &it.why {
            Skip::OtherNetwork(name) => Some(name.clone()),
            Skip::Broken(_) | Skip::Later => None,
        });
        return Obstacle::NoNetwork {
            network: network.clone(),
            names: names.collect(),
        };
    }
    let broken = others.files().iter().find_map(|file| {
        let read = file.text.as_ref().map_err(Clone::clone);
        let why = read.and_then(|text| Picked::read(&file.name, text)).err()?;
        Some(broken(&file.name, why))
    });
    broken.unwrap_or(Obstacle::Empty)
}

fn broken(file: &str, why: Broken) -> Obstacle {
    Obstacle::Broken {
        file: file.to_owned(),
        why,
    }
}

pub(crate) fn refused(file: &str, why: Refused) -> Obstacle {
    Obstacle::Refused {
        file: file.to_owned(),
        why,
    }
}
