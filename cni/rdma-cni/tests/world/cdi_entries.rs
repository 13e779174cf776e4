// SPDX-License-Identifier: Apache-2.0
//! Tests of CDI entries and resources in forms that neither `rdma-cni` nor the daemon writes.

use crate::kubelet::{Cluster, every};
use fake_kernel::Verdict;
use rdma_netns::{Op, RdmaMode};
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

const VF: &str = "0000:3b:00.2";
const OTHER: &str = "0000:d8:00.2";

fn file(cluster: &Cluster) -> PathBuf {
    let state = cluster.node.state.path();
    state.join("cdi/rdma-device-plugin-rdma.json")
}

/// The CDI file contains JSON that is no CDI specification. ADD and DEL succeed.
#[test]
fn a_file_that_is_no_spec_stops_nobody() {
    for text in [
        "[]",
        "7",
        "\"x\"",
        "null",
        "{\"devices\":{}}",
        "{\"devices\":[7]}",
    ] {
        let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
        let mut by_hand = config.clone();
        by_hand["deviceID"] = VF.into();
        cluster.add(&pod, &by_hand).must_succeed();
        fs::write(file(&cluster), text).unwrap();
        cluster.del(&pod, &by_hand).must_succeed();
        cluster.add(&pod, &by_hand).must_succeed();
        cluster.del(&pod, &by_hand).must_succeed();
    }
}

/// The daemon writes the file during the move of the device, when the device has no visible
/// character devices.
#[test]
fn an_entry_that_went_during_the_move_is_there_after_it() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
    let before = cluster.spec();
    let cdi = cluster.cdi();
    let others = cluster.entries();
    cluster.node.kernel.intercept(move |_, step| {
        if matches!(step.op, Op::MoveRdma { .. }) {
            let others = others.iter().filter(|it| it.name != VF).cloned();
            cdi.write(|| others.collect()).unwrap();
        }
        Verdict::Proceed
    });
    cluster.add(&pod, &config).must_succeed();
    let after = cluster.spec();
    let devices = |spec: &Value| spec["devices"].as_array().unwrap().clone();
    let entry = devices(&after).into_iter().find(|it| it["name"] == VF);
    let entry = entry.expect("the entry that the container needs");
    let path = &entry["containerEdits"]["deviceNodes"][0]["path"];
    assert_eq!(path, "/dev/infiniband/uverbs0");
    assert_eq!(devices(&after).len(), devices(&before).len());
}

/// Entries of two devices cannot be written. The container gets the first device by path, so it needs only the second
/// entry.
#[test]
fn an_entry_that_is_needed_counts_though_another_failed_first() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    cluster.publish(&[("rdma/vf", every(&[VF], Sharing::Exclusive))], true);
    cluster.grant(("rdma/vf", VF), Sharing::Exclusive, false, &[VF]);
    cluster.grant(("rdma/vf", OTHER), Sharing::Exclusive, true, &[OTHER]);
    let pod = cluster.pod("a", &[("rdma/vf", &[VF, OTHER])]);
    let spec = fs::read(file(&cluster)).unwrap();
    fs::write(file(&cluster), "{").unwrap();
    let message = cluster.add(&pod, &config).must_fail(106);
    assert!(message.contains("mlx5_3"), "{message}");

    fs::write(file(&cluster), spec).unwrap();
    let resources = cluster.state_dir().join("resources.json");
    cluster.node.kernel.intercept(move |_, step| {
        if matches!(step.op, Op::MoveRdma { .. }) {
            fs::write(&resources, "{").unwrap();
        }
        Verdict::Proceed
    });
    let message = cluster.add(&pod, &config).must_fail(106);
    assert!(
        message.contains("mlx5_3") && message.contains("resources.json"),
        "{message}"
    );
    assert_eq!(cluster.node.records(), [] as [&str; 0]);
}

/// A later version can use another format. The message says that a later version wrote the file.
#[test]
fn a_later_format_is_reported_as_later() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
    fs::remove_dir_all(cluster.state_dir().join("granted")).unwrap();
    let text = json!({ "format": 3, "pools": [], "resources": ["rdma/vf"] });
    fs::write(cluster.state_dir().join("resources.json"), text.to_string()).unwrap();
    let message = cluster.add(&pod, &config).must_fail(105);
    assert!(
        message.contains("its format is 3")
            && message.ends_with("install that release of rdma-cni, too"),
        "{message}"
    );
}
