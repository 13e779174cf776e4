// SPDX-License-Identifier: Apache-2.0
//! Parameters of a claim, in addition to the class of its devices.

use super::driver::{Driver, claim, ends, pod};
use integration::ControlPlane;
use serde_json::{Value, json};
use std::fs;

/// Claims with wrong parameters, and a claim with right parameters.
pub(super) fn are_read(cluster: &mut ControlPlane, driver: &Driver) {
    ends(cluster, &["b"]);
    let parameters = |fields: Value| {
        let mut parameters =
            json!({"apiVersion": "hca.rdma/v1alpha1", "kind": "AttachmentParameters"});
        for (name, value) in fields.as_object().expect("an object") {
            parameters[name] = value.clone();
        }
        parameters
    };
    for (on_host, fields, words) in [
        (
            false,
            json!({"mtu": "9000"}),
            "mtu: must be a whole number from 68 to 65535",
        ),
        (
            false,
            json!({"vlan": 7}),
            "vlan: not known; the fields here are",
        ),
        (
            false,
            json!({"mode": "share"}),
            "mode: is allowed only in a DeviceClass",
        ),
        (
            false,
            json!({"rails": [7]}),
            "its parameters request rail 7, and device",
        ),
        (
            true,
            json!({"mtu": 1400}),
            "rdma-cni does not attach its pod: the pod has hostNetwork",
        ),
        (false, json!({"mtu": 1400}), ""),
    ] {
        let request = json!({"name": "nic", "exactly": {"deviceClassName": "rdma-vf"}});
        let opaque = json!({"driver": driver.name, "parameters": parameters(fields.clone())});
        let devices = json!({"requests": [request], "config": [{"opaque": opaque}]});
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "with-parameters"}, "spec": {"devices": devices},
        });
        cluster.apply("apply -n default -f -", &object.to_string());
        let used = json!([{"name": "nic", "resourceClaimName": "with-parameters"}]);
        let more = json!({"resourceClaims": used, "hostNetwork": on_host});
        let pod = pod("with-parameters", json!({}), more);
        cluster.apply("apply -n default -f -", &pod.to_string());
        let claim = claim(cluster, "with-parameters");
        let prepared = driver.kubelet.prepare(&claim);
        if words.is_empty() {
            assert_eq!(prepared.error, "");
            let record = fs::read(driver.record(&claim)).expect("a record");
            let record: Value = serde_json::from_slice(&record).expect("JSON");
            assert_eq!(record["parameters"], json!({"mtu": 1400}));
            assert_eq!(driver.kubelet.unprepare(&claim), "");
        } else {
            assert!(
                prepared.error.contains(words),
                "{fields}: {}",
                prepared.error
            );
            assert!(!driver.record(&claim).exists());
        }
        ends(cluster, &["with-parameters"]);
        cluster.kubectl("-n default delete resourceclaim with-parameters");
    }
}

/// A claim with `adminAccess` to devices that other pods have. The driver refuses it for a pod with
/// a network of its own.
pub(super) fn an_admins_claim_takes_nothing_away(cluster: &mut ControlPlane, driver: &Driver) {
    cluster.kubectl("label namespace default resource.kubernetes.io/admin-access=true");
    let request =
        json!({"deviceClassName": "rdma-vf", "allocationMode": "All", "adminAccess": true});
    let object = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "admins"},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": request}]}},
    });
    for (on_host, words) in [(false, "it requests adminAccess"), (true, "")] {
        cluster.apply("apply -n default -f -", &object.to_string());
        let used = json!([{"name": "nic", "resourceClaimName": "admins"}]);
        let more = json!({"resourceClaims": used, "hostNetwork": on_host});
        let pod = pod("admins", json!({}), more);
        cluster.apply("apply -n default -f -", &pod.to_string());
        let claim = claim(cluster, "admins");
        let prepared = driver.kubelet.prepare(&claim);
        assert!(prepared.error.contains(words), "{}", prepared.error);
        assert_eq!(prepared.error.is_empty(), on_host, "{}", prepared.error);
        assert_eq!(prepared.devices.len(), if on_host { 2 } else { 0 });
        assert_eq!(driver.kubelet.unprepare(&claim), "");
        ends(cluster, &["admins"]);
        cluster.kubectl("-n default delete resourceclaim admins");
    }
    cluster.kubectl("label namespace default resource.kubernetes.io/admin-access-");
}
