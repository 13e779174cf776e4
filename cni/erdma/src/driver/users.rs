// SPDX-License-Identifier: Apache-2.0
//! Whoever has a device of the driver, and would lose it.
//!
//! The kernel's count does not tell: a driver that can take its devices away from processes
//! (`disassociate_ucontext`) is not held by those that have opened them (`ib_uverbs_open()`,
//! `drivers/infiniband/core/uverbs_main.c`).

use crate::conf::DriverMode;
use attachments::pods;
use dra::Claims;
use kubelet_api::pod_resources::{self, v1::PodResources};
use rdma_netns::{DeviceAddress, Kernel, Linux, linux::nldev::Nldev};
use rdma_resources::Grants;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// For kubelet's answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Somebody who has a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A pod that was given it, by kubelet or by the chain.
    Pod(String),
    /// A claim that it was allocated by, whose pods may be about to start.
    Claim(String),
    /// A process that has it open.
    Process {
        /// Its id, in this program's view.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// Processes that are not seen, or the kernel itself, have objects of it.
    Objects {
        /// The RDMA device.
        rdma: String,
        /// Which, and how many: `2 contexts`.
        what: String,
    },
    /// A module that is built on the driver.
    Module(String),
    /// Nobody knows: why.
    Unknown(String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Claim(claim) => write!(f, "claim {claim}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Objects { rdma, what } => {
                write!(
                    f,
                    "whoever has {what} of {rdma} (rdma resource show {rdma})"
                )
            }
            Self::Module(name) => write!(f, "the module {name}"),
            Self::Unknown(why) => write!(f, "whoever has them, which is not known: {why}"),
        }
    }
}

impl User {
    /// Without what differs from one look to the next.
    pub(super) fn kind(&self) -> Self {
        match self {
            Self::Process { name, .. } => Self::Process {
                pid: 0,
                name: name.clone(),
            },
            Self::Objects { rdma, .. } => Self::Objects {
                rdma: rdma.clone(),
                what: String::new(),
            },
            other => other.clone(),
        }
    }
}

/// A device whose users are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedDevice {
    /// The functions of its RDMA device and of its netdev.
    pub addresses: Vec<DeviceAddress>,
    /// Its RDMA device; none: it has none this moment, as while it is made anew.
    pub rdma: Option<String>,
    /// The numbers of its character devices.
    pub numbers: Vec<(u32, u32)>,
}

/// A resource that is advertised to kubelet.
#[derive(Clone, Debug)]
pub struct Advertised {
    /// Its name.
    pub resource: String,
    /// Its ids, and the devices that each stands for.
    pub ids: BTreeMap<String, Vec<DeviceAddress>>,
}

/// Where users are looked for.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `rdma-cni`'s.
    pub state_dir: PathBuf,
    /// Of kubelet's pod-resources.
    pub socket: PathBuf,
    /// `/proc`
    pub proc: PathBuf,
}

/// The users of `devices`, whose driver is in `mode`; `offers` is what ids stand for that were
/// given by an earlier daemon. What cannot be asked counts as a user.
pub async fn gather(
    paths: &Paths,
    devices: &[WatchedDevice],
    mode: DriverMode,
    offers: &[Advertised],
) -> Vec<User> {
    if devices.is_empty() {
        return Vec::new();
    }
    let pods = pod_resources::all(&paths.socket, LIMIT).await;
    let pods = pods.map_err(|error| error.to_string());
    let (paths, devices, offers) = (paths.clone(), devices.to_vec(), offers.to_vec());
    let aside = tokio::task::spawn_blocking(move || look(&paths, &devices, mode, &offers, pods));
    match aside.await {
        Ok(users) => users,
        Err(error) => vec![User::Unknown(error.to_string())],
    }
}

fn look(
    paths: &Paths,
    devices: &[WatchedDevice],
    mode: DriverMode,
    offers: &[Advertised],
    pods: Result<Vec<PodResources>, String>,
) -> Vec<User> {
    let addresses: BTreeSet<&DeviceAddress> = devices.iter().flat_map(|it| &it.addresses).collect();
    let grants = Grants::new(&paths.state_dir);
    let mut users = BTreeSet::new();
    match pods {
        Ok(pods) => users.extend(of_kubelet(&pods, &addresses, offers, &grants)),
        // nobody was ever given one: there is nothing that kubelet could say
        Err(_) if !grants.all().iter().any(|it| it.has_any(&addresses)) => {}
        Err(error) => {
            users.insert(User::Unknown(error));
        }
    }
    let boot_id = Linux::new().boot_id().unwrap_or_default();
    let recorded = pods::used(&paths.state_dir.join("attachments"), &boot_id);
    let recorded = recorded
        .into_iter()
        .filter(|(it, _)| addresses.contains(it));
    users.extend(recorded.map(|(_, pod)| User::Pod(pod)));
    let (mut claims, unreadable) = Claims::new(&paths.state_dir).all();
    claims.retain(|record| record.nics().any(|nic| addresses.contains(&nic.address)));
    users.extend(claims.iter().map(|it| User::Claim(it.claim.to_string())));
    users.extend(unreadable.iter().map(|it| User::Unknown(it.to_string())));
    // one is enough to leave the driver alone
    if users.is_empty() {
        users.extend(processes(paths, devices));
    }
    // processes of another PID namespace are not seen, their objects are
    if users.is_empty() {
        users.extend(objects(devices, mode));
    }
    users.into_iter().collect()
}

fn of_kubelet(
    pods: &[PodResources],
    addresses: &BTreeSet<&DeviceAddress>,
    offers: &[Advertised],
    grants: &Grants,
) -> Vec<User> {
    let granted = |resource: &str, id: &str| -> bool {
        if let Some(grant) = grants.read(resource, id).ok().flatten() {
            return grant.has_any(addresses);
        }
        let offer = offers.iter().find(|offer| offer.resource == resource);
        let devices = offer.and_then(|offer| offer.ids.get(id));
        devices.is_some_and(|devices| devices.iter().any(|it| addresses.contains(it)))
    };
    let has = |pod: &&PodResources| {
        let mut devices = pod.containers.iter().flat_map(|it| &it.devices);
        devices.any(|it| {
            it.device_ids
                .iter()
                .any(|id| granted(&it.resource_name, id))
        })
    };
    let pods = pods.iter().filter(has);
    pods.map(|pod| User::Pod(format!("{}/{}", pod.namespace, pod.name)))
        .collect()
}

/// Part of what a descriptor of one of the RDMA subsystem's character devices leads to.
const DIRECTORY: &str = "infiniband/";

/// The processes that have one of the character devices open, as far as `/proc` shows them.
fn processes(paths: &Paths, devices: &[WatchedDevice]) -> Vec<User> {
    let numbers: Vec<(u32, u32)> = devices.iter().flat_map(|it| &it.numbers).copied().collect();
    let proc = &paths.proc;
    let unknown = |error: io::Error| User::Unknown(format!("cannot read {proc:?}: {error}"));
    let entries = match fs::read_dir(proc) {
        Ok(entries) => entries,
        Err(error) => return vec![unknown(error)],
    };
    let mut users = Vec::new();
    for process in entries.flatten() {
        let pid = process.file_name().to_str().and_then(|it| it.parse().ok());
        let Some(pid) = pid else { continue };
        match has_open(&process.path().join("fd"), &numbers) {
            Ok(false) => {}
            Ok(true) => {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                let name = name.trim_end().to_owned();
                users.push(User::Process { pid, name });
            }
            Err(error) => users.push(unknown(error)),
        }
    }
    users
}

/// Whether one of the descriptors is a device with one of the numbers. A process that has ended has
/// none. Only what is named as such a device is looked at: to look at a file of a server that does
/// not answer can take for ever.
fn has_open(descriptors: &Path, numbers: &[(u32, u32)]) -> io::Result<bool> {
    let entries = match fs::read_dir(descriptors) {
        Err(error) if has_ended(&error) => return Ok(false),
        entries => entries?,
    };
    for descriptor in entries {
        let found = descriptor.and_then(|it| is_one(&it.path(), numbers));
        match found {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // the process has closed it, or ended
            Err(error) if has_ended(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH)
}

fn is_one(descriptor: &Path, numbers: &[(u32, u32)]) -> io::Result<bool> {
    let target = fs::read_link(descriptor)?;
    if !target.to_string_lossy().contains(DIRECTORY) {
        return Ok(false);
    }
    let found = fs::metadata(descriptor)?;
    let number = found.rdev();
    let number = (nix::libc::major(number), nix::libc::minor(number));
    Ok(found.file_type().is_char_device() && numbers.contains(&number))
}

/// What the kernel counts of the devices that this namespace sees.
fn objects(devices: &[WatchedDevice], mode: DriverMode) -> Vec<User> {
    let counts = || -> Result<Vec<(String, Counts)>, String> {
        let why = |error: &dyn fmt::Display| format!("RDMA netlink: {error}");
        // without the RDMA subsystem nothing of it is anybody's
        let Some(mut nldev) = Nldev::open().map_err(|error| why(&error))? else {
            return Ok(Vec::new());
        };
        let mut counts = Vec::new();
        for found in nldev.devices().map_err(|error| why(&error))? {
            if devices
                .iter()
                .any(|it| it.rdma.as_ref() == Some(&found.name))
            {
                let counted = nldev.resources(found.index);
                counts.push((found.name, counted.map_err(|error| why(&error))?));
            }
        }
        Ok(counts)
    };
    of_counts(counts(), mode)
}

/// `ctx`, 2
type Counts = Vec<(String, u64)>;

fn of_counts(counted: Result<Vec<(String, Counts)>, String>, mode: DriverMode) -> Vec<User> {
    let counted = match counted {
        Ok(counted) => counted.into_iter(),
        Err(why) => return vec![User::Unknown(why)],
    };
    let users = counted.filter_map(|(rdma, counts)| {
        let what = of_users(&counts, mode)?;
        Some(User::Objects { rdma, what })
    });
    users.collect()
}

/// Contexts are processes'. A queue pair without any is the kernel's: in compatible mode one, for
/// management, is there without anybody's use; in mode default, iWARP, there is none, and one is a
/// link of SMC-R.
fn of_users(counts: &[(String, u64)], mode: DriverMode) -> Option<String> {
    let count = |name: &str| {
        let mut counts = counts.iter();
        counts
            .find(|(it, _)| it == name)
            .map_or(0, |(_, count)| *count)
    };
    let idle = match mode {
        DriverMode::Default => 0,
        DriverMode::Compat | DriverMode::Ofed => 1,
    };
    match (count("ctx"), count("qp")) {
        (0, pairs) if pairs <= idle => None,
        (0, pairs) => Some(format!("{pairs} queue pairs")),
        (contexts, _) => Some(format!("{contexts} contexts")),
    }
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;
