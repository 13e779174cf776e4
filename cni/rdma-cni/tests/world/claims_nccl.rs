// SPDX-License-Identifier: Apache-2.0
//! Tests of library files for containers with claims: ADD writes these files for all rails of the
//! pod.

use crate::{
    claims::{DRIVER, OTHER, UID, VF, prepare, replace_record},
    kubelet::{Cluster, address},
};
use dra::{Claims, Record, cdi};
use integration::kubelet::pod_resources::{claiming, pod};
use rdma_netns::RdmaMode;
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::fs;

/// Prepares the claim again after `change`, so that its containers get the library files.
fn with_files(cluster: &Cluster, change: impl FnOnce(&mut Record)) {
    let claims = Claims::new(&cluster.state_dir());
    let mut record = claims.read(UID).unwrap().unwrap();
    let fixed = "NCCL_SOCKET_IFNAME=^rdma,docker,lo\n".to_owned();
    record.requests[0].files = [
        ("nccl.conf".to_owned(), fixed),
        ("ucx.conf".to_owned(), String::new()),
    ]
    .into();
    change(&mut record);
    replace_record(&claims, record);
}

/// Returns the file `name` as the containers of the claim `uid` see it.
fn mounted(cluster: &Cluster, uid: &str, name: &str) -> String {
    let directory = cluster.node.state.path().join("claims-cdi");
    let text = fs::read(directory.join(format!("rdma-device-plugin-claim-{uid}.json"))).unwrap();
    let specification: Value = serde_json::from_slice(&text).unwrap();
    let mount = &specification["devices"][0]["containerEdits"]["mounts"][0];
    assert_eq!(mount["containerPath"], "/run/rdma");
    let host = std::path::Path::new(mount["hostPath"].as_str().unwrap());
    fs::read_to_string(host.join(name)).unwrap()
}

/// A container can use several claims of its pod. It then sees the files of only one claim.
#[test]
fn each_claim_of_a_pod_names_all_nics_of_the_pods_claims() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    prepare(&cluster, &[VF], Sharing::Exclusive, true);
    with_files(&cluster, |_| {});
    let other = UID.replace('0', "9");
    let names = [VF, OTHER].map(|it| cluster.rdma(&address(it)).name);
    with_files(&cluster, |record| {
        record.claim.uid = other.clone();
        record.devices[0].device = "rdma-vf-2".into();
        record.devices[0].nics[0].address = address(OTHER);
        record.devices[0].nics[0].rdma = names[1].clone();
    });
    let cdi_names = [UID, &other].map(|uid| cdi::full_name(DRIVER, uid, "nic"));
    let devices = [
        (DRIVER, "rdma-vf-1", &*cdi_names[0]),
        (DRIVER, "rdma-vf-2", &*cdi_names[1]),
    ];
    let known = claiming(pod("default", "a", &[&[]]), &devices);
    cluster.kubelet.set_pods(&[known]);
    let pod = cluster.node.pod("a");
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    let result = cluster.add(&pod, &config).must_succeed();
    let rail = |index: usize, field: &str| result["rails"][index][field].to_string();
    assert_eq!(rail(0, "gidIndex"), rail(1, "gidIndex"));
    let expected = format!(
        "NCCL_IB_HCA=={},{}\nNCCL_IB_GID_INDEX={}\nNCCL_SOCKET_IFNAME=^rdma,docker,lo\n",
        names[0],
        names[1],
        rail(0, "gidIndex")
    );
    for uid in [UID, &other] {
        assert_eq!(mounted(&cluster, uid, "nccl.conf"), expected);
        let ports = format!("UCX_NET_DEVICES={}:1,{}:1\n", names[0], names[1]);
        assert_eq!(mounted(&cluster, uid, "ucx.conf"), ports);
    }
    cluster.del(&pod, &config).must_succeed();
}
