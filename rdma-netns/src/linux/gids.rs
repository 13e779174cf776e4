// SPDX-License-Identifier: Apache-2.0
//! GID tables from sysfs (`drivers/infiniband/core/sysfs.c`).
//!
//! ADD waits for a pod's GIDs, so it reads the table often. A read of one index opens one file, and takes three system
//! calls. Further files are read only for indexes with a GID.

use super::inside;
use crate::{Gid, GidKind, GidTable, netns::Netns, rdma::name};
use nix::{
    fcntl::{OFlag, openat},
    libc,
    sys::stat::Mode,
};
use std::{
    fs::{self, File},
    io::{self, Read},
    net::Ipv6Addr,
    path::Path,
};

/// Returns the GID table of a port of the RDMA device `device` below `sysfs`.
///
/// # Errors
/// The table is missing, or cannot be read.
pub fn read(sysfs: &Path, device: &str, port: u32) -> io::Result<GidTable> {
    let port = name::directory(sysfs, device).join(format!("ports/{port}"));
    let gids = File::open(port.join("gids"))?;
    let attributes = port.join("gid_attrs");
    let mut table = GidTable::default();
    loop {
        let index = table.size;
        let ip = match gid(&gids, index) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            ip => ip?,
        };
        table.size += 1;
        if ip.is_unspecified() {
            continue;
        }
        let attribute = |name: &str| attribute(&attributes.join(name).join(index.to_string()));
        let Some(kind) = attribute("types")?.and_then(|text| kind(&text)) else {
            continue;
        };
        table.gids.push(Gid {
            index,
            ip,
            kind,
            netdev: attribute("ndevs")?,
        });
    }
    Ok(table)
}

/// Returns the GID at `index`. Returns all zeros if the entry is free.
fn gid(gids: &File, index: u32) -> io::Result<Ipv6Addr> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = openat(gids, index.to_string().as_str(), flags, Mode::empty())?;
    // a GID's text: 8 groups of 4 digits, 7 colons, and a line feed
    let mut text = [0; 40];
    let length = File::from(file).read(&mut text)?;
    let text = str::from_utf8(&text[..length]).unwrap_or_default();
    Ok(text.trim_end().parse().unwrap_or(Ipv6Addr::UNSPECIFIED))
}

/// Reads a GID table as `netns` sees it. A thread enters the namespace and mounts its own sysfs.
pub(super) fn read_inside(
    netns: &Netns,
    sysfs: &Path,
    device: &str,
    port: u32,
) -> io::Result<GidTable> {
    netns
        .run(|| {
            inside::mount_own(sysfs, inside::READ)?;
            read(sysfs, device, port)
        })
        .flatten()
}

/// Reads an attribute of a GID. Returns `None` if the GID has no such attribute, or has disappeared (EINVAL,
/// `_show_port_gid_attr()`).
fn attribute(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses a GID's kind as `gid_type_str` in `drivers/infiniband/core/cache.c` prints it.
fn kind(text: &str) -> Option<GidKind> {
    match text {
        "IB/RoCE v1" => Some(GidKind::InfinibandOrRoceV1),
        "RoCE v2" => Some(GidKind::RoceV2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sysfs with a port whose GID table has 1024 entries. Entries 0, 1 and 900 are in use.
    fn port() -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().expect("a directory");
        let port = sysfs.path().join("class/infiniband/mlx5_bond_0/ports/1");
        for directory in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            fs::create_dir_all(port.join(directory)).expect("a directory");
        }
        let file = |directory: &str, index: u32, text: &str| {
            let file = port.join(directory).join(index.to_string());
            fs::write(file, text).expect("a file");
        };
        for index in 0..1024 {
            file("gids", index, "0000:0000:0000:0000:0000:0000:0000:0000\n");
        }
        for (index, gid, kind, netdev) in [
            (
                0,
                "fe80:0000:0000:0000:0042:acff:fe00:0001",
                "IB/RoCE v1",
                "bond0",
            ),
            (
                1,
                "fd00:0000:0000:0000:0000:0000:0000:0005",
                "RoCE v2",
                "bond0",
            ),
            (
                900,
                "0000:0000:0000:0000:0000:ffff:0a01:0005",
                "RoCE v2",
                "rdma0",
            ),
        ] {
            file("gids", index, &format!("{gid}\n"));
            file("gid_attrs/types", index, &format!("{kind}\n"));
            file("gid_attrs/ndevs", index, &format!("{netdev}\n"));
        }
        sysfs
    }

    #[test]
    fn a_table_is_read() {
        let sysfs = port();
        let table = read(sysfs.path(), "mlx5_bond_0", 1).expect("a table");
        assert_eq!((table.size, table.used()), (1024, 3));
        assert_eq!(table.gids[0].kind, GidKind::InfinibandOrRoceV1);
        let mut found = table.all("10.1.0.5".parse().expect("an address"), GidKind::RoceV2);
        let found = found.next().expect("a GID");
        assert_eq!((found.index, found.netdev.as_deref()), (900, Some("rdma0")));
    }

    #[test]
    fn a_gid_that_went_away_meanwhile_is_not_there() {
        let sysfs = port();
        let types = "class/infiniband/mlx5_bond_0/ports/1/gid_attrs/types/1";
        fs::remove_file(sysfs.path().join(types)).expect("removed");
        let table = read(sysfs.path(), "mlx5_bond_0", 1).expect("a table");
        let indices: Vec<u32> = table.gids.iter().map(|gid| gid.index).collect();
        assert_eq!(indices, [0, 900]);
    }

    #[test]
    fn a_device_or_port_that_is_not_there_is_an_error() {
        let sysfs = port();
        for (device, port) in [("mlx5_0", 1), ("mlx5_bond_0", 2)] {
            let error = read(sysfs.path(), device, port).expect_err("an error");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }
}
