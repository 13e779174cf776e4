// SPDX-License-Identifier: Apache-2.0
//! Tests of records that cannot be used, and of records of a later version. Their content is not lost.

use crate::node::{Answer, Node, Pod};
use attachments::given_up;
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::fs;

/// Returns a node, its pod with one rail, and the text of the record after `spoilt` has changed it.
fn attached(spoilt: impl FnOnce(&str) -> String) -> (Node, Pod, String) {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.add(&pod, &node.one_rail()).must_succeed();
    let record = node.record_of(&pod);
    let text = spoilt(&fs::read_to_string(&record).unwrap());
    fs::write(record, &text).unwrap();
    (node, pod, text)
}

fn of_version_99(text: &str) -> String {
    let mut record: Value = serde_json::from_str(text).unwrap();
    record["format"] = 99.into();
    record["somethingNew"] = json!({ "rails": 1 });
    record.as_object_mut().unwrap().remove("phase");
    record.to_string()
}

/// Asserts that the pod and its record are unchanged.
#[track_caller]
fn left_alone(node: &Node, pod: &Pod, text: &str, held: &fake_kernel::Snapshot) {
    assert_eq!(held.differences(&node.snapshot()), [] as [&str; 0]);
    assert_eq!(fs::read_to_string(node.record_of(pod)).unwrap(), text);
}

#[test]
fn gc_leaves_a_corrupt_record_to_its_del() {
    let (node, pod, text) = attached(|text| text[..text.len() / 2].to_owned());
    let held = node.snapshot();
    let answer = node.gc(&[], &node.one_rail());
    let message = format!("{} {}", answer.message(), answer.value["details"]);
    assert_ne!(answer.code(), 0);
    assert!(
        message.contains("container a") && message.contains("DEL"),
        "{message}"
    );
    left_alone(&node, &pod, &text, &held);
    // on a full disk, DEL could not create the lock file
    assert_eq!(node.records(), ["a@eth0.json", "a@eth0.lock"]);
    node.del(&pod, &node.one_rail()).must_succeed();
    assert_eq!(node.records(), ["a@eth0.corrupt"]);
}

/// DEL renames the record after it has restored the device. In an ended pod it finds no device.
#[test]
fn a_corrupt_record_that_cannot_be_renamed_is_no_sign_that_nothing_was_changed() {
    for (has_ended, code, result) in [
        (false, 105, "everything is back on the host"),
        (true, 107, "the restore is incomplete"),
    ] {
        let (node, pod, _) = attached(|_| "{".to_owned());
        if has_ended {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        let aside = node.record_of(&pod).with_extension("corrupt");
        fs::create_dir_all(aside.join("in the way")).unwrap();
        let message = node.del(&pod, &node.one_rail()).must_fail(code);
        for words in [result, "cannot rename"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(!message.contains("nothing was changed"), "{message}");
        fs::remove_dir_all(aside).unwrap();
        node.del(&pod, &node.one_rail()).must_succeed();
        assert_eq!(node.records(), ["a@eth0.corrupt"]);
    }
}

#[test]
fn gc_goes_on_after_a_corrupt_record() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = |link: &str| node.config(json!({ "devices": [{ "netdev": link }] }));
    let (first, second) = (node.pod("a"), node.pod("b"));
    node.add(&first, &config("eth2")).must_succeed();
    node.add(&second, &config("eth3")).must_succeed();
    fs::write(node.record_of(&first), "{").unwrap();
    assert_ne!(node.gc(&[], &config("eth2")).code(), 0);
    assert!(!node.record_of(&second).exists());
    assert_eq!(fs::read_to_string(node.record_of(&first)).unwrap(), "{");
}

/// No verb reads a record above the size limit, so the host state in the record would be lost.
#[test]
fn a_record_above_the_size_limit_is_refused_before_any_change() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let mut config = node.one_rail();
    config["description"] = "x".repeat(16 << 20).into();
    let message = node.add(&pod, &config).must_fail(105);
    for words in ["at most 16777216", "a@eth0.json", "routes"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(node.kernel.journal(), [] as [Op; 0]);
    node.must_be(&before, "refused");
    config["description"] = "x".repeat(15 << 20).into();
    node.add(&pod, &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn a_record_of_a_later_version_is_left_alone() {
    let (node, pod, text) = attached(of_version_99);
    let (config, held) = (node.one_rail(), node.snapshot());
    let assert_reported = |answer: Answer| {
        let message = answer.must_fail(105);
        assert!(message.contains("format 99"), "{message}");
    };
    assert_reported(node.del(&pod, &config));
    left_alone(&node, &pod, &text, &held);
    assert_reported(node.add(&pod, &config));
    left_alone(&node, &pod, &text, &held);
    assert_reported(node.gc(&[], &config));
    left_alone(&node, &pod, &text, &held);
    // this version must assume that the pod's device is in use
    node.add(&node.pod("b"), &config).must_fail(101);
    assert_eq!(fs::read_to_string(node.record_of(&pod)).unwrap(), text);
}

#[test]
fn an_add_of_others_leaves_a_record_of_a_later_version_alone() {
    let (node, pod, text) = attached(of_version_99);
    let other = node.pod("b");
    let config = node.config(json!({ "devices": [{ "netdev": "eth3" }] }));
    let held = node.snapshot();
    node.add(&other, &config).must_succeed();
    node.del(&other, &config).must_succeed();
    left_alone(&node, &pod, &text, &held);
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.add(&other, &config).must_succeed();
    node.del(&other, &config).must_succeed();
    assert_eq!(fs::read_to_string(node.record_of(&pod)).unwrap(), text);
}

/// An ADD recovers two attachments. The second record becomes unreadable after this ADD has read it.
#[test]
fn an_add_of_others_keeps_the_lock_file_of_a_record_that_became_unreadable() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = |link: &str| node.config(json!({ "devices": [{ "netdev": link }] }));
    let [first, second, other] = ["a", "b", "c"].map(|it| node.pod(it));
    for (pod, link) in [(&first, "eth2"), (&second, "eth3")] {
        node.add(pod, &config(link)).must_succeed();
    }
    for pod in [&first, &second] {
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    let record = node.record_of(&second);
    node.kernel.intercept(move |_, _| {
        fs::write(&record, "{").unwrap();
        Verdict::Proceed
    });
    node.add(&other, &config("eth4")).must_succeed();
    let left = ["b@eth0.json", "b@eth0.lock", "c@eth0.json", "c@eth0.lock"];
    assert_eq!(node.records(), left);
}

type IsRefused = fn(&Op) -> bool;

/// The kernel refuses a change on the host on which no other change depends. The NIC still works, and a note names
/// the missing attribute.
#[test]
fn one_refused_change_keeps_no_nic_down() {
    let refused: [(&str, IsRefused); 4] = [
        ("alias", |op| {
            matches!(
                op,
                Op::Link {
                    change: LinkChange::Alias(_),
                    ..
                }
            )
        }),
        (
            "arp_announce",
            |op| matches!(op, Op::Link { at: NetnsSide::Host, change: LinkChange::Sysctl { key, .. }, .. } if key == "ipv4/arp_announce"),
        ),
        ("txqueuelen", |op| {
            matches!(
                op,
                Op::Link {
                    change: LinkChange::TxQueueLen(_),
                    ..
                }
            )
        }),
        ("enp2s0v0", |op| {
            matches!(
                op,
                Op::Link {
                    change: LinkChange::AltName { present: true, .. },
                    ..
                }
            )
        }),
    ];
    for (what, is_refused) in refused {
        let node = Node::new(RdmaMode::Exclusive);
        let before = node.snapshot();
        let pod = node.pod("a");
        node.add(&pod, &node.two_rails()).must_succeed();
        pod_changes(&node, &pod);
        node.kernel.begin();
        node.kernel
            .intercept(move |_, step| match is_refused(step.op) {
                true => Verdict::Refuse(Errno::EPERM),
                false => Verdict::Proceed,
            });
        node.del(&pod, &node.two_rails()).must_succeed();
        let notes = given_up::read(&node.state.path().join("state")).unwrap();
        for (note, rail) in notes.iter().zip(["eth2", "eth3"]) {
            assert_eq!(&*note.host_link.name, rail);
            let [lack] = &note.lacks[..] else {
                panic!("{what}: {note:?}");
            };
            let is_it = lack.why.contains(what) || rail == "eth3";
            assert!(is_it, "{what}: {}", lack.why);
        }
        assert!(!notes.is_empty(), "{what}");
        for (link, address) in [("eth2", "10.0.2.5"), ("eth3", "10.0.3.5")] {
            let link = node
                .kernel
                .with(|world| world.link(fake_kernel::world::HOST, link).cloned());
            let link = link.unwrap_or_else(|| panic!("{what}: not on the host"));
            assert!(link.up, "{what}: {link:?}");
            let mut addresses = link.addresses.iter().map(|it| it.ip.to_string());
            assert!(addresses.any(|it| it == address), "{what}: {link:?}");
            assert_eq!(link.lasting_routes().count(), 2, "{what}: {link:?}");
        }
        node.kernel.begin();
        for note in &notes {
            let observed = node.kernel.with(|world| world.observe(None));
            let link = observed.host.link(&note.host_link.name).unwrap();
            for op in plan::missing_of(&note.host_link, link, &observed) {
                node.change(None, &op);
            }
        }
        node.kernel.with(|world| world.unmount(&pod.netns));
        node.must_be(&before, what);
    }
}

/// Makes changes that a pod with CAP_NET_ADMIN can make, and that a move does not reset.
fn pod_changes(node: &Node, pod: &Pod) {
    for rail in ["rdma0", "rdma1"] {
        let (at, link) = (NetnsSide::Pod, crate::node::name(rail));
        let shown = node.netns(pod);
        let alt = node
            .kernel
            .with(|world| world.link(shown, rail).unwrap().alt_names[0].clone());
        let changes = [
            Op::Link {
                at,
                link: link.clone(),
                change: LinkChange::Alias("the pod's".to_owned()),
            },
            Op::Link {
                at,
                link: link.clone(),
                change: LinkChange::TxQueueLen(7),
            },
            Op::Link {
                at,
                link,
                change: LinkChange::AltName {
                    name: alt,
                    present: false,
                },
            },
        ];
        changes.iter().for_each(|op| node.change(Some(pod), op));
    }
}

#[test]
fn status_of_a_drop_in_needs_no_device_where_the_runtime_hands_it_over() {
    let node = Node::new(RdmaMode::Exclusive);
    let status = |mut fields: Value| {
        fields["type"] = "rdma".into();
        node.run("STATUS", None, &node.config(fields))
    };
    status(json!({ "capabilities": { "deviceID": true } })).must_succeed();
    for capabilities in [
        json!({}),
        json!({ "deviceID": false }),
        json!({ "ips": true }),
        Value::Null,
    ] {
        let message = status(json!({ "capabilities": capabilities })).must_fail(50);
        assert!(message.contains("deviceID"), "{message}");
    }
    let message = status(json!({})).must_fail(50);
    assert!(message.contains("deviceID"), "{message}");
}

/// The pod's lock cannot be opened. A verb of the pod may still be running, so the pod keeps its devices.
#[test]
fn an_attachment_that_cannot_be_locked_keeps_its_devices() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), node.one_rail());
    node.kill(1, Verdict::DieBefore, |node| drop(node.add(&pod, &config)));
    let lock = node.record_of(&pod).with_extension("lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let other = node.pod("b");
    let held = node.snapshot();
    node.add(&other, &config).must_fail(101);
    assert_eq!(held.differences(&node.snapshot()), [] as [&str; 0]);
    fs::remove_dir(&lock).unwrap();
    node.add(&other, &config).must_succeed();
    assert_eq!(node.records(), ["b@eth0.json", "b@eth0.lock"]);
}
