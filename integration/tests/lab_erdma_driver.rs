// SPDX-License-Identifier: Apache-2.0
//! In the lab, behaviour of the kernel's eRDMA driver, without this project's programs:
//! `integration/lab/vm --tier erdma`, one test at a time. Driver and user-space provider are real, the functions
//! are models.

use integration::{
    Netns,
    erdma_functions::{
        Driver, ErdmaFunctions, FUNCTIONS, NIC_FUNCTIONS, NICS, counter, directory, is_bound,
        links, macs, node_guid,
    },
    traffic::{self, End},
    wait,
};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

#[track_caller]
fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    text.trim().to_owned()
}

fn is_deferred(function: &str) -> bool {
    read("/sys/kernel/debug/devices_deferred").contains(function)
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_device_has_no_parent_and_the_netdev_of_its_permanent_mac() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    for (nic, netdev) in NICS.into_iter().enumerate() {
        let rdma = erdma.rdma(nic);
        let at = directory(&rdma);
        assert_eq!(at, Path::new("/sys/devices/virtual/infiniband").join(&rdma));
        assert!(!at.join("device").exists());
        assert_eq!(read(at.join("node_guid")), node_guid(&macs()[nic]));
        assert_eq!(read(at.join("ports/1/gid_attrs/ndevs/0")), netdev);
        let function = Path::new("/sys/bus/pci/devices").join(FUNCTIONS[nic]);
        assert_eq!(read(function.join("vendor")), "0x1ded");
        assert_eq!(read(function.join("numa_node")), nic.to_string());
        assert!(!function.join("infiniband").exists());
    }

    // a changed MAC unbinds no function, and the next load of the driver copies it into the node GUID
    let changed = "52:54:00:ee:00:99";
    let rdma = erdma.rdma(0);
    let guid = directory(&rdma).join("node_guid");
    erdma
        .host
        .ip(&format!("link set dev {} address {changed}", NICS[0]));
    assert_eq!(erdma.rdma(0), rdma);
    assert_eq!(read(guid), node_guid(&macs()[0]));
    erdma.unload();
    erdma.load();
    erdma.are_home();
    let rdma = erdma.rdma(0);
    assert_eq!(read(directory(&rdma).join("node_guid")), node_guid(changed));
}

#[test]
fn with_a_parent_a_device_is_below_its_function() {
    let erdma = ErdmaFunctions::new(Driver::WithParent, "exclusive");
    for (nic, function) in FUNCTIONS.into_iter().enumerate() {
        let rdma = erdma.rdma(nic);
        let parent = fs::canonicalize(Path::new("/sys/bus/pci/devices").join(function));
        let parent = parent.expect("a function");
        assert_eq!(directory(&rdma), parent.join("infiniband").join(&rdma));
        assert_eq!(
            fs::canonicalize(directory(&rdma).join("device")).expect("a link"),
            parent
        );
        // the netdev is below another function
        assert!(!parent.join("net").exists());
    }
}

/// Asserts that `rping` and perftest by the connection manager work between two pods, each with one NIC.
#[track_caller]
fn has_traffic(erdma: &ErdmaFunctions, mode: &str) {
    let pods = [Netns::new("server"), Netns::new("client")];
    let devices = [0, 1].map(|it: usize| erdma.give(it, &pods[it], ADDRESSES[it], mode));
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: &devices[it],
        address: ADDRESSES[it],
    });
    let sent = |end: End<'_>| {
        // in shared mode the device's copies in other namespaces have no such file
        let at = match mode {
            "shared" => &erdma.host,
            _ => end.pod,
        };
        counter(at, end.rdma, "tx_bytes_cnt")
    };
    traffic::rping(server, client);
    for (program, from) in [
        ("ib_read_bw", server),
        ("ib_write_bw", client),
        ("ib_send_bw", client),
    ] {
        let before = sent(from);
        traffic::by_connection_manager(program, server, client);
        let bytes = sent(from) - before;
        assert!(bytes >= 100 * 4096, "{program}: {bytes} bytes");
    }
    drop(pods);
    erdma.are_home();
}

#[test]
fn pods_exchange_data_in_exclusive_mode() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    has_traffic(&erdma, "exclusive");
}

#[test]
fn pods_exchange_data_in_shared_mode() {
    let erdma = ErdmaFunctions::new(Driver::WithParent, "shared");
    has_traffic(&erdma, "shared");
}

#[test]
fn a_device_loses_its_netdev_until_it_follows_it() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    let rdma = erdma.rdma(0);
    let pod = Netns::new("pod");
    let to = pod.name();
    erdma
        .host
        .ip(&format!("link set dev {} netns {to}", NICS[0]));
    let shown = links(&erdma.host);
    let link = shown.iter().find(|link| link["ifname"] == rdma.as_str());
    assert!(link.expect("the device stays")["netdev"].is_null());
    assert!(links(&pod).is_empty());
    erdma.host.run(&format!("rdma dev set {rdma} netns {to}"));
    assert_eq!(erdma.rdma_in(&pod, 0), Some(rdma));
    drop(pod);
    erdma.are_home();
}

#[test]
fn a_listener_keeps_both_in_a_namespace_that_ended() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    let pod = Netns::new("pod");
    let rdma = erdma.give(0, &pod, ADDRESSES[0], "exclusive");
    let mut rping = pod.command("rping");
    rping.args(["-s", "-a", ADDRESSES[0]]);
    let rping = rping.stdout(Stdio::null()).stderr(Stdio::null());
    let listener = Running(rping.spawn().expect("rping"));
    wait::until("rping listens", || traffic::listens(&pod));
    pod.die();
    let is_back = |limit| {
        wait::within(limit, || {
            erdma.host.has_link(NICS[0])
                || links(&erdma.host)
                    .iter()
                    .any(|link| link["ifname"] == rdma.as_str())
        })
    };
    assert!(!is_back(Duration::from_secs(3)), "while it listens");
    drop(listener);
    erdma.are_home();
}

#[test]
fn a_probe_without_the_netdev_is_deferred_and_not_repeated_when_the_netdev_returns() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    let pod = erdma.load_with_a_netdev_away();
    wait::until("the other function has its device", || {
        is_bound(FUNCTIONS[1])
    });
    assert!(!is_bound(FUNCTIONS[0]));
    assert!(is_deferred(FUNCTIONS[0]));
    drop(pod);
    wait::until("the netdev is back", || erdma.host.has_link(NICS[0]));
    let found = wait::within(Duration::from_secs(3), || is_bound(FUNCTIONS[0]));
    assert!(!found, "the kernel probes again by itself");
    assert!(is_deferred(FUNCTIONS[0]));
    fs::write("/sys/bus/pci/drivers/erdma/bind", FUNCTIONS[0]).expect("bound by hand");
    erdma.are_home();
}

#[test]
fn removing_the_netdevs_function_waits_for_the_driver_to_go() {
    let erdma = ErdmaFunctions::new(Driver::Kernel, "exclusive");
    let remove = format!("/sys/bus/pci/devices/{}/remove", NIC_FUNCTIONS[0]);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("echo 1 >{remove}")]);
    let mut removing = command.spawn().expect("sh");
    let mut has_ended = || removing.try_wait().expect("our own child").is_some();
    // from the tenth second on the kernel logs a warning, with which a run of the lab fails
    assert!(!wait::within(Duration::from_secs(2), &mut has_ended));
    erdma.unload();
    wait::until("the function is removed", &mut has_ended);
    assert!(!erdma.host.has_link(NICS[0]));
    fs::write("/sys/bus/pci/rescan", "1").expect("found again");
    wait::until("udev has named the NIC", || erdma.host.has_link(NICS[0]));
    erdma.load();
    erdma.are_home();
}
