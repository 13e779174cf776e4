//! The registry stands by for a kubelet whose `kubelet.sock` does not serve.

use crate::{FIRST, HCA, Machine, start};
use integration::kubelet::{DeviceManager, Manner, Registered, Way};
use std::fs;

/// A node whose kubelet refuses at `kubelet.sock`, and watches plugins.
fn refusing(machine: &Machine) -> DeviceManager {
    let mut kubelet = DeviceManager::new(&machine.path("kubelet")).with_plugin_watcher();
    kubelet.takes("", Manner::Refusing("use the plugin watcher".into()));
    kubelet.start();
    kubelet
}

fn registry(machine: &Machine) -> usize {
    let entries = fs::read_dir(machine.path("kubelet/plugins_registry"));
    entries.expect("a directory").count()
}

#[test]
fn the_plugin_watcher_finds_what_is_refused_elsewhere() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(HCA);
    let mut kubelet = refusing(&machine);
    let daemon = start(&machine);
    let known = kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    assert_eq!(known.streams, 1);
    daemon.says("registered by kubelet's plugin watcher");
    let registered = &kubelet.registrations()[0];
    assert_eq!(registered.way, Way::PluginWatcher);
    assert!(registered.endpoint.is_absolute());
    // the next kubelet has it again, one way or the other
    kubelet.takes("", Manner::Proper);
    let at = kubelet.restart();
    kubelet.wait_for("rdma/hca", "its list", |it| it.lists > 0);
    integration::wait::until("the registry is left, unless it was first", || {
        let all = kubelet.registrations();
        let found = |it: &Registered| it.at >= at && it.way == Way::PluginWatcher;
        registry(&machine) == 0 || all.iter().any(found)
    });
    let (status, _) = daemon.end(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
}

/// The plugin watcher finds the resource, whatever is wrong with `kubelet.sock`.
#[track_caller]
fn is_found(kubelet: &DeviceManager, machine: &Machine) {
    let daemon = start(machine);
    let known = kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    assert_eq!(known.streams, 1);
    daemon.says("registered by kubelet's plugin watcher");
    let registered = kubelet.registrations();
    assert_eq!(registered.len(), 1, "{registered:?}");
    assert_eq!(registered[0].way, Way::PluginWatcher);
    let given = kubelet.ask_for("rdma/hca", &[&crate::ids(&["0"])]);
    assert_eq!(given.expect("given").container_responses.len(), 1);
}

#[test]
fn the_plugin_watcher_finds_it_where_there_is_no_kubelet_sock() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(HCA);
    let mut kubelet = DeviceManager::new(&machine.path("kubelet")).with_plugin_watcher();
    kubelet.start();
    fs::remove_file(kubelet.socket()).expect("removed");
    is_found(&kubelet, &machine);
    assert_eq!(kubelet.calls(), 0);
}

#[test]
fn the_plugin_watcher_finds_it_where_kubelet_sock_is_silent() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(HCA);
    let mut kubelet = DeviceManager::new(&machine.path("kubelet")).with_plugin_watcher();
    kubelet.takes("", Manner::Silent);
    kubelet.start();
    is_found(&kubelet, &machine);
    assert!(kubelet.calls() > 0, "it was not asked");
}

#[test]
fn a_watched_stream_that_is_cut_is_found_again() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(HCA);
    let kubelet = refusing(&machine);
    let daemon = start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    daemon.says("registered by kubelet's plugin watcher");
    kubelet.cut_streams();
    kubelet.wait_for_registrations("another one", |all| all.len() == 2);
    kubelet.wait_for("rdma/hca", "a stream", |it| it.streams == 1);
}

#[test]
fn nobody_registers_twice() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(HCA);
    let mut kubelet = DeviceManager::new(&machine.path("kubelet")).with_plugin_watcher();
    kubelet.start();
    let _daemon = start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    // longer than the registry would wait for its turn
    let twice = kubelet.within(std::time::Duration::from_secs(3), "rdma/hca", |it| {
        it.is_some_and(|it| it.streams > 1)
    });
    assert!(!twice);
    assert_eq!(kubelet.registrations().len(), 1);
    assert_eq!(registry(&machine), 0);
}

#[test]
fn the_registry_goes_with_the_daemon() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(HCA);
    let kubelet = refusing(&machine);
    let daemon = start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    daemon.says("registered by kubelet's plugin watcher");
    assert_eq!(registry(&machine), 1);
    daemon.end(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(registry(&machine), 0);
}
