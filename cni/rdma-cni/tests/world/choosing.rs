// SPDX-License-Identifier: Apache-2.0
//! Tests of annotations by which a pod chooses details of its own attachment, if the operator allows them.

use crate::{
    kubelet::{Cluster, every},
    leases::{has_link, link_of},
};
use rdma_netns::RdmaMode;
use rdma_resources::Sharing;
use serde_json::{Value, json};

/// Returns a cluster with a shared resource of `eth2` and `eth3` and an exclusive resource of `eth2`, and the
/// configuration of a pod with these annotations.
fn cluster(allowed: &Value, annotations: &Value) -> (Cluster, Value) {
    let cluster = Cluster::new(RdmaMode::Shared);
    let both = every(&["0000:3b:00.2", "0000:d8:00.2"], Sharing::Shared);
    let one = every(&["0000:3b:00.2"], Sharing::Exclusive);
    cluster.publish(&[("rdma/hca", both), ("rdma/vf", one)], false);
    let config = cluster.config(json!({
        "resources": ["rdma/hca", "rdma/vf"], "podAnnotations": allowed,
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": annotations},
    }));
    (cluster, config)
}

const HCA: (&str, &[&str]) = ("rdma/hca", &["17"]);

#[test]
fn a_pod_has_the_rails_and_the_mtu_that_it_chooses() {
    let annotations = json!({"hca.rdma/rails": "1", "hca.rdma/mtu": "1400"});
    let (cluster, mut config) = cluster(&json!(["rails", "mtu"]), &annotations);
    let pod = cluster.pod("a", &[HCA]);
    let before = cluster.node.snapshot();
    let plan = cluster.plan(&pod, &config);
    assert!(
        plan.contains("link eth3 name rdma0") && !plan.contains("eth2"),
        "{plan}"
    );
    let result = cluster.add(&pod, &config).must_succeed();
    let interfaces = result["interfaces"].as_array().expect("interfaces");
    assert_eq!(interfaces.len(), 1, "{result}");
    assert_eq!(result["rails"][0]["netdev"], "eth3", "{result}");
    assert_eq!(link_of(&cluster.node, &pod, "rdma0").mtu, 1400);
    config["prevResult"] = result;
    cluster.run("CHECK", &pod, &config).must_succeed();
    cluster.del(&pod, &config).must_succeed();
    cluster.node.must_be(&before, "after DEL");
}

/// MTU that `furnished` sets on the two netdevs.
const OWN_MTU: u32 = 4200;

#[test]
fn annotations_that_are_not_allowed_are_ignored() {
    let nonsense = json!({"hca.rdma/rails": "nonsense", "hca.rdma/mtu": "nonsense"});
    let (rail, mtu) = (json!("1"), json!("1400"));
    let chosen = json!({"hca.rdma/rails": rail, "hca.rdma/mtu": mtu});
    for (allowed, annotations, rails, mtu) in [
        (
            json!(["mtu"]),
            &json!({"hca.rdma/rails": "nonsense", "hca.rdma/mtu": mtu}),
            2,
            1400,
        ),
        (json!(["mtu"]), &chosen, 2, 1400),
        (
            json!(["rails"]),
            &json!({"hca.rdma/rails": rail, "hca.rdma/mtu": "nonsense"}),
            1,
            OWN_MTU,
        ),
        (json!(["rails"]), &chosen, 1, OWN_MTU),
        (json!([]), &chosen, 2, OWN_MTU),
        (json!([]), &nonsense, 2, OWN_MTU),
        // null counts as a missing field
        (Value::Null, &chosen, 2, OWN_MTU),
        (Value::Null, &nonsense, 2, OWN_MTU),
    ] {
        let (cluster, config) = cluster(&allowed, annotations);
        let pod = cluster.pod("a", &[HCA]);
        cluster.add(&pod, &config).must_succeed();
        for rail in 0..2 {
            let name = format!("rdma{rail}");
            let what = format!("{name}, {allowed} of {annotations}");
            assert_eq!(has_link(&cluster.node, &pod, &name), rail < rails, "{what}");
            if rail < rails {
                assert_eq!(link_of(&cluster.node, &pod, &name).mtu, mtu, "{what}");
            }
        }
        cluster.del(&pod, &config).must_succeed();
    }
}

#[test]
fn an_invalid_annotation_is_reported_before_any_change() {
    for (devices, what, value, expected) in [
        (
            HCA,
            "rails",
            "0-2",
            "the pod's annotation hca.rdma/rails names rail 2, but the pod requests 2 shared NICs, rails 0 to 1",
        ),
        (
            HCA,
            "rails",
            "one",
            "the pod's annotation hca.rdma/rails: \"one\" is not valid: must be",
        ),
        (
            ("rdma/vf", &["1"]),
            "rails",
            "0",
            "names rail 0, but the pod requests no shared NIC",
        ),
        (
            HCA,
            "mtu",
            "jumbo",
            "the pod's annotation hca.rdma/mtu: \"jumbo\" is not valid: must be a whole number from 68 to 65535",
        ),
        (HCA, "mtu", "67", "hca.rdma/mtu: \"67\" is not valid"),
        (HCA, "mtu", "-1400", "hca.rdma/mtu: \"-1400\" is not valid"),
        (HCA, "mtu", "", "hca.rdma/mtu: \"\" is not valid"),
    ] {
        let annotations = json!({format!("hca.rdma/{what}"): value});
        let (cluster, config) = cluster(&json!(["rails", "mtu"]), &annotations);
        let pod = cluster.pod("a", &[devices]);
        let before = cluster.node.snapshot();
        let message = cluster.add(&pod, &config).must_fail(7);
        assert!(message.contains(expected), "{message}");
        cluster.node.must_be(&before, expected);
        assert!(!cluster.node.record_of(&pod).exists());
    }
}

/// The pod requests no device, so `rdma-cni` does not check its annotations.
#[test]
fn a_pod_without_devices_may_say_anything() {
    let annotations = json!({"hca.rdma/rails": "nonsense"});
    let (cluster, config) = cluster(&json!(["rails"]), &annotations);
    let pod = cluster.pod("a", &[]);
    cluster.add(&pod, &config).must_succeed();
    assert!(!has_link(&cluster.node, &pod, "rdma0"));
}
