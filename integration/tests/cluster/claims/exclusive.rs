// SPDX-License-Identifier: Apache-2.0
//! Virtual functions that are allocated only by claims: their allocation and release, device numbers, parameters, and
//! the limits of the token.

use super::{
    driver::{Driver, NICS, NODE, ask, claim, ends, nodes, pod, release, slices, template},
    metadata, parameters,
};
use crate::{kubectl, manifests, text};
use dra::{Claims, record::JoinedRail};
use integration::{
    ControlPlane,
    machine::Nic,
    slices::attribute,
    stopwatch::Stopwatch,
    tracer::{self, Fault},
    wait,
};
use kubelet_api::dra::NodePrepareResourceResponse;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

pub(super) const EXCLUSIVE: &str = "integration/manifests/rendered/claims-of-vfs.yaml";

/// Two exclusive devices, allocated by claims of a template.
pub(super) fn virtual_functions_are_claimed(cluster: &mut ControlPlane) {
    let driver = Driver::new(
        cluster,
        EXCLUSIVE,
        ("rdma/vf", "exclusive", "nic.example.org"),
    );
    let expected = ["rdma-vf-0000-3b-00-0", "rdma-vf-0000-5e-00-0"];
    cluster.until("the slices are there", |it| slices(it).0 == expected);
    kubectl::counts_the_devices_of_slices(cluster, NODE, "rdma/vf");
    // Multus finds a claim's device for a network by these attributes
    for (name, text) in [("resourceName", "rdma/vf"), ("deviceID", NICS[0].address)] {
        let name = format!("k8s.cni.cncf.io/{name}");
        let found = attribute(&cluster.get("resourceslices"), expected[0], &name);
        assert_eq!(found, json!({"string": text}));
    }
    cluster.apply("create -f -", &foreign_slices(driver.name));
    the_token_is_for_no_more(cluster, &driver);
    cluster.kubectl("delete resourceslice other others-driver");

    // unhealthy devices are tainted, or omitted if the API server drops taints
    driver.configure("rdma/vf", "exclusive", json!(3));
    let has_taints = release(cluster) >= 36;
    cluster.until("no new pod may have them", |it| {
        let (all, tainted) = slices(it);
        tainted == all && all.len() == if has_taints { 2 } else { 0 }
    });
    driver.configure("rdma/vf", "exclusive", Value::Null);
    cluster.until("they may be had again", |it| {
        slices(it) == (expected.map(str::to_owned).to_vec(), vec![])
    });

    // kubelet deletes the slices at its start
    cluster.kubectl("delete resourceslices --all");
    cluster.until("they are there again", |it| slices(it).0 == expected);
    are_written_with_pauses(cluster, &expected);

    cluster.apply("apply -n default -f -", &template("rdma-vf"));
    let more = json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-vf"}]});
    cluster.apply(
        "apply -n default -f -",
        &pod("a", json!({}), more.clone()).to_string(),
    );
    let first = claim(cluster, "a");
    // without a known chain, containers need not wait for a network
    let prepared = driver.kubelet.prepare(&first);
    assert_eq!(prepared.error, "");
    assert_eq!(prepared.devices.len(), 1);
    assert_eq!(prepared.devices[0].request_names, ["nic"]);
    assert_eq!(prepared.devices[0].pool_name, NODE);
    let given = driver.given(&prepared).expect("a specification");
    let number = expected
        .iter()
        .position(|it| *it == prepared.devices[0].device_name);
    let number = number.expect("one of the two");
    assert_eq!(nodes(&given[0]), [&format!("uverbs{number}"), "rdma_cm"]);
    let env = format!("PCIDEVICE_RDMA_VF={}", NICS[number].address);
    assert_eq!(given[0]["env"], json!([env]));
    let device = (expected[number], NICS[number].address);
    metadata::is_read(&given[0], &first, device);
    numbers_are_followed(&driver, &prepared, &NICS[number]);
    assert_eq!(driver.kubelet.unprepare(&first), "");
    let mut driver = is_killed_at_every_change(cluster, driver, &first, &prepared);
    assert_eq!(driver.kubelet.prepare(&first), prepared);

    driver.is_at_rest();
    let figures = ask(cluster, "/metrics");
    for line in [
        "rdma_device_plugin_slices_kept{} 1",
        "rdma_device_plugin_claims{resource=\"rdma/vf\"} 1",
        "rdma_device_plugin_prepare_seconds_count{outcome=\"ok\"} 1",
    ] {
        assert!(figures.lines().any(|it| it == line), "{line}: {figures}");
    }

    driver.sockets_are_made_again(cluster, &first);
    assert_eq!(driver.kubelet.prepare(&first), prepared);

    driver.is_chained();
    cluster.apply(
        "apply -n default -f -",
        &pod("b", json!({}), more.clone()).to_string(),
    );
    let host = json!({"hostNetwork": true, "resourceClaims": more["resourceClaims"]});
    let second = claim(cluster, "b");
    let waits = driver.kubelet.prepare(&second);
    assert_eq!(waits.error, "");
    assert_eq!(driver.given(&waits), None, "its network is not there yet");
    networks_are_reported(cluster, &driver, &second);
    // kill the driver
    let driver = driver.killed(cluster);
    assert_eq!(driver.kubelet.prepare(&second), waits);
    assert_eq!(driver.given(&waits), None);
    assert_eq!(driver.kubelet.prepare(&first), prepared);
    assert_eq!(driver.given(&prepared).as_ref(), Some(&given));

    // the first pod ends, and a pod with hostNetwork gets the device
    ends(cluster, &["a"]);
    for _ in 0..2 {
        assert_eq!(driver.kubelet.unprepare(&first), "");
    }
    assert!(!driver.record(&first).exists());
    assert_eq!(driver.given(&prepared), None);
    cluster.apply(
        "apply -n default -f -",
        &pod("host", json!({}), host).to_string(),
    );
    let third = claim(cluster, "host");
    // the firmware of the other function, which `b` has, does not respond
    driver.machine.silence(&NICS[1 - number]);
    let stopwatch = Stopwatch::start();
    let prepared = driver.kubelet.prepare(&third);
    assert!(
        stopwatch.elapsed() < Duration::from_secs(10),
        "{stopwatch:?}"
    );
    assert_eq!(prepared.error, "");
    let given = driver.given(&prepared).expect("no network is waited for");
    assert_eq!(nodes(&given[0]), [&format!("uverbs{number}"), "rdma_cm"]);

    parameters::are_read(cluster, &driver);
    parameters::an_admins_claim_takes_nothing_away(cluster, &driver);

    // an invalid claim
    let mut another = third.clone();
    another["metadata"]["uid"] = json!("0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11");
    assert!(
        driver
            .kubelet
            .prepare(&another)
            .error
            .contains("was replaced")
    );
    another["metadata"]["name"] = json!("nothing");
    assert!(driver.kubelet.prepare(&another).error.contains("not found"));
    another["metadata"]["uid"] = json!("../../../etc/passwd");
    assert!(
        driver
            .kubelet
            .prepare(&another)
            .error
            .contains("invalid uid")
    );
    ends(cluster, &["host"]);
    assert_eq!(driver.kubelet.unprepare(&second), "");
    assert_eq!(driver.kubelet.unprepare(&third), "");
    let left = fs::read_dir(driver.machine.path("cdi")).expect("a directory");
    assert_eq!(left.count(), 0);
    manifests::delete(cluster, &text(EXCLUSIVE));
    cluster.kubectl("-n default delete resourceclaimtemplates --all");
    let (status, _) = driver.daemon.end(Signal::SIGTERM);
    assert!(status.success());
    let registry = driver.machine.path("kubelet/plugins_registry");
    assert_eq!(fs::read_dir(registry).expect("a directory").count(), 0);
    // kubelet deletes the slices of a driver that has been away for a long time
    cluster.kubectl("delete resourceslices --all");
}

/// The garbage collector deletes the slices again and again if their owner, the Node object, is gone. The daemon then
/// pauses longer and longer: 0, 0.25, 0.5, 1, 2 and 4 s.
#[track_caller]
fn are_written_with_pauses(cluster: &mut ControlPlane, expected: &[&str]) {
    let (end, mut deletions) = (Instant::now() + Duration::from_secs(8), 0);
    while Instant::now() < end {
        let output = cluster.kubectl("delete resourceslices --all");
        deletions += usize::from(output.contains("deleted"));
    }
    assert!(deletions <= 8, "the slices were written {deletions} times");
    cluster.until("they are there at last", |it| slices(it).0 == expected);
}

/// A restarted container gets its own device after each renumbering. While the device is missing, the container gets
/// none.
#[track_caller]
fn numbers_are_followed(driver: &Driver, prepared: &NodePrepareResourceResponse, nic: &Nic<'_>) {
    let Driver {
        machine, daemon, ..
    } = driver;
    let given = || {
        let given = driver.given(prepared)?;
        Some(nodes(&given[0])[0].to_owned())
    };
    let own = format!("uverbs{}", nic.number);
    assert_eq!(given(), Some(own.clone()));
    machine.without_number(nic.number);
    daemon.signal(Signal::SIGHUP);
    wait::until("nothing is given without the NIC", || given().is_none());
    daemon.wait_for_log(&format!("lost {} ({})", nic.rdma, nic.address));
    machine.number(nic, 5);
    daemon.signal(Signal::SIGHUP);
    wait::until("it has another number", || {
        given().as_deref() == Some("uverbs5")
    });
    machine.renumber(nic, 5, nic.number);
    daemon.signal(Signal::SIGHUP);
    wait::until("it has its own", || given().as_ref() == Some(&own));
}

/// Kills the driver at each change of Prepare and Unprepare. The next driver returns the same answer to kubelet, and no
/// file of the claim remains at the end.
fn is_killed_at_every_change(
    cluster: &ControlPlane,
    mut driver: Driver,
    claim: &Value,
    expected: &NodePrepareResourceResponse,
) -> Driver {
    // files that the daemon still publishes after the last renumbering must not count
    driver.is_at_rest();
    let pid = |driver: &Driver| driver.daemon.pid();
    let injector = Path::new(env!("CARGO_BIN_EXE_fault-injector"));
    let of_prepare = tracer::changes(pid(&driver), injector, || {
        assert_eq!(driver.kubelet.prepare(claim), *expected);
    });
    let of_unprepare = tracer::changes(pid(&driver), injector, || {
        assert_eq!(driver.kubelet.unprepare(claim), "");
    });
    // Prepare renames record, metadata and specification into place, and Unprepare removes them
    assert_eq!(of_prepare.get("rename"), Some(&3), "{of_prepare:?}");
    assert!(of_prepare.contains_key("fsync"), "{of_prepare:?}");
    assert!(of_unprepare["unlink"] >= 2, "{of_unprepare:?}");
    for (verb, changes) in [("Prepare", of_prepare), ("Unprepare", of_unprepare)] {
        println!("{verb} changes: {changes:?}");
        let points = |(call, count)| (1..=count).map(move |at| (call, at));
        for (call, at) in changes.into_iter().flat_map(points) {
            let what = format!("{verb}, killed before {call} {at}");
            if verb == "Unprepare" {
                assert_eq!(driver.kubelet.prepare(claim), *expected, "{what}");
            }
            let kubelet = &driver.kubelet;
            let fault = Fault::KillBefore(call, at);
            let is_through = tracer::killed(pid(&driver), injector, fault, || match verb {
                "Prepare" => kubelet.try_prepare(claim).is_some(),
                _ => kubelet.try_unprepare(claim).is_some(),
            });
            assert!(!is_through, "{what}: it was not");
            driver = driver.killed(cluster);
            if verb == "Prepare" {
                assert_eq!(driver.kubelet.prepare(claim), *expected, "{what}");
                assert!(driver.given(expected).is_some(), "{what}");
            }
            assert_eq!(driver.kubelet.unprepare(claim), "", "{what}");
            for (directory, left) in [("cdi", &[][..]), ("state/claims", &["lock"])] {
                let files = fs::read_dir(driver.machine.path(directory)).expect("a directory");
                let names: Vec<_> = files.map(|it| it.expect("an entry").file_name()).collect();
                assert_eq!(names, left, "{what}");
            }
        }
    }
    driver
}

/// Returns the status of the first device in the claim of `owner`.
fn device_status(cluster: &ControlPlane, owner: &Value) -> Value {
    let name = owner["metadata"]["name"].as_str().expect("a name");
    let claim = cluster.get(&format!("resourceclaim -n default {name}"));
    claim[0]["status"]["devices"][0].clone()
}

/// The claim shows a pod's network when `rdma-cni` has recorded it, and no longer after the network is removed.
fn networks_are_reported(cluster: &mut ControlPlane, driver: &Driver, claim: &Value) {
    let reason =
        |cluster: &ControlPlane| device_status(cluster, claim)["conditions"][0]["reason"].clone();
    assert_eq!(reason(cluster), Value::Null, "nothing to report yet");
    let uid = claim["metadata"]["uid"].as_str().expect("a uid");
    let claims = Claims::new(&driver.machine.path("state"));
    let record = claims.read(uid).expect("read").expect("a record");
    let entry = json!({"interface": "net1", "addresses": ["fd00::7/64"]});
    let rail = JoinedRail {
        device: Some(record.devices[0].device.clone()),
        hardware_address: Some("02:00:00:00:00:07".into()),
        status_entry: entry.clone(),
    };
    let joined = claims.joined(
        uid,
        &record.boot_id,
        ("sandbox", vec![rail], Default::default()),
        |_| None,
    );
    assert!(joined.expect("joined"));
    cluster.until("the claim reports the network", |it| {
        reason(it) == "Attached"
    });
    let status = device_status(cluster, claim);
    let network = json!({
        "interfaceName": "net1", "hardwareAddress": "02:00:00:00:00:07", "ips": ["fd00::7/64"],
    });
    assert_eq!(status["networkData"], network);
    assert_eq!(status["data"], json!({"rails": [entry]}));
    claims.left("sandbox").expect("left");
    cluster.until("the claim reports no network", |it| {
        reason(it) == "AwaitsNetwork"
    });
    the_token_is_for_a_claims_network(cluster, driver);
}

/// Asserts that a thief of the token cannot list claims or pods, read secrets, or write slices of another node, pool or
/// driver.
#[track_caller]
fn the_token_is_for_no_more(cluster: &ControlPlane, driver: &Driver) {
    let token = fs::read_to_string(driver.machine.path("account/token")).expect("a token");
    for (line, words) in [
        ("get resourceclaims -A", "Forbidden"),
        ("get pods -A", "Forbidden"),
        ("get secrets -A", "Forbidden"),
        (
            "delete resourceslice other",
            "of its own node and driver only",
        ),
        (
            "delete resourceslice others-driver",
            "of its own node and driver only",
        ),
    ] {
        is_refused(cluster, &token, line, words);
    }
    let file = driver.machine.path("slice.json");
    for name in ["other", "others-driver"] {
        let mut slice = cluster.get(&format!("resourceslice {name}"))[0].clone();
        slice["spec"]["pool"]["generation"] = json!(2);
        let mut another = slice.clone();
        another["metadata"] = json!({"name": format!("made-{name}")});
        for (verb, object) in [("replace", slice), ("create", another)] {
            fs::write(&file, object.to_string()).expect("written");
            let line = format!("{verb} -f {}", file.display());
            is_refused(cluster, &token, &line, "of its own node and driver only");
        }
    }
    // a slice of its own node and driver, but in the pool of another node
    let mut slice = cluster.get("resourceslice other")[0].clone();
    slice["metadata"] = json!({"name": "made-in-others-pool"});
    slice["spec"]["nodeName"] = json!(NODE);
    fs::write(&file, slice.to_string()).expect("written");
    let line = format!("create -f {}", file.display());
    is_refused(cluster, &token, &line, "of its own node's pool only");
}

#[track_caller]
fn is_refused(cluster: &ControlPlane, token: &str, line: &str, words: &str) {
    let done = cluster.kubectl_as(token, line);
    let errors = String::from_utf8(done.stderr).expect("UTF-8");
    assert!(
        !done.status.success() && errors.contains(words),
        "{line}: {errors}"
    );
}

/// A claim for devices of two drivers. The test itself allocates devices of `node`, without the scheduler.
fn allocated(cluster: &mut ControlPlane, driver: &str, node: &str) -> Value {
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "rdma-vf"}});
    let result = |request: &str, driver: &str| json!({"request": request, "driver": driver, "pool": node, "device": "d"});
    let name = format!("of-{node}");
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request("nic"), request("gpu")]}},
    });
    cluster.apply("create -n default -f -", &claim.to_string());
    let mut claim = cluster.get(&format!("resourceclaim -n default {name}"))[0].clone();
    let on_node = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    claim["status"]["allocation"] = json!({
        "devices": {"results": [result("nic", driver), result("gpu", "gpu.example.org")]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_node]}]},
    });
    cluster.apply("replace --subresource=status -f -", &claim.to_string());
    cluster.get(&format!("resourceclaim -n default {name}"))[0].clone()
}

/// Asserts that a thief of the token can only report the network of the driver's own device in a claim of its node.
#[track_caller]
fn the_token_is_for_a_claims_network(cluster: &mut ControlPlane, driver: &Driver) {
    let token = fs::read_to_string(driver.machine.path("account/token")).expect("a token");
    let [own, others] = [NODE, "other-1"].map(|node| allocated(cluster, driver.name, node));
    let reported = |driver: &str, pool: &str| json!({"driver": driver, "pool": pool, "device": "d", "conditions": []});
    let replaced = |claim: &Value, field: &str, value: Value| {
        let name = claim["metadata"]["name"].as_str().expect("a name");
        let mut claim = cluster.get(&format!("resourceclaim -n default {name}"))[0].clone();
        claim["status"][field] = value;
        let file = driver.machine.path("claim.json");
        fs::write(&file, claim.to_string()).expect("written");
        let line = format!("replace --subresource=status -f {}", file.display());
        let done = cluster.kubectl_as(&token, &line);
        let errors = String::from_utf8(done.stderr).expect("UTF-8");
        (done.status.success(), errors)
    };
    let (done, words) = replaced(&own, "devices", json!([reported(driver.name, NODE)]));
    assert!(done, "{words}");
    let pod = json!({"resource": "pods", "name": "x", "uid": "x"});
    let gpu = reported("gpu.example.org", NODE);
    for (claim, field, value, of_policy, of_server) in [
        (
            &own,
            "reservedFor",
            json!([pod]),
            "nothing but its own devices",
            "resourceclaims/binding",
        ),
        (
            &own,
            "devices",
            json!([gpu]),
            "nothing but its own devices",
            "resourceclaims/driver",
        ),
        (
            &others,
            "devices",
            json!([reported(driver.name, "other-1")]),
            "of its own node and driver only",
            "resourceclaims/driver",
        ),
    ] {
        let (done, words) = replaced(claim, field, value.clone());
        // from 1.36 on, the API server requires a separate right, and checks it first
        let expected = match release(cluster) {
            36.. => of_server,
            _ => of_policy,
        };
        assert!(
            !done && words.contains(expected),
            "{field}: {value}: {words}"
        );
    }
    let line = format!("label resourceclaim -n default of-{NODE} a=b");
    let done = cluster.kubectl_as(&token, &line);
    let errors = String::from_utf8(done.stderr).expect("UTF-8");
    assert!(
        !done.status.success() && errors.contains("Forbidden"),
        "{errors}"
    );
    cluster.kubectl(&format!(
        "-n default delete resourceclaim of-{NODE} of-other-1"
    ));
}

/// Slices that the daemon must not write.
fn foreign_slices(driver: &str) -> String {
    let slice = |name: &str, node: &str, driver: &str| {
        let pool = json!({"name": name, "generation": 1, "resourceSliceCount": 1});
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": []},
        })
    };
    let items = [
        slice("other", "other-1", driver),
        slice("others-driver", NODE, "gpu.example.org"),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
