// SPDX-License-Identifier: Apache-2.0
//! A resource with `parents`: claims attach pods to VLANs of the NICs' bonds.

use crate::{DEVICES, end, of_the_example_have_all_rails};
use integration::{
    Cluster,
    cluster::claims,
    container_runtime::{installed::records, shared::rping_on_all_rails},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/rdma-devices";

/// Sets the `parents` of the resource in the ConfigMap. Returns when new pods may use all devices of the
/// slice, and each NIC has its bond's prefix or, if `parents` selects a VLAN, no prefix.
fn set_parents(cluster: &mut Cluster, parents: &[&str]) {
    let map = cluster.get(CONFIG_MAP);
    let text = map["data"]["config.json"].as_str().expect("a file");
    let mut conf: Value = serde_json::from_str(text).expect("JSON");
    conf["resources"][0]["parents"] = match parents.is_empty() {
        true => Value::Null,
        false => json!(parents),
    };
    let patch = json!({ "data": { "config.json": conf.to_string() } });
    cluster.types(&format!(
        "kubectl -n kube-system patch configmap rdma-devices --type merge --patch '{patch}'"
    ));
    let has_prefixes = parents.is_empty();
    cluster.until("the slice has the networks of the parents", |it| {
        let has_prefix = |device: &&str| !claims::attribute(it, device, "ipv6Prefix").is_null();
        let healthy = (DEVICES.map(Into::into).into(), vec![]);
        claims::devices(it) == healthy
            && DEVICES[1..]
                .iter()
                .all(|device| has_prefix(device) == has_prefixes)
    });
    cluster.report(&format!("the parents are {parents:?}"));
}

/// Returns the names of the netdevs whose children are in pods.
fn parents_of_pods() -> BTreeSet<String> {
    let rails = records().into_values().flat_map(|text| {
        let record: Value = serde_json::from_str(&text).expect("JSON");
        record["rails"].as_array().expect("rails").clone()
    });
    let parent = |rail: Value| {
        rail["shared"]["parent"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    rails.map(parent).collect()
}

/// Makes a VLAN on each bond, and sets `parents`. Asserts that the example's pods get children of the VLANs, with RDMA
/// between them.
pub(crate) fn are_vlans(cluster: &mut Cluster) {
    let bond = |device: &str| claims::attribute(cluster, device, "bond")["string"].clone();
    let bonds = [DEVICES[1], DEVICES[2]].map(|it| bond(it).as_str().expect("a bond").to_owned());
    for (number, bond) in bonds.iter().enumerate() {
        cluster.nics.host.ip_batch(&[
            format!("link add link {bond} name {bond}.100 type vlan id 100"),
            format!("link set dev {bond}.100 up"),
            format!("address add fd64:{number}::1/64 dev {bond}.100 nodad"),
        ]);
    }
    set_parents(cluster, &["bond*.100"]);
    let pair = of_the_example_have_all_rails(cluster);
    let vlans = bonds.each_ref().map(|bond| format!("{bond}.100"));
    assert_eq!(parents_of_pods(), vlans.clone().into());
    rping_on_all_rails([&pair[0], &pair[1]]);
    cluster.report("there was RDMA between pods on VLANs");
    end(cluster, &pair.map(|pod| pod.netns()));
    set_parents(cluster, &[]);
    for vlan in vlans {
        cluster.nics.host.ip(&format!("link del dev {vlan}"));
    }
}
