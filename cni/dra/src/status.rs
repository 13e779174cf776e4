// SPDX-License-Identifier: Apache-2.0
//! Status of a claim's devices (`status.devices`): whether containers can use the devices, and the devices' network.
//! This module has no I/O.

use crate::record::{JoinedRail, Prepared, Record};
use serde_json::{Value, json};

/// Type of the condition that shows whether containers can use a device.
const READY: &str = "Ready";

/// Largest number of addresses of a device (`NetworkDeviceDataMaxIPs` in `pkg/apis/resource/types.go`).
const MOST_ADDRESSES: usize = 16;

/// Largest size of `data`, in bytes (`AllocatedDeviceStatusDataMaxLength`).
const LONGEST_DATA: usize = 10 * 1024;

/// Returns the status of the devices of `record`. The conditions have no times yet.
pub fn of_record(record: &Record) -> Vec<Value> {
    record
        .devices
        .iter()
        .map(|it| of_device(it, record))
        .collect()
}

/// Returns true if `allocation` contains all devices of `own`.
pub fn has_all(allocation: &Value, own: &[Value]) -> bool {
    let results = &allocation["devices"]["results"];
    let results: Vec<&Value> = results.as_array().into_iter().flatten().collect();
    own.iter()
        .all(|device| results.iter().any(|it| is_of(it, device)))
}

fn is_of(a: &Value, b: &Value) -> bool {
    let fields = ["driver", "pool", "device", "shareID"];
    fields.iter().all(|field| a[field] == b[field])
}

/// Returns true if the claim's pods need a network, and none is attached yet. The status then has no new content.
pub fn is_early(record: &Record) -> bool {
    record.awaits_network && record.networks.is_empty()
}

/// Merges `own` into `present`. `own` is the status of the devices of `driver`, and `present` is the claim's
/// `status.devices`. `now` is a time in Kubernetes' format. Returns `None` if nothing changes.
pub fn merged(own: &[Value], driver: &str, present: &Value, now: &str) -> Option<Vec<Value>> {
    let present: Vec<&Value> = present.as_array().into_iter().flatten().collect();
    let others = present.iter().filter(|it| it["driver"] != driver);
    let mut all: Vec<Value> = others.map(|it| (*it).clone()).collect();
    for device in own {
        let before = present.iter().find(|it| is_of(it, device));
        let before = before.map_or(&Value::Null, |it| &it["conditions"][0]);
        let mut device = device.clone();
        let condition = &mut device["conditions"][0];
        // keep the time if the condition's status does not change
        let since = match before["status"] == condition["status"] {
            true => before["lastTransitionTime"].clone(),
            false => now.into(),
        };
        condition["lastTransitionTime"] = since;
        all.push(device);
    }
    let is_equal = all.len() == present.len() && all.iter().all(|it| present.contains(&it));
    (!is_equal).then_some(all)
}

/// Returns the status of one device of `record`.
pub(crate) fn of_device(device: &Prepared, record: &Record) -> Value {
    let rails: Vec<&JoinedRail> = record
        .rails
        .values()
        .flatten()
        .filter(|rail| rail.device.as_ref() == Some(&device.device))
        .collect();
    let (status, reason, message) = condition(device, record);
    let mut status_of = json!({
        "driver": record.driver,
        "pool": device.pool,
        "device": device.device,
        "conditions": [{"type": READY, "status": status, "reason": reason, "message": message}],
    });
    if let Some(share) = &device.share {
        status_of["shareID"] = share.as_str().into();
    }
    if rails.is_empty() {
        return status_of;
    }
    let entries: Vec<&Value> = rails.iter().map(|rail| &rail.status_entry).collect();
    let data = json!({"rails": entries});
    if data.to_string().len() <= LONGEST_DATA {
        status_of["data"] = data;
    }
    // leave out the network if the claim has several pods, because each pod has its own network
    if record.networks.len() == 1 {
        status_of["networkData"] = network_data(&rails);
    }
    status_of
}

fn condition(device: &Prepared, record: &Record) -> (&'static str, &'static str, String) {
    let lost = device
        .nics
        .iter()
        .find(|nic| record.absent.contains(&nic.address));
    if let Some(nic) = lost {
        let message = format!(
            "{} ({}) is not on the node any more: no container starts until it is back",
            nic.rdma, nic.address
        );
        return ("False", "Gone", message);
    }
    match (record.awaits_network, record.networks.len()) {
        (false, _) => (
            "True",
            "Prepared",
            "containers get the device's character devices".to_owned(),
        ),
        (true, 0) => (
            "False",
            "AwaitsNetwork",
            "no pod of the claim has its network yet".to_owned(),
        ),
        (true, pods) => (
            "True",
            "Attached",
            format!("number of pods whose network has the claim's devices: {pods}"),
        ),
    }
}

fn network_data(rails: &[&JoinedRail]) -> Value {
    let mut data = json!({});
    if let [rail] = rails {
        if let Some(name) = rail.status_entry["interface"].as_str() {
            data["interfaceName"] = name.into();
        }
        if let Some(address) = &rail.hardware_address {
            data["hardwareAddress"] = address.as_str().into();
        }
    }
    let addresses = rails
        .iter()
        .flat_map(|rail| rail.status_entry["addresses"].as_array());
    let addresses: Vec<&Value> = addresses.flatten().take(MOST_ADDRESSES).collect();
    if !addresses.is_empty() {
        data["ips"] = json!(addresses);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";
    const LATER: &str = "2026-01-02T03:04:06Z";

    fn record() -> Record {
        let text = include_str!("../tests/records/one-vf.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.absent.clear();
        record
    }

    #[test]
    fn a_pods_network_is_reported() {
        let record = record();
        let statuses = of_record(&record);
        let expected = json!([{
            "driver": "hca.rdma",
            "pool": "node-1",
            "device": "rdma-vf-0000-3b-00-1",
            "shareID": "s-1",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Attached",
                "message": "number of pods whose network has the claim's devices: 1",
            }],
            "networkData": {
                "interfaceName": "net1",
                "hardwareAddress": "02:00:00:00:00:01",
                "ips": ["fd00::1/64", "10.0.0.1/24"],
            },
            "data": {"rails": [record.rails["sandbox-1"][0].status_entry]},
        }]);
        assert_eq!(json!(statuses), expected);
        assert!(!is_early(&record));
    }

    #[test]
    fn networks_of_several_pods_are_no_network_of_the_claim() {
        let mut record = record();
        let rails = record.rails["sandbox-1"].clone();
        record.networks.insert("sandbox-2".into());
        record.rails.insert("sandbox-2".into(), rails.clone());
        let statuses = of_record(&record);
        assert_eq!(statuses[0]["networkData"], Value::Null);
        assert_eq!(
            statuses[0]["data"]["rails"].as_array().map(Vec::len),
            Some(2)
        );
        // more data than the API server accepts
        let many = std::iter::repeat_n(rails[0].clone(), 200).collect();
        record.rails.insert("sandbox-2".into(), many);
        assert_eq!(of_record(&record)[0]["data"], Value::Null);
    }

    #[test]
    fn devices_that_a_claim_lost_are_not_reported() {
        let own = of_record(&record());
        let result = json!({
            "request": "one", "driver": "hca.rdma", "pool": "node-1", "device": "rdma-vf-0000-3b-00-1",
            "shareID": "s-1",
        });
        let allocation = |results: Value| json!({"devices": {"results": results}});
        assert!(has_all(&allocation(json!([result])), &own));
        let mut other = result.clone();
        other["pool"] = "node-2".into();
        for allocation in [
            Value::Null,
            allocation(json!([])),
            allocation(json!([other])),
        ] {
            assert!(!has_all(&allocation, &own), "{allocation}");
        }
    }

    #[test]
    fn the_condition_shows_whether_containers_can_use_a_device() {
        let mut record = record();
        let mut reason = |change: fn(&mut Record)| {
            change(&mut record);
            let condition = of_record(&record)[0]["conditions"][0].clone();
            (condition["status"].clone(), condition["reason"].clone())
        };
        let of = |status: &str, reason: &str| (json!(status), json!(reason));
        let lost = |it: &mut Record| {
            let address = it.devices[0].nics[0].address.clone();
            it.absent.insert(address);
        };
        assert_eq!(reason(lost), of("False", "Gone"));
        assert_eq!(reason(|it| it.absent.clear()), of("True", "Attached"));
        assert_eq!(
            reason(|it| it.networks.clear()),
            of("False", "AwaitsNetwork")
        );
        assert_eq!(
            reason(|it| it.awaits_network = false),
            of("True", "Prepared")
        );
    }

    #[test]
    fn other_drivers_entries_stay_and_times_are_those_of_changes() {
        let own = of_record(&record());
        let gpu = json!({"driver": "gpu.example.org", "pool": "node-1", "device": "gpu-0"});
        let first = merged(&own, "hca.rdma", &json!([gpu]), NOW).expect("a change");
        assert_eq!(first[0], gpu);
        assert_eq!(first[1]["conditions"][0]["lastTransitionTime"], NOW);
        assert_eq!(merged(&own, "hca.rdma", &json!(first), LATER), None);

        let mut record = record();
        record.networks.insert("sandbox-2".into());
        let two = of_record(&record);
        let second = merged(&two, "hca.rdma", &json!(first), LATER).expect("a change");
        assert_eq!(second.len(), 2);
        assert_eq!(second[1]["conditions"][0]["lastTransitionTime"], NOW);
        record.networks.clear();
        assert!(is_early(&record));
        let none = of_record(&record);
        let third = merged(&none, "hca.rdma", &json!(second), LATER).expect("a change");
        assert_eq!(third[1]["conditions"][0]["lastTransitionTime"], LATER);
        // the status of a device that the claim no longer has is removed
        let left = merged(&[], "hca.rdma", &json!(third), LATER).expect("a change");
        assert_eq!(left, [gpu]);
    }
}
