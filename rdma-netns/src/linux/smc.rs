// SPDX-License-Identifier: Apache-2.0
//! Reads and changes SMC's settings.

use super::{Space, cannot_read};
use crate::{
    NetnsSide, ObserveError,
    netlink::{NetlinkError, tolerate},
    smc::{
        self, Connection, HeldConnections, Mode, PnetEntry, PnetId, PnetTable, SmcState, UserEids,
    },
};
use nix::libc;
use std::{collections::BTreeMap, fs, io, path::Path, sync::Once};

/// Settings with a value for each network namespace. The files show the values of the reading thread's namespace
/// (`net_ctl_header_lookup()`, `net/sysctl_net.c`).
pub(super) const MAX_LINKS: &str = "/proc/sys/net/smc/smcr_max_links_per_lgr";
pub(super) const TCP2SMC: &str = "/proc/sys/net/smc/tcp2smc";

/// Reads the SMC state. Returns `None` if the kernel has no SMC.
pub(super) fn read(
    host: &Space,
    pod: Option<&Space>,
    sysfs: &Path,
) -> Result<Option<SmcState>, ObserveError> {
    let mut table = match host.pnet() {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        opened => opened.map_err(cannot_read("the host's pnet table"))?,
    };
    let mut state = SmcState {
        host: table
            .entries()
            .map_err(cannot_read("the host's pnet table"))?,
        ueids: smc::user_eids().map_err(cannot_read("the user EIDs"))?,
        erdma_compat: erdma_compat(sysfs).map_err(cannot_read("the erdma driver's mode"))?,
        devices: smc::used_devices().map_err(cannot_read("the RDMA devices that SMC uses"))?,
        ..SmcState::default()
    };
    let Some(pod) = pod else {
        let connections = host.netns().run(smc::connections);
        let connections = connections.map_err(NetlinkError::from).flatten();
        state.held = known(connections).map_err(cannot_read("the SMC connections of the host"))?;
        return Ok(Some(state));
    };
    // only a thread in the pod's namespace can read these settings
    let inside = || -> Result<SmcState, ObserveError> {
        let entries = PnetTable::open().and_then(|mut table| table.entries());
        Ok(SmcState {
            pod: entries.map_err(cannot_read("the pod's pnet table"))?,
            tcp2smc: switch(Path::new(TCP2SMC))
                .map_err(cannot_read("net.smc.tcp2smc of the pod"))?,
            max_links: number(Path::new(MAX_LINKS))
                .map_err(cannot_read("net.smc.smcr_max_links_per_lgr of the pod"))?,
            held: known(smc::connections())
                .map_err(cannot_read("the SMC connections of the pod"))?,
            ..state
        })
    };
    let state = pod.netns().run(inside);
    let state = state.map_err(cannot_read("the pod's namespace"))?;
    state.map(Some)
}

/// Returns true if the kernel has SMC, built in or loaded: `/proc/net/protocols` then lists the protocol.
pub(super) fn is_there() -> bool {
    let protocols = fs::read_to_string("/proc/thread-self/net/protocols").unwrap_or_default();
    protocols.lines().any(|line| line.starts_with("SMC"))
}

/// Returns the connections that delay a move. Returns none if the kernel does not report connections. Logs only the
/// first such failure.
fn known(
    connections: Result<Vec<Connection>, NetlinkError>,
) -> Result<Vec<HeldConnections>, NetlinkError> {
    static LOGGED: Once = Once::new();
    match connections {
        Ok(connections) => Ok(held(&connections)),
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            LOGGED.call_once(|| {
                log::warn!(
                    "this kernel does not report SMC sockets, so a move of a device hangs if a process has open SMC \
                     connections over the device: install the module smc_diag (CONFIG_SMC_DIAG)"
                );
            });
            Ok(vec![])
        }
        Err(error) => Err(error),
    }
}

/// Counts the SMC-R connections over each RDMA device. The kernel does not report a connection that its process has
/// closed, or whose process was killed (`__smc_release()`, `net/smc/af_smc.c`). The kernel reports a connection that
/// its listener has not accepted. With such a connection a move waited for over 300 s (Linux 6.12), even after the
/// listener had ended.
fn held(connections: &[Connection]) -> Vec<HeldConnections> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for connection in connections {
        if let (Mode::Smcr, Some(link)) = (connection.mode, &connection.link) {
            *counts.entry(&link.device).or_default() += 1;
        }
    }
    let held = counts.into_iter().map(|(device, count)| HeldConnections {
        device: device.to_owned(),
        count,
    });
    held.collect()
}

/// Returns the parameter `compat_mode` of the erdma driver.
pub(super) fn erdma_compat(sysfs: &Path) -> io::Result<Option<bool>> {
    switch(&sysfs.join("module/erdma/parameters/compat_mode"))
}

/// Reads a file that contains Y or N, or a number. Returns `None` if the file is missing.
fn switch(file: &Path) -> io::Result<Option<bool>> {
    Ok(text(file)?.map(|text| !matches!(text.trim_end(), "N" | "n" | "0")))
}

/// Reads a file that contains a number. Returns `None` if the file is missing.
fn number(file: &Path) -> io::Result<Option<u8>> {
    Ok(text(file)?.and_then(|text| text.trim_end().parse().ok()))
}

fn text(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some),
    }
}

/// Adds to the pnet table the parts of `entry` that the table lacks.
pub(super) fn add_pnet(
    space: &Space,
    at: NetnsSide,
    entry: &PnetEntry,
) -> Result<(), NetlinkError> {
    if at == NetnsSide::Pod && entry.rdma.is_some() {
        return Err(refused(
            libc::EEXIST,
            "the kernel keeps pnet ids of RDMA ports in its initial network namespace only",
        ));
    }
    let mut table = open_table(space)?;
    for half in missing(&mut table, entry)? {
        match table.add(&half) {
            // another process has added the entry meanwhile, or the object has a pnet id that the kernel does not list
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                if !missing(&mut table, &half)?.is_empty() {
                    return Err(refused(libc::EEXIST, already(&half)));
                }
            }
            added => added?,
        }
    }
    Ok(())
}

fn missing(table: &mut PnetTable, entry: &PnetEntry) -> Result<Vec<PnetEntry>, NetlinkError> {
    let taken = |taken: smc::PnetTaken| refused(libc::EEXIST, taken.to_string());
    smc::missing(&table.entries()?, entry).map_err(taken)
}

/// Explains why the kernel returned EEXIST for an entry that is not in the table.
fn already(half: &PnetEntry) -> &'static str {
    match half.rdma {
        Some(_) => {
            "the port has a pnet id of its hardware, or an entry under its PCI address, or this program is not in the \
             initial network namespace"
        }
        None => "the netdev has a pnet id of its hardware",
    }
}

pub(super) fn remove_pnet(space: &Space, id: &PnetId) -> Result<(), NetlinkError> {
    let removed = open_table(space).and_then(|mut table| table.remove(id));
    tolerate(libc::ENOENT, removed)
}

fn open_table(space: &Space) -> Result<PnetTable, NetlinkError> {
    space.pnet().map_err(no_smc)
}

/// Adds a user EID. Reads the table first, because the kernel returns ERANGE for a full table even if the table has the
/// EID.
pub(super) fn add_ueid(ueid: &str) -> Result<(), NetlinkError> {
    let mut ueids = UserEids::open().map_err(no_smc)?;
    if ueids.list()?.iter().any(|present| present == ueid) {
        return Ok(());
    }
    tolerate(libc::EEXIST, ueids.add(ueid)).map_err(|error| match error.errno() {
        Some(libc::ERANGE) => refused(libc::ERANGE, "the kernel's table of user EIDs is full"),
        Some(libc::EINVAL) if error.message.is_none() => refused(
            libc::EINVAL,
            "a user EID consists of A-Z, 0-9, '.' and '-', and begins with a letter or a digit",
        ),
        _ => error,
    })
}

pub(super) fn remove_ueid(ueid: &str) -> Result<(), NetlinkError> {
    let removed = UserEids::open().and_then(|mut ueids| ueids.remove(ueid));
    tolerate(libc::ENOENT, removed)
}

/// Writes `value` to `file`, one of the settings of `pod`.
pub(super) fn set(pod: &Space, file: &str, value: u8) -> Result<(), NetlinkError> {
    let write = || fs::write(file, format!("{value}\n"));
    pod.inside(write)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => {
                let name = file.trim_start_matches("/proc/sys/").replace('/', ".");
                refused(libc::ENOENT, format!("this kernel has no {name}"))
            }
            _ => error.into(),
        })
}

fn no_smc(error: NetlinkError) -> NetlinkError {
    match error.errno() {
        Some(libc::ENOENT) => refused(libc::ENOENT, "this kernel has no SMC"),
        _ => error,
    }
}

fn refused(errno: i32, message: impl Into<String>) -> NetlinkError {
    NetlinkError {
        source: io::Error::from_raw_os_error(errno),
        message: Some(message.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smc::{ConnectionLink, State};

    fn connection(mode: Mode, device: Option<&str>, inode: u64) -> Connection {
        Connection {
            state: State::ACTIVE,
            mode,
            local: None,
            peer: None,
            uid: 0,
            inode,
            link: device.map(|device| ConnectionLink {
                id: 1,
                device: device.to_owned(),
                port: 1,
                gid: None,
                peer_gid: None,
            }),
            fallback: None,
        }
    }

    #[test]
    fn connections_over_rdma_are_counted_by_device() {
        let connections = [
            connection(Mode::Smcr, Some("rxe1"), 7),
            connection(Mode::Smcr, Some("rxe0"), 8),
            // the listener has not accepted the connection yet
            connection(Mode::Smcr, Some("rxe1"), 0),
            connection(Mode::Smcr, None, 9),
            connection(Mode::Tcp, None, 10),
        ];
        let count = |device: &str, count| HeldConnections {
            device: device.to_owned(),
            count,
        };
        assert_eq!(held(&connections), [count("rxe0", 1), count("rxe1", 2)]);
    }

    #[test]
    fn the_mode_of_the_erdma_driver() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let directory = sysfs.path().join("module/erdma/parameters");
        let mode = || erdma_compat(sysfs.path()).expect("a mode");
        assert_eq!(mode(), None);
        fs::create_dir_all(&directory).expect("a directory");
        assert_eq!(mode(), None);
        for (text, compat) in [("N\n", false), ("0\n", false), ("Y\n", true), ("1\n", true)] {
            fs::write(directory.join("compat_mode"), text).expect("written");
            assert_eq!(mode(), Some(compat), "{text:?}");
        }
    }
}
