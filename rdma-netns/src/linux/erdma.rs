// SPDX-License-Identifier: Apache-2.0
//! Special cases of eRDMA: a NIC has two PCI functions, and the driver has modes.

use super::{Linux, devices::read, smc::erdma_compat};
use crate::{
    ErdmaModule, Function, Hca, Netdev,
    pairing::{ERDMA, is_guid_of},
    rdma::name,
};
use std::path::Path;

/// Pairs eRDMA's RDMA devices that have a parent with their netdevs. The netdev is on another function than the RDMA
/// device. `port_place` returns the place of the function that has the netdev of an RDMA device's port. Else the RDMA
/// device's GUID derives from the netdev's MAC ([`pairing`](crate::pairing)). All ports precede, because a netdev can
/// have a MAC from which the GUID of another RDMA device derives. The rules apply to eRDMA only, because a virtual
/// function of another vendor can have a GUID that also derives from another netdev's MAC.
pub(super) fn pair(
    sysfs: &Path,
    functions: &mut [Function],
    port_place: impl Fn(&str, &[Function]) -> Option<usize>,
) {
    for is_by_port in [true, false] {
        for own in 0..functions.len() {
            let Some(hca) = lone(&functions[own]) else {
                continue;
            };
            let place = match is_by_port {
                true => port_place(&hca.name, functions).filter(|it| is_free(*it, functions)),
                false => guid_place(sysfs, &hca.name, functions),
            };
            if let Some(place) = place {
                functions[own].netdevs = functions[place].netdevs.clone();
                functions[own].netdev_function = Some(functions[place].device.address.clone());
            }
        }
    }
}

/// Returns the RDMA device of an eRDMA function that has no netdev.
fn lone(function: &Function) -> Option<&Hca> {
    let is_erdma = function.device.driver.as_deref() == Some(ERDMA);
    let mut hcas = function.hcas.iter();
    hcas.next()
        .filter(|_| is_erdma && function.netdevs.is_empty())
}

/// Returns true if the function at `place` has no RDMA device, and its netdevs belong to no other function's RDMA
/// device.
fn is_free(place: usize, functions: &[Function]) -> bool {
    let address = Some(&functions[place].device.address);
    let mut others = functions.iter();
    functions[place].hcas.is_empty() && others.all(|it| it.netdev_function.as_ref() != address)
}

/// Returns the place of the free function that has a netdev from whose MAC the GUID of the RDMA device `name` derives.
fn guid_place(sysfs: &Path, name: &str, functions: &[Function]) -> Option<usize> {
    let guid = read(&name::directory(sysfs, name), "node_guid")?;
    let is_its = |netdev: &Netdev| is_guid_of(&guid, &netdev.mac);
    (0..functions.len())
        .find(|it| functions[*it].netdevs.iter().any(is_its) && is_free(*it, functions))
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
