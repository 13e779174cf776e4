// SPDX-License-Identifier: Apache-2.0
//! Tests of devlink's health reporters, on a device of netdevsim. The device's reporter `dummy` fails and recovers on
//! request.

use crate::run;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma_netns::linux::{
    devlink::{Reporter, reporters},
    monitor::{Event, Monitor},
};
use std::{fs, os::fd::AsFd};

const HEALTH: &str = "/sys/kernel/debug/netdevsim/netdevsim10/health";

struct Device;

impl Device {
    fn new() -> Self {
        run("modprobe netdevsim");
        let device = Self;
        fs::write("/sys/bus/netdevsim/new_device", "10 1").expect("made");
        device
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // an error of this write must not hide the test's own failure
        let _ = fs::write("/sys/bus/netdevsim/del_device", "10");
    }
}

fn dummy() -> Reporter {
    let all = reporters().expect("reporters");
    let dummy = all.into_iter().find(|it| it.name == "dummy");
    dummy.expect("netdevsim's reporter")
}

#[track_caller]
fn hears(monitor: &mut Monitor) {
    let mut wait = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    poll(&mut wait, PollTimeout::from(1000_u16)).expect("polled");
    let events = monitor.events().expect("events");
    assert!(events.contains(&Event::Devlink), "{events:?}");
}

#[test]
fn a_reporter_reports_its_error_and_the_recovery() {
    let _device = Device::new();
    let mut monitor = Monitor::open("/sys").expect("a monitor");
    monitor.events().expect("what was before");
    let well = Reporter {
        bus: "netdevsim".into(),
        device: "netdevsim10".into(),
        port: None,
        name: "dummy".into(),
        is_error: false,
        errors: 0,
        recoveries: 0,
    };
    assert_eq!(dummy(), well);

    fs::write(format!("{HEALTH}/fail_recover"), "Y").expect("set");
    let broken = fs::write(format!("{HEALTH}/break_health"), "firmware hangs");
    broken.expect_err("no recovery");
    hears(&mut monitor);
    let failed = Reporter {
        is_error: true,
        errors: 1,
        ..well.clone()
    };
    assert_eq!(dummy(), failed);

    fs::write(format!("{HEALTH}/fail_recover"), "N").expect("set");
    run("devlink health recover netdevsim/netdevsim10 reporter dummy");
    hears(&mut monitor);
    let recovered = Reporter {
        errors: 1,
        recoveries: 1,
        ..well
    };
    assert_eq!(dummy(), recovered);
}
