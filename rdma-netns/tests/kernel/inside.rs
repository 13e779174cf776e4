// SPDX-License-Identifier: Apache-2.0
//! Tests of reads by a thread in a pod's namespace. The thread leaves no mount behind.

use crate::world::{to_pod, with_node};
use rdma_netns::{Pod, linux::inside};
use std::{
    fs,
    path::Path,
    sync::{Barrier, mpsc},
    time::Duration,
};

fn netdevs(sysfs: &Path) -> Vec<String> {
    let entries = fs::read_dir(sysfs.join("class/net")).expect("a class");
    let names = entries.flatten().map(|it| it.file_name().into_string());
    let mut names: Vec<String> = names.map(|it| it.expect("a name")).collect();
    names.sort();
    names
}

/// Returns the mounts of sysfs that this program sees.
fn sysfs_mounts() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let sysfs = mounts.lines().filter(|line| line.starts_with("sysfs "));
    sysfs.map(str::to_owned).collect()
}

#[test]
fn sysfs_is_the_pods_and_only_for_a_moment() {
    with_node(|world| {
        world.execute(to_pod("nic0", "rdma0"));
        let (path, id) = (world.pod.path(), world.pod.id());
        let sysfs = Path::new("/sys");
        let before = (netdevs(sysfs), sysfs_mounts());
        let seen = inside::with_sysfs(path, id, sysfs, netdevs).expect("read");
        assert_eq!(seen, ["lo", "rdma0"]);
        assert_eq!((netdevs(sysfs), sysfs_mounts()), before);
    });
}

#[test]
fn two_pods_can_be_read_at_once() {
    with_node(|world| {
        let (path, id) = (world.pod.path(), world.pod.id());
        // both threads are inside the namespace at the same time
        let both = Barrier::new(2);
        let (answer, answers) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let answer = answer.clone();
                let both = &both;
                scope.spawn(move || {
                    let list = |sysfs: &Path| {
                        both.wait();
                        netdevs(sysfs)
                    };
                    let seen = inside::with_sysfs(path, id, Path::new("/sys"), list);
                    answer.send(seen.expect("read")).expect("sent");
                });
            }
            for _ in 0..2 {
                let seen = answers.recv_timeout(Duration::from_secs(60));
                assert_eq!(seen.expect("an answer"), ["lo"]);
            }
        });
    });
}
