// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::refused::pod::Owner;

/// A node's history and clock. The API server's clock runs in parallel.
struct Node {
    history: History,
    began: Instant,
    now: Instant,
}

#[derive(Clone)]
struct Refused {
    ids: Ids,
    name: PodName,
    pod: Pod,
}

impl Node {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            history: History::default(),
            began: now,
            now,
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Returns the present time as a text. Such texts sort by time, like the API server's times.
    fn written(&self) -> String {
        format!("{:09}", (self.now - self.began).as_secs())
    }

    /// Returns a pod that `owner` makes now.
    fn pod(&self, name: &str, owner: &str) -> Refused {
        Refused {
            ids: Ids::new("rdma/hca", &[name.to_owned()]),
            name: PodName {
                namespace: "default".into(),
                name: name.into(),
            },
            pod: Pod {
                uid: format!("{name} of {}", self.written()),
                node: "rdma-1".into(),
                created: self.written(),
                owner: Some(Owner {
                    uid: owner.into(),
                    kind: "ReplicaSet".into(),
                    name: owner.into(),
                }),
                is_mirror: false,
            },
        }
    }

    /// Applies an attempt of kubelet that the daemon refuses with `cure`. Also records the pod's attributes if the step
    /// is `Read`.
    fn refuse_for(&mut self, it: &Refused, cure: Cure) -> Step {
        let step = self.history.refused(&it.ids, &it.name, cure, self.now);
        if step == Step::Read {
            let (ids, name, pod) = (it.ids.clone(), it.name.clone(), it.pod.clone());
            self.history.is(ids, name, pod, false, self.now);
        }
        step
    }

    fn refuse(&mut self, it: &Refused) -> Step {
        self.refuse_for(it, Cure::AnotherPod)
    }

    fn deleted(&mut self, it: &Refused) {
        let written = self.written();
        self.history.deleted(&it.pod, &written, self.now);
    }

    /// Returns the number of kubelet's attempts until the pod is deleted. Kubelet tries every 12 s. Returns `None` if
    /// the pod is not deleted within two hours.
    fn tries_until_deleted(&mut self, it: &Refused) -> Option<u32> {
        for tries in 1..600 {
            if let Step::Delete { pod, event } = self.refuse(it) {
                assert_eq!((pod, event), (it.pod.clone(), None));
                self.deleted(it);
                return Some(tries);
            }
            self.pass(12);
        }
        None
    }
}

#[test]
fn kubelet_tries_twice_before_a_pod_is_deleted() {
    let mut node = Node::new();
    let pod = node.pod("a", "set");
    assert_eq!(node.refuse(&pod), Step::Read);
    // kubelet retries early
    node.pass(1);
    assert_eq!(node.refuse(&pod), Step::None);
    node.pass(11);
    let event = None;
    let it = pod.pod.clone();
    assert_eq!(node.refuse(&pod), Step::Delete { pod: it, event });
    // the API server did not answer: the daemon retries the deletion without a second event
    node.history.has_event(&pod.ids, "7");
    node.pass(12);
    let event = Some("7".to_owned());
    let it = pod.pod.clone();
    assert_eq!(node.refuse(&pod), Step::Delete { pod: it, event });
}

#[test]
fn a_temporary_refusal_deletes_nothing() {
    let mut node = Node::new();
    let pod = node.pod("a", "set");
    for _ in 0..100 {
        assert_eq!(node.refuse_for(&pod, Cure::Time), Step::None);
        node.pass(12);
    }
    // the daemon refuses the pod once, and the pod then may start
    assert_eq!(node.refuse(&pod), Step::Read);
    node.history.ended(&pod.ids);
    node.pass(12);
    assert_eq!(node.refuse(&pod), Step::Read);
    // the first refusal required another pod; the second one requires only time
    node.pass(12);
    assert_eq!(node.refuse_for(&pod, Cure::Time), Step::None);
}

#[test]
fn a_device_has_a_minute_to_come_back() {
    let mut node = Node::new();
    let pod = node.pod("a", "set");
    let cure = Cure::DeviceOrAnotherPod;
    assert_eq!(node.refuse_for(&pod, cure), Step::Read);
    for _ in 0..4 {
        node.pass(12);
        assert_eq!(node.refuse_for(&pod, cure), Step::None);
    }
    node.pass(12);
    assert!(matches!(node.refuse_for(&pod, cure), Step::Delete { .. }));
}

#[test]
fn a_namesake_with_the_same_ids_is_another_pod() {
    let mut node = Node::new();
    let pod = node.pod("a", "set");
    node.refuse(&pod);
    node.pass(12);
    let mut other = pod.clone();
    other.name.name = "b".into();
    assert_eq!(node.refuse(&other), Step::Read);
    // the daemon refuses the same pod after a time longer than kubelet's delay
    node.pass(11 * 60);
    assert_eq!(node.refuse(&other), Step::Read);
}

#[test]
fn a_kept_pod_is_read_again_only_after_a_while() {
    let mut node = Node::new();
    let pod = node.pod("bare", "");
    node.refuse(&pod);
    let (ids, name) = (pod.ids.clone(), pod.name.clone());
    node.history.is(ids, name, pod.pod.clone(), true, node.now);
    for _ in 0..49 {
        node.pass(12);
        assert_eq!(node.refuse(&pod), Step::None);
    }
    node.pass(12);
    assert_eq!(node.refuse(&pod), Step::Read);
}

#[test]
fn a_job_s_pods_are_deleted_at_once_and_those_made_anew_ever_later() {
    let mut node = Node::new();
    let job: Vec<_> = (0..8).map(|it| node.pod(&format!("{it}"), "job")).collect();
    node.pass(60);
    for pod in &job {
        assert_eq!(node.tries_until_deleted(pod), Some(2));
    }
    // the node cannot attach rails: the daemon refuses each new pod, too
    let mut waits = vec![];
    for _ in 0..8 {
        let again = node.pod("0", "job");
        let from = node.now;
        node.tries_until_deleted(&again).expect("in the end");
        waits.push((node.now - from).as_secs() / 60);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    // pods of other owners do not wait
    let other = node.pod("other", "another job");
    assert_eq!(node.tries_until_deleted(&other), Some(2));
    // two hours without a deletion restart the back-off
    node.pass(2 * 60 * 60);
    let again = node.pod("0", "job");
    assert_eq!(node.tries_until_deleted(&again), Some(2));
}

#[test]
fn a_wait_is_reported_once() {
    let mut node = Node::new();
    let first = node.pod("a", "set");
    node.pass(1);
    node.tries_until_deleted(&first);
    let again = node.pod("b", "set");
    node.refuse(&again);
    node.pass(12);
    let Step::Wait(wait) = node.refuse(&again) else {
        panic!("it is not reported");
    };
    assert!(wait.contains("deleted once before"), "{wait}");
    assert!(wait.contains("in 48 s"), "{wait}");
    node.pass(12);
    assert_eq!(node.refuse(&again), Step::None);
}

#[test]
fn a_node_deletes_at_most_twenty_pods_in_ten_minutes() {
    let mut node = Node::new();
    let pods: Vec<_> = (0..30)
        .map(|it| node.pod(&format!("{it}"), &format!("owner of {it}")))
        .collect();
    let mut deleted = vec![false; 30];
    for minute in 1..=20 {
        for _ in 0..5 {
            for (pod, deleted) in pods.iter().zip(&mut deleted) {
                if !*deleted && matches!(node.refuse(pod), Step::Delete { .. }) {
                    node.deleted(pod);
                    *deleted = true;
                }
            }
            node.pass(12);
        }
        let count = deleted.iter().filter(|it| **it).count();
        assert_eq!(count, if minute <= 10 { 20 } else { 30 }, "{minute}");
    }
}

#[test]
fn a_pod_of_several_refused_containers_is_deleted_once() {
    let mut node = Node::new();
    let pod = node.pod("a", "set");
    let mut other = pod.clone();
    other.ids = Ids::new("rdma/vf", &["0000:3b:00.2".into()]);
    node.refuse(&pod);
    node.refuse(&other);
    node.pass(12);
    assert!(matches!(node.refuse(&pod), Step::Delete { .. }));
    node.deleted(&pod);
    assert_eq!(node.refuse(&other), Step::Read);
}
