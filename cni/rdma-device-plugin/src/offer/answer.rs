// SPDX-License-Identifier: Apache-2.0
//! What a container gets for its ids.
//!
//! Character devices are given with `rw`, as sriov-network-device-plugin does, and not with the
//! `rwm` of others: `m` lets a container make device nodes of its own, and the nodes are made by
//! the runtime.

use super::{Offer, OfferedDevice, OfferedId, select::hca_of};
use crate::conf::Ids;
use ::erdma::driver;
use kubelet_api::device_plugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec};
use rdma_netns::{CharDevice, Inventory};
use rdma_resources::{
    CharNode, Grant, cdi,
    container::ContainerId,
    grant::{FORMAT, GrantedDevice},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// An id cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// There is none such.
    #[error("{resource} has no id {id:?}")]
    Unknown {
        /// The resource.
        resource: String,
        /// Kubelet's id.
        id: String,
    },
    /// Its devices are not healthy.
    #[error("{id:?} of {resource} cannot be allocated: {devices} is not healthy")]
    Unhealthy {
        /// The resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// Its devices' addresses.
        devices: String,
    },
    /// The resource has fewer devices than it has to have.
    #[error("{id:?} cannot be allocated: {why}")]
    Short {
        /// Kubelet's id.
        id: String,
        /// How many there are, and are to be.
        why: String,
    },
    /// Its devices have nothing that could be given.
    #[error("{id:?} of {resource} cannot be allocated: {why}")]
    Gone {
        /// The resource.
        resource: String,
        /// Kubelet's id.
        id: String,
        /// What is missing of which device.
        why: String,
    },
}

/// What a claim gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The devices, with their character devices.
    pub devices: Vec<GrantedDevice>,
    /// `rdma_cm`, if it works with one of them.
    pub connection_manager: Option<CharNode>,
    /// Variables of the container's environment.
    pub variables: BTreeMap<String, String>,
}

impl Offer {
    /// What a container gets that was allocated `ids`, and what of it each id stands for.
    ///
    /// Only what is there now, and healthy, is given. An id of several devices gives those that
    /// are, and the log says which one the container goes without.
    pub fn answer(
        &self,
        ids: &[String],
        inventory: &Inventory,
    ) -> Result<(ContainerAllocateResponse, Vec<Grant>), AnswerError> {
        let mut grants = Vec::new();
        let mut given: Vec<&OfferedDevice> = Vec::new();
        for id in ids {
            let id = self.id(id)?;
            let whose = format!("{:?} of {}", id.id, self.name);
            let found = self.present(&id.devices, inventory, &whose);
            let (own, devices) = found.map_err(|why| AnswerError::Gone {
                resource: self.name.to_string(),
                id: id.id.clone(),
                why,
            })?;
            for device in own {
                if !given.iter().any(|other| other.address == device.address) {
                    given.push(device);
                }
            }
            grants.push(Grant {
                format: FORMAT,
                resource: self.name.to_string(),
                id: id.id.clone(),
                sharing: self.sharing,
                cdi: self.cdi,
                // to be said where it is recorded
                chained: false,
                told: self.environment.has_rails(),
                devices,
            });
        }
        let connection_manager = self.connection_manager(&given, inventory);
        let ids_given = grants.iter().map(|grant| grant.id.as_str());
        let mut environment = self.environment(ids_given, &given, inventory);
        environment.extend(self.for_libraries(&given));
        environment.extend(self.information(&grants, connection_manager));
        let mut response = ContainerAllocateResponse {
            envs: environment.into_iter().collect(),
            ..ContainerAllocateResponse::default()
        };
        if self.cdi {
            let names = given.iter().map(|device| cdi::full_name(&device.address));
            let manager = connection_manager.map(|_| cdi::full_name(cdi::CONNECTION_MANAGER));
            let devices = names.chain(manager).map(|name| CdiDevice { name });
            response.cdi_devices = devices.collect();
            let container = ContainerId::of(self.name.as_str(), ids);
            let container = container.filter(|_| self.environment.has_rails());
            let name = container.map(|it| CdiDevice {
                name: it.full_name(),
            });
            response.cdi_devices.extend(name);
        } else {
            let mut names: Vec<&str> = Vec::new();
            let nodes = grants
                .iter()
                .flat_map(|grant| &grant.devices)
                .flat_map(|device| &device.char_devices)
                .map(|node| node.name.as_str())
                .chain(connection_manager.map(|manager| manager.name.as_str()));
            for name in nodes {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            response.devices = names.into_iter().map(spec).collect();
        }
        Ok((response, grants))
    }

    /// What a container gets that was allocated the devices at `places`, by a claim and not by ids.
    ///
    /// Only what is there now, and healthy, is given; the log says what a container goes without.
    ///
    /// # Errors
    /// Nothing of it is, and why.
    pub fn give(&self, places: &[usize], inventory: &Inventory) -> Result<Given, String> {
        if let Some(why) = &self.short {
            return Err(why.clone());
        }
        let (given, devices) =
            self.present(places, inventory, &format!("a claim of {}", self.name))?;
        let manager = self.connection_manager(&given, inventory);
        let addresses = given.iter().map(|device| &*device.address);
        Ok(Given {
            connection_manager: manager.map(CharNode::from),
            variables: self.environment(addresses, &given, inventory),
            devices,
        })
    }

    fn id(&self, id: &str) -> Result<&OfferedId, AnswerError> {
        let Some(found) = self.ids.iter().find(|offered| offered.id == id) else {
            return Err(AnswerError::Unknown {
                resource: self.name.to_string(),
                id: id.to_owned(),
            });
        };
        if found.healthy {
            return Ok(found);
        }
        if let Some(why) = &self.short {
            return Err(AnswerError::Short {
                id: id.to_owned(),
                why: why.clone(),
            });
        }
        let addresses = found
            .devices
            .iter()
            .filter_map(|index| Some(&*self.devices.get(*index)?.address));
        Err(AnswerError::Unhealthy {
            resource: self.name.to_string(),
            id: id.to_owned(),
            devices: addresses.collect::<Vec<_>>().join(", "),
        })
    }

    /// The devices at `places` that are there now, and healthy, and what is given of them. The log says what `whose`
    /// container goes without. The error says why there is none.
    fn present(
        &self,
        places: &[usize],
        inventory: &Inventory,
        whose: &str,
    ) -> Result<(Vec<&OfferedDevice>, Vec<GrantedDevice>), String> {
        let (mut found, mut missing) = (vec![], vec![]);
        for device in places.iter().filter_map(|it| self.devices.get(*it)) {
            match self.granted(device, inventory) {
                Ok(granted) => found.push((device, granted)),
                Err(why) => missing.push(why),
            }
        }
        if found.is_empty() {
            return Err(missing.join("; "));
        }
        for why in missing {
            log::warn!("{whose} is given without one device: {why}");
        }
        Ok(found.into_iter().unzip())
    }

    /// What can be given of a device now. The error says what is missing.
    fn granted(
        &self,
        device: &OfferedDevice,
        inventory: &Inventory,
    ) -> Result<GrantedDevice, String> {
        let address = &device.address;
        if let Some(fault) = &device.fault {
            return Err(format!("{address} is not healthy: {fault}"));
        }
        let function = inventory
            .function(address)
            .ok_or_else(|| format!("{address} is not on this node any more"))?;
        let hca = hca_of(function).ok_or_else(|| format!("{address} has no RDMA device now"))?;
        let mut char_devices: Vec<CharNode> = Vec::new();
        for char_device in wanted(&hca.char_devices, self.umad) {
            if self.cdi || char_device.is_in_place() {
                char_devices.push(char_device.into());
                continue;
            }
            let name = &char_device.name;
            let why = match char_device.node {
                None => format!("/dev/infiniband/{name} of {address} is not there"),
                Some(_) => format!("/dev/infiniband/{name} is not the one of {address}"),
            };
            if name.starts_with("uverbs") {
                return Err(why);
            }
            log::warn!("{why}: a container of {} goes without it", self.name);
        }
        if !char_devices.iter().any(|it| it.name.starts_with("uverbs")) {
            return Err(format!(
                "{} of {address} has no uverbs device (is ib_uverbs loaded?)",
                hca.name
            ));
        }
        Ok(GrantedDevice {
            address: address.clone(),
            rdma: hca.name.clone(),
            parent: device.parent.clone(),
            char_devices,
        })
    }

    /// `rdma_cm`, if it works with one of the devices.
    fn connection_manager<'a>(
        &self,
        given: &[&OfferedDevice],
        inventory: &'a Inventory,
    ) -> Option<&'a CharDevice> {
        let limits = given.iter().map(|it| driver::limit(inventory, &it.address));
        if let Some(mode) = limits.min().flatten() {
            log::info!(
                "a container of {} gets no rdma_cm: it does not work in mode {mode} of the eRDMA \
                 driver",
                self.name
            );
            return None;
        }
        let manager = inventory.connection_manager.as_ref();
        let manager = manager.filter(|manager| manager.is_in_place());
        if manager.is_none() && !given.is_empty() {
            log::warn!(
                "there is no /dev/infiniband/rdma_cm on this node: the container of {} gets none",
                self.name
            );
        }
        manager
    }

    /// Variables for libraries, which kubelet puts before the pod's own.
    fn for_libraries(&self, given: &[&OfferedDevice]) -> BTreeMap<String, String> {
        let names = given.iter().map(|device| {
            let port = device.hca.ports.first().map_or(1, |port| port.number);
            (device.hca.name.as_str(), port)
        });
        self.environment.variables(&names.collect::<Vec<_>>())
    }

    /// sriov-network-device-plugin's `PCIDEVICE_…_INFO`, by id (`pkg/infoprovider` there). A path is said only where it is
    /// promised: a CDI name leads to the device by whatever name that has after its move.
    fn information(
        &self,
        grants: &[Grant],
        manager: Option<&CharDevice>,
    ) -> Option<(String, String)> {
        if self.kind != Ids::Exclusive {
            return None;
        }
        let path = |name: &str| format!("/dev/infiniband/{name}");
        let manager = manager.map(|it| (it.name.as_str(), path(&it.name)));
        let of_ids = grants.iter().map(|grant| {
            let nodes = grant.devices.iter().flat_map(|it| &it.char_devices);
            // the device's own are before those of its sub-devices
            let paths = nodes.rev().map(|node| (node.kind(), path(&node.name)));
            let paths = paths.chain(manager.clone()).filter(|_| !self.cdi);
            let name = grant.devices.iter().map(|it| ("rdma_dev", it.rdma.clone()));
            let rdma: BTreeMap<&str, String> = paths.chain(name).collect();
            let generic = json!({ "deviceID": grant.id });
            (
                grant.id.as_str(),
                json!({ "generic": generic, "rdma": rdma }),
            )
        });
        let of_ids: BTreeMap<&str, Value> = of_ids.collect();
        let variable = format!("{}_INFO", pci_device(self.name.as_str()));
        Some((variable, json!(of_ids).to_string()))
    }

    fn environment<'a>(
        &self,
        ids: impl Iterator<Item = &'a str>,
        given: &[&OfferedDevice],
        inventory: &Inventory,
    ) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        match self.kind {
            Ids::Exclusive => {
                let ids = ids.collect::<Vec<_>>().join(",");
                variables.insert(pci_device(self.name.as_str()), ids);
            }
            Ids::PerNic { .. } => {
                let first = given.first();
                let mac = first.and_then(|device| device.mac.as_ref());
                let limit = first.and_then(|it| driver::limit(inventory, &it.address));
                if let Some(mode) = limit {
                    log::info!(
                        "a container of {} gets no SMCR_PNET: there is no SMC-R in mode {mode} of \
                         the eRDMA driver",
                        self.name
                    );
                } else if let Some(mac) = mac {
                    let pnet = mac.replace(':', "").to_ascii_uppercase();
                    variables.insert("SMCR_PNET".to_owned(), pnet);
                } else if let Some(device) = given.first() {
                    log::warn!(
                        "the netdev of {} is not in this namespace: a container of {} gets no SMCR_PNET",
                        device.address,
                        self.name
                    );
                }
            }
            Ids::Shared { .. } => {}
        }
        variables
    }
}

/// Those of a device's character devices that containers get: `uverbs`, and the others if
/// they are asked for.
pub(super) fn wanted(all: &[CharDevice], umad: bool) -> impl Iterator<Item = &CharDevice> {
    all.iter()
        .filter(move |it| umad || it.name.starts_with("uverbs"))
}

/// As sriov-network-device-plugin names it (`getEnvs` in `pkg/resources/server.go`):
/// `PCIDEVICE_INTEL_COM_SRIOV_RDMA`. Other characters stay as they are, as there.
fn pci_device(resource: &str) -> String {
    format!("PCIDEVICE_{}", resource.replace(['.', '/'], "_")).to_uppercase()
}

fn spec(name: &str) -> DeviceSpec {
    let path = format!("/dev/infiniband/{name}");
    DeviceSpec {
        container_path: path.clone(),
        host_path: path,
        permissions: "rw".to_owned(),
    }
}
