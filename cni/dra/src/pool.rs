// SPDX-License-Identifier: Apache-2.0
//! Devices of a node's pool.
//!
//! The pool has one device for each NIC. If each id of a resource has all NICs, the pool also has one device with all
//! NICs, which pods get by requesting the extended resource. Claims of a single NIC then use the devices with one NIC.
//! A device that several pods may share can be allocated several times (`allowMultipleAllocations`): each allocation
//! consumes 1 of the device's capacity `sharers`.

use fnv::FnvHasher;
use rdma_netns::DeviceAddress;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, hash::Hasher};

/// Longest name of a device in bytes. The name is a DNS label (RFC 1123).
const LONGEST_NAME: usize = 63;

/// Longest text of an attribute, in bytes (`DeviceAttributeMaxValueLength` in `resource/v1/types.go`).
pub const LONGEST_TEXT: usize = 64;

/// Domain of standard attributes, which all drivers use.
const STANDARD: &str = "resource.kubernetes.io";

/// Domain of the attributes by which Multus finds the devices of a claim (`pkg/draclient` of multus-cni).
const MULTUS: &str = "k8s.cni.cncf.io";

/// A resource that is allocated by claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Name of the extended resource, such as `rdma/hca`.
    pub name: String,
    /// True if each id of the extended resource has all NICs.
    pub whole: bool,
    /// Largest number of claims of the same device. `None`: only one claim can have a device.
    pub sharers: Option<u32>,
    /// True if Kubernetes evicts the pods of unhealthy NICs.
    pub evict: bool,
    /// Reason why no NIC of the resource may be allocated, such as fewer NICs than it requires, or limits that the node
    /// cannot set.
    pub short: Option<String>,
    /// NICs in the order of their addresses.
    pub nics: Vec<Nic>,
}

/// A NIC of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Address of the PCI function or auxiliary device.
    pub address: String,
    /// Name of the RDMA device.
    pub rdma: String,
    /// Name of the NIC's netdev, as last observed in the node's namespace.
    pub netdev: Option<String>,
    /// Bond that has the netdev as a port; `None`: the netdev is not a bond's port.
    pub bond: Option<String>,
    /// Link layer: `ethernet` or `infiniband`.
    pub link_layer: Option<String>,
    /// MTU of the netdev, as last observed in the node's namespace.
    pub mtu: Option<u32>,
    /// Speed of the netdev in Mbit/s. It is the value of the last observation in the node's namespace while the netdev
    /// had a carrier.
    pub speed: Option<u32>,
    /// IPv6 prefix of the netdev or its bond, as last observed in the node's namespace, such as `fd00:1::/64`.
    pub ipv6_prefix: Option<String>,
    /// IPv6 address of the netdev or its bond, as last observed in the node's namespace.
    pub ipv6_address: Option<String>,
    /// IPv4 address of the netdev or its bond, as last observed in the node's namespace.
    pub ipv4_address: Option<String>,
    /// Hardware address of the netdev, as last observed in the node's namespace, such as `02:00:00:00:00:01`.
    pub hardware_address: Option<String>,
    /// Firmware version of the RDMA device, such as `28.39.1002`.
    pub firmware: Option<String>,
    /// Name of the driver, such as `mlx5_core`.
    pub driver: Option<String>,
    /// PCI vendor id, such as `15b3`.
    pub vendor: Option<String>,
    /// Address of the physical function, if the NIC is a virtual function or sub-function.
    pub physical_function: Option<String>,
    /// Number of the NUMA node.
    pub numa_node: Option<u32>,
    /// PCIe root of the NIC, such as `pci0000:3a`. For a NIC with a Data Direct function: the root of that function.
    pub pcie_root: Option<String>,
    /// Switches of the NIC's ports, from LLDP, such as `leaf1`, or `leaf1,leaf2` for a bond.
    pub switch: Option<String>,
    /// Ports of these switches, such as `Ethernet1/1`.
    pub switch_port: Option<String>,
    /// Reason why the NIC is unhealthy; `None`: it is healthy.
    pub fault: Option<String>,
    /// Reason why the NIC is degraded: it is usable, but slower than possible, or without its redundancy.
    pub degraded: Option<String>,
}

/// Effect of a device's taint (`DeviceTaintEffect` in `resource/v1/types.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Effect {
    /// `None`: pods may have the device. It is degraded.
    None,
    /// `NoSchedule`: no new pod may have the device. It is unhealthy, and its resource does not evict pods; or
    /// [`Resource::short`] applies.
    NoSchedule,
    /// `NoExecute`: no new pod may have the device, and Kubernetes evicts its pods. It is unhealthy, and its resource
    /// evicts pods.
    NoExecute,
}

/// One device of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDevice {
    /// Name of the device. It is unique in the pool, and does not change while the device exists.
    pub name: String,
    /// Name of the resource.
    pub resource: String,
    /// Addresses of the device's NICs.
    pub addresses: Vec<DeviceAddress>,
    /// Faults of the device or its NICs.
    pub faults: Vec<String>,
    /// Reasons why the device, or one of its NICs, is degraded.
    pub degraded: Vec<String>,
    /// Effect of the device's taint; `None`: the device has no taint.
    pub taint: Option<Effect>,
    /// Largest number of allocations of the device, if it may be allocated several times.
    pub sharers: Option<u32>,
    /// Attributes in the API's form.
    pub attributes: Map<String, Value>,
}

impl PoolDevice {
    /// Returns true if new pods may have the device.
    pub fn is_usable(&self) -> bool {
        matches!(self.taint, None | Some(Effect::None))
    }
}

/// Returns the devices of `resources`.
pub fn devices(resources: &[Resource]) -> Vec<PoolDevice> {
    resources.iter().flat_map(of_resource).collect()
}

fn of_resource(resource: &Resource) -> Vec<PoolDevice> {
    let address = |nic: &Nic| DeviceAddress::try_from(nic.address.clone()).ok();
    let reason = |nic: &Nic, why: &Option<String>| Some(format!("{}: {}", nic.rdma, why.as_ref()?));
    let device = |part: &str, addresses, nics: &[Nic], attributes| {
        let faults = nics.iter().filter_map(|nic| reason(nic, &nic.fault));
        let slow = nics.iter().filter_map(|nic| reason(nic, &nic.degraded));
        let degraded: Vec<String> = match nics {
            [_] => slow.collect(),
            // while one of several NICs has no fault, the faults of the others only degrade the device
            _ => faults.clone().chain(slow).collect(),
        };
        let taint = if nics.iter().all(|nic| nic.fault.is_some()) {
            Some(match resource.evict {
                true => Effect::NoExecute,
                false => Effect::NoSchedule,
            })
        } else if resource.short.is_some() {
            // do not evict pods: they can use the NICs that have no fault
            Some(Effect::NoSchedule)
        } else {
            (!degraded.is_empty()).then_some(Effect::None)
        };
        PoolDevice {
            name: name(&resource.name, part),
            resource: resource.name.clone(),
            addresses,
            faults: resource.short.iter().cloned().chain(faults).collect(),
            degraded,
            taint,
            sharers: resource.sharers,
            attributes,
        }
    };
    let mut devices = vec![];
    // put the device with all NICs first: a scheduler uses the first device that fits
    if resource.whole && !resource.nics.is_empty() {
        devices.push(device(
            "all",
            resource.nics.iter().filter_map(address).collect(),
            &resource.nics,
            of_all(resource),
        ));
    }
    for (rail, nic) in resource.nics.iter().enumerate() {
        let Some(address) = address(nic) else {
            continue;
        };
        let attributes = of_nic(resource, nic, rail);
        devices.push(device(
            &nic.address,
            vec![address],
            std::slice::from_ref(nic),
            attributes,
        ));
    }
    devices
}

/// Returns the attributes that describe a device's resource and scope. Multus passes `device_id` to the plugins of a
/// network with this resource.
fn common(resource: &Resource, scope: &str, device_id: &str) -> Map<String, Value> {
    let mut attributes = Map::new();
    let extended = resource.whole == (scope == "all");
    attributes.insert("resource".into(), json!({"string": resource.name}));
    attributes.insert("scope".into(), json!({"string": scope}));
    attributes.insert("extendedResource".into(), json!({"bool": extended}));
    let mode = match resource.sharers {
        Some(_) => "shared",
        None => "exclusive",
    };
    attributes.insert("mode".into(), json!({"string": mode}));
    for (name, text) in [("resourceName", &*resource.name), ("deviceID", device_id)] {
        attributes.insert(format!("{MULTUS}/{name}"), json!({"string": text}));
    }
    attributes
}

fn of_all(resource: &Resource) -> Map<String, Value> {
    // use the device's name as the device id: without a device id, Multus refuses pods of the extended resource whose
    // network names a resource
    let mut attributes = common(resource, "all", &name(&resource.name, "all"));
    attributes.insert("rails".into(), json!({"int": resource.nics.len()}));
    // the device of all NICs has `pcieRoot` or `numaNode` only if all NICs have the same value
    let mut roots = resource.nics.iter().map(|nic| &nic.pcie_root);
    if let Some(Some(root)) = roots.next()
        && roots.all(|other| other.as_ref() == Some(root))
    {
        standard(&mut attributes, "pcieRoot", json!({"string": root}));
    }
    let nodes: BTreeSet<Option<u32>> = resource.nics.iter().map(|nic| nic.numa_node).collect();
    if let (Some(Some(node)), 1) = (nodes.first(), nodes.len()) {
        standard(&mut attributes, "numaNode", json!({"int": node}));
    }
    attributes
}

fn of_nic(resource: &Resource, nic: &Nic, rail: usize) -> Map<String, Value> {
    let mut attributes = common(resource, "nic", &nic.address);
    attributes.insert("rail".into(), json!({"int": rail}));
    let texts = [
        ("address", Some(&nic.address)),
        ("rdmaDevice", Some(&nic.rdma)),
        ("netdev", nic.netdev.as_ref()),
        ("bond", nic.bond.as_ref()),
        ("linkLayer", nic.link_layer.as_ref()),
        ("ipv6Prefix", nic.ipv6_prefix.as_ref()),
        ("ipv6Address", nic.ipv6_address.as_ref()),
        ("ipv4Address", nic.ipv4_address.as_ref()),
        ("hardwareAddress", nic.hardware_address.as_ref()),
        ("driver", nic.driver.as_ref()),
        ("firmware", nic.firmware.as_ref()),
        ("vendor", nic.vendor.as_ref()),
        ("physicalFunction", nic.physical_function.as_ref()),
        ("switch", nic.switch.as_ref()),
        ("switchPort", nic.switch_port.as_ref()),
    ];
    for (name, text) in texts {
        if let Some(text) = text.filter(|text| text.len() <= LONGEST_TEXT) {
            attributes.insert(name.into(), json!({"string": text}));
        }
    }
    for (name, number) in [("mtu", nic.mtu), ("speed", nic.speed)] {
        if let Some(number) = number {
            attributes.insert(name.into(), json!({"int": number}));
        }
    }
    // an auxiliary device has no PCI address of its own
    if nic.address.contains(':') {
        standard(&mut attributes, "pciBusID", json!({"string": nic.address}));
    }
    if let Some(root) = &nic.pcie_root {
        standard(&mut attributes, "pcieRoot", json!({"string": root}));
    }
    if let Some(node) = nic.numa_node {
        standard(&mut attributes, "numaNode", json!({"int": node}));
    }
    attributes
}

fn standard(attributes: &mut Map<String, Value>, name: &str, value: Value) {
    attributes.insert(format!("{STANDARD}/{name}"), value);
}

/// Returns the name of a device, such as `rdma-hca-all` or `rdma-hca-0000-3b-00-0`. A name that would be too long or
/// ambiguous ends in a hash of the whole name.
fn name(resource: &str, part: &str) -> String {
    let whole = format!("{resource}-{part}");
    let flat = |text: &str| -> String {
        let letters = text.chars().map(|it| match it.to_ascii_lowercase() {
            it if it.is_ascii_alphanumeric() => it,
            _ => '-',
        });
        letters.collect()
    };
    let label = flat(&whole);
    let is_plain = |text: &str| {
        let mut bytes = text.bytes();
        bytes.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit())
    };
    // the name is unambiguous if the resource's name has only lower-case letters and digits on both sides of its `/`
    let is_unique = resource.split('/').all(is_plain);
    if is_unique && label.len() <= LONGEST_NAME {
        return label;
    }
    let number = format!("-{:016x}", hash(&whole));
    let front = &label[..label.len().min(LONGEST_NAME - number.len())];
    format!("{}{number}", front.trim_end_matches('-'))
}

/// Returns the FNV-1a hash, which is equal in every version and run.
pub(crate) fn hash(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_labels() {
        for (resource, part, expected) in [
            ("rdma/hca", "all", "rdma-hca-all"),
            ("rdma/hca", "0000:3b:00.0", "rdma-hca-0000-3b-00-0"),
            ("rdma/hca", "mlx5_core.sf.4", "rdma-hca-mlx5-core-sf-4"),
        ] {
            assert_eq!(name(resource, part), expected);
        }
        let long = format!("{}.example.org/{}", "a".repeat(60), "b".repeat(63));
        let resources = ["rdma/h-ca", "rdma/h_ca", "rdma.x/hca", "rdma/HCA", &long];
        let names: BTreeSet<String> = resources
            .iter()
            .flat_map(|resource| ["all", "0000:3b:00.0"].map(|part| name(resource, part)))
            .collect();
        assert_eq!(names.len(), 2 * resources.len(), "{names:?}");
        for name in names {
            let is_inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
            assert!(
                name.len() <= LONGEST_NAME && name.bytes().all(is_inner),
                "{name}"
            );
            assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
        }
    }
}
