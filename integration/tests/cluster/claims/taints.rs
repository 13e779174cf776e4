// SPDX-License-Identifier: Apache-2.0
//! Taints of degraded and of unhealthy devices: their effects on pods, and an API server without taints.

use super::driver::{Driver, NICS, claim, ends, pod, release, slices, template};
use super::exclusive::EXCLUSIVE;
use crate::{manifests, text};
use integration::{ControlPlane, slices::attribute};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const NAME: &str = "nic.example.org";

const FIRST: &str = "rdma-vf-0000-3b-00-0";

/// The only taint of the first NIC: its key and effect.
fn taint(cluster: &ControlPlane) -> Option<(String, String)> {
    let slices = cluster.get("resourceslices");
    let devices = slices
        .iter()
        .flat_map(|it| it["spec"]["devices"].as_array());
    let first = devices.flatten().find(|it| it["name"] == FIRST)?;
    let taints = first["taints"].as_array()?;
    assert_eq!(taints.len(), 1, "{taints:?}");
    let text = |field: &str| taints[0][field].as_str().expect("a text").to_owned();
    Some((text("key"), text("effect")))
}

/// A pod can get a NIC that is slower than another NIC. With `evict`, and an API server that has taints, the pod is
/// evicted when the NIC becomes unhealthy.
pub(super) fn pods_have_degraded_nics_and_leave_unhealthy_ones(cluster: &mut ControlPlane) {
    let has_taints = release(cluster) >= 36;
    let is = |reason: &str, effect: &str| {
        has_taints.then(|| (format!("{NAME}/{reason}"), effect.to_owned()))
    };
    let driver = Driver::new(cluster, EXCLUSIVE, ("rdma/vf", "exclusive", NAME));
    for (nic, speed) in NICS.iter().zip(["100000", "400000"]) {
        let file = format!("sys/class/net/{}", nic.netdev);
        driver.machine.write(&format!("{file}/carrier"), "1\n");
        driver.machine.write(&format!("{file}/speed"), speed);
    }
    driver.daemon.signal(Signal::SIGHUP);
    cluster.until("the slower one is degraded", |it| {
        let speed = attribute(&it.get("resourceslices"), FIRST, "speed");
        speed == json!({"int": 100_000}) && taint(it) == is("degraded", "None")
    });
    let (all, unusable) = slices(cluster);
    assert_eq!((all.len(), unusable), (2, vec![]));
    cluster.apply("apply -n default -f -", &template("rdma-vf"));
    let more = json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-vf"}]});
    let slow = pod("slow", json!({}), more);
    cluster.apply("apply -n default -f -", &slow.to_string());
    let claim = claim(cluster, "slow");
    let results = &claim["status"]["allocation"]["devices"]["results"];
    assert_eq!(results[0]["device"], FIRST);

    let file = driver.machine.path("etc/config.json");
    let before = std::fs::read_to_string(file).expect("a configuration");
    let mut evicting: Value = serde_json::from_str(&before).expect("JSON");
    evicting["dra"]["evict"] = json!(true);
    driver.machine.configure(&evicting.to_string());
    let driver = driver.killed(cluster);
    driver.machine.without_number(NICS[0].number);
    driver.daemon.signal(Signal::SIGHUP);
    let unusable = if has_taints { vec![FIRST] } else { vec![] };
    cluster.until("no new pod may have it", |it| {
        let (all, tainted) = slices(it);
        all.len() == 1 + unusable.len()
            && tainted == unusable
            && taint(it) == is("unhealthy", "NoExecute")
    });
    if has_taints {
        cluster.until("its pod is evicted", |it| {
            let slow = it.get("pods -n default");
            let slow = slow.iter().find(|it| it["metadata"]["name"] == "slow");
            slow.is_none_or(|it| it["metadata"]["deletionTimestamp"].is_string())
        });
    }
    driver.machine.number(&NICS[0], NICS[0].number);
    driver.daemon.signal(Signal::SIGHUP);
    cluster.until("it is only degraded", |it| {
        slices(it).0.len() == 2 && taint(it) == is("degraded", "None")
    });
    ends(cluster, &["slow"]);
    manifests::delete(cluster, &text(EXCLUSIVE));
    cluster.kubectl("-n default delete resourceclaimtemplates --all");
    let (status, _) = driver.daemon.end(Signal::SIGTERM);
    assert!(status.success());
    cluster.kubectl("delete resourceslices --all");
}
