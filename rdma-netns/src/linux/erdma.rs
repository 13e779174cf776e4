// SPDX-License-Identifier: Apache-2.0
//! Special cases of eRDMA: a NIC has two PCI functions, and the driver has modes.

use super::{Linux, devices::read, smc::erdma_compat};
use crate::{
    DeviceAddress, ErdmaModule, Function, Netdev,
    pairing::{ERDMA, is_guid_of},
    rdma::name,
};
use std::path::Path;

/// Pairs eRDMA's RDMA devices with their netdevs. The netdev is on another function than the RDMA device. Two rules
/// find the netdev:
///
/// - The RDMA device's GUID derives from the netdev's MAC ([`pairing`](crate::pairing)). The rule applies to eRDMA
///   only, because a virtual function of another vendor can have a GUID that also derives from another netdev's MAC.
/// - The netdev's name is in the GID table of the RDMA device's port. The table does not name a namespace, and a
///   different netdev in this namespace can have the same name. So the rule applies only to netdevs whose MAC a program
///   changed: such a MAC matches no GUID.
pub(super) fn pair(sysfs: &Path, functions: &mut [Function]) {
    let peers: Vec<_> = functions
        .iter()
        .map(|function| peer(sysfs, function, functions))
        .collect();
    for (function, peer) in functions.iter_mut().zip(peers) {
        if let Some((address, netdev)) = peer {
            function.netdevs = vec![netdev];
            function.netdev_function = Some(address);
        }
    }
}

/// Returns the netdev of the eRDMA device of `function`, and the function that has this netdev. Searches the functions
/// without an RDMA device. Returns `None` if `function` itself has a netdev.
fn peer(
    sysfs: &Path,
    function: &Function,
    functions: &[Function],
) -> Option<(DeviceAddress, Netdev)> {
    let is_erdma = function.device.driver.as_deref() == Some(ERDMA);
    let hca = function
        .hcas
        .first()
        .filter(|_| is_erdma && function.netdevs.is_empty())?;
    let directory = name::directory(sysfs, &hca.name);
    let guid = read(&directory, "node_guid")?;
    let find = |is_it: &dyn Fn(&Netdev) -> bool| {
        let mut others = functions.iter().filter(|other| other.hcas.is_empty());
        others.find_map(|other| {
            let netdev = other.netdevs.iter().find(|netdev| is_it(netdev))?;
            Some((other.device.address.clone(), netdev.clone()))
        })
    };
    let port = read(&directory, "ports/1/gid_attrs/ndevs/0");
    let is_port =
        |it: &Netdev| port.as_deref() == Some(it.name.as_str()) && has_another_mac(sysfs, it);
    find(&|it| is_guid_of(&guid, &it.mac)).or_else(|| find(&is_port))
}

/// Returns true if a program changed the netdev's MAC (`NET_ADDR_SET`, `include/uapi/linux/netdevice.h`). The RDMA
/// device's GUID continues to derive from the earlier MAC until the driver is loaded again.
fn has_another_mac(sysfs: &Path, netdev: &Netdev) -> bool {
    let directory = sysfs.join("class/net").join(&netdev.name);
    read(&directory, "addr_assign_type").as_deref() == Some("3")
}

/// Returns the module of the eRDMA driver. Returns `None` if the module is not loaded.
pub(super) fn erdma_module(sysfs: &Path) -> Option<ErdmaModule> {
    let modules = sysfs.join("module");
    let module = modules.join("erdma");
    module.is_dir().then(|| ErdmaModule {
        compat: erdma_compat(sysfs).ok().flatten(),
        ofed: modules.join("mlx_compat").is_dir(),
    })
}

impl Linux {
    /// Returns the module of the eRDMA driver. Returns `None` if the module is not loaded.
    pub fn erdma_module(&self) -> Option<ErdmaModule> {
        erdma_module(&self.sysfs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_drivers_parameter_and_the_stack_that_it_is_on() {
        for (parameter, ofed, compat) in [
            (None, false, None),
            (Some("Y\n"), false, Some(true)),
            (Some("N\n"), true, Some(false)),
            (Some("1\n"), true, Some(true)),
        ] {
            let sysfs = tempfile::tempdir().expect("a directory");
            let kernel = Linux::with_roots(sysfs.path(), sysfs.path());
            assert_eq!(kernel.erdma_module(), None);
            let parameters = sysfs.path().join("module/erdma/parameters");
            fs::create_dir_all(&parameters).expect("made");
            if let Some(value) = parameter {
                fs::write(parameters.join("compat_mode"), value).expect("written");
            }
            if ofed {
                fs::create_dir(sysfs.path().join("module/mlx_compat")).expect("made");
            }
            assert_eq!(kernel.erdma_module(), Some(ErdmaModule { compat, ofed }));
        }
    }
}
