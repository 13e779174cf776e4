// SPDX-License-Identifier: Apache-2.0
//! Tests of names of the maximum length in Kubernetes. Together they exceed the limit for a file name (`NAME_MAX`,
//! 255 bytes).

use crate::kubelet::{Cluster, every};
use rdma_netns::RdmaMode;
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::PathBuf};

const VF: &str = "0000:3b:00.2";

/// Returns the paths of `rails.json` of all pods.
fn rails_files(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let networks = fs::read_dir(cluster.state_dir().join("rails")).unwrap();
    let networks = networks.flatten().filter(|it| it.path().is_dir());
    let pods = networks.flat_map(|it| fs::read_dir(it.path()).unwrap().flatten());
    pods.map(|it| it.path().join("rails.json")).collect()
}

/// Namespace and name of a pod may have 63 and 253 characters (RFC 1123, `validation.NameIsDNSSubdomain`).
#[test]
fn the_longest_names_of_pods_keep_no_pod_from_its_rails() {
    let cluster = Cluster::new(RdmaMode::Shared);
    let config = cluster.config(json!({ "devices": [{"netdev": "eth2"}], "mode": "share" }));
    let namespace = "n".repeat(63);
    let pods = ["a", "b"].map(|last| {
        let name = format!("{}{last}", "p".repeat(252));
        let args = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        (cluster.node.pod(last), format!("{namespace}/{name}"), args)
    });
    for (pod, _, args) in &pods {
        cluster.run_with("ADD", pod, &config, args).must_succeed();
    }
    let files = rails_files(&cluster);
    let written = files.iter().map(|path| {
        let content: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        content["pod"].as_str().unwrap().to_owned()
    });
    let written: BTreeSet<String> = written.collect();
    let names = pods.iter().map(|(_, name, _)| name.clone());
    assert_eq!(written, names.collect());
    for (pod, _, args) in &pods {
        cluster.run_with("CHECK", pod, &config, args);
        cluster.run_with("DEL", pod, &config, args).must_succeed();
    }
    assert_eq!(rails_files(&cluster), BTreeSet::new());
}

/// The name of a resource may have 244 characters before the slash and 63 after it (`IsExtendedResourceName`,
/// `pkg/apis/core/v1/helper`).
#[test]
fn the_longest_name_of_a_resource_keeps_no_pod_from_its_device() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let resource = format!("{}/{}", "r".repeat(244), "s".repeat(63));
    cluster.publish(&[(&resource, every(&[VF], Sharing::Exclusive))], false);
    cluster.grant((&resource, VF), Sharing::Exclusive, false, &[VF]);
    let pod = cluster.pod("a", &[(&resource, &[VF])]);
    let config = cluster.config(json!({ "resources": [&resource] }));
    cluster.add(&pod, &config).must_succeed();
    cluster.del(&pod, &config).must_succeed();
}
