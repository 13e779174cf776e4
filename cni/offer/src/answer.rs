// SPDX-License-Identifier: Apache-2.0
//! Devices and environment variables that a container gets for its ids or for a claim. For ids, character devices get
//! the permissions `rw`, as in sriov-network-device-plugin. k8s-rdma-shared-dev-plugin uses `rwm`. With `m`, a
//! container could make device files, but only the runtime needs to make them.

use crate::{Offer, OfferedDevice, OfferedId, manager::manager_fault, select::hca_of};
use ::erdma::driver;
use daemon_conf::Ids;
use kubelet_api::device_plugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec};
use rdma_netns::{CharDevice, Inventory};
use rdma_resources::{
    CharNode, Grant, cdi,
    container::ContainerId,
    grant::{FORMAT, GrantedDevice},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Devices and environment variables for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Devices with their character devices.
    pub devices: Vec<GrantedDevice>,
    /// The character device `rdma_cm`, if it exists and one of the devices can use it.
    pub connection_manager: Option<CharNode>,
    /// Variables of the container's environment.
    pub variables: BTreeMap<String, String>,
}

impl Offer {
    /// Returns the devices and variables of a container with `ids`, and the grant of each id. Grants only devices that
    /// are present and healthy. If an id has several devices, leaves out and logs absent or unhealthy devices.
    ///
    /// # Errors
    /// An id is unknown or unhealthy, or none of its devices is usable.
    pub fn answer(
        &self,
        ids: &[String],
        inventory: &Inventory,
    ) -> Result<(ContainerAllocateResponse, Vec<Grant>), String> {
        let mut grants = Vec::new();
        let mut granted: Vec<&OfferedDevice> = Vec::new();
        for id in ids {
            let id = self.id(id)?;
            let whose = format!("{:?} of {}", id.id, self.name);
            let found = match id.devices.is_empty() {
                true => Ok((vec![], vec![])),
                false => self.present(&id.devices, inventory, &whose),
            };
            let (own, devices) =
                found.map_err(|why| format!("{whose} cannot be allocated: {why}"))?;
            for device in own {
                if !granted.iter().any(|other| other.address == device.address) {
                    granted.push(device);
                }
            }
            grants.push(Grant {
                format: FORMAT,
                resource: self.name.to_string(),
                id: id.id.clone(),
                sharing: self.sharing,
                cdi: self.cdi,
                // the caller sets `chained` when it records the grant
                chained: false,
                promises_rails: self.environment.has_rails(),
                limits: self.limits,
                devices,
            });
        }
        let connection_manager = self.connection_manager(&granted, inventory);
        let ids_granted = grants.iter().map(|grant| grant.id.as_str());
        let mut environment = self.environment(ids_granted, &granted, inventory);
        environment.extend(self.for_libraries(&granted));
        environment.extend(self.information(&grants, connection_manager));
        let mut response = ContainerAllocateResponse {
            envs: environment.into_iter().collect(),
            ..ContainerAllocateResponse::default()
        };
        if self.cdi {
            let names = granted.iter().map(|device| cdi::full_name(&device.address));
            let manager = connection_manager.map(|_| cdi::full_name(cdi::CONNECTION_MANAGER));
            let devices = names.chain(manager).map(|name| CdiDevice { name });
            response.cdi_devices = devices.collect();
            let container = ContainerId::of(self.name.as_str(), ids);
            let has_entry = self.environment.has_rails() || !self.limits.is_empty();
            let container = container.filter(|_| has_entry);
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

    /// Returns the devices at the indices `places` for a container with a claim. Grants only devices that are present
    /// and healthy. Leaves out and logs absent or unhealthy devices.
    ///
    /// # Errors
    /// None of the devices is usable, or the whole offer is unhealthy ([`Offer::short`]). The error is the reason.
    pub fn allocate(&self, places: &[usize], inventory: &Inventory) -> Result<Allocation, String> {
        if let Some(why) = &self.short {
            return Err(why.clone());
        }
        let (granted, devices) =
            self.present(places, inventory, &format!("a claim of {}", self.name))?;
        let manager = self.connection_manager(&granted, inventory);
        let addresses = granted.iter().map(|device| &*device.address);
        Ok(Allocation {
            connection_manager: manager.map(CharNode::from),
            variables: self.environment(addresses, &granted, inventory),
            devices,
        })
    }

    fn id(&self, id: &str) -> Result<&OfferedId, String> {
        let found = self.ids.iter().find(|offered| offered.id == id);
        let found = found.ok_or_else(|| format!("{} has no id {id:?}", self.name))?;
        if found.healthy {
            return Ok(found);
        }
        if let Some(why) = &self.short {
            return Err(format!("{id:?} cannot be allocated: {why}"));
        }
        let addresses = self.devices_at(&found.devices).map(|it| &*it.address);
        let devices = addresses.collect::<Vec<_>>().join(", ");
        Err(format!(
            "{id:?} of {} cannot be allocated: no usable device among {devices}",
            self.name
        ))
    }

    /// Returns the usable devices at the indices `places`, and for each the data for a grant ([`Self::granted`]). Logs
    /// the other devices. `whose` describes the id or claim for the log. If no device is usable, logs nothing, and the
    /// error contains the reasons.
    fn present(
        &self,
        places: &[usize],
        inventory: &Inventory,
        whose: &str,
    ) -> Result<(Vec<&OfferedDevice>, Vec<GrantedDevice>), String> {
        let (mut found, mut missing) = (vec![], vec![]);
        for device in self.devices_at(places) {
            match self.granted(device, inventory) {
                Ok(granted) => found.push((device, granted)),
                Err(why) => missing.push(why),
            }
        }
        if found.is_empty() {
            return Err(missing.join("; "));
        }
        for why in missing {
            log::warn!("{whose} lacks a device: {why}");
        }
        Ok(found.into_iter().unzip())
    }

    /// Returns the grant of a device. If containers get devices by path, leaves out and logs `umad` and `issm` devices
    /// whose files are missing or have another device number. The error is the reason why no container can get the
    /// device.
    fn granted(
        &self,
        device: &OfferedDevice,
        inventory: &Inventory,
    ) -> Result<GrantedDevice, String> {
        let address = &device.address;
        if let Some(fault) = &device.fault {
            return Err(format!("{address} is unusable: {fault}"));
        }
        let function = inventory
            .function(address)
            .ok_or_else(|| format!("{address} is no longer on this node"))?;
        let hca = hca_of(function).ok_or_else(|| format!("{address} has no RDMA device now"))?;
        let mut char_devices: Vec<CharNode> = Vec::new();
        for char_device in containers_devices(&hca.char_devices, self.umad) {
            if self.cdi || char_device.is_in_place() {
                char_devices.push(char_device.into());
                continue;
            }
            let name = &char_device.name;
            let why = match char_device.node {
                None => format!("/dev/infiniband/{name} of {address} does not exist"),
                Some(_) => format!(
                    "/dev/infiniband/{name} has another device number than {name} of {address}"
                ),
            };
            if name.starts_with("uverbs") {
                return Err(why);
            }
            log::warn!(
                "{why}: a container of {} starts without this device",
                self.name
            );
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

    /// Returns `rdma_cm` if it is in `/dev/infiniband` and one of the `granted` devices can use it. If there are no
    /// `granted` devices, only the first condition applies.
    fn connection_manager<'a>(
        &self,
        granted: &[&OfferedDevice],
        inventory: &'a Inventory,
    ) -> Option<&'a CharDevice> {
        let limits = granted
            .iter()
            .map(|it| driver::limit(inventory, &it.address));
        if let Some(mode) = limits.min().flatten() {
            log::info!(
                "a container of {} gets no rdma_cm: it does not work in mode {mode} of the eRDMA \
                 driver",
                self.name
            );
            return None;
        }
        let manager = inventory.connection_manager.as_ref();
        let Some((problem, _)) = manager_fault(inventory) else {
            return manager;
        };
        if !granted.is_empty() {
            log::warn!(
                "{problem}: a container of {} starts without rdma_cm",
                self.name
            );
        }
        None
    }

    /// Returns environment variables for libraries. A variable in the pod's specification overrides a variable of the
    /// same name.
    fn for_libraries(&self, granted: &[&OfferedDevice]) -> BTreeMap<String, String> {
        let names = granted.iter().map(|device| {
            let port = device.hca.ports.first().map_or(1, |port| port.number);
            (device.hca.name.as_str(), port)
        });
        self.environment.variables(&names.collect::<Vec<_>>())
    }

    /// Returns the variable `PCIDEVICE_…_INFO` of sriov-network-device-plugin (`pkg/infoprovider`) for an exclusive
    /// resource: a JSON object with the properties of each id. If containers get devices by CDI names, the object has
    /// no device paths, because a move can change the paths.
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
            // reverse the order: a device's own character devices override the character devices of its sub-devices
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
        granted: &[&OfferedDevice],
        inventory: &Inventory,
    ) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        match self.kind {
            Ids::Exclusive => {
                let ids = ids.collect::<Vec<_>>().join(",");
                variables.insert(pci_device(self.name.as_str()), ids);
            }
            Ids::PerNic { .. } => {
                let first = granted.first();
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
                } else if let Some(device) = granted.first() {
                    log::warn!(
                        "{} has no netdev in the host's network namespace: a container of {} gets no SMCR_PNET",
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

/// Returns the character devices that a container gets: `uverbs`, and `umad` and `issm` if `umad` is true.
pub(super) fn containers_devices(
    all: &[CharDevice],
    umad: bool,
) -> impl Iterator<Item = &CharDevice> {
    all.iter()
        .filter(move |it| umad || it.name.starts_with("uverbs"))
}

/// Returns the variable's name, such as `PCIDEVICE_INTEL_COM_SRIOV_RDMA`. Replaces the same characters as
/// sriov-network-device-plugin (`getEnvs` in `pkg/resources/server.go`), and no others.
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
