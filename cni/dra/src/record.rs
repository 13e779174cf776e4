// SPDX-License-Identifier: Apache-2.0
//! State of a prepared claim: pure.

use crate::{claim::ClaimName, metadata::MetadataNames, parameters::AttachmentParameters};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{CharNode, Hook, Sharing, grant::GrantedDevice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Format that this version writes. A newer one is refused.
pub const FORMAT: u32 = 1;

/// State of a prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Format, see [`FORMAT`].
    pub format: u32,
    /// Name of the driver.
    pub driver: String,
    /// The claim.
    pub claim: ClaimName,
    /// Number of changes of the devices' metadata.
    #[serde(default)]
    pub generation: u64,
    /// Boot in which the devices' numbers were read.
    pub boot_id: String,
    /// Directory of the runtime's CDI specifications.
    pub cdi_dir: PathBuf,
    /// UIDs of the pods for which the claim was reserved at its preparation. They are needed for claims of init
    /// containers, which kubelet's pod-resources does not list.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pods: BTreeSet<String>,
    /// True if a pod's containers wait for its network: no specification exists before.
    pub awaits_network: bool,
    /// Container ids of the sandboxes that have their network.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub networks: BTreeSet<String>,
    /// Rails of these sandboxes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rails: BTreeMap<String, Vec<JoinedRail>>,
    /// Library files of these sandboxes' containers, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, BTreeMap<String, String>>,
    /// NICs that disappeared after containers could have them. While a NIC is absent, there is no CDI specification.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub absent: BTreeSet<DeviceAddress>,
    /// Parameters of the pod's attachment.
    #[serde(default, skip_serializing_if = "AttachmentParameters::is_empty")]
    pub parameters: AttachmentParameters,
    /// Allocated devices, in the order of the allocation.
    pub devices: Vec<Prepared>,
    /// Further devices and variables of containers, by request.
    pub requests: Vec<Request>,
}

/// One device of the allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// Request of the claim.
    pub request: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the device in the pool.
    pub device: String,
    /// Share id, which distinguishes several allocations of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Name of the resource.
    pub resource: String,
    /// Sharing of the NICs.
    pub sharing: Sharing,
    /// Attributes for the device's metadata, in the API's form; none without metadata.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub attributes: Map<String, Value>,
    /// NICs for containers, with their present character devices.
    pub nics: Vec<GrantedDevice>,
}

/// A rail of a pod that has its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedRail {
    /// Name of the rail's allocated device; `None`: the device is another claim's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Hardware address of the rail's netdev in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_address: Option<String>,
    /// Entry of the rail in the pod's `rails.json`.
    pub told: Value,
}

/// Devices and variables of a request, other than NICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Name of the request.
    pub name: String,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `rdma_cm`, if it works with the NICs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<CharNode>,
    /// Library files of containers, by name, with those lines that do not depend on the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Names in the metadata of its devices; `None`: containers get no metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataNames>,
    /// Hook that sets the limits of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
}

impl Record {
    /// Returns true if the devices' numbers are final for containers.
    pub fn is_final(&self) -> bool {
        self.is_begun() && self.absent.is_empty()
    }

    /// Returns the rails of the claim's only pod in the form of `rails.json`. `None`: no pod has its network yet, or
    /// several pods have different rails.
    pub fn rails_of_one_pod(&self) -> Option<Vec<&Value>> {
        let mut all = self.rails.values();
        let (rails, None) = (all.next()?, all.next()) else {
            return None;
        };
        let mut entries: Vec<&Value> = vec![];
        for rail in rails {
            // a rail that several devices were allocated for
            if !entries.contains(&&rail.told) {
                entries.push(&rail.told);
            }
        }
        (!entries.is_empty()).then_some(entries)
    }

    /// Returns the library files of the claim's only pod, by name. `None`: no pod has its network yet, or several pods
    /// have different files.
    pub fn files_of_one_pod(&self) -> Option<&BTreeMap<String, String>> {
        let mut sandboxes = self.rails.keys();
        let (sandbox, None) = (sandboxes.next()?, sandboxes.next()) else {
            return None;
        };
        self.files.get(sandbox)
    }

    /// Returns true if containers could have its devices.
    pub fn is_begun(&self) -> bool {
        !self.awaits_network || !self.networks.is_empty()
    }

    /// Returns its NICs.
    pub fn nics(&self) -> impl Iterator<Item = &GrantedDevice> {
        self.devices.iter().flat_map(|device| &device.nics)
    }

    /// Returns the NICs that are not on the node.
    pub fn lost(&self) -> impl Iterator<Item = &GrantedDevice> {
        self.nics().filter(|nic| self.absent.contains(&nic.address))
    }

    /// Updates the character devices of each NIC, for the kinds that containers get. A NIC becomes absent if `now` does
    /// not return it, or returns it without one of these kinds.
    pub(crate) fn follow(&mut self, now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>) {
        for nic in self.devices.iter_mut().flat_map(|device| &mut device.nics) {
            match present_kinds(nic, &now) {
                Some(nodes) => {
                    nic.char_devices = nodes;
                    self.absent.remove(&nic.address);
                }
                None => {
                    self.absent.insert(nic.address.clone());
                }
            }
        }
    }

    /// Returns the first NIC that `now` does not return, although its numbers must be read before the claim is prepared
    /// again in the boot `boot_id`. The numbers of other NICs are updated later, by the pod's network.
    pub fn missing(
        &self,
        boot_id: &str,
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Option<&GrantedDevice> {
        let is_due = self.boot_id != boot_id && !self.awaits_network;
        self.nics()
            .find(|nic| is_due && present_kinds(nic, &now).is_none())
    }

    /// Resets the record for another boot, in which no pod has a network.
    pub(crate) fn in_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            self.networks.clear();
            self.rails.clear();
            self.files.clear();
            self.absent.clear();
            boot_id.clone_into(&mut self.boot_id);
        }
    }
}

/// Returns the present character devices of `nic`, for the kinds that containers get. `None`: a kind is missing.
fn present_kinds(
    nic: &GrantedDevice,
    now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
) -> Option<Vec<CharNode>> {
    let is_among =
        |all: &[CharNode], node: &CharNode| all.iter().any(|it| it.kind() == node.kind());
    let mut nodes = now(nic)?;
    nodes.retain(|it| is_among(&nic.char_devices, it));
    let all_kinds = nic.char_devices.iter().all(|it| is_among(&nodes, it));
    all_kinds.then_some(nodes)
}

/// Returns the present character devices of `nic`; `None`: it is absent.
pub fn present(nic: &GrantedDevice, inventory: &Inventory) -> Option<Vec<CharNode>> {
    let hca = inventory.function(&nic.address)?.hcas.first()?;
    Some(hca.char_devices.iter().map(CharNode::from).collect())
}
