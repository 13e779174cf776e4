// SPDX-License-Identifier: Apache-2.0
//! Traces that could remain on a node in addition to the contents of `Snapshot`, as counts. Also the sizes of a daemon
//! that could grow.

use crate::node::Day;
use integration::{
    Files,
    kernel_counts::{network_namespaces, unreclaimable_memory},
    wait,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, mem,
    net::IpAddr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Directories with files of programs: the records, the runtime's CDI specifications, kubelet's files, and the leases
/// of both IPAM plugins.
const PLACES: [&str; 5] = ["state", "cdi", "kubelet", "leases", "networks"];

/// The count of network namespaces may grow by this number. The kernel counts all slab objects that a processor caches
/// as in use, up to eight on each of two processors. A round has more than eight pods.
const NAMESPACES: usize = 16;

/// The kernel's unreclaimable memory may grow by this number of KiB, because its caches fill. A pod's namespace that
/// remains takes half a MiB or more.
const KERNEL_MEMORY: usize = 32 << 10;

/// Number of objects, by name.
type Counts = BTreeMap<String, usize>;

/// The traces on a node at one time.
#[derive(Debug)]
pub(super) struct Traces {
    /// Files in the node's directories.
    files: Counts,
    /// Counts that must be the same at each check.
    exact: Counts,
    /// Number of network namespaces in the kernel.
    namespaces: usize,
    /// The kernel's unreclaimable memory, including per-processor memory, in KiB.
    memory: usize,
}

impl Traces {
    #[track_caller]
    pub(super) fn of(day: &Day) -> Self {
        Self {
            files: files(day),
            exact: exact(day),
            namespaces: network_namespaces().expect("the kernel counts its objects"),
            memory: unreclaimable_memory(),
        }
    }

    /// Asserts that nothing of a pod remains: no record, no file of rails, no lease, and no file about a netdev that
    /// could not be restored completely.
    #[track_caller]
    pub(super) fn held(day: &Day) {
        let [attachments, rails, given_up] =
            ["attachments", "rails", "given-up"].map(|it| day.node.node.path("state").join(it));
        let is_of_a_pod = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let of_pods = [&attachments, &rails, &given_up];
            let is_of_pods = of_pods.iter().any(|it| path.starts_with(it));
            is_of_pods && name.ends_with(".json") || name.parse::<IpAddr>().is_ok()
        };
        let paths = paths(day);
        let held: Vec<&PathBuf> = paths.iter().filter(is_of_a_pod).collect();
        assert!(held.is_empty(), "{held:?}");
    }

    /// Waits until the traces equal those of a `fresh` node, and returns them. Objects that the first pods create
    /// permanently may be present as in `early`.
    #[track_caller]
    pub(super) fn until_as(day: &Day, fresh: &Self, early: Option<&Self>) -> Self {
        let mut now = Self::of(day);
        let mut differences = now.differences(fresh, early);
        wait::within(wait::TIMEOUT, || {
            if !differences.is_empty() {
                now = Self::of(day);
                differences = now.differences(fresh, early);
            }
            differences.is_empty()
        });
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        now
    }

    fn differences(&self, fresh: &Self, early: Option<&Self>) -> Vec<String> {
        let mut found = changes(&fresh.exact, &self.exact);
        if self.namespaces > fresh.namespaces + NAMESPACES {
            let (was, is) = (fresh.namespaces, self.namespaces);
            found.push(format!("network namespaces: {was} before, {is} now"));
        }
        if let Some(early) = early {
            found.extend(changes(&early.files, &self.files));
            if self.memory > early.memory + KERNEL_MEMORY {
                let (was, is) = (early.memory, self.memory);
                found.push(format!(
                    "the kernel's memory: {was} KiB early, {is} KiB now"
                ));
            }
        }
        found
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes = self
            .exact
            .iter()
            .filter(|(name, _)| name.starts_with("process "));
        write!(
            to,
            "{} files, {} processes, {} network namespaces, {} KiB of the kernel's",
            self.files.values().sum::<usize>(),
            processes.map(|(_, count)| count).sum::<usize>(),
            self.namespaces,
            self.memory
        )
    }
}

/// Returns the names whose count differs between `was` and `is`, with both counts.
fn changes(was: &Counts, is: &Counts) -> Vec<String> {
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let lines = names.into_iter().filter_map(|name| {
        let [was, is] = [was, is].map(|it| it.get(name).copied().unwrap_or(0));
        (was != is).then(|| format!("{name}: {was} before, {is} now"))
    });
    lines.collect()
}

#[track_caller]
fn paths(day: &Day) -> Vec<PathBuf> {
    let places = PLACES.map(|it| day.node.node.path(it));
    let places = places.each_ref().map(|it| it.to_str().expect("UTF-8"));
    Files::below(&places).paths()
}

/// The files of the directories, by path. Removes the parts of file and socket names that differ between two starts of
/// a daemon.
#[track_caller]
fn files(day: &Day) -> Counts {
    let mut files = Counts::new();
    for path in paths(day) {
        let path = path.to_string_lossy().into_owned();
        let name = match (path.rsplit_once('/'), path.split_once('~')) {
            (Some((directory, _)), _) if path.ends_with(".daemon") => {
                format!("{directory}/LIFE.daemon")
            }
            (_, Some((resource, _))) if path.ends_with(".sock") => format!("{resource}~LIFE.sock"),
            _ => path,
        };
        *files.entry(name).or_default() += 1;
    }
    files
}

/// Named namespaces, processes by name, mounts, and the kernel's object counts of each RDMA device.
#[track_caller]
fn exact(day: &Day) -> Counts {
    let mut exact = Counts::new();
    let entries = |path: &str| fs::read_dir(path).into_iter().flatten().flatten();
    exact.insert("named namespaces".into(), entries("/run/netns").count());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
    exact.insert("mounts".into(), mounts.lines().count());
    for process in entries("/proc").map(|it| it.path()) {
        if let Some(name) = program(&process) {
            *exact.entry(format!("process {name}")).or_default() += 1;
        }
    }
    let text = day.node.lab.host.run("rdma -j resource show");
    let devices: Vec<Value> = serde_json::from_str(&text).expect("a list");
    for device in devices {
        let name = device["ifname"].as_str().expect("a name");
        for (what, count) in device.as_object().expect("an object") {
            // `ifindex` is the index of the RDMA device, which changes when the kernel makes the device again
            if let Some(count) = count.as_u64().filter(|_| what != "ifindex") {
                let count = usize::try_from(count).expect("a count");
                exact.insert(format!("{name} {what}"), count);
            }
        }
    }
    exact
}

/// Processes that udev and NetworkManager start and end at any time.
const HELPERS: [&str; 2] = ["(udev-worker)", "nm-dispatcher"];

/// Returns the name of the program that a process runs. Returns `None` if the process is a kernel thread, has ended, or
/// is one of [`HELPERS`].
fn program(process: &Path) -> Option<String> {
    let arguments = fs::read(process.join("cmdline")).ok()?;
    let name = fs::read_to_string(process.join("comm")).ok()?;
    let is_counted = !arguments.is_empty() && !HELPERS.contains(&name.trim());
    is_counted.then(|| name.trim().to_owned())
}

/// Sizes of a daemon that could grow.
#[derive(Debug)]
pub(super) struct DaemonSize {
    descriptors: usize,
    threads: usize,
    /// In KiB.
    memory: u64,
}

impl DaemonSize {
    fn of(day: &Day) -> Self {
        let daemon = &day.node.node.daemon;
        Self {
            descriptors: daemon.descriptors(),
            threads: daemon.threads(),
            memory: daemon.memory(),
        }
    }

    /// The daemon's size, as soon as the numbers of descriptors and threads are unchanged for a second. The number of
    /// descriptors changes while connections are opened again.
    #[track_caller]
    fn at_rest(day: &Day) -> Self {
        let mut last = Self::of(day);
        wait::until("the daemon is at rest", || {
            thread::sleep(Duration::from_secs(1));
            let before = mem::replace(&mut last, Self::of(day));
            (before.descriptors, before.threads) == (last.descriptors, last.threads)
        });
        last
    }

    /// The daemon's size, as soon as no number exceeds that of `early`, an earlier size of the same process. Memory may
    /// exceed it by a quarter, as in `soak`, because the allocator and the program touch some pages later.
    #[track_caller]
    pub(super) fn until_as(day: &Day, early: Option<&Self>) -> Self {
        let mut now = Self::at_rest(day);
        let Some(early) = early else {
            return now;
        };
        let flat = wait::within(wait::TIMEOUT, || {
            let is_flat = now.descriptors <= early.descriptors
                && now.threads <= early.threads
                && now.memory <= early.memory + early.memory / 4;
            if !is_flat {
                now = Self::of(day);
            }
            is_flat
        });
        assert!(flat, "{now:?} is more than {early:?}");
        now
    }
}
