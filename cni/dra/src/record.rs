// SPDX-License-Identifier: Apache-2.0
//! What a claim was prepared with, and what became of that: pure.

use crate::{claim::ClaimName, parameters::AttachmentParameters};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{CharNode, Sharing, grant::GrantedDevice};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// The format that this version writes. A newer one is refused.
pub const FORMAT: u32 = 1;

/// What a claim was prepared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// [`FORMAT`]
    pub format: u32,
    /// The driver's name.
    pub driver: String,
    /// The claim.
    pub claim: ClaimName,
    /// The boot in which the numbers of devices were looked up.
    pub boot_id: String,
    /// Where the runtime looks for CDI specifications.
    pub cdi_dir: PathBuf,
    /// The pods that it was reserved for when it was prepared, by uid: kubelet's pod-resources names the claims of init
    /// containers that end to nobody.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pods: BTreeSet<String>,
    /// Whether a pod's containers wait for its network: there is no specification before.
    pub awaits_network: bool,
    /// The sandboxes that have their network, by their container ids.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub networks: BTreeSet<String>,
    /// What these have of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rails: BTreeMap<String, Vec<JoinedRail>>,
    /// NICs that went when containers could have them already: there is no specification until they are back.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub absent: BTreeSet<DeviceAddress>,
    /// What it says of how its pod is attached.
    #[serde(default, skip_serializing_if = "AttachmentParameters::is_empty")]
    pub parameters: AttachmentParameters,
    /// What was allocated, in the order of the allocation.
    pub devices: Vec<Prepared>,
    /// What containers get besides, by requests.
    pub requests: Vec<Request>,
}

/// One device of the allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The claim's request.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device's name in it.
    pub device: String,
    /// Which of several allocations of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Its resource.
    pub resource: String,
    /// Whether other pods may have its NICs.
    pub sharing: Sharing,
    /// Its NICs that containers get, with their character devices as they are now.
    pub nics: Vec<GrantedDevice>,
}

/// A rail of a pod that has its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedRail {
    /// The name of the device that it was allocated by; none: another claim's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Of its netdev in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_address: Option<String>,
    /// What the pod's `rails.json` says of it.
    pub told: Value,
}

/// What a container gets for a request besides NICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Its name.
    pub name: String,
    /// Variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `rdma_cm`, where it works with the NICs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<CharNode>,
}

impl Record {
    /// Whether the numbers of its devices are those that containers are to have.
    pub fn is_final(&self) -> bool {
        self.is_begun() && self.absent.is_empty()
    }

    /// What programs of its one pod have to name to use RDMA, as its `rails.json` has it. None: no pod has its network,
    /// or several have, of which each has rails of its own.
    pub fn rails_of_one_pod(&self) -> Option<Vec<&Value>> {
        let mut all = self.rails.values();
        let (rails, None) = (all.next()?, all.next()) else {
            return None;
        };
        let mut told: Vec<&Value> = vec![];
        for rail in rails {
            // one that was allocated by several devices
            if !told.contains(&&rail.told) {
                told.push(&rail.told);
            }
        }
        (!told.is_empty()).then_some(told)
    }

    /// Whether containers could have its devices.
    pub fn is_begun(&self) -> bool {
        !self.awaits_network || !self.networks.is_empty()
    }

    /// Its NICs.
    pub fn nics(&self) -> impl Iterator<Item = &GrantedDevice> {
        self.devices.iter().flat_map(|device| &device.nics)
    }

    /// Those that are not on the node.
    pub fn lost(&self) -> impl Iterator<Item = &GrantedDevice> {
        self.nics().filter(|nic| self.absent.contains(&nic.address))
    }

    /// Takes the character devices that NICs have now, of the kinds that containers get. One that `now` does not know,
    /// or knows without a kind, is absent.
    pub(crate) fn follow(&mut self, now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>) {
        for nic in self.devices.iter_mut().flat_map(|device| &mut device.nics) {
            match given(nic, &now) {
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

    /// The first NIC whose numbers have to be looked up before it is prepared again in the boot `boot_id`, and that
    /// `now` does not know. Those that a pod's network corrects have time.
    pub fn missing(
        &self,
        boot_id: &str,
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Option<&GrantedDevice> {
        let is_due = self.boot_id != boot_id && !self.awaits_network;
        self.nics().find(|nic| is_due && given(nic, &now).is_none())
    }

    /// It in another boot: no pod has a network.
    pub(crate) fn in_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            self.networks.clear();
            self.rails.clear();
            self.absent.clear();
            boot_id.clone_into(&mut self.boot_id);
        }
    }
}

/// The character devices of `nic` that `now` knows, of the kinds that containers get of it. None: one is missing.
fn given(
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

/// The character devices that `nic` has now; none: it is not there.
pub fn present(nic: &GrantedDevice, inventory: &Inventory) -> Option<Vec<CharNode>> {
    let hca = inventory.function(&nic.address)?.hcas.first()?;
    Some(hca.char_devices.iter().map(CharNode::from).collect())
}
