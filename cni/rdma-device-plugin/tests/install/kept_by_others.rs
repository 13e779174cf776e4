// SPDX-License-Identifier: Apache-2.0
//! Tests with a program that removes foreign entries from the list, as Cilium does with `cni.exclusive`.

use crate::{
    FLANNEL, Node,
    keeping::{SOON, becomes_quiet, count_of_ours, daemon},
};
use integration::{
    stopwatch,
    wait::{TIMEOUT, within},
};
use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

const FILE: &str = "10-flannel.conflist";

#[test]
fn a_dispute_costs_little_is_reported_and_ends_within_a_second() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let daemon = daemon(&node);
    let (over, rewrites) = (AtomicBool::new(false), AtomicU32::new(0));
    let path = node.path("etc/cni/net.d").join(FILE);
    let ours = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let temporary = path.with_extension("tmp");
            while !over.load(Ordering::Relaxed) {
                if fs::read_to_string(&path).is_ok_and(|text| text != FLANNEL) {
                    fs::write(&temporary, FLANNEL).expect("written");
                    fs::rename(&temporary, &path).expect("renamed");
                    rewrites.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        thread::sleep(Duration::from_secs(3));
        // the daemon does not give up: wait for four rewrites, because the disk may be slow
        within(TIMEOUT, || rewrites.load(Ordering::Relaxed) >= 4);
        over.store(true, Ordering::Relaxed);
    });
    let rewrites = rewrites.into_inner();
    let took = ours.elapsed();
    assert!(rewrites >= 4, "{rewrites} in {took:?}");
    // the daemon does not write as fast as it can
    assert!(
        took / rewrites >= Duration::from_millis(37),
        "{rewrites} in {took:?}"
    );
    daemon.wait_for_log("does another program write lists without rdma-cni");
    assert_eq!(
        daemon.count("does another program write lists without rdma-cni"),
        1
    );
    assert!(daemon.count("cni.exclusive") > 0);
    assert!(stopwatch::within(SOON, || count_of_ours(&node, FILE) == 1));
    // afterwards the daemon is idle
    becomes_quiet(&daemon);
}
