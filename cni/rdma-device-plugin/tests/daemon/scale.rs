// SPDX-License-Identifier: Apache-2.0
//! Test with eight NICs of a thousand ids each. The limits are for a slow machine, and the test prints the measured
//! times. CPU times do not depend on other programs.

use crate::{Machine, ids, start};
use integration::{kubelet::DeviceManager, machine::Nic, stopwatch::Stopwatch};
use std::time::{Duration, Instant};

const CONFIGURATION: &str =
    r#"{"resources":[{"name":"rdma/nic","kind":"perNic","count":1000,"allocate":"numa"}]}"#;

#[test]
fn eight_nics_with_a_thousand_ids_each() {
    let machine = Machine::with(&[]);
    for number in 0..8 {
        machine.plug(&Nic {
            address: &format!("0000:{number:02x}:00.0"),
            rdma: &format!("mlx5_{number}"),
            netdev: &format!("rail{number}"),
            numa_node: i32::try_from(number / 4).expect("a small number"),
            number,
        });
    }
    machine.configure(CONFIGURATION);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let stopwatch = Stopwatch::start();
    let daemon = start(&machine);
    kubelet.wait_for("rdma/nic", "8000 ids", |it| it.healthy().len() == 8000);
    let cpu = || Duration::from_millis(daemon.ticks() * 10);
    let (list, list_cpu) = (stopwatch.elapsed(), cpu());
    let mut times: Vec<Duration> = (0..500)
        .map(|id| {
            let id = format!("mlx5_{}/{id}", id % 8);
            let at = Instant::now();
            let given = kubelet.ask_for("rdma/nic", &[&ids(&[&id])]);
            assert_eq!(given.expect("given").container_responses.len(), 1);
            at.elapsed()
        })
        .collect();
    let allocate_cpu = (cpu() - list_cpu) / 500;
    times.sort_unstable();
    // the machine may be busy with other programs during most of the measurements
    let (quick, median, slow) = (times[50], times[250], times[494]);
    let memory = daemon.memory();
    println!(
        "first list {list:?}, CPU {list_cpu:?}; Allocate p10 {quick:?}, p50 {median:?}, p99 {slow:?}, \
         CPU {allocate_cpu:?}; {memory} KiB"
    );
    assert!(list_cpu < Duration::from_millis(500), "{list_cpu:?}");
    assert!(allocate_cpu < Duration::from_millis(10), "{allocate_cpu:?}");
    let waited = stopwatch.corrected(quick);
    assert!(waited < Duration::from_millis(100), "{quick:?}");
    assert!(memory < 64 * 1024, "{memory} KiB");
}
