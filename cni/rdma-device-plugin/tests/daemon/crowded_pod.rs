// SPDX-License-Identifier: Apache-2.0
//! Tests of the daemon's memory and health while a pod makes many netdevs.

use crate::{FIRST, Machine, Running, SECOND, TWO, pod_with_second, start};
use integration::Netns;
use nix::sys::signal::Signal;
use std::{thread, time::Duration};

/// Permitted growth of the daemon's memory in KiB: half the size of the kernel's messages about the pod's netdevs.
const GROWTH: u64 = 5 << 10;

/// Gives the pod 400 netdevs with 200 alternative names each. The kernel's message about a netdev has 27 KiB.
fn crowd(pod: &Netns) {
    let pairs = (0..200).map(|it| format!("link add a{it} type veth peer name b{it}"));
    let mut lines: Vec<String> = pairs.collect();
    // more names do not fit into one request of `ip`
    for numbers in (0..200_u32).collect::<Vec<_>>().chunks(7) {
        for netdev in (0..200).flat_map(|it| [format!("a{it}"), format!("b{it}")]) {
            let name = |number: &u32| {
                let name = format!("{netdev}-{number}-");
                format!(" altname {name:x<127}")
            };
            let names: String = numbers.iter().map(name).collect();
            lines.push(format!("link property add dev {netdev}{names}"));
        }
    }
    pod.ip_batch(&lines);
}

/// A pod with `CAP_NET_ADMIN` chooses the number of its netdevs, and of their names.
#[test]
fn a_pods_many_netdevs_take_no_memory() {
    let machine = Machine::with(&[FIRST, SECOND]);
    // with this port, a netdev that is up is unhealthy, and a netdev that an administrator set down is healthy
    machine.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    let pod = pod_with_second(&machine);
    let node = Running::on(machine, TWO).listed("rdma/nic", 1);
    pod.ip("link set rdma0 up");
    node.has("rdma/nic", 0);
    pod.ip("link set rdma0 down");
    node.has("rdma/nic", 1);
    let before = node.daemon.peak_memory();
    crowd(&pod);
    pod.ip("link set rdma0 up");
    thread::sleep(Duration::from_secs(1));
    let peak = node.daemon.peak_memory();
    assert!(peak < before + GROWTH, "{before} KiB, then {peak} KiB");
    let kept = "the daemon keeps the last health of the devices in pod team/train-0";
    node.daemon.wait_for_log(kept);
    node.has("rdma/nic", 1);

    let Running {
        daemon,
        kubelet,
        machine,
    } = node;
    daemon.end(Signal::SIGTERM);
    let daemon = start(&machine);
    kubelet.wait_for("rdma/nic", "its id", |it| {
        it.healthy().len() == 1 && it.streams == 1
    });
    for (count, state) in ["down", "up", "down"].into_iter().enumerate() {
        pod.ip(&format!("link set rdma0 {state}"));
        daemon.wait_for_log_times("event: netdev rdma0", count + 1);
    }
    daemon.wait_for_log("the kernel's answer has more than 4194304 bytes");
    assert_eq!(daemon.count(kept), 1);
    let peak = daemon.peak_memory();
    assert!(peak < before + GROWTH, "{before} KiB, then {peak} KiB");

    // the daemon observes the pod again without an event of the pod's device
    pod.ip("link set rdma0 up");
    daemon.wait_for_log_times("event: netdev rdma0", 4);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(daemon.count("is unhealthy"), 0);
    let removals = (0..200).map(|it| format!("link delete a{it}"));
    pod.ip_batch(&removals.collect::<Vec<_>>());
    daemon.wait_for_log("is unhealthy");
}
