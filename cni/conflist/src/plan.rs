// SPDX-License-Identifier: Apache-2.0
//! Plans the changes of the CNI directory. This module is pure: (directory, entry, placement) → changes.

use crate::{
    Change, Directory, Entry, Obstacle,
    change::refused,
    list::{Broken, List},
    pick::{self, Choice, Picked, Runtime, Skip, Skipped, follow, pick},
    placement::{self, Placed, Placement, Wanted},
    programs::{self, Programs},
    single::{self, SUFFIX, Single},
};

/// Planned changes, and the obstacle that prevents our plugin from being called.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Changes, in order. Without an obstacle, the runtime calls our plugin after these changes
    /// ([`called`](crate::called)).
    pub changes: Vec<Change>,
    /// The reason why the daemon cannot add our plugin.
    pub obstacle: Option<Obstacle>,
}

/// Plans the changes that make the runtime call our plugin with `entry`. Any entry that is not in `placed` belongs to
/// the file's author: the plan keeps this entry, and removes ours from the list. If [`lacking`] finds an obstacle, the
/// plan has this obstacle and no changes.
///
/// `placement` does not apply to a single plugin's configuration: such a network has no own directory, and the list
/// beside the configuration belongs to this project.
pub fn attach(
    directory: &Directory,
    runtime: &Runtime,
    (entry, placement): (&Entry, &Placement),
    placed: &Placed,
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
        put(directory, &picked, entry, placement, runtime, placed)
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
        let has_none = picked.types.is_empty();
        let plugins = directory.plugins_of(&picked.network).filter(|_| has_none);
        let files = directory.file(&picked.file).into_iter().chain(plugins);
        let texts = files.filter_map(|file| file.text.as_deref().ok());
        let programs = present.missing(texts.flat_map(programs::named).collect());
        let (file, dirs) = (picked.file, dirs.clone());
        (!programs.is_empty()).then_some(Obstacle::Elsewhere {
            file,
            programs,
            dirs,
        })
    })
}

/// Plans the removal of our entries from the files in `placed`. Also returns the obstacles.
pub fn detach(directory: &Directory, placed: &Placed) -> (Vec<Change>, Vec<Obstacle>) {
    let mut changes = vec![];
    let mut obstacles = vec![];
    let files = directory.all();
    for (file, ours) in files.filter_map(|file| Some((file, placed.get(&file.name)?))) {
        let name = &file.name;
        if name.ends_with(SUFFIX) || placement::is_ours(name) {
            changes.push(Change::Remove { file: name.clone() });
            continue;
        }
        let without = match &file.text {
            Err(why) => Err(broken(name, why.clone())),
            Ok(text) => List::parse(text)
                .map_err(|why| broken(name, why))
                .and_then(|list| list.without_entries(ours).map_err(|why| refused(name, why))),
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
    entry: &Entry,
    placement: &Placement,
    runtime: &Runtime,
    placed: &Placed,
) -> Result<Vec<Change>, Obstacle> {
    let file = &picked.file;
    let text = directory.file(file).and_then(|it| it.text.as_ref().ok());
    let text = text.map_or("", String::as_str);
    if picked.single {
        let change = put_beside(directory, picked, text, entry)?;
        return Ok(change.into_iter().collect());
    }
    let list = List::parse(text).map_err(|why| broken(file, why))?;
    let wanted = placement.wanted(picked, runtime)?;
    let ours = placement::entries_in(placed, file);
    let mut changes = vec![];
    let mut in_directory = placement::in_directory(directory, picked);
    if in_directory.any(|it| !placed.contains_key(&it.file)) {
        let without = list.without_entries(ours);
        let without = without.map_err(|why| refused(file, why))?;
        changes.extend(without.map(|text| Change::rewrite(file, text)));
        changes.extend(placement::put(directory, picked, None, placed)?);
        return Ok(changes);
    }
    let is_theirs = list.all_own().any(|it| !ours.contains(&it)) || list.is_called_otherwise();
    if let (Wanted::Directory, false) = (&wanted, is_theirs) {
        return placement::put_in_directory(directory, picked, &list, entry, placed);
    }
    let text = match is_theirs {
        // another program has added our plugin: its entry stays, and ours is removed, because two calls would conflict
        true => list.without_entries(ours),
        false => list.with(entry, true),
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
    let parsed = parsed.filter(|it| single.is_source_of(it) && !it.is_called_otherwise());
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
        let why = pick::read(others, file).err()?;
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
