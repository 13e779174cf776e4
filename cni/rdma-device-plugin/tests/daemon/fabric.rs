// SPDX-License-Identifier: Apache-2.0
//! Tests of the fabric watch on a made-up node whose NICs cannot send: ConfigMaps, reports and metrics. The lab tests
//! the requests.

use crate::{FIRST, HCA, Running, SECOND, start};
use integration::{
    ApiServer, Daemon, Machine, api_server::NODE, kubelet::DeviceManager, machine::Nic,
    stopwatch::Stopwatch, wait,
};
use nix::sys::signal::Signal;
use rdma_ping::fabric::{LastRequest, RailState, Report};
use rdma_resources::Published;
use serde_json::{Value, json};
use std::{net::TcpListener, process::Command, time::Duration};

const CONFIG_MAPS: &str = "/api/v1/namespaces/rdma/configmaps";

/// Returns the command line of the fabric watch on `machine`.
fn watch(machine: &Machine, api: &ApiServer) -> Command {
    watch_at("127.0.0.1:0", machine, api)
}

/// Returns the command line of the fabric watch on `machine`, with metrics at `address`.
fn watch_at(address: &str, machine: &Machine, api: &ApiServer) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
    command.args(["fabric", "--namespace=rdma", "--interval=1"]);
    command.args(["--metrics-address", address]);
    for (flag, path) in [
        ("--probe-socket", machine.path("probe.sock")),
        ("--service-account-dir", api.account().to_owned()),
        ("--state-dir", machine.path("state")),
        ("--sysfs", machine.path("sys")),
        ("--dev", machine.path("dev")),
    ] {
        command.arg(flag).arg(path);
    }
    command.env_clear().envs(api.environment());
    command
}

/// Another program has the address.
#[test]
fn the_watch_names_the_address_that_it_cannot_have() {
    let (machine, api) = (Machine::with(&[FIRST]), ApiServer::start());
    let other = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = other.local_addr().expect("an address");
    let mut command = watch_at(&address.to_string(), &machine, &api);
    let output = command.output().expect("started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{error}");
    let expected = format!(
        "cannot listen at {address}: Address already in use (os error 98); --metrics-address selects another"
    );
    assert!(error.contains(&expected), "{error}");
}

fn rails(api: &ApiServer) -> Option<Value> {
    let object = api.get(&format!("{CONFIG_MAPS}/rdma-fabric-{NODE}"))?;
    let text = object["data"]["rails"].as_str().expect("a text");
    Some(serde_json::from_str(text).expect("JSON"))
}

/// The rails are the NICs of the daemon's resources. The node's one ConfigMap follows their changes.
#[test]
fn the_watch_publishes_the_rails_of_the_daemons_resources() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    let api = ApiServer::start();
    let watch = Daemon::start(&mut watch(&node.machine, &api));
    let rail = |number: usize, nic: &Nic<'_>| json!({"resource": "rdma/hca", "number": number, "device": nic.rdma, "addresses": []});
    let both = json!([rail(0, &FIRST), rail(1, &SECOND)]);
    wait::until("it is published", || rails(&api).as_ref() == Some(&both));
    let object = api.get(&format!("{CONFIG_MAPS}/rdma-fabric-{NODE}"));
    let metadata = &object.expect("published")["metadata"];
    assert_eq!(metadata["ownerReferences"][0]["name"], NODE);
    wait::until("it is ready", || {
        watch.get("/readyz").contains("2 rails, 0 unreachable")
    });
    let metrics = watch.get("/metrics");
    for nic in [FIRST, SECOND] {
        let line = format!("rdma_fabric_peers{{device=\"{}\"}} 0\n", nic.rdma);
        assert!(metrics.contains(&line), "{metrics}");
    }
    let report = Report::read(&node.machine.path("state")).expect("a report");
    let states = report.rails.iter().map(|it| (&*it.device, it.is_unhealthy));
    let states: Vec<_> = states.collect();
    assert_eq!(states, [(FIRST.rdma, false), (SECOND.rdma, false)]);
    let mut probe = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
    probe.args(["probe", "live", "--socket"]);
    let probe = probe.arg(node.machine.path("probe.sock")).output();
    assert!(probe.expect("it runs").status.success());
    node.machine.unplug(&SECOND);
    let one = json!([rail(0, &FIRST)]);
    wait::until("it is withdrawn", || rails(&api).as_ref() == Some(&one));
    let (status, took) = watch.end(Signal::SIGTERM);
    assert!(status.success() && took.as_secs() < 5, "{status} {took:?}");
}

/// If the API server does not answer, the watch runs on, is not ready, and logs the reason once.
#[test]
fn without_the_api_server_it_is_alive_and_not_ready() {
    let machine = Machine::with(&[]);
    let api = ApiServer::start();
    let mut command = watch(&machine, &api);
    command.env("KUBERNETES_SERVICE_PORT", "1");
    let watch = Daemon::start(&mut command);
    let why = "cannot publish rails or list peers: the API server at 127.0.0.1:1 does not answer";
    watch.wait_for_log(why);
    let at = Stopwatch::start();
    wait::until("it tried again", || at.elapsed().as_secs() >= 3);
    assert_eq!(watch.count(why), 1);
    assert!(watch.get("/readyz").starts_with("HTTP/1.1 503 "));
    assert!(watch.get("/healthz").starts_with("HTTP/1.1 200 "));
}

/// Writes the report of a watch that found the first NIC unhealthy, and the second NIC reachable.
fn report(machine: &Machine, lifetime: Duration) {
    let request = |node: &str, seconds| LastRequest {
        node: node.to_owned(),
        address: "10.0.0.2".parse().expect("an address"),
        seconds,
    };
    let rail = |nic: &Nic<'_>, is_unhealthy: bool, request| RailState {
        device: nic.rdma.to_owned(),
        is_unreachable: is_unhealthy,
        is_unhealthy,
        peers: 31,
        not_asked: None,
        requests: vec![request],
    };
    let rails = vec![
        rail(&FIRST, true, request("node-<7>", None)),
        rail(&SECOND, false, request("node-8", Some(0.000_31))),
    ];
    let report = Report::new(rails, lifetime);
    report.write(&machine.path("state")).expect("written");
}

/// A watch starts with the verdicts in the report of the previous watch. On the made-up node, which has no peers, such
/// a verdict ends after 12 requests that were not sent.
#[test]
fn a_verdict_stays_when_the_watch_starts_again() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    let api = ApiServer::start();
    report(&node.machine, Duration::from_secs(600));
    let _watch = Daemon::start(watch(&node.machine, &api).arg("--unhealthy-percent=10"));
    let is_unreachable = || Some(rails(&api)?[0]["unreachable"] == true);
    wait::until("it is published", || is_unreachable() == Some(true));
    let is_unhealthy = || {
        let report = Report::read(&node.machine.path("state")).expect("a report");
        let first = report.rails.first().filter(|it| it.peers == 0);
        first.map(|it| it.is_unhealthy)
    };
    wait::until("the new watch reports it", || is_unhealthy() == Some(true));
    wait::until("it ends", || is_unhealthy() == Some(false));
    wait::until("it is withdrawn", || is_unreachable() == Some(false));
}

/// The daemon follows the watch's report only if the configuration has `fabric`, and only until the report is void.
#[test]
fn the_watch_makes_a_rail_unhealthy_while_it_lives() {
    let resources = |fabric: bool| {
        let resource = |name: &str, nic: &Nic<'_>| json!({"name": name, "kind": "exclusive", "devices": [{"rdma": nic.rdma}]});
        let all = [resource("rdma/a", &FIRST), resource("rdma/b", &SECOND)];
        json!({"fabric": fabric, "resources": all}).to_string()
    };
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(&resources(true));
    report(&machine, Duration::from_secs(600));
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    let has = |resource: &str, healthy: usize| {
        let what = format!("{healthy} healthy ids");
        kubelet.wait_for(resource, &what, |it| it.healthy().len() == healthy);
    };
    has("rdma/a", 0);
    has("rdma/b", 1);
    let address = FIRST.address;
    daemon.wait_for_log(&format!(
        "{address} is unhealthy: it reaches no rail of other nodes"
    ));
    let page = daemon.get("/");
    for text in [
        "it reaches no rail of other nodes: check cable, switch port and VLAN",
        "<b class=\"bad\">unreachable</b></td><td>31</td><td>node-&lt;7&gt; <b class=\"bad\">lost</b></td>",
        "<b class=\"ok\">reachable</b></td><td>31</td><td>node-8 0.31 ms</td>",
    ] {
        assert!(page.contains(text), "no {text} in\n{page}");
    }
    // the watch still uses this rail
    let published = Published::read(&machine.path("state")).expect("read");
    let published = published.expect("resources").resources;
    let all = published["rdma/a"].all_devices();
    assert_eq!(all[0].to_string(), FIRST.address);
    machine.configure(&resources(false));
    has("rdma/a", 1);
    machine.configure(&resources(true));
    has("rdma/a", 0);
    // the watch has ended, and its report becomes void
    report(&machine, Duration::from_secs(1));
    has("rdma/a", 1);
    daemon.wait_for_log(&format!("{address} is healthy again"));
    assert!(!daemon.get("/").contains("Last requests"));
    // another watch starts
    report(&machine, Duration::from_secs(600));
    has("rdma/a", 0);
    has("rdma/b", 1);
}
