// SPDX-License-Identifier: Apache-2.0
//! Tests of moves that give an RDMA device other character devices than kubelet promised to the container.

use crate::{
    claims,
    guids::{FUNCTION, GUID, world},
    kubelet::{Cluster, every, record},
    node::Pod,
};
use fake_kernel::Verdict;
use rdma_netns::{Op, RdmaMode};
use rdma_resources::{Grants, Sharing};
use serde_json::{Value, json};
use std::fs;

const VF: &str = "0000:3b:00.2";

fn uverbs(cluster: &Cluster) -> String {
    cluster.rdma(&crate::kubelet::address(VF)).char_devices[0]
        .name
        .clone()
}

fn entry(cluster: &Cluster) -> Value {
    let spec = cluster.spec();
    let devices = spec["devices"].as_array().unwrap();
    let own = devices.iter().find(|it| it["name"] == VF).unwrap();
    own["containerEdits"]["deviceNodes"][0].clone()
}

#[test]
fn the_cdi_entry_follows_there_and_back() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
    assert_eq!(uverbs(&cluster), "uverbs2");
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(uverbs(&cluster), "uverbs0");
    assert_eq!(entry(&cluster)["path"], "/dev/infiniband/uverbs0");
    assert_eq!(entry(&cluster)["minor"], 192);
    assert_eq!(record(&cluster, &pod)["rails"][0]["allocated"]["cdi"], true);
    cluster.entries_must_be_right("after ADD");

    cluster.del(&pod, &config).must_succeed();
    cluster.entries_must_be_right("after DEL");
}

/// A lower number becomes free while the pod has the device. The device gets this number when it returns to
/// the host.
#[test]
fn the_cdi_entry_follows_a_number_that_changes_on_the_way_back() {
    for end in [
        "DEL",
        "GC after the pod's death",
        "the next ADD after it",
        "a failed ADD",
    ] {
        let cluster = Cluster::new(RdmaMode::Exclusive);
        cluster.publish(&[("rdma/vf", every(&[VF], Sharing::Exclusive))], true);
        let pod = cluster.pod("a", &[("rdma/vf", &[VF])]);
        let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
        let kernel = &cluster.node.kernel;
        if end == "a failed ADD" {
            kernel.intercept(|world, step| match step.op {
                Op::MoveLink { .. } if step.number < 5 => {
                    world.unplug("0000:3b:00.0");
                    Verdict::Refuse(nix::errno::Errno::EINVAL)
                }
                _ => Verdict::Proceed,
            });
            cluster.add(&pod, &config).must_fail(106);
        } else {
            cluster.add(&pod, &config).must_succeed();
            assert_eq!(uverbs(&cluster), "uverbs2");
            kernel.with(|world| world.unplug("0000:3b:00.0"));
        }
        match end {
            "DEL" => drop(cluster.del(&pod, &config).must_succeed()),
            "GC after the pod's death" => {
                kernel.with(|world| world.unmount(&pod.netns));
                cluster.node.gc(&[], &config).must_succeed();
            }
            "the next ADD after it" => {
                kernel.with(|world| world.unmount(&pod.netns));
                let other = cluster.pod("b", &[("rdma/vf", &["0000:d8:00.3"])]);
                cluster.add(&other, &config).must_succeed();
            }
            _ => {}
        }
        assert_eq!(uverbs(&cluster), "uverbs0", "{end}");
        assert_eq!(entry(&cluster)["path"], "/dev/infiniband/uverbs0", "{end}");
    }
}

/// When a driver is bound again, its devices get new numbers, as in a move. In shared mode the RDMA device does not
/// move.
#[test]
fn a_function_whose_driver_is_bound_anew_is_followed_and_broken_promises_are_reported() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        for cdi in [true, false] {
            let mut world = world(mode);
            // frees a low number, which the new devices get when the driver is bound again
            world.unplug("0000:3b:00.0");
            let cluster = Cluster::with(world);
            cluster.publish(&[("rdma/vf", every(&[FUNCTION], Sharing::Exclusive))], cdi);
            cluster.grant(("rdma/vf", FUNCTION), Sharing::Exclusive, cdi, &[FUNCTION]);
            let pod = cluster.pod("a", &[("rdma/vf", &[FUNCTION])]);
            let config = cluster.config(json!({ "resources": ["rdma/vf"], "guid": GUID }));
            if cdi {
                cluster.add(&pod, &config).must_succeed();
                cluster.entries_must_be_right("after ADD");
                cluster.del(&pod, &config).must_succeed();
                cluster.entries_must_be_right("after DEL");
            } else {
                let message = cluster.add(&pod, &config).must_fail(106);
                assert!(message.contains("kubelet promised"), "{mode}: {message}");
            }
        }
    }
}

#[test]
fn the_entry_of_a_device_that_was_named_follows_too() {
    let (cluster, mut config, pod) = Cluster::with_a_hole(VF, true);
    config["deviceID"] = VF.into();
    cluster.add(&pod, &config).must_succeed();
    cluster.entries_must_be_right("after ADD");
    cluster.del(&pod, &config).must_succeed();
    cluster.entries_must_be_right("after DEL");
}

#[test]
fn a_dead_pods_device_takes_its_entry_to_the_host() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
    cluster.add(&pod, &config).must_succeed();
    cluster.node.kernel.with(|world| world.unmount(&pod.netns));
    let valid: [&Pod; 0] = [];
    cluster.node.gc(&valid, &config).must_succeed();
    cluster.entries_must_be_right("after GC");
}

/// The process is killed at every change of ADD and of DEL. The next verb corrects the entries.
#[test]
fn entries_are_right_after_a_kill_at_any_change() {
    for verb in ["ADD", "DEL"] {
        for verdict in [Verdict::DieBefore, Verdict::DieAfter] {
            for restorer in ["DEL", "GC", "ADD of another"] {
                for at in 1.. {
                    let what = format!("{verb} {verdict:?} at {at}, then {restorer}");
                    if !killed_and_restored(verb, (at, verdict), restorer, &what) {
                        assert!(at > 3, "{what}: no changes");
                        break;
                    }
                }
            }
        }
    }
}

/// Kills `verb`, and runs `restorer`. Returns false if the verb ended before change `at`.
fn killed_and_restored(
    verb: &str,
    (at, verdict): (usize, Verdict),
    restorer: &str,
    what: &str,
) -> bool {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
    let kernel = &cluster.node.kernel;
    if verb == "DEL" {
        cluster.add(&pod, &config).must_succeed();
    }
    let run = |_: &_| drop(cluster.run(verb, &pod, &config));
    if !cluster.node.kill(at, verdict, run) {
        return false;
    }
    match restorer {
        "DEL" => drop(cluster.del(&pod, &config).must_succeed()),
        "GC" => drop(cluster.node.gc(&[], &config).must_succeed()),
        _ => {
            kernel.with(|world| world.unmount(&pod.netns));
            let other = cluster.pod("b", &[("rdma/vf", &[VF])]);
            cluster.add(&other, &config).must_succeed();
        }
    }
    cluster.entries_must_be_right(what);
    true
}

#[test]
fn an_entry_that_cannot_be_written_fails_the_pod_that_has_it_by_name() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
    let file = cluster
        .node
        .state
        .path()
        .join("cdi/rdma-device-plugin-rdma.json");
    fs::write(&file, "{").unwrap();
    let message = cluster.add(&pod, &config).must_fail(106);
    assert!(
        message.contains("mlx5_2") && message.contains("CDI"),
        "{message}"
    );
    assert_eq!(cluster.node.records(), [] as [&str; 0]);

    // kubelet promised nothing for a device that the configuration names
    let mut by_hand = config.clone();
    by_hand["deviceID"] = VF.into();
    cluster.add(&pod, &by_hand).must_succeed();
    cluster.del(&pod, &by_hand).must_succeed();
}

#[test]
fn a_path_that_leads_elsewhere_after_the_move_fails_the_pod() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, false);
    let message = cluster.add(&pod, &config).must_fail(106);
    for word in ["mlx5_2", "uverbs0", "uverbs2", "rdma/vf", "cdi"] {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(message.contains("belongs to no RDMA device"), "{message}");
    assert_eq!(cluster.node.records(), [] as [&str; 0]);
    // when kubelet allocates the device again, the grant has the device file's present number
    cluster.grant(("rdma/vf", VF), Sharing::Exclusive, false, &[VF]);
    cluster.add(&pod, &config).must_succeed();
    cluster.del(&pod, &config).must_succeed();
}

#[test]
fn a_path_that_is_another_devices_now_is_reported_with_its_name() {
    let (cluster, config, pod) = Cluster::with_a_hole(VF, false);
    // both devices return to the host with lower numbers than before: mlx5_3 has uverbs2 now, which kubelet
    // promised to this pod
    for device in [VF, "0000:d8:00.2"] {
        let mut by_hand = config.clone();
        by_hand["deviceID"] = device.into();
        cluster.add(&pod, &by_hand).must_succeed();
        cluster.del(&pod, &by_hand).must_succeed();
    }
    let message = cluster.add(&pod, &config).must_fail(106);
    assert!(
        message.contains("uverbs2") && message.contains("now belongs to mlx5_3"),
        "{message}"
    );
}

#[test]
fn a_path_that_stays_right_is_no_reason() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    cluster.grant(("rdma/vf", VF), Sharing::Exclusive, false, &[VF]);
    let pod = cluster.pod("a", &[("rdma/vf", &[VF])]);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(uverbs(&cluster), "uverbs2");
    cluster.del(&pod, &config).must_succeed();

    // the grant is from a boot in which the driver had another major number
    let grants = Grants::new(&cluster.state_dir());
    let mut grant = grants.read("rdma/vf", VF).unwrap().unwrap();
    grant.devices[0].char_devices[0].major = 511;
    grants.write(&grant).unwrap();
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(uverbs(&cluster), "uverbs2");
}

/// From the 33rd device on, the major number may differ after each boot (`alloc_chrdev_region()` in
/// `ib_uverbs_init()`).
#[test]
fn a_path_that_has_another_number_since_a_boot_is_no_reason() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    cluster.grant(("rdma/vf", VF), Sharing::Exclusive, false, &[VF]);
    let grants = rdma_resources::Grants::new(&cluster.state_dir());
    let mut before = grants.read("rdma/vf", VF).unwrap().unwrap();
    before.devices[0].char_devices[0].major = 511;
    grants.write(&before).unwrap();
    let pod = cluster.pod("a", &[("rdma/vf", &[VF])]);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    cluster.add(&pod, &config).must_succeed();
    cluster.del(&pod, &config).must_succeed();
}

/// With Multus, the chain does not attach the claim's devices, so the daemon writes the specification before ADD.
#[test]
fn a_specification_follows_a_device_that_the_configuration_names() {
    let (cluster, mut config, pod) = claims::with_a_hole();
    claims::prepare(&cluster, &[VF], Sharing::Exclusive, false);
    let specified = || claims::given(&cluster).expect("a specification");
    assert_eq!(specified(), ["uverbs2"]);
    config.as_object_mut().unwrap().remove("devices");
    config["deviceID"] = VF.into();
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(uverbs(&cluster), "uverbs0");
    assert_eq!(specified(), ["uverbs0"]);
    cluster.del(&pod, &config).must_succeed();
    assert_eq!(specified(), [uverbs(&cluster)]);
}
