// SPDX-License-Identifier: Apache-2.0
//! Tests of the eRDMA driver's mode: every change from one mode to another, on made-up sysfs trees. The loader records
//! its calls, and fails as configured.

mod keeping;
mod recorded;

use ::erdma::{
    conf::DriverMode::{self, Compat, Default, Ofed},
    driver::{Change, Plan, Problem, State, User, change, limit, mode, plan},
};
use integration::{Machine, machine::Erdma as Nic};
use rdma_netns::{ErdmaModule, Inventory, Linux};
use recorded::{Fails, Recorded};
use std::time::Duration;

const NIC: Nic<'_> = Nic {
    address: "0000:00:07.0",
    netdev_address: "0000:00:05.0",
    rdma: "erdma_0",
    netdev: "eri-none",
    mac: "00:16:3e:0a:0b:01",
    numa_node: 0,
    number: 0,
};

const N: ErdmaModule = ErdmaModule {
    compat: Some(false),
    ofed: false,
};
const Y: ErdmaModule = ErdmaModule {
    compat: Some(true),
    ofed: false,
};
const Y_OFED: ErdmaModule = ErdmaModule {
    compat: Some(true),
    ofed: true,
};
const N_OFED: ErdmaModule = ErdmaModule {
    compat: Some(false),
    ofed: true,
};
const MAINLINE: ErdmaModule = ErdmaModule {
    compat: None,
    ofed: false,
};

#[test]
fn the_mode_that_a_module_is_in() {
    for (module, wanted) in [
        (N, Default),
        (N_OFED, Default),
        (MAINLINE, Default),
        (Y, Compat),
        (Y_OFED, Ofed),
    ] {
        assert_eq!(mode(&module), wanted, "{module:?}");
    }
}

/// Returns a short name of the plan.
fn planned(wanted: Option<DriverMode>, module: Option<ErdmaModule>) -> String {
    let state = State {
        module,
        functions: 1,
        ..State::default()
    };
    match plan(wanted, &state, true) {
        Plan::Keep => "keep".to_owned(),
        Plan::Problem(problem) => problem.word().to_owned(),
        Plan::Change(Change { from: None, to }) => format!("load {to}"),
        Plan::Change(Change { to, .. }) => format!("reload {to}"),
    }
}

#[test]
fn every_way_from_one_mode_to_another() {
    let table = [
        // columns: the module; the plans for the configured modes any, default, compat and ofed
        (
            None,
            ["not_loaded", "load default", "load compat", "load ofed"],
        ),
        (Some(N), ["keep", "keep", "reload compat", "no_ofed"]),
        (
            Some(N_OFED),
            ["keep", "keep", "reload compat", "reload ofed"],
        ),
        (Some(Y), ["keep", "reload default", "keep", "no_ofed"]),
        // the driver in mode `ofed` also satisfies `compat`
        (Some(Y_OFED), ["keep", "reload default", "keep", "keep"]),
        (Some(MAINLINE), ["keep", "keep", "one_mode", "one_mode"]),
    ];
    for (module, row) in table {
        let modes = [None, Some(Default), Some(Compat), Some(Ofed)];
        let found = modes.map(|wanted| planned(wanted, module));
        assert_eq!(found, row, "{module:?}");
    }
}

#[test]
fn a_node_without_erdma_needs_no_driver() {
    for wanted in [None, Some(Default), Some(Compat), Some(Ofed)] {
        assert_eq!(plan(wanted, &State::default(), true), Plan::Keep);
    }
}

#[test]
fn reasons_against_a_reload() {
    let mut state = State {
        module: Some(N),
        functions: 1,
        ..State::default()
    };
    let Plan::Problem(forbidden) = plan(Some(Compat), &state, false) else {
        panic!("it was forbidden");
    };
    let message = forbidden.to_string();
    assert!(
        message.contains("modprobe erdma compat_mode=Y"),
        "{message}"
    );
    // loading an absent module is not a reload
    let none = State {
        module: None,
        ..state.clone()
    };
    let load = Change {
        from: None,
        to: Compat,
    };
    assert_eq!(plan(Some(Compat), &none, false), Plan::Change(load));

    state.holders = vec!["smc_erdma".to_owned()];
    let Plan::Problem(held) = plan(Some(Compat), &state, true) else {
        panic!("a module holds it");
    };
    assert_eq!(held.word(), "in_use");
    assert!(held.to_string().contains("the module smc_erdma"), "{held}");
}

#[test]
fn users_of_a_device_are_named() {
    let reload = Change {
        from: Some(N),
        to: Compat,
    };
    assert_eq!(reload.hindered(vec![]), None);
    let users = vec![
        User::Pod("team/train-0".into()),
        User::Process {
            pid: 17,
            name: "ib_write_bw".into(),
        },
    ];
    let problem = reload.hindered(users.clone()).expect("they have devices");
    assert_eq!(
        problem.to_string(),
        "the eRDMA driver stays in mode default, although preferDriver is compat: drain the node, because the \
         driver's devices are in use by pod team/train-0, process 17 (ib_write_bw)"
    );
    let soon = Duration::from_secs(10);
    assert_eq!(problem.passes(soon), Some(soon));
    // another process id is not a change, but another program is
    let like = |pid, name: &str| {
        let name = name.into();
        let users = vec![users[0].clone(), User::Process { pid, name }];
        let other = reload.hindered(users).expect("they have devices");
        problem.is_like(&other)
    };
    assert!(like(18, "ib_write_bw") && !like(17, "other"));
    let load = Change {
        from: None,
        to: Compat,
    };
    assert_eq!(load.hindered(users), None, "nothing is taken away");
}

/// Applies `change` on a made-up node. Returns the result, the loader's calls, and the driver's mode afterwards.
fn applied(
    change: &Change,
    fails: Fails,
) -> (Result<(), Problem>, Vec<String>, Option<DriverMode>) {
    let machine = Machine::with(&[]);
    machine.plug_erdma(&NIC);
    machine.erdma_module(change.from.map(|module| module.compat));
    let kernel = Linux::with_roots(machine.path("sys"), machine.path("dev"));
    let mut loader = Recorded::new(machine, fails);
    let done = change::apply(change, &mut loader, &|| kernel.erdma_module());
    let now = kernel.erdma_module();
    (done, loader.calls, now.as_ref().map(mode))
}

#[test]
fn a_module_is_loaded_in_its_mode() {
    for (from, to, calls) in [
        (None, Default, &["check", "load compat_mode=N"][..]),
        (None, Compat, &["check", "load compat_mode=Y"]),
        (Some(N), Compat, &["check", "unload", "load compat_mode=Y"]),
        (Some(Y), Default, &["check", "unload", "load compat_mode=N"]),
    ] {
        let (done, loader_calls, now) = applied(&Change { from, to }, Fails::Nowhere);
        assert_eq!(done, Ok(()), "{from:?} {to}");
        assert_eq!(loader_calls, calls, "{from:?} {to}");
        assert_eq!(now, Some(to));
    }
}

/// Checks the driver's state after a failure of each step.
#[test]
fn a_failure_leaves_the_driver_unchanged() {
    let change = Change {
        from: Some(N),
        to: Compat,
    };
    for (fails, calls, words, now) in [
        (
            Fails::Check,
            &["check"][..],
            "cannot be loaded in mode compat: there is no module erdma for this kernel: install",
            Some(Default),
        ),
        (
            Fails::Unload,
            &["check", "unload"],
            "devices are in use by unknown users: the kernel does not unload \
             erdma: it is in use",
            Some(Default),
        ),
        (
            Fails::Load { times: 1 },
            &[
                "check",
                "unload",
                "load compat_mode=Y",
                "load compat_mode=N",
            ],
            "modprobe erdma compat_mode=Y failed: no; the driver is loaded again in mode default",
            Some(Default),
        ),
        (
            Fails::Load { times: 2 },
            &[
                "check",
                "unload",
                "load compat_mode=Y",
                "load compat_mode=N",
            ],
            "this node has no eRDMA until the driver is loaded (modprobe erdma)",
            None,
        ),
        (
            Fails::Silently,
            &["check", "unload", "load compat_mode=Y"],
            "modprobe succeeded, but the module is not loaded",
            None,
        ),
        (
            Fails::Parameter,
            &["check", "unload", "load compat_mode=Y"],
            "its parameter compat_mode did not change",
            Some(Default),
        ),
    ] {
        let (done, loader_calls, mode) = applied(&change, fails);
        let problem = done.expect_err("it fails").to_string();
        assert!(problem.contains(words), "{fails:?}: {problem}");
        assert_eq!(loader_calls, calls, "{fails:?}");
        assert_eq!(mode, now, "{fails:?}");
    }
    // no driver was loaded, so there is no earlier mode to restore
    let first = Change {
        from: None,
        to: Compat,
    };
    let (done, loader_calls, mode) = applied(&first, Fails::Load { times: 1 });
    let problem = done.expect_err("it fails");
    assert_eq!((problem.word(), mode), ("failed", None));
    assert_eq!(loader_calls, ["check", "load compat_mode=Y"]);
    // the driver of mainline Linux has only one mode, which is known only after loading
    let (done, _, mode) = applied(&first, Fails::Mainline);
    assert_eq!(done, Err(Problem::OneMode { wanted: Compat }));
    assert_eq!(mode, Some(Default));
    let default = Change {
        from: None,
        to: Default,
    };
    assert_eq!(applied(&default, Fails::Mainline).0, Ok(()));
}

#[test]
fn functions_are_counted_whatever_driver_they_have() {
    let machine = Machine::with(&[]);
    let sysfs = machine.path("sys");
    assert_eq!(State::read(&sysfs, None), State::default());
    machine.plug_erdma(&NIC);
    machine.write(
        "sys/devices/pci0000:00/0000:00:07.0/uevent",
        "PCI_CLASS=FF0000\nPCI_ID=1DED:107F\n",
    );
    assert_eq!(State::read(&sysfs, None).functions, 1);
    machine.erdma_module(Some(Some(true)));
    std::fs::create_dir_all(machine.path("sys/module/erdma/holders/other")).expect("made");
    assert_eq!(State::read(&sysfs, Some(Y)).holders, ["other"]);
}

#[test]
fn only_the_drivers_own_devices_are_limited() {
    let inventory_of = |compat: bool| -> Inventory {
        let machine = Machine::with(&[]);
        machine.plug_erdma(&NIC);
        machine.erdma_module(Some(Some(compat)));
        let kernel = Linux::with_roots(machine.path("sys"), machine.path("dev"));
        kernel.inventory().expect("an inventory")
    };
    let address = |text: &str| text.to_owned().try_into().expect("an address");
    assert_eq!(
        limit(&inventory_of(true), &address(NIC.address)),
        Some(Compat)
    );
    assert_eq!(
        limit(&inventory_of(true), &address(NIC.netdev_address)),
        None
    );
    assert_eq!(limit(&inventory_of(false), &address(NIC.address)), None);
}
