// SPDX-License-Identifier: Apache-2.0
//! Finds the users of the driver's devices. A reload of the driver would remove the devices from them.
//!
//! The module's reference count does not show all users. If the driver can remove devices from processes
//! (`disassociate_ucontext`), a process that has opened a device does not increase the count (`ib_uverbs_open()`,
//! `drivers/infiniband/core/uverbs_main.c`).

use crate::conf::DriverMode;
use attachments::{Attachment, Store};
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

/// Time limit for kubelet's answer.
const LIMIT: Duration = Duration::from_secs(5);

/// A user of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A pod to which kubelet or `rdma-cni` assigned the device.
    Pod(String),
    /// A claim that has the device. Its pods may just be starting.
    Claim(String),
    /// A process that has the device open.
    Process {
        /// Process id, in this program's pid namespace.
        pid: u32,
        /// Name of the process.
        name: String,
    },
    /// Kernel objects of the device. They belong to the kernel, or to processes that this program cannot see.
    Objects {
        /// RDMA device.
        rdma: String,
        /// Kind and number of the objects, such as `2 contexts`.
        what: String,
    },
    /// A module that depends on the driver.
    Module(String),
    /// The users are unknown, for this reason.
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
                    "the owners of {what} of {rdma} (rdma resource show {rdma})"
                )
            }
            Self::Module(name) => write!(f, "the module {name}"),
            Self::Unknown(why) => write!(f, "unknown users: {why}"),
        }
    }
}

impl User {
    /// Returns the user without the details that differ between observations.
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

/// A device whose users the daemon must find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedDevice {
    /// PCI functions of the RDMA device and of its netdev.
    pub addresses: Vec<DeviceAddress>,
    /// Name of the RDMA device. `None`: the RDMA device does not exist at present, as during a rebind.
    pub rdma: Option<String>,
    /// Major and minor numbers of the device's character devices.
    pub numbers: Vec<(u32, u32)>,
}

/// A resource that the daemon advertises to kubelet.
#[derive(Clone, Debug)]
pub struct Advertised {
    /// Name of the resource.
    pub resource: String,
    /// Devices of each id.
    pub ids: BTreeMap<String, Vec<DeviceAddress>>,
}

/// Paths that show the users of devices.
#[derive(Clone, Debug)]
pub struct Paths {
    /// State directory of `rdma-cni`.
    pub state_dir: PathBuf,
    /// Socket of kubelet's pod-resources.
    pub socket: PathBuf,
    /// Path of procfs, `/proc`.
    pub proc: PathBuf,
}

/// Returns users of `devices`, at least one if there is any. The devices' driver is in `mode`. `offers` shows the
/// devices of an id for which an earlier daemon wrote no grant. A source that cannot be read counts as a user. For
/// kubelet this applies only if one of `devices` has a grant.
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
    let found =
        tokio::task::spawn_blocking(move || gather_blocking(&paths, &devices, mode, &offers, pods));
    match found.await {
        Ok(users) => users,
        Err(error) => vec![User::Unknown(error.to_string())],
    }
}

fn gather_blocking(
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
        // ignore the error: without a grant of one of the devices, no pod can have a device
        Err(_) if !grants.all().iter().any(|it| it.has_any(&addresses)) => {}
        Err(error) => {
            users.insert(User::Unknown(error));
        }
    }
    users.extend(of_records(&paths.state_dir, &addresses));
    let (mut claims, unreadable) = Claims::new(&paths.state_dir).all();
    claims.retain(|record| record.nics().any(|nic| addresses.contains(&nic.address)));
    users.extend(claims.iter().map(|it| User::Claim(it.claim.to_string())));
    users.extend(unreadable.iter().map(|it| User::Unknown(it.to_string())));
    // search processes only if no user was found: one user is enough to keep the driver unchanged
    if users.is_empty() {
        users.extend(processes(paths, devices));
    }
    // search objects, too: processes of another pid namespace are invisible, but their objects are visible
    if users.is_empty() {
        users.extend(objects(devices, mode));
    }
    users.into_iter().collect()
}

/// Returns the pods that have one of `addresses`, according to the records of `rdma-cni`.
fn of_records(state_dir: &Path, addresses: &BTreeSet<&DeviceAddress>) -> Vec<User> {
    let unknown = |error: String| vec![User::Unknown(error)];
    let boot_id = match Linux::new().boot_id() {
        Ok(boot_id) => boot_id,
        Err(error) => return unknown(error.to_string()),
    };
    let store = Store::new(state_dir);
    let (mut records, unreadable) = match (store.of_boot(&boot_id), store.unreadable()) {
        (Ok(records), Ok(unreadable)) => (records, unreadable),
        (Err(error), _) | (_, Err(error)) => return unknown(error.to_string()),
    };
    records.retain(|it| it.devices().iter().any(|device| addresses.contains(device)));
    let name = |it: Attachment| it.pod.unwrap_or(it.key.container);
    let pods = records.into_iter().map(|it| User::Pod(name(it)));
    let unknown = |key| User::Unknown(format!("the record of {key} cannot be read"));
    pods.chain(unreadable.into_iter().map(unknown)).collect()
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

/// Part of the path of an RDMA character device, to which the link of an open descriptor leads.
const DIRECTORY: &str = "infiniband/";

/// Returns the processes in `/proc` that have one of the devices' character devices open.
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

/// Returns true if one of the descriptors is open on a device with one of `numbers`. Returns false for a process that
/// has ended.
///
/// Calls stat(2) only for descriptors whose link leads to an RDMA device: stat(2) on a file of an unreachable server
/// can block forever.
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
            // ignore the descriptor: the process has closed it, or has ended
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

/// Returns the users of the devices' kernel objects, for those devices that this network namespace sees.
fn objects(devices: &[WatchedDevice], mode: DriverMode) -> Vec<User> {
    let counts = || -> Result<Vec<(String, Counts)>, String> {
        let why = |error: &dyn fmt::Display| format!("RDMA netlink: {error}");
        // without the RDMA subsystem there are no objects
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

/// Kinds of objects with their numbers, such as `ctx` and 2.
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

/// Describes the number of objects that belong to users. A context belongs to a process. A queue pair without a context
/// belongs to the kernel. In the modes `compat` and `ofed` the kernel always has one such queue pair, for management.
/// In the mode `default` (iWARP) the kernel has no queue pair for management: each queue pair without a context is a
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
        (0, 1) => Some("1 queue pair".to_owned()),
        (0, pairs) => Some(format!("{pairs} queue pairs")),
        (1, _) => Some("1 context".to_owned()),
        (contexts, _) => Some(format!("{contexts} contexts")),
    }
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;
