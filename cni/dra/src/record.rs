// SPDX-License-Identifier: Apache-2.0
//! State of a prepared claim. This module has no I/O.

use crate::{claim::ClaimName, parameters::AttachmentParameters};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{CharNode, Hook, Sharing, grant::GrantedDevice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Format that this version writes. This version refuses a record with a higher format.
pub const FORMAT: u32 = 1;

/// State of a prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Format of the record, see [`FORMAT`].
    pub format: u32,
    /// Name of the driver.
    pub driver: String,
    /// The claim.
    pub claim: ClaimName,
    /// Generation of the devices' metadata. It increases when the daemon prepares the claim again, and when a pod's
    /// network is attached or detached.
    #[serde(default)]
    pub generation: u64,
    /// Boot id at the time when the devices' numbers were read.
    pub boot_id: String,
    /// Directory of the runtime's CDI specifications.
    pub cdi_dir: PathBuf,
    /// UIDs of the pods for which the claim was reserved when the daemon prepared it. They are necessary for claims of
    /// init containers, because kubelet's pod-resources API lists only the init containers that are sidecars.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pods: BTreeSet<String>,
    /// True if a pod's containers must wait for the pod's network. Until ADD has attached the network, no CDI
    /// specification exists.
    pub awaits_network: bool,
    /// Container ids of the sandboxes whose network is attached.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub networks: BTreeSet<String>,
    /// Rails of the sandboxes in `networks`, by container id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rails: BTreeMap<String, Vec<JoinedRail>>,
    /// Library files for the containers of the sandboxes in `networks`: by container id, and then by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, BTreeMap<String, String>>,
    /// NICs that the last check did not find, or found without a kind of character device that containers get. While a
    /// NIC is absent, no CDI specification exists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub absent: BTreeSet<DeviceAddress>,
    /// Parameters of the pod's attachment.
    #[serde(default, skip_serializing_if = "AttachmentParameters::is_empty")]
    pub parameters: AttachmentParameters,
    /// Allocated devices, in the order of the allocation.
    pub devices: Vec<Prepared>,
    /// Further devices and variables of containers, one entry for each request.
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
    /// Attributes of the device for its metadata, in the form of the API. Empty if containers get no metadata.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub attributes: Map<String, Value>,
    /// NICs of the device, each with its present character devices.
    pub nics: Vec<GrantedDevice>,
}

/// A rail of a pod whose network is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedRail {
    /// Name of the claim's device to which the rail belongs. `None`: the device belongs to another claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Hardware address of the rail's netdev in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_address: Option<String>,
    /// Entry of the rail in the pod's `rails.json`.
    #[serde(rename = "told")]
    pub status_entry: Value,
}

/// Devices and variables of a request, without the NICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Name of the request.
    pub name: String,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The character device `rdma_cm`, if it exists and one of the NICs can use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<CharNode>,
    /// Library files of containers, by name. They contain only lines that are equal for all pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Names for the metadata of the request's devices; `None`: containers get no metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataNames>,
    /// OCI hook that sets the limits of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
}

/// Names for the metadata of a request, which only the claim in the API server contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetadataNames {
    /// Request with the name of its subrequest if it has one, such as `nic/fast`.
    pub request: String,
    /// Name of the claim in its pod; `None`: the claim was not made from a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_claim: Option<String>,
}

impl Record {
    /// Returns true if the devices' numbers are final. Containers may then get the devices.
    pub fn is_final(&self) -> bool {
        self.is_begun() && self.absent.is_empty()
    }

    /// Returns the rails of the claim's only pod, in the form of `rails.json`. Returns `None` if this pod has no rails,
    /// if no pod's network is attached yet, or if the networks of several pods are attached.
    pub fn rails_of_one_pod(&self) -> Option<Vec<&Value>> {
        let mut all = self.rails.values();
        let (rails, None) = (all.next()?, all.next()) else {
            return None;
        };
        let mut entries: Vec<&Value> = vec![];
        for rail in rails {
            // add a rail only once, even if the claim has several devices of this rail
            if !entries.contains(&&rail.status_entry) {
                entries.push(&rail.status_entry);
            }
        }
        (!entries.is_empty()).then_some(entries)
    }

    /// Returns the library files of the claim's only pod, by name. Returns `None` if no pod's network is attached yet,
    /// or if the networks of several pods are attached.
    pub fn files_of_one_pod(&self) -> Option<&BTreeMap<String, String>> {
        let mut sandboxes = self.rails.keys();
        let (sandbox, None) = (sandboxes.next()?, sandboxes.next()) else {
            return None;
        };
        self.files.get(sandbox)
    }

    /// Returns true if containers may already have received the claim's devices.
    pub fn is_begun(&self) -> bool {
        !self.awaits_network || !self.networks.is_empty()
    }

    /// Returns the NICs of all devices.
    pub fn nics(&self) -> impl Iterator<Item = &GrantedDevice> {
        self.devices.iter().flat_map(|device| &device.nics)
    }

    /// Returns the claim's NICs that are absent from the node.
    pub fn lost(&self) -> impl Iterator<Item = &GrantedDevice> {
        self.nics().filter(|nic| self.absent.contains(&nic.address))
    }

    /// Updates the character devices of each NIC. Keeps only the kinds of devices that containers get. `now` returns a
    /// NIC's present character devices. A NIC becomes absent if `now` returns none, or if one of these kinds is
    /// missing.
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

    /// Returns the first missing NIC whose numbers must be read before the claim can be prepared again in the boot
    /// `boot_id`. `now` returns a NIC's present character devices. The result is `None` if no NIC is missing, in the
    /// boot of the record, or if ADD updates the numbers later, when it attaches the pod's network.
    pub fn missing(
        &self,
        boot_id: &str,
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Option<&GrantedDevice> {
        let is_due = self.boot_id != boot_id && !self.awaits_network;
        self.nics()
            .find(|nic| is_due && present_kinds(nic, &now).is_none())
    }

    /// Adapts the record to the boot `boot_id`. In a new boot, no pod's network is attached.
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

/// Returns the present character devices of `nic`. Leaves out kinds that containers do not get. Returns `None` if one
/// of the kinds that containers get is missing.
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

/// Returns the present character devices of `nic`, or `None` if the NIC or its RDMA device is absent.
pub fn present(nic: &GrantedDevice, inventory: &Inventory) -> Option<Vec<CharNode>> {
    let hca = inventory.function(&nic.address)?.hcas.first()?;
    Some(hca.char_devices.iter().map(CharNode::from).collect())
}
