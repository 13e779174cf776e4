// SPDX-License-Identifier: Apache-2.0
//! What has to be written or removed in the directory. Pure: (directory, what is wanted) → changes.

use crate::{
    Directory, Entry, IPAM, TYPE,
    list::{Broken, List, Ours, Position, Refused},
    pick::{Choice, Picked, Runtime, Skip, Skipped, follow, pick},
    placement::{self, Placement, Wanted},
    programs::{self, Dirs, Elsewhere, Names, Programs},
    single::{self, SUFFIX, Single},
};
use std::{collections::BTreeSet, path::PathBuf};

/// One change of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A file gets another text, or is made.
    Write {
        /// Its name.
        file: String,
        /// The whole text.
        text: String,
        /// The file whose mode and owner it gets, and which the text was made from; for one in a network's own
        /// directory the list.
        like: String,
    },
    /// A file goes.
    Remove {
        /// Its name.
        file: String,
    },
}

/// Why the runtime cannot be made to call our plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// There is nothing to be put into.
    #[error(
        "there is no network configuration yet; the daemon puts {TYPE} in as soon as there is one, without the \
         daemon run install again then"
    )]
    Empty,
    /// None of the networks has the name that is configured.
    #[error(
        "no network in the directory is named {network:?} (networks there: {}); create it (podman network \
         create, nerdctl network create), or correct chain.network, and run install again",
        listed(.names)
    )]
    NoNetwork {
        /// The name.
        network: String,
        /// The names of the others.
        names: Vec<String>,
    },
    /// Nothing in the directory can be used.
    #[error(
        "{file} cannot be used by the runtime, and is left as it is: {why}; correct or remove that file"
    )]
    Broken {
        /// The file's name.
        file: String,
        /// What is wrong with it.
        why: Broken,
    },
    /// The file that the runtime uses cannot have our plugin in it.
    #[error("{file} is left as it is: {why}")]
    Refused {
        /// The file's name.
        file: String,
        /// Why.
        why: Refused,
    },
    /// The network's own directory cannot have our plugin in it.
    #[error("{file} is left as it is: {why}")]
    Directory {
        /// The file's name.
        file: String,
        /// Why.
        why: &'static str,
    },
    /// What the list names is not in the runtime's directories of plugins, as they are known here.
    #[error("{file} names {}, {}", Names(.programs), Elsewhere(.dirs))]
    Elsewhere {
        /// The file's name.
        file: String,
        /// The types without a program.
        programs: BTreeSet<String>,
        /// The directories.
        dirs: Vec<PathBuf>,
    },
    /// Our own programs are not there.
    #[error("{} not in {}, where the runtime looks for plugins; {}", is(.programs), Dirs(.dirs), remedy(.programs))]
    Gone {
        /// The programs.
        programs: BTreeSet<String>,
        /// The directories.
        dirs: Vec<PathBuf>,
    },
    /// It is not known which programs there are.
    #[error(
        "whether the plugins are in {} is not known ({why}); a container needs that directory of \
         the node, read-only: nothing is changed in the network's list", Dirs(.dirs)
    )]
    Unseen {
        /// The directories.
        dirs: Vec<PathBuf>,
        /// Why.
        why: String,
    },
}

impl Obstacle {
    /// Whether it is about programs: then the runtime is not able to call our plugin, even where it
    /// is in the list.
    pub fn is_of_programs(&self) -> bool {
        matches!(
            self,
            Self::Elsewhere { .. } | Self::Gone { .. } | Self::Unseen { .. }
        )
    }

    /// Whether our plugin itself is gone: where it is in a list, every pod fails by it.
    pub fn is_ours_gone(&self) -> bool {
        matches!(self, Self::Gone { programs, .. } if programs.contains(TYPE))
    }
}

/// What puts programs of the entry back: `install` has our own two, and the owner of any other has that.
fn remedy(programs: &BTreeSet<String>) -> String {
    let (ours, theirs): (Vec<&String>, Vec<&String>) = programs
        .iter()
        .partition(|it| [TYPE, IPAM].contains(&it.as_str()));
    let theirs = theirs.iter().map(|it| {
        format!("install the IPAM plugin {it}, which the entry of {TYPE} names, there, or name another one in its ipam.type")
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
    format!("{} {verb}", Names(programs))
}

/// What is to be done, and what comes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In this order.
    pub changes: Vec<Change>,
    /// Where our plugin will be called from, or why it will not.
    pub place: Result<Placed, Obstacle>,
}

/// Where our plugin is called from.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The file.
    pub file: String,
    /// The network's name.
    pub network: String,
    /// Whether somebody else put it there: its configuration is theirs.
    pub by_others: bool,
}

/// What makes the runtime call our plugin with `entry`. `placed` are the files that our plugin
/// was put into before; in others it belongs to whoever put it there. Nothing is put in as long as one
/// of the programs is missing that the list names, or that `entry` takes.
///
/// A single configuration has no directory: whatever `placement` is, its list beside it is ours alone.
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
            place: Err(obstacle),
        };
    }
    let others = directory.without(|file| file.name.ends_with(SUFFIX));
    let choice = pick(&others, runtime);
    let picked = match choice.choice {
        Choice::Picked(picked) => Ok(called(directory, picked)),
        Choice::Blocked { file, why } => Err(Obstacle::Broken { file, why }),
        Choice::None => Err(nothing(&others, runtime, &choice.skipped)),
    };
    // a list whose single configuration is gone, or not used any more
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
    let place = picked.and_then(|picked| {
        changes.extend(placement::stale(&picked, placed));
        let (placed, put) = put(directory, &picked, (entry, placement), placed)?;
        changes.extend(put);
        Ok(placed)
    });
    Plan { changes, place }
}

/// What is missing of the programs that the runtime would look for, with `entry` in its list.
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
    // Multus, and then the list that it calls
    let last = called(directory, first.clone());
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

/// What takes our plugin out of the files of `placed`, and what stands in the way.
pub fn detach(directory: &Directory, placed: &BTreeSet<String>) -> (Vec<Change>, Vec<Obstacle>) {
    let mut changes = vec![];
    let mut obstacles = vec![];
    for file in directory.all().filter(|file| placed.contains(&file.name)) {
        let name = &file.name;
        if name.ends_with(SUFFIX) || placement::is_ours(name) {
            changes.push(Change::Remove { file: name.clone() });
            continue;
        }
        let broken = |why: &Broken| Obstacle::Broken {
            file: name.clone(),
            why: why.clone(),
        };
        let without = match &file.text {
            Err(why) => Err(broken(why)),
            Ok(text) => List::parse(text)
                .map_err(|why| broken(&why))
                .and_then(|list| list.without().map_err(|why| refused(name, why))),
        };
        match without {
            Ok(Some(text)) => changes.push(Change::Write {
                file: name.clone(),
                text,
                like: name.clone(),
            }),
            Ok(None) => {}
            Err(obstacle) => obstacles.push(obstacle),
        }
    }
    (changes, obstacles)
}

/// The file whose plugins are called; for a list of ours, the single configuration it is made from.
fn called(directory: &Directory, picked: Picked) -> Picked {
    let picked = follow(directory, picked);
    let source = directory.files().iter().find_map(|file| {
        let is_source = single::is_from(&picked.file, &file.name);
        let text = is_source.then_some(file.text.as_deref().ok()?)?;
        Picked::read(&file.name, text).ok()
    });
    source.unwrap_or(picked)
}

/// Puts our plugin into the file that is used, or into the directory of its network.
fn put(
    directory: &Directory,
    picked: &Picked,
    (entry, placement): (&Entry, &Placement),
    placed: &BTreeSet<String>,
) -> Result<(Placed, Vec<Change>), Obstacle> {
    let file = &picked.file;
    let text = directory.file(file).and_then(|it| it.text.as_ref().ok());
    let text = text.map_or("", String::as_str);
    if picked.single {
        let (placed, change) = put_beside(directory, picked, text, entry)?;
        return Ok((placed, change.into_iter().collect()));
    }
    let list = List::parse(text).map_err(|why| broken(file, why))?;
    let wanted = placement.wanted(picked)?;
    let mut in_directory = placement::in_directory(directory, picked);
    if let Some(theirs) = in_directory.find(|it| !placed.contains(&it.file)) {
        let ours = placed.contains(file).then(|| list.without()).transpose();
        let ours = ours.map_err(|why| refused(file, why))?.flatten();
        let mut changes = vec![];
        changes.extend(ours.map(|text| Change::Write {
            file: file.clone(),
            text,
            like: file.clone(),
        }));
        changes.extend(placement::put(directory, picked, None, placed)?);
        let placed = Placed {
            file: theirs.file,
            network: picked.network.clone(),
            by_others: true,
        };
        return Ok((placed, changes));
    }
    let is_theirs = !placed.contains(file) && list.ours().is_some() || list.is_called_otherwise();
    if let (Wanted::Directory, false) = (&wanted, is_theirs) {
        return placement::put_in_directory(directory, picked, (&list, entry), placed);
    }
    let (placed_in, change) = put_into(&list, picked, entry, placed)?;
    let detecting = match (wanted, placed_in.by_others) {
        (Wanted::Detection, false) => Some(entry.detecting()),
        _ => None,
    };
    let mut changes: Vec<_> = change.into_iter().collect();
    match placement::put(directory, picked, detecting.as_ref(), placed) {
        Ok(change) => changes.extend(change),
        // the list does without
        Err(_) => debug_assert!(detecting.is_some()),
    }
    Ok((placed_in, changes))
}

/// Puts our plugin into the list.
fn put_into(
    list: &List<'_>,
    picked: &Picked,
    entry: &Entry,
    placed: &BTreeSet<String>,
) -> Result<(Placed, Option<Change>), Obstacle> {
    let file = &picked.file;
    let update = placed.contains(file);
    // somebody put it there too since: theirs stays, as it must not be called twice
    let is_twice = update && list.own().is_some() && list.is_called_otherwise();
    let change = match is_twice {
        true => list.without(),
        false => list.with(entry, update),
    };
    let change = change.map_err(|why| refused(file, why))?;
    let by_others = match list.ours() {
        Some(Ours {
            place: Position::Plugin(_),
            ..
        }) => !update || is_twice || list.own().is_none(),
        Some(Ours {
            place: Position::Delegate(_),
            ..
        }) => true,
        None => false,
    };
    let change = change.map(|text| Change::Write {
        file: file.clone(),
        text,
        like: file.clone(),
    });
    let placed = Placed {
        file: file.clone(),
        network: picked.network.clone(),
        by_others,
    };
    Ok((placed, change))
}

/// Puts our plugin into a list of ours beside the single configuration `text`.
fn put_beside(
    directory: &Directory,
    picked: &Picked,
    text: &str,
    entry: &Entry,
) -> Result<(Placed, Option<Change>), Obstacle> {
    let file = &picked.file;
    let placed_in = |file: &str, by_others| Placed {
        file: file.to_owned(),
        network: picked.network.clone(),
        by_others,
    };
    if picked.ours.is_some() {
        return Ok((placed_in(file, true), None));
    }
    let single = Single::parse(text).map_err(|why| broken(file, why))?;
    let list = single::list_name(file);
    let present = directory.file(&list).and_then(|it| it.text.as_deref().ok());
    // somebody may have put plugins behind it since: they stay, as in any other list, unless they call ours twice
    let parsed = present.and_then(|text| List::parse(text).ok());
    let parsed = parsed.filter(|it| it.is_of(&single) && !it.is_called_otherwise());
    let (like, change) = match parsed {
        Some(parsed) => (&list, parsed.with(entry, true)),
        None => {
            let text = single.list(entry);
            (file, text.map(|it| (present != Some(&it)).then_some(it)))
        }
    };
    let change = change.map_err(|why| refused(like, why))?;
    let change = change.map(|text| Change::Write {
        file: list.clone(),
        text,
        like: like.clone(),
    });
    Ok((placed_in(&list, false), change))
}

/// Why there is nothing to be put into.
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

fn refused(file: &str, why: Refused) -> Obstacle {
    Obstacle::Refused {
        file: file.to_owned(),
        why,
    }
}
