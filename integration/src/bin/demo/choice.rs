// SPDX-License-Identifier: Apache-2.0
//! Chooses four PCI functions of a host for the demonstration. A chosen function has no virtual functions, and
//! `rdma-cni` can move it into a pod. Its Ethernet netdev is up, and has no address that may be in use.

use network_conf::{Conf, Devices};
use plan::select::{self, Choice, SelectError};
use rdma_netns::{Device, DeviceAddress, InterfaceName, LinkType, Observed, RdmaMode};
use serde_json::json;
use std::{collections::BTreeMap, fmt};

/// A free function, and the devices that move with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) pci: DeviceAddress,
    pub(super) netdev: InterfaceName,
    pub(super) rdma: String,
    /// The physical function of a virtual function. For a physical function, its own address.
    port: DeviceAddress,
}

/// Reason why four functions cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    #[error(
        "this kernel has no RDMA subsystem: load ib_core and the driver of the RDMA NICs, or run scripts/demo without \
         --host"
    )]
    Subsystem,
    #[error("{0}, and try again, or run scripts/demo without --host")]
    Mode(SelectError),
    #[error(
        "four free PCI functions are needed, each with an RDMA device and an Ethernet netdev that is up, and this host \
         has {found}{}; make virtual functions of an RDMA NIC (sriov_numvfs) and set their netdevs up, or name four \
         functions, or run scripts/demo without --host",
        Reasons(not_free)
    )]
    Functions { found: usize, not_free: Vec<String> },
}

struct Reasons<'a>(&'a [String]);

impl fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            reasons => write!(f, " ({})", reasons.join("; ")),
        }
    }
}

/// Returns the two functions of the first pod's rails, then the two of the second pod's rails.
///
/// Two free functions of one physical function make a rail, because the NIC's own switch connects them. Else two
/// functions of different physical functions make a rail. If possible, the two rails use two physical functions.
pub(super) fn choose(observed: &Observed) -> Result<[Free; 4], Missing> {
    match observed.rdma_mode {
        None => return Err(Missing::Subsystem),
        Some(RdmaMode::Shared) => {
            return Err(Missing::Mode(SelectError::WrongMode(RdmaMode::Shared)));
        }
        Some(RdmaMode::Exclusive) => {}
    }
    let (mut free, mut not_free) = (vec![], vec![]);
    for device in observed.devices.iter().filter(|it| is_candidate(it)) {
        match as_free(device, observed) {
            Ok(function) => free.push(function),
            Err(why) => not_free.push(format!("{}: {why}", device.address)),
        }
    }
    free.sort_by(|a, b| a.pci.cmp(&b.pci));
    let found = free.len();
    let pairs: Option<[[Free; 2]; 2]> = in_pairs(free).try_into().ok();
    match pairs {
        Some([[a0, b0], [a1, b1]]) => Ok([a0, a1, b0, b1]),
        None => Err(Missing::Functions { found, not_free }),
    }
}

fn is_candidate(device: &Device) -> bool {
    device.address.bus() == "pci" && !device.rdma.is_empty()
}

/// Returns `device` as a free function, or the reason why it is not free.
fn as_free(device: &Device, observed: &Observed) -> Result<Free, String> {
    if device.virtual_functions > 0 {
        return Err("it has virtual functions".to_owned());
    }
    let configuration = json!({
        "cniVersion": "1.1.0", "name": "demo", "type": "rdma-cni", "devices": [{"pci": &*device.address}]
    });
    let fields = configuration.as_object().expect("an object").clone();
    let conf = Conf::parse(fields).expect("a configuration");
    let Ok(Devices::Selectors(selectors)) = conf.required_devices() else {
        unreachable!("it has selectors");
    };
    let rails = select::rails(&conf, &Choice::Selectors(selectors), observed, &[]);
    let rails = rails.map(|selected| selected.rails);
    let rail = match rails.as_deref() {
        Ok([rail]) => rail,
        Ok(rails) => return Err(format!("it has {} netdevs", rails.len())),
        Err(SelectError::NeededByHost { why, .. }) => return Err(why.clone()),
        Err(SelectError::NotFound(_)) => return Err("its netdev is not on the host".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let Some(link) = &rail.host_link else {
        return Err("pods share it".to_owned());
    };
    let mut addresses = link.addresses.iter();
    if let Some(address) = addresses.find(|it| it.names_a_network()) {
        return Err(format!(
            "{} has {}, which may be in use",
            link.name, address.ip
        ));
    }
    match &rail.rdma {
        Some(_) if link.link_type != LinkType::Ether => {
            Err(format!("{} is no Ethernet netdev", link.name))
        }
        Some(_) if !(link.up && link.carrier) => Err(format!("{} is down", link.name)),
        Some(rdma) => Ok(Free {
            pci: device.address.clone(),
            netdev: link.name.clone(),
            rdma: rdma.name.clone(),
            port: device
                .physical_function
                .clone()
                .unwrap_or_else(|| device.address.clone()),
        }),
        None => Err("it has no RDMA device on the host".to_owned()),
    }
}

/// Returns at most two rails, each with two functions.
fn in_pairs(free: Vec<Free>) -> Vec<[Free; 2]> {
    let mut by_port: BTreeMap<DeviceAddress, Vec<Free>> = BTreeMap::new();
    for function in free {
        by_port
            .entry(function.port.clone())
            .or_default()
            .push(function);
    }
    // order: the first pair of each port, then the second pair of each port, then functions without a partner on
    // their port
    let (mut pairs, mut single) = (vec![], vec![]);
    for functions in by_port.into_values() {
        let mut functions = functions.into_iter();
        let mut number = 0;
        while let Some(first) = functions.next() {
            match functions.next() {
                Some(second) => pairs.push((number, [first, second])),
                None => single.push(first),
            }
            number += 1;
        }
    }
    pairs.sort_by_key(|(number, _)| *number);
    let mut pairs: Vec<[Free; 2]> = pairs.into_iter().map(|(_, pair)| pair).collect();
    let mut single = single.into_iter();
    while let (Some(first), Some(second)) = (single.next(), single.next()) {
        pairs.push([first, second]);
    }
    pairs.truncate(2);
    pairs
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
