// SPDX-License-Identifier: Apache-2.0
//! Tests of preferences, of allocation, and of kubelet's calls before a container's start.

use crate::{FIRST, HCA, Running, SECOND, TWO, ids, start};
use integration::{
    Machine,
    kubelet::{
        AllocationRequest,
        pod_resources::{PodResourcesServer, pod},
    },
    machine::Nic,
    stopwatch::Stopwatch,
    wait,
};
use nix::sys::signal::Signal;
use rdma_resources::{Cdi, Grants, Published};
use std::{collections::BTreeSet, fs, path::Path};
use tonic::Code;

#[test]
fn the_users_old_config_map_gives_all_devices() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    let request = AllocationRequest::new("worker-0", "main", "rdma/hca", 1);
    let allocation = node.kubelet.allocate(&request).expect("allocated");
    let given: Vec<_> = allocation
        .given
        .devices
        .iter()
        .map(|it| (it.container_path.as_str(), it.host_path.as_str()))
        .collect();
    let path = |name: &str| format!("/dev/infiniband/{name}");
    let expected = ["rdma_cm", "uverbs0", "uverbs1"].map(path);
    let mut container: Vec<_> = given.iter().map(|(container, _)| *container).collect();
    container.sort_unstable();
    assert_eq!(container, expected);
    assert!(given.iter().all(|(container, host)| container == host));
    let pods = node.kubelet.pod_resources();
    assert_eq!(pods[0].name, "worker-0");
    assert_eq!(pods[0].containers[0].devices[0].device_ids, allocation.ids);
    node.kubelet
        .before_start("rdma/hca", &allocation.ids)
        .expect("it may start");
    node.daemon.wait_for_log("rdma/hca: allocated: ");
    node.daemon.wait_for_log("mlx5_0 at 0000:3b:00.0: uverbs0");
}

#[test]
fn an_allocation_is_recorded_before_kubelet_gets_it() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    let nic = ids(&[SECOND.address]);
    node.kubelet
        .ask_for("rdma/nic", &[&nic])
        .expect("allocated");
    let grants = Grants::new(&node.machine.path("state"));
    let grant = grants.read("rdma/nic", SECOND.address).expect("read");
    let grant = grant.expect("a grant");
    assert_eq!(grant.devices[0].rdma, "mlx5_1");
    assert_eq!(grant.devices[0].char_devices[0].name, "uverbs1");
}

/// Kubelet has no time limit for Allocate, and admits no other pod while it waits.
#[test]
fn a_disk_that_does_not_answer_holds_up_kubelet_for_a_while_only() {
    let node = Running::with(TWO).listed("rdma/hca", 8);
    let directory = node.machine.path("state/granted/rdma@hca");
    std::fs::create_dir_all(&directory).expect("made");
    // the test holds the lock of the file, for which each writer of the file waits
    let held = std::fs::File::create(directory.join("0.new")).expect("made");
    held.lock().expect("free");
    let at = Stopwatch::start();
    let refused = node.kubelet.ask_for("rdma/hca", &[&ids(&["0"])]);
    let status = refused.expect_err("nothing is recorded");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("does not answer"), "{status}");
    assert!(at.elapsed().as_secs() < 10, "{:?}", at.elapsed());
    // the daemon still answers requests for other ids
    node.kubelet
        .ask_for("rdma/hca", &[&ids(&["1"])])
        .expect("allocated");
}

#[test]
fn an_allocation_that_cannot_be_recorded_is_refused() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    // put a file in place of the directory: no mode of a directory would stop root from writing
    node.machine.write("state/granted", "");
    let refused = node.kubelet.ask_for("rdma/hca", &[&ids(&["0"])]);
    let status = refused.expect_err("nothing is recorded");
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("granted"), "{status}");
}

#[test]
fn firmware_that_does_not_answer_holds_up_no_other_devices_pods() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    node.machine.silence(&FIRST);
    integration::wait::until("somebody asks", || node.daemon.threads() > 1);
    let nic = ids(&[SECOND.address]);
    let at = Stopwatch::start();
    // more attempts than the daemon has threads that may block
    for _ in 0..6 {
        let given = node.kubelet.ask_for("rdma/nic", &[&nic]);
        assert_eq!(given.expect("given").container_responses.len(), 1);
        node.kubelet
            .before_start("rdma/nic", &nic)
            .expect("it may start");
    }
    assert!(at.elapsed().as_secs() < 5, "{:?}", at.elapsed());
}

#[test]
fn each_container_has_a_response_of_its_own() {
    let node = Running::with(TWO).listed("rdma/hca", 8);
    let (a, b) = (ids(&["0"]), ids(&["1", "2"]));
    let answer = node.kubelet.ask_for("rdma/hca", &[&a, &b, &a]);
    let responses = answer.expect("allocated").container_responses;
    assert_eq!(responses.len(), 3);
    for response in responses {
        let paths: Vec<_> = response.devices.iter().map(|it| &it.host_path).collect();
        assert_eq!(paths.len(), 2, "uverbs0 and rdma_cm, once each: {paths:?}");
    }
}

#[test]
fn an_unknown_id_is_an_error_that_names_it() {
    let node = Running::with(TWO).listed("rdma/hca", 8);
    for unknown in ["8", "-1", "", "0000:3b:00.0", "../../etc", "\u{1f980}"] {
        let refused = node.kubelet.ask_for("rdma/hca", &[&ids(&["0", unknown])]);
        let status = refused.expect_err("an unknown id");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(
            status.message().contains(&format!("{unknown:?}")),
            "{status}"
        );
        let refused = node.kubelet.before_start("rdma/hca", &ids(&[unknown]));
        let status = refused.expect_err("an unknown id");
        assert!(
            status.message().contains(&format!("{unknown:?}")),
            "{status}"
        );
    }
    let known = node.kubelet.ask_for("rdma/hca", &[&ids(&["7"])]);
    known.expect("it still answers");
}

#[test]
fn preferences_are_among_available_ids_and_are_explained() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    let available = ids(&["3", "4", "5"]);
    let must = ids(&["4"]);
    let preferred = node.kubelet.prefer("rdma/hca", &available, &must, 2);
    let preferred = preferred.expect("a preference");
    assert_eq!(preferred.len(), 2);
    assert!(preferred.contains(&must[0]), "{preferred:?}");
    assert!(preferred.iter().all(|id| available.contains(id)));
    node.daemon.wait_for_log("of 3 ids, the daemon prefers");
}

#[test]
fn a_renumbered_device_is_allocated_by_its_present_number() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    let nic = ids(&[SECOND.address]);
    // the change of the number causes no event. Several tries, because the daemon may observe the node meanwhile for
    // another reason
    let has_noticed = (SECOND.number..30).any(|number| {
        node.machine.renumber(&SECOND, number, number + 1);
        let answer = node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
        let mut paths = answer.container_responses[0].devices.iter();
        let path = format!("/dev/infiniband/uverbs{}", number + 1);
        assert!(paths.any(|it| it.host_path == path), "no {path}");
        node.daemon.count("the node's devices have changed") > 0
    });
    assert!(has_noticed, "it is not logged");
}

#[test]
fn firmware_that_does_not_answer_holds_up_no_renumbered_device() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    node.machine.silence(&FIRST);
    node.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    integration::wait::until("somebody asks", || node.daemon.threads() > 1);
    node.machine.renumber(&SECOND, SECOND.number, 7);
    let nic = ids(&[SECOND.address]);
    let at = Stopwatch::start();
    // more attempts than the daemon has threads that may block
    for _ in 0..6 {
        let answer = node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
        let given = &answer.container_responses[0].devices;
        assert!(given.iter().any(|it| it.host_path.ends_with("/uverbs7")));
        node.kubelet
            .before_start("rdma/nic", &nic)
            .expect("it may start");
    }
    assert!(at.elapsed().as_secs() < 5, "{:?}", at.elapsed());
}

#[test]
fn a_container_whose_device_was_renumbered_does_not_start() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    let nic = ids(&[SECOND.address]);
    node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
    node.kubelet.before_start("rdma/nic", &nic).expect("it may");
    node.machine.renumber(&SECOND, SECOND.number, 7);
    let refused = node.kubelet.before_start("rdma/nic", &nic);
    let status = refused.expect_err("another device's path");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("uverbs1"), "{status}");
    assert!(status.message().contains("uverbs7"), "{status}");
}

#[test]
fn a_container_of_the_plugin_before_may_start() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    let nic = ids(&[SECOND.address]);
    node.kubelet.before_start("rdma/nic", &nic).expect("it may");
    node.daemon.wait_for_log("starts without a grant");
}

#[test]
fn the_chain_gets_the_devices_of_ids() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    let published = Published::read(&node.machine.path("state")).expect("read");
    let published = published.expect("published");
    assert_eq!(published.cdi_dir, None);
    let devices = |resource: &str, id: &str| {
        let devices = published.resources[resource].devices(id).expect("an id");
        devices.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(devices("rdma/hca", "3"), [FIRST.address]);
    assert_eq!(devices("rdma/nic", SECOND.address), [SECOND.address]);
}

#[test]
fn cdi_entries_come_with_the_configuration_and_stay_for_who_has_their_names() {
    let with_cdi = TWO.replacen('{', r#"{"cdi":true,"#, 1);
    let node = Running::with(&with_cdi).listed("rdma/nic", 1);
    let file = node.machine.path("cdi/rdma-device-plugin-rdma.json");
    let spec = read_json(&file);
    let names: Vec<_> = spec["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .map(|it| it["name"].as_str().expect("a name"))
        .collect();
    assert!(names.contains(&SECOND.address), "{names:?}");
    let nic = ids(&[SECOND.address]);
    let answer = node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
    let given = &answer.container_responses[0];
    assert!(given.devices.is_empty(), "by name or by path, not both");
    let cdi: Vec<_> = given
        .cdi_devices
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert!(cdi.contains(&rdma_resources::cdi::full_name(SECOND.address).as_str()));
    // the daemon's older observation must not replace the entry that `rdma-cni` corrected
    node.machine.renumber(&SECOND, SECOND.number, 7);
    let address = SECOND.address.to_owned().try_into().expect("an address");
    let moved = rdma_resources::CharNode {
        name: "uverbs7".into(),
        major: 231,
        minor: 199,
    };
    let cdi = Cdi::new(&node.machine.path("cdi"), &node.machine.path("state"));
    cdi.renumber(&address, &[moved], &[]).expect("put right");
    node.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    node.daemon.wait_for_log("SIGHUP");
    node.machine.configure(TWO);
    node.daemon
        .wait_for_log("the new configuration takes effect");
    // the runtime resolves the CDI names again when it restarts containers
    node.machine.renumber(&SECOND, 7, 8);
    node.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    integration::wait::until("the entry is right", || {
        read_json(&file).to_string().contains("uverbs8")
    });
    // the daemon writes the files before containers get paths instead of CDI names
    integration::wait::until("CDI is turned off", || {
        let answer = node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
        let given = &answer.container_responses[0];
        given.cdi_devices.is_empty() && !given.devices.is_empty()
    });
}

/// Returns the names of the entries in the CDI file of the devices. Returns no names if there is no such file.
fn cdi_names(machine: &Machine) -> BTreeSet<String> {
    let file = machine.path("cdi/rdma-device-plugin-rdma.json");
    let spec = file.exists().then(|| read_json(&file));
    let entries = spec.iter().filter_map(|it| it["devices"].as_array());
    let entries = entries.flatten();
    let names = entries.map(|it| it["name"].as_str().expect("a name").to_owned());
    names.collect()
}

/// The runtime resolves the CDI names again when it restarts the container.
#[test]
fn a_granted_device_that_leaves_its_resource_keeps_its_cdi_entry() {
    const THIRD: Nic<'_> = Nic {
        address: "0000:d8:00.0",
        rdma: "mlx5_2",
        netdev: "ens3",
        numa_node: 1,
        number: 2,
    };
    let with_cdi = TWO.replacen('{', r#"{"cdi":true,"#, 1);
    let machine = Machine::with(&[FIRST, SECOND, THIRD]);
    let node = Running::on(machine, &with_cdi)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let id = ids(&["0"]);
    node.kubelet.ask_for("rdma/hca", &[&id]).expect("given");
    // both devices leave, and only the first one is granted
    let narrowed = r#"{"cdi":true,"resources":[
        {"name":"rdma/hca","kind":"shared","count":8,"devices":[{"rdma":"mlx5_2"}]}
    ]}"#;
    node.machine.configure(narrowed);
    wait::until("the entries are written", || {
        cdi_names(&node.machine).contains(THIRD.address)
    });
    let expected = [FIRST.address, THIRD.address, "rdma_cm"].map(str::to_owned);
    assert_eq!(cdi_names(&node.machine), BTreeSet::from(expected));
    node.kubelet.before_start("rdma/hca", &id).expect("it may");
    // the entry follows the device
    node.machine.renumber(&FIRST, FIRST.number, 7);
    node.daemon.signal(Signal::SIGHUP);
    let file = node.machine.path("cdi/rdma-device-plugin-rdma.json");
    wait::until("the entry is right", || {
        let spec = read_json(&file).to_string();
        spec.contains("uverbs7") && !spec.contains("uverbs0")
    });
}

/// Kubelet's checkpoint keeps the CDI names of containers over a reboot, and the runtime's CDI directory is empty.
#[test]
fn cdi_entries_return_after_a_reboot_until_the_ids_are_granted_by_path() {
    let with_cdi = TWO.replacen('{', r#"{"cdi":true,"#, 1);
    let Running {
        daemon,
        kubelet,
        machine,
    } = Running::with(&with_cdi).listed("rdma/nic", 1);
    let nic = ids(&[SECOND.address]);
    kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
    daemon.end(Signal::SIGTERM);
    kubelet.wait_for("rdma/nic", "the stream ends", |it| it.streams == 0);
    let file = machine.path("cdi/rdma-device-plugin-rdma.json");
    fs::remove_file(&file).expect("removed");
    machine.configure(TWO);
    let node = Running {
        daemon: start(&machine),
        kubelet,
        machine,
    };
    let node = node.listed("rdma/nic", 1);
    assert!(cdi_names(&node.machine).contains(SECOND.address));
    let published = Published::read(&node.machine.path("state")).expect("read");
    assert!(published.expect("published").cdi_dir.is_some());
    node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
    fs::remove_file(&file).expect("removed");
    node.daemon.signal(Signal::SIGHUP);
    wait::until("the daemon publishes no CDI directory", || {
        let published = Published::read(&node.machine.path("state")).expect("read");
        published.expect("published").cdi_dir.is_none()
    });
    assert!(!file.exists());
}

#[test]
fn the_log_says_whose_container_starts_and_whose_must_not() {
    let node = Running::with(TWO).listed("rdma/nic", 1);
    let socket = node.machine.path("kubelet/pod-resources/kubelet.sock");
    let pod_resources = PodResourcesServer::start(&socket);
    let nic = ids(&[SECOND.address]);
    node.kubelet.ask_for("rdma/nic", &[&nic]).expect("given");
    let own = [("rdma/nic", [SECOND.address].as_slice())];
    pod_resources.set_pods(&[
        pod("default", "other", &[&[]]),
        pod("default", "trainer-0", &[&own]),
    ]);
    node.kubelet.before_start("rdma/nic", &nic).expect("right");
    node.daemon.wait_for_log(&format!(
        "rdma/nic: {} of default/trainer-0, container container0: may start",
        SECOND.address
    ));
    node.machine.renumber(&SECOND, SECOND.number, 7);
    let refused = node.kubelet.before_start("rdma/nic", &nic);
    let reason = refused.expect_err("another device's path");
    node.daemon.wait_for_log(&format!(
        "rdma/nic: {} of default/trainer-0, container container0: must not start: {}",
        SECOND.address,
        reason.message()
    ));
}

#[test]
fn a_container_that_starts_with_less_is_logged() {
    let machine = Machine::with(&[FIRST]);
    // the file of rdma_cm is another device's, and the NIC has no netdev
    machine.write("sys/class/misc/rdma_cm/dev", "10:59\n");
    std::fs::remove_file(machine.path("sys/class/net/ens1")).expect("a netdev");
    let conf = r#"{"resources":[{"name":"rdma/nic","kind":"perNic","count":1,"devices":[{"rdma":"mlx5_0"}]}]}"#;
    let node = Running::on(machine, conf).listed("rdma/nic", 1);
    let allocation = node
        .kubelet
        .allocate(&AllocationRequest::new("worker-0", "main", "rdma/nic", 1))
        .expect("allocated");
    assert_eq!(allocation.given.devices.len(), 1);
    node.daemon.wait_for_log(
        "/dev/infiniband/rdma_cm has the device number 10:58 instead of 10:59: a container of rdma/nic starts without \
         rdma_cm",
    );
    node.daemon.wait_for_log(
        "0000:3b:00.0 has no netdev in the host's network namespace: a container of rdma/nic gets no SMCR_PNET",
    );
}

fn read_json(path: &Path) -> serde_json::Value {
    let text = std::fs::read(path).expect("the file");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn the_fabric_watch_is_allocated_the_connection_manager() {
    let conf = HCA.replace('}', r#","fabric":true}"#);
    let node = Running::with(&conf).listed("rdma/connection-manager", 2);
    let request = AllocationRequest::new("watch", "main", "rdma/connection-manager", 1);
    let allocation = node.kubelet.allocate(&request).expect("allocated");
    let devices = allocation.given.devices.iter();
    let paths: Vec<_> = devices.map(|it| it.host_path.as_str()).collect();
    assert_eq!(paths, ["/dev/infiniband/rdma_cm"]);
    node.kubelet
        .before_start("rdma/connection-manager", &allocation.ids)
        .expect("it may start");
    // the daemon publishes no resource that `rdma-cni` does not attach
    let published = Published::read(&node.machine.path("state")).expect("read");
    let published = published.expect("published").resources;
    assert_eq!(published.into_keys().collect::<Vec<_>>(), ["rdma/hca"]);
    node.machine.configure(HCA);
    node.kubelet
        .wait_for("rdma/connection-manager", "no ids", |it| {
            it.healthy().is_empty()
        });
}
