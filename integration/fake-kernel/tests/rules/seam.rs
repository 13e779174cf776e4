// SPDX-License-Identifier: Apache-2.0
//! The implementation of the trait `Kernel`: descriptors, refusals, and the death of the process.

use super::*;
use fake_kernel::{Died, FakeKernel, Verdict};
use rdma_netns::{Kernel as _, OpenPodError, Pod as _};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    thread,
    time::Duration,
};

const POD: &str = "/run/netns/pod";

fn kernel() -> FakeKernel {
    FakeKernel::new(exclusive().0)
}

#[test]
fn a_namespace_lives_while_it_is_held_open() {
    let kernel = kernel();
    let pod = kernel.open_pod(Path::new(POD)).unwrap();
    kernel
        .execute(&into_pod("eth0", "rdma0"), Some(&pod))
        .unwrap();
    kernel.with(|world| world.unmount(POD));
    assert!(
        kernel
            .observe(Some(&pod))
            .unwrap()
            .pod
            .unwrap()
            .link("rdma0")
            .is_some()
    );
    let missing = kernel.open_pod(Path::new(POD));
    assert!(matches!(missing, Err(OpenPodError::Missing(_))));
    drop(pod);
    assert!(kernel.observe(None).unwrap().host.link("rdma0").is_some());
}

/// Otherwise the number of pauses before a deadline would depend on the machine's load.
#[test]
fn the_clock_stands_still_between_pauses() {
    let kernel = kernel();
    let begin = kernel.now();
    thread::sleep(Duration::from_millis(1));
    assert_eq!(kernel.now(), begin);
    kernel.pause(Duration::from_secs(2));
    kernel.with(|world| world.pass_seconds(3));
    assert_eq!(kernel.now(), begin + Duration::from_secs(5));
}

#[test]
fn a_path_may_lead_elsewhere() {
    let kernel = kernel();
    kernel.with(|world| world.create_file("/file"));
    let open = |path: &str| kernel.open_pod(Path::new(path));
    assert!(matches!(open("/file"), Err(OpenPodError::NotNamespace(_))));
    assert!(matches!(
        open("/proc/1/ns/net"),
        Err(OpenPodError::HostNamespace(_))
    ));
    let first = open(POD).unwrap().id();
    kernel.with(|world| {
        world.unmount(POD);
        world.create_namespace(POD);
    });
    assert_ne!(open(POD).unwrap().id(), first);
}

#[test]
fn a_change_is_refused_or_reported_as_refused() {
    for (verdict, happens) in [
        (Verdict::Refuse(Errno::EIO), false),
        (Verdict::Deceive(Errno::EIO), true),
    ] {
        let kernel = kernel();
        kernel.intercept(move |_, step| {
            if step.number == 2 {
                verdict
            } else {
                Verdict::Proceed
            }
        });
        kernel.execute(&up("eth0", true), None).unwrap();
        let error = kernel.execute(&up("eth1", true), None).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EIO as i32));
        kernel.with(|world| assert_eq!(host(world, "eth1").up, happens));
        assert_eq!(kernel.journal().len(), 2);
    }
}

#[test]
fn the_dead_do_nothing() {
    for (verdict, happens) in [(Verdict::DieBefore, false), (Verdict::DieAfter, true)] {
        let kernel = kernel();
        kernel.intercept(move |_, _| verdict);
        let dies = |action: &dyn Fn()| {
            let payload = catch_unwind(AssertUnwindSafe(action)).unwrap_err();
            assert!(payload.is::<Died>());
        };
        dies(&|| drop(kernel.execute(&up("eth0", true), None)));
        dies(&|| drop(kernel.execute(&up("eth1", true), None)));
        dies(&|| drop(kernel.observe(None)));
        dies(&|| drop(kernel.boot_id()));
        dies(&|| drop(kernel.open_pod(Path::new(POD))));
        dies(&|| drop(kernel.gids(None, "mlx5_0", 1)));
        kernel.begin();
        let host = kernel.observe(None).unwrap().host;
        assert_eq!(host.link("eth0").unwrap().up, happens);
        assert!(!host.link("eth1").unwrap().up);
    }
}

#[test]
fn children_and_rules_fail_and_die_as_all_else() {
    let rule = rdma_netns::Rule {
        from: "10.0.0.5".parse().unwrap(),
        prefix: 32,
        to: None,
        table: 1000,
        priority: 9,
    };
    let at = NetnsSide::Pod;
    for op in [
        add_child("eth0", BRIDGE, "rdma1"),
        remove_link(at, "rdma0"),
        Op::AddRule { at, rule },
    ] {
        for verdict in [
            Verdict::Refuse(Errno::EIO),
            Verdict::Deceive(Errno::EIO),
            Verdict::DieBefore,
            Verdict::DieAfter,
        ] {
            let kernel = kernel();
            let pod = kernel.open_pod(Path::new(POD)).unwrap();
            let first = add_child("eth0", BRIDGE, "rdma0");
            kernel.execute(&first, Some(&pod)).unwrap();
            let before = kernel.snapshot();
            kernel.intercept(move |_, _| verdict);
            let outcome = catch_unwind(AssertUnwindSafe(|| kernel.execute(&op, Some(&pod))));
            let died = matches!(verdict, Verdict::DieBefore | Verdict::DieAfter);
            assert_eq!(outcome.is_err(), died);
            let happens = matches!(verdict, Verdict::Deceive(_) | Verdict::DieAfter);
            assert_eq!(before != kernel.snapshot(), happens, "{op} {verdict:?}");
        }
    }
}

#[test]
fn an_observation_may_fail() {
    let kernel = kernel();
    kernel.blind(|_, number| (number == 1).then_some(Errno::ENOBUFS));
    assert!(kernel.observe(None).is_err());
    assert!(kernel.observe(None).is_ok());
    assert_eq!(kernel.observations(), 2);
}

#[test]
fn snapshots_report_differences() {
    let kernel = kernel();
    let before = kernel.snapshot();
    assert_eq!(before, kernel.snapshot());
    kernel.execute(&up("eth0", true), None).unwrap();
    let differences = before.differences(&kernel.snapshot());
    assert!(
        differences
            .iter()
            .any(|line| line.starts_with("+ host: eth0 address 0"))
    );
    assert!(differences.iter().all(|line| !line.contains("eth1")));
}
