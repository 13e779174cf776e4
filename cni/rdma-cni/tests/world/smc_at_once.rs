// SPDX-License-Identifier: Apache-2.0
//! Tests of pods that share SMC-R settings and end at the same moment. The last pod removes the settings.

use crate::{
    gate::{beside_others, pass_with_another},
    node::{Node, Pod},
    smc::{one_rail_that_asks, one_rail_with_smc, seen},
};
use cni_protocol::lock::{self, Held};
use fake_kernel::{Verdict, world::HOST};
use integration::wait;
use nix::errno::Errno;
use rdma_netns::{NetnsSide, Op, RdmaMode};
use serde_json::Value;
use std::{
    fs, io,
    sync::mpsc::{self, Sender},
    thread,
};

/// Two pods with one rail each, which share one user EID of the node.
struct Two {
    node: Node,
    first: (Pod, Value),
    second: (Pod, Value),
}

impl Two {
    fn new() -> Self {
        let node = Node::new(RdmaMode::Exclusive);
        let mut other = one_rail_with_smc(&node);
        other["deviceID"] = "0000:d8:00.2".into();
        let first = (node.pod("a"), one_rail_with_smc(&node));
        let second = (node.pod("b"), other);
        Self {
            node,
            first,
            second,
        }
    }

    /// Takes the lock of the rails files. Until its release no DEL and no failed ADD can end: each removes its rails
    /// from the files after its devices are on the host.
    fn hold_files(&self) -> Held {
        let path = self.node.state.path().join("state/rails/.lock");
        lock::hold(&path, || lock::open(&path)).unwrap()
    }

    /// Waits until the netdev is on the host again, and then until the node's lock is free.
    fn await_return(&self, netdev: &str) {
        wait::until(&format!("{netdev} is on the host"), || {
            self.node
                .kernel
                .with(|world| world.link(HOST, netdev).is_some_and(|link| link.up))
        });
        self.await_lock();
    }

    fn await_lock(&self) {
        let path = self.node.state.path().join("state/lock");
        drop(lock::hold(&path, || lock::open(&path)).unwrap());
    }

    /// Runs the first pod's `verb`, which sends the [lock of the rails files](Self::hold_files). Then runs the second
    /// pod's DEL, which begins when the first pod's devices are on the host.
    fn end_at_once(&self, verb: impl FnOnce(Sender<Held>) + Send) {
        let (sender, receiver) = mpsc::channel();
        // keep the gate open: the second thread would otherwise wait behind a test that waits for the first thread
        let _beside = beside_others();
        thread::scope(|scope| {
            scope.spawn(|| {
                pass_with_another();
                verb(sender);
            });
            let held = receiver.recv().unwrap();
            self.await_return("eth2");
            let (pod, config) = &self.second;
            scope.spawn(|| {
                pass_with_another();
                self.node.del(pod, config).must_succeed();
            });
            self.await_return("eth3");
            drop(held);
        });
    }
}

#[test]
fn two_simultaneous_dels_remove_the_user_eid_once() {
    let two = Two::new();
    let before = two.node.snapshot();
    for (pod, config) in [&two.first, &two.second] {
        two.node.add(pod, config).must_succeed();
    }
    assert_eq!(seen(&two.node, None).ueids, ["RACK-1"]);
    two.end_at_once(|sender| {
        sender.send(two.hold_files()).unwrap();
        let (pod, config) = &two.first;
        two.node.del(pod, config).must_succeed();
    });
    two.node.must_be(&before, "after both");
}

#[test]
fn a_failed_add_and_a_del_remove_the_user_eid_once() {
    let two = Two::new();
    let before = two.node.snapshot();
    let (pod, config) = &two.second;
    two.node.add(pod, config).must_succeed();
    two.end_at_once(|sender| {
        let (pod, config) = &two.first;
        let mut full = Full { two: &two, sender };
        two.node.run_into("ADD", Some(pod), config, &mut full);
    });
    two.node.must_be(&before, "after both");
}

/// The kernel refuses an SMC-R setting of the first pod, so this pod starts without SMC-R.
#[test]
fn a_failed_adds_user_eid_is_not_left_to_it() {
    let two = Two::new();
    let node = &two.node;
    let before = node.snapshot();
    let (pod, config) = &two.second;
    node.add(pod, config).must_succeed();
    let asks = one_rail_that_asks(node);
    let (sender, receiver) = mpsc::channel();
    node.kernel.begin();
    node.kernel.intercept(move |_, step| match step.op {
        Op::AddPnet { at, .. } if *at == NetnsSide::Pod => {
            let _ = sender.send(());
            Verdict::Refuse(Errno::EEXIST)
        }
        _ => Verdict::Proceed,
    });
    // keep the gate open, as in `end_at_once`
    let beside = beside_others();
    thread::scope(|scope| {
        let held = two.hold_files();
        scope.spawn(|| {
            pass_with_another();
            node.add(&two.first.0, &asks).must_succeed();
        });
        receiver.recv().unwrap();
        two.await_lock();
        scope.spawn(|| {
            pass_with_another();
            node.del(pod, config).must_succeed();
        });
        two.await_return("eth3");
        drop(held);
    });
    drop(beside);
    node.del(&two.first.0, &asks).must_succeed();
    node.must_be(&before, "after both");
}

/// A DEL was killed after its record said that everything is restored. No IPAM plugin keeps the record.
#[test]
fn the_next_add_removes_leftovers_of_a_del() {
    let Two {
        node,
        first: (pod, config),
        second: (other, others),
    } = Two::new();
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    let record = node.record_of(&pod);
    let text = fs::read_to_string(&record).unwrap();
    node.del(&pod, &config).must_succeed();
    let mut left: Value = serde_json::from_str(&text).unwrap();
    left["phase"] = "home".into();
    fs::write(&record, left.to_string()).unwrap();
    node.add(&other, &others).must_succeed();
    assert!(!record.exists());
    node.del(&other, &others).must_succeed();
    node.must_be(&before, "after both");
}

/// An output that accepts no result.
struct Full<'a> {
    two: &'a Two,
    sender: Sender<Held>,
}

impl io::Write for Full<'_> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        // `rdma-cni` first writes the result, and then the error of this write
        if seen(&self.two.node, Some(&self.two.first.0)).pod.is_empty() {
            return Err(Errno::ENOSPC.into());
        }
        drop(self.sender.send(self.two.hold_files()));
        Err(Errno::ENOSPC.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
