// SPDX-License-Identifier: Apache-2.0
//! Finds the accelerators of the container for which kubelet requests a preference. Kubelet's request does not name the
//! container, but kubelet's pod-resources list already contains the container's allocations, for three reasons
//! (`HandlePodAdditions()`, `pkg/kubelet/kubelet.go`; `allocateContainerResources()`,
//! `callGetPreferredAllocationIfAvailable()`, `pkg/kubelet/cm/devicemanager/manager.go`):
//!
//! - Kubelet knows a pod before its admission.
//! - Kubelet knows a pod's devices as soon as their plugin has answered.
//! - Kubelet does not hold the device manager's lock during the request.
//!
//! The container is therefore one of the containers with accelerators and without an id of the resource. Some
//! containers never get an id of the resource. They were in the list at kubelet's previous request already, so the
//! daemon considers only containers that are new in the list.
//!
//! The result may be empty. Kubelet allocates a container's resources in random order (the order of a Go map), and may
//! allocate the accelerators after the NICs. Also, pod-resources does not list init containers.

use super::PodContainer;
use daemon_conf::ResourceName;
use kubelet_api::pod_resources::v1::{ContainerResources, PodResources};
use parking_lot::Mutex;
use rdma_netns::{DeviceAddress, Inventory};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Containers that had accelerators and no id of the resource at kubelet's last request.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<Mutex<BTreeSet<PodContainer>>>);

impl Waiting {
    /// Returns the accelerators of the containers that are new in `pods` since kubelet's last request. The container of
    /// this request is among them if it already has accelerators.
    pub(super) fn own(
        &self,
        pods: &[PodResources],
        resource: &ResourceName,
        inventory: &Inventory,
        names: &BTreeMap<String, DeviceAddress>,
    ) -> BTreeSet<DeviceAddress> {
        let mut now = BTreeSet::new();
        let mut own = BTreeSet::new();
        let mut before = self.0.lock();
        for pod in pods {
            for container in &pod.containers {
                let accelerators = accelerators(container, inventory, names);
                if accelerators.is_empty() || has(container, resource) {
                    continue;
                }
                let container = PodContainer::new(pod, container);
                if !before.contains(&container) {
                    own.extend(accelerators);
                }
                now.insert(container);
            }
        }
        *before = now;
        own
    }
}

fn has(container: &ContainerResources, resource: &ResourceName) -> bool {
    let mut devices = container.devices.iter();
    devices.any(|it| it.resource_name == resource.as_str())
}

fn accelerators(
    container: &ContainerResources,
    inventory: &Inventory,
    names: &BTreeMap<String, DeviceAddress>,
) -> Vec<DeviceAddress> {
    let is_one = |address: &DeviceAddress| {
        let mut accelerators = inventory.accelerators.iter();
        accelerators.any(|it| it.address == *address)
    };
    let ids = container.devices.iter().flat_map(|it| &it.device_ids);
    ids.filter_map(|id| address(id, names))
        .filter(is_one)
        .collect()
}

/// Returns the device's address for an `id` of a device plugin:
///
/// | id | device plugin |
/// |---|---|
/// | `0000:c1:00.0` | ROCm's, and others that use the PCI address |
/// | `GPU-…`, `GPU-…::3` | NVIDIA's; the suffix is a replica of a shared GPU (`NewAnnotatedID()`, `internal/rm/devices.go`) |
/// | `MIG-GPU-…/1/0` | NVIDIA's, a part of a GPU with a driver before 470 |
/// | `nvidia3`, `nvidia3/vgpu1`, `nvidia3/gi1` | GKE's (`pkg/gpu/nvidia/manager.go`) |
/// | `card1-0` | Intel's (`cmd/gpu_plugin/gpu_plugin.go`) |
///
/// Ignores the id `MIG-…` of a later NVIDIA driver, because only NVML can resolve it.
fn address(id: &str, names: &BTreeMap<String, DeviceAddress>) -> Option<DeviceAddress> {
    let name = id.split_once("::").map_or(id, |(name, _)| name);
    let name = name.split_once('/').map_or(name, |(name, _)| name);
    let name = name.strip_prefix("MIG-").unwrap_or(name);
    let card = || name.starts_with("card").then(|| name.split_once('-'))?;
    let known = names
        .get(name)
        .or_else(|| names.get(card().map(|(card, _)| card)?));
    known
        .cloned()
        .or_else(|| DeviceAddress::try_from(name.to_owned()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_api::pod_resources::v1::ContainerDevices;
    use serde_json::json;

    const UUID: &str = "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b";

    fn names() -> BTreeMap<String, DeviceAddress> {
        let names = [
            (UUID, "0000:62:00.0"),
            ("nvidia5", "0000:62:00.0"),
            ("card1", "0000:72:00.0"),
        ];
        let address = |text: &str| text.to_owned().try_into().expect("an address");
        let names = names.map(|(name, at)| (name.to_owned(), address(at)));
        names.into_iter().collect()
    }

    fn inventory() -> Inventory {
        let gpu = |address| json!({"address": address, "vendor": "10de"});
        let gpus: Vec<_> = ["0000:62:00.0", "0000:72:00.0", "0000:c1:00.0"]
            .into_iter()
            .map(gpu)
            .collect();
        serde_json::from_value(json!({ "accelerators": gpus })).expect("an inventory")
    }

    fn pod(name: &str, devices: &[(&str, &str)]) -> PodResources {
        let devices = devices.iter().map(|(resource, id)| ContainerDevices {
            resource_name: (*resource).to_owned(),
            device_ids: vec![(*id).to_owned()],
        });
        PodResources {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: devices.collect(),
                ..ContainerResources::default()
            }],
        }
    }

    fn own(waiting: &Waiting, pods: &[PodResources]) -> Vec<String> {
        let resource = ResourceName::new("rdma/hca").expect("a name");
        let own = waiting.own(pods, &resource, &inventory(), &names());
        own.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ids_of_device_plugins_name_accelerators() {
        for (id, expected) in [
            (UUID.to_owned(), "0000:62:00.0"),
            (format!("{UUID}::3"), "0000:62:00.0"),
            (format!("MIG-{UUID}/1/0"), "0000:62:00.0"),
            ("nvidia5".into(), "0000:62:00.0"),
            ("nvidia5/vgpu1".into(), "0000:62:00.0"),
            ("nvidia5/gi1/vgpu0".into(), "0000:62:00.0"),
            ("card1-0".into(), "0000:72:00.0"),
            ("0000:c1:00.0".into(), "0000:c1:00.0"),
        ] {
            let pods = [pod("a", &[("example.com/gpu", &id)])];
            assert_eq!(own(&Waiting::default(), &pods), [expected], "{id}");
        }
        for id in [
            "MIG-c6c2b1d4-9f65-5cb7-8e31-6f6a1f5f0e0f",
            "GPU-?",
            "nvidia50",
            "card10-0",
            // the id of a NIC, not of an accelerator
            "0000:3b:00.2",
            "3",
            "",
        ] {
            let pods = [pod("a", &[("example.com/gpu", id)])];
            assert_eq!(own(&Waiting::default(), &pods), [""; 0], "{id}");
        }
    }

    #[test]
    fn the_container_is_the_one_that_has_no_id_of_the_resource_yet() {
        let waiting = Waiting::default();
        let gpu = ("nvidia.com/gpu", "nvidia5");
        let other = ("amd.com/gpu", "0000:c1:00.0");
        let with_nic = pod("a", &[gpu, ("rdma/hca", "7")]);
        assert_eq!(own(&waiting, std::slice::from_ref(&with_nic)), [""; 0]);
        // pod `b` has no `rdma/hca`, only another resource
        let waits = pod("b", &[other, ("rdma/vf", "0000:3b:00.2")]);
        assert_eq!(own(&waiting, &[with_nic, waits]), ["0000:c1:00.0"]);
    }

    #[test]
    fn an_earlier_container_without_an_id_is_ignored() {
        let waiting = Waiting::default();
        let gpu = ("nvidia.com/gpu", "nvidia5");
        let other = ("amd.com/gpu", "0000:c1:00.0");
        let without = pod("without", &[gpu]);
        let comes = pod("trainer-0", &[other]);
        // both containers are new
        let both = own(&waiting, &[without.clone(), comes]);
        assert_eq!(both, ["0000:62:00.0", "0000:c1:00.0"]);
        let served = pod("trainer-0", &[other, ("rdma/hca", "7")]);
        let next = pod("trainer-1", &[("intel.com/gpu", "card1-0")]);
        let own_now = own(&waiting, &[without.clone(), served.clone(), next]);
        assert_eq!(own_now, ["0000:72:00.0"]);
        // a new pod with the same name as an ended pod
        let again = pod("trainer-0", &[other]);
        assert_eq!(own(&waiting, &[without, again]), ["0000:c1:00.0"]);
    }
}
