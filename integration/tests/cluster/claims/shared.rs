// SPDX-License-Identifier: Apache-2.0
//! Allocation of `rdma/hca` to unchanged pods, by claims of one NIC, and together with a GPU. Also an API server that
//! does not support sharing.

use super::driver::{Driver, NICS, NODE, claim, ends, pod, release, slices, template};
use crate::text;
use integration::{ControlPlane, slices::attribute, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;

const SHARED: &str = "integration/manifests/rendered/claims.yaml";

/// `rdma/hca: 1`, requested by an unchanged pod.
pub(super) fn shared_nics_are_the_extended_resource(cluster: &mut ControlPlane) {
    let driver = Driver::new(cluster, SHARED, ("rdma/hca", "shared", "hca.rdma"));
    let expected = [
        "rdma-hca-all",
        "rdma-hca-0000-3b-00-0",
        "rdma-hca-0000-5e-00-0",
    ];
    cluster.until("the slices are there", |it| slices(it).0 == expected);
    driver.is_chained();
    for name in ["a", "b"] {
        let pod = pod(name, json!({"rdma/hca": "1"}), json!({}));
        cluster.apply("apply -n default -f -", &pod.to_string());
    }
    for name in ["a", "b"] {
        let claim = claim(cluster, name);
        driver.pods.take_requests();
        let prepared = driver.kubelet.prepare(&claim);
        assert_eq!(prepared.error, "");
        let requests = driver.pods.take_requests();
        assert!(
            requests.contains(&"List"),
            "kubelet drops ids: {requests:?}"
        );
        let [device] = &prepared.devices[..] else {
            panic!("{prepared:?}");
        };
        assert_eq!(device.device_name, "rdma-hca-all");
        assert_eq!(device.request_names, ["container-0-request-0"]);
        assert!(device.share_id.is_some());
        assert_eq!(driver.given(&prepared), None);
        // `rdma-cni` adds the lines with the pod's rails
        let record: Value =
            serde_json::from_slice(&fs::read(driver.record(&claim)).expect("a record"))
                .expect("JSON");
        let lines = "NCCL_SOCKET_IFNAME=^rdma,docker,lo\n";
        assert_eq!(record["requests"][0]["files"], json!({"nccl.conf": lines}));
    }

    let version = if release(cluster) < 37 {
        "v1alpha1"
    } else {
        "v1"
    };
    let mut health = driver.kubelet.health(version);
    assert_eq!(health.report(), [] as [&str; 0]);
    // the report is repeated: kubelet drops devices that are not reported again
    assert_eq!(health.report(), [] as [&str; 0]);
    // fewer NICs than required: no new pod gets a NIC
    driver.configure("rdma/hca", "shared", json!(3));
    cluster.until("all are tainted", |it| slices(it).1 == expected);
    let sick = health.until(|sick| !sick.is_empty());
    let names: Vec<&str> = sick.iter().filter_map(|it| it.split(':').next()).collect();
    assert_eq!(names, expected.map(|it| format!("{NODE}/{it}")));
    assert!(sick.iter().all(|it| it.contains("3")), "{sick:?}");
    cluster.apply("apply -n default -f -", &template("rdma-hca-nic"));
    let more =
        json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-hca-nic"}]});
    let pod = pod("one", json!({}), more);
    cluster.apply("apply -n default -f -", &pod.to_string());
    is_unschedulable(cluster, "one");
    driver.configure("rdma/hca", "shared", Value::Null);
    cluster.until("none is tainted any more", |it| slices(it).1.is_empty());
    health.until(<[String]>::is_empty);
    let one = claim(cluster, "one");
    let prepared = driver.kubelet.prepare(&one);
    let names: Vec<&str> = prepared.devices.iter().map(|it| &*it.device_name).collect();
    assert_eq!(names, [expected[1]], "the first one that fits");
    ends(cluster, &["a", "b", "one"]);
    claims_that_do_not_fit_into_a_gid_table_wait(cluster, &driver);
    two_nics_have_the_same_root(cluster, &driver);
    a_nic_is_chosen_beside_its_gpu(cluster, &driver);
    a_class_takes_no_nic_from_other_pods(cluster, &driver);
}

/// Waits until the scheduler reports the pod `name` as unschedulable.
#[track_caller]
fn is_unschedulable(cluster: &mut ControlPlane, name: &str) {
    cluster.until("the scheduler reports why it waits", |it| {
        let pod = &it.get(&format!("pod -n default {name}"))[0];
        let conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions.iter().any(|it| it["reason"] == "Unschedulable")
    });
}

/// Returns the capacity `sharers` of each device in the first slice, and the generation of the pool.
fn sharers(cluster: &ControlPlane) -> (Vec<Value>, Value) {
    let slices = cluster.get("resourceslices");
    let devices = slices[0]["spec"]["devices"].as_array().expect("a list");
    let values = devices
        .iter()
        .map(|it| it["capacity"]["sharers"]["value"].clone());
    (
        values.collect(),
        slices[0]["spec"]["pool"]["generation"].clone(),
    )
}

/// With room for two pods, the third pod waits until another pod has ended. A claim of one NIC gets another NIC if the
/// first is full.
fn claims_that_do_not_fit_into_a_gid_table_wait(cluster: &mut ControlPlane, driver: &Driver) {
    // the API server writes 1000 as `1k`: for the daemon this is no change
    let before = sharers(cluster);
    assert_eq!(before.0, ["1k"; 3]);
    driver.daemon.signal(Signal::SIGHUP);
    driver.is_at_rest();
    assert_eq!(sharers(cluster), before);

    // 28 entries have room for two pods: the node uses 16, and each pod six
    for nic in &NICS {
        let table = format!("sys/class/infiniband/{}/ports/1/gids", nic.rdma);
        fs::create_dir_all(driver.machine.path(&table)).expect("a directory");
        for entry in 0..28 {
            driver.machine.write(&format!("{table}/{entry}"), "");
        }
    }
    driver.daemon.signal(Signal::SIGHUP);
    cluster.until("two pods fit", |it| sharers(it).0 == ["2"; 3]);
    let taken = |claim: &Value| {
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        assert_eq!(result["consumedCapacity"], json!({"sharers": "1"}));
        result["device"].clone()
    };
    for name in ["first", "second", "third"] {
        let pod = pod(name, json!({"rdma/hca": "1"}), json!({}));
        cluster.apply("apply -n default -f -", &pod.to_string());
        if name == "third" {
            is_unschedulable(cluster, name);
            ends(cluster, &["first"]);
        }
        assert_eq!(taken(&claim(cluster, name)), "rdma-hca-all");
    }
    let more =
        json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-hca-nic"}]});
    for (name, address) in [("x", "3b"), ("y", "3b"), ("z", "5e")] {
        let pod = pod(name, json!({}), more.clone());
        cluster.apply("apply -n default -f -", &pod.to_string());
        let device = format!("rdma-hca-0000-{address}-00-0");
        assert_eq!(taken(&claim(cluster, name)), device);
    }
    ends(cluster, &["second", "third", "x", "y", "z"]);
}

/// The driver refuses a claim whose class moves a NIC or sets up a virtual function. Other pods may have children of
/// the NIC, and the NIC is not a virtual function.
fn a_class_takes_no_nic_from_other_pods(cluster: &mut ControlPlane, driver: &Driver) {
    let moves = "its class has mode move, which would remove the NIC from other pods";
    let sets_up = "its class has vf settings, but its devices are shared";
    for (name, parameter, value, words) in [
        ("moved", "mode", json!("move"), moves),
        ("tenant", "vf", json!({"vlan": 7}), sets_up),
    ] {
        let parameters = json!({
            "apiVersion": "hca.rdma/v1alpha1", "kind": "AttachmentParameters", parameter: value,
        });
        let opaque = json!({"driver": driver.name, "parameters": parameters});
        let expression =
            r#"device.driver == "hca.rdma" && device.attributes["hca.rdma"].scope == "nic""#;
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}], "config": [{"opaque": opaque}]},
        });
        cluster.apply("create -f -", &class.to_string());
        cluster.apply("create -n default -f -", &template(name));
        let used = json!([{"name": "nic", "resourceClaimTemplateName": name}]);
        let pod = pod(name, json!({}), json!({"resourceClaims": used}));
        cluster.apply("apply -n default -f -", &pod.to_string());
        let claim = claim(cluster, name);
        let prepared = driver.kubelet.prepare(&claim);
        assert!(prepared.error.contains(words), "{}", prepared.error);
        ends(cluster, &[name]);
        cluster.kubectl(&format!("delete deviceclass {name}"));
    }
}

/// Two rails below one PCIe root, selected by the standard attribute.
fn two_nics_have_the_same_root(cluster: &mut ControlPlane, driver: &Driver) {
    let exactly = json!({"deviceClassName": "rdma-hca-nic", "count": 2});
    let constraint =
        json!({"requests": ["nics"], "matchAttribute": "resource.kubernetes.io/pcieRoot"});
    let devices = json!({
        "requests": [{"name": "nics", "exactly": exactly}], "constraints": [constraint],
    });
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "two"},
        "spec": {"devices": devices},
    });
    cluster.apply("create -n default -f -", &claim.to_string());
    let more = json!({"resourceClaims": [{"name": "nic", "resourceClaimName": "two"}]});
    let pod = pod("two", json!({}), more);
    cluster.apply("apply -n default -f -", &pod.to_string());
    let claim = self::claim(cluster, "two");
    let prepared = driver.kubelet.prepare(&claim);
    assert_eq!(prepared.error, "");
    let names: Vec<&str> = prepared.devices.iter().map(|it| &*it.device_name).collect();
    assert_eq!(names, ["rdma-hca-0000-3b-00-0", "rdma-hca-0000-5e-00-0"]);
    assert_eq!(driver.kubelet.unprepare(&claim), "");
    ends(cluster, &["two"]);
    cluster.kubectl("-n default delete resourceclaim two");
}

/// The example's claim, with made-up GPUs. The first GPU is below another root. The second GPU is below the root of the
/// NIC's Data Direct function.
fn a_nic_is_chosen_beside_its_gpu(cluster: &mut ControlPlane, driver: &Driver) {
    const ROOT: &str = "resource.kubernetes.io/pcieRoot";
    driver.machine.data_direct(&NICS[0], "0009:03:00.0");
    driver.daemon.signal(Signal::SIGHUP);
    cluster.until("the NIC has the root of its Data Direct function", |it| {
        let slices = it.get("resourceslices");
        attribute(&slices, "rdma-hca-0000-3b-00-0", ROOT) == json!({"string": "pci0009:03"})
            && attribute(&slices, "rdma-hca-all", ROOT).is_null()
    });
    const GPU: &str = "gpu.nvidia.com";
    let gpu = |name: &str, root: &str| {
        let root = json!({"string": root});
        json!({"name": name, "attributes": {ROOT: root}})
    };
    let devices = [gpu("gpu-0", "pci0000:ff"), gpu("gpu-1", "pci0009:03")];
    let pool = json!({"name": NODE, "generation": 1, "resourceSliceCount": 1});
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "gpus"},
        "spec": {"driver": GPU, "nodeName": NODE, "pool": pool, "devices": devices},
    });
    let expression = format!("device.driver == \"{GPU}\"");
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": GPU},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [slice, class]});
    cluster.apply("create -f -", &list.to_string());
    let example = text("conf/examples/70-gpu-and-nic-by-claim.yaml");
    cluster.apply("apply -n default -f -", &example);
    let claim = claim(cluster, "gpu-and-nic");
    let results = &claim["status"]["allocation"]["devices"]["results"];
    let of = |request: &str| {
        let mut results = results.as_array().expect("a list").iter();
        let found = results.find(|it| it["request"] == request);
        found.expect("a result")["device"].clone()
    };
    assert_eq!(of("gpu"), "gpu-1");
    assert_eq!(of("nic"), "rdma-hca-0000-3b-00-0");
    let prepared = driver.kubelet.prepare(&claim);
    assert_eq!(prepared.error, "");
    assert_eq!(prepared.devices.len(), 1, "the GPU is its own driver's");
    assert_eq!(driver.kubelet.unprepare(&claim), "");
    ends(cluster, &["gpu-and-nic"]);
    cluster.kubectl("delete resourceslice gpus");
}

/// If the API server drops `allowMultipleAllocations`, the daemon reports this and removes its slices.
pub(super) fn what_cannot_be_shared_is_refused_in_words(cluster: &mut ControlPlane) {
    let driver = Driver::new(cluster, SHARED, ("rdma/hca", "shared", "hca.rdma"));
    driver
        .daemon
        .wait_for_log("drops the field allowMultipleAllocations");
    wait::until("they are taken back", || slices(cluster).0.is_empty());
}
