// SPDX-License-Identifier: Apache-2.0
//! `/sys`, `/proc` and `/dev`: reading any tree of files in their place results in an inventory or an error.

use rdma_device_plugin::offline::port_files;
use rdma_netns::{
    DeviceAddress, GpuDirectReader, accelerators,
    linux::{accelerator_names, offline},
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
};

/// The largest number of entries of a tree. Each entry costs system calls.
const ENTRIES: usize = 80;

/// A tree of files, one entry in each line: `d PATH`, `f PATH TEXT`, `l PATH TARGET`. In TEXT, `|` is a line feed.
///
/// # Panics
/// The inventory has a device twice.
pub fn tree(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    // a file system in memory is faster
    let memory = Path::new("/dev/shm");
    let root = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let root = root.expect("a directory");
    for line in text.lines().take(ENTRIES) {
        let mut words = line.splitn(3, ' ');
        let (kind, path) = (words.next(), words.next().unwrap_or_default());
        let rest = words.next().unwrap_or_default();
        let Some(path) = within(path) else {
            continue;
        };
        let place = root.path().join(&path);
        // errors are ignored: an earlier entry may have the path
        let _ = match kind {
            Some("d") => fs::create_dir_all(place),
            Some("f") => made(&place).and_then(|()| fs::write(place, rest.replace('|', "\n"))),
            Some("l") => {
                made(&place).and_then(|()| match leads_within(root.path(), &place, rest) {
                    true => symlink(rest, place),
                    false => Ok(()),
                })
            }
            _ => Ok(()),
        };
    }
    let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
    if let Ok(inventory) = offline::hardware(&sys, &dev) {
        let addresses = inventory.functions.iter().map(|it| &it.device.address);
        let distinct: BTreeSet<_> = addresses.collect();
        assert_eq!(distinct.len(), inventory.functions.len());
        serde_json::to_string(&inventory).expect("it can be shown");
    }
    let proc = root.path().join("proc");
    let gpus = accelerators(&sys, &BTreeSet::new()).unwrap_or_default();
    let nics = gpus.iter().map(|it| &it.address).collect();
    let _ = GpuDirectReader::default().read((&sys, &proc), &gpus, &nics);
    let _ = offline::gid_table(&sys, "mlx5_0", 1);
    let _ = offline::hardware_of(&sys, "eth2", 4);
    let names = accelerator_names(&sys, &root.path().join("proc"));
    assert!(names.keys().all(|it| it.trim() == it));
    let address = DeviceAddress::try_from("0000:3b:00.0".to_owned()).expect("an address");
    let counters = ["symbol_error", "link_downed"].map(str::to_owned);
    let ports = port_files(&sys, address, "mlx5_0", &counters);
    for (name, _) in ports.metrics.iter().flatten() {
        let is_metrics = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        assert!(name.starts_with("rdma_") && name.chars().all(is_metrics));
    }
}

/// Parses a relative path without `..`, of at most 12 components.
fn within(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let is_plain = |it: Component<'_>| matches!(it, Component::Normal(_));
    let count = path.components().count();
    ((1..=12).contains(&count) && path.components().all(is_plain)).then(|| path.to_owned())
}

/// Returns true if a link to `target` at `place` leads to a path below `root`: the target goes up from the link's real
/// directory, and then only down. Links on the way down lead below `root` too, because this function allowed them.
fn leads_within(root: &Path, place: &Path, target: &str) -> bool {
    let target = Path::new(target).components();
    let up = target
        .clone()
        .take_while(|it| *it == Component::ParentDir)
        .count();
    let is_down = |it: Component<'_>| matches!(it, Component::Normal(_));
    let directory = place.parent().and_then(|it| it.canonicalize().ok());
    let below = directory.zip(root.canonicalize().ok());
    let below =
        below.and_then(|(directory, root)| Some(directory.strip_prefix(root).ok()?.to_owned()));
    below.is_some_and(|below| up <= below.components().count()) && target.skip(up).all(is_down)
}

fn made(place: &Path) -> std::io::Result<()> {
    fs::create_dir_all(place.parent().unwrap_or(Path::new("/")))
}
