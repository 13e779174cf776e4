// SPDX-License-Identifier: Apache-2.0
//! Tests of a claim's files: the claim is prepared, networks of its pods are attached and detached, and the claim is
//! prepared again in the same and in another boot.

mod numbers;
mod one_pod;
mod unreadable;

use dra::{
    ClaimName, Claims, Prepared, Record, cdi,
    record::{FORMAT, JoinedRail, Request},
    store::Removed,
};
use numbers::inventory;
use rdma_resources::{
    CharNode, ContainerLimits, FileError, Hook, Memlock, RdmaLimits, Sharing, grant::GrantedDevice,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

const UID: &str = "0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11";

fn uverbs(number: u32) -> CharNode {
    CharNode {
        name: format!("uverbs{number}"),
        major: 231,
        minor: 192 + number,
    }
}

fn nic(number: u32) -> GrantedDevice {
    GrantedDevice {
        address: format!("0000:3b:00.{number}")
            .try_into()
            .expect("an address"),
        rdma: format!("mlx5_{number}"),
        parent: None,
        char_devices: vec![uverbs(number)],
    }
}

fn record(directory: &Path, awaits_network: bool) -> Record {
    let device = |request: &str, number: u32| Prepared {
        request: request.into(),
        pool: "node-1".into(),
        device: format!("rdma-vf-0000-3b-00-{number}"),
        share: None,
        resource: "rdma/vf".into(),
        sharing: Sharing::Exclusive,
        attributes: Default::default(),
        nics: vec![nic(number)],
    };
    let request = |name: &str, addresses: &str| Request {
        name: name.into(),
        env: [("PCIDEVICE_RDMA_VF".to_owned(), addresses.to_owned())].into(),
        connection_manager: Some(CharNode {
            name: "rdma_cm".into(),
            major: 10,
            minor: 120,
        }),
        files: Default::default(),
        metadata: None,
        hook: None,
    };
    Record {
        format: FORMAT,
        driver: "hca.rdma".into(),
        claim: ClaimName {
            namespace: "default".into(),
            name: "a".into(),
            uid: UID.into(),
        },
        boot_id: "boot-1".into(),
        cdi_dir: directory.join("cdi"),
        pods: Default::default(),
        awaits_network,
        networks: Default::default(),
        rails: Default::default(),
        files: Default::default(),
        generation: 1,
        absent: Default::default(),
        parameters: Default::default(),
        devices: vec![device("one", 1), device("two", 2), device("two", 3)],
        requests: vec![
            request("one", "0000:3b:00.1"),
            request("two", "0000:3b:00.2,0000:3b:00.3"),
        ],
    }
}

/// Prepares the claim of [`record`] in `directory`, and returns the claims of this directory.
fn prepared(directory: &Path, awaits_network: bool) -> Claims {
    let claims = Claims::new(directory);
    let record = record(directory, awaits_network);
    claims.prepare(record).expect("prepared");
    claims
}

/// Prepares the claim with another record.
fn replace_record(claims: &Claims, record: Record) {
    let removed = claims.remove(UID, Path::new("/nowhere"));
    removed.expect("removed");
    claims.prepare(record).expect("prepared");
}

/// Removes the claim. Returns true if it had a readable record.
fn is_removed(claims: &Claims) -> bool {
    let removed = claims.remove(UID, Path::new("/nowhere"));
    matches!(removed.expect("removed"), Removed::Record)
}

/// Returns the device nodes, variables and mounts of each device in the CDI specification. `None`: there is no
/// specification.
fn injected(directory: &Path) -> Option<Value> {
    let file = directory.join(format!("cdi/rdma-device-plugin-claim-{UID}.json"));
    let text = fs::read(file).ok()?;
    let specification: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(specification["kind"], "hca.rdma/claim");
    let devices = specification["devices"].as_array().expect("a list").iter();
    let devices = devices.map(|device| {
        let edits = &device["containerEdits"];
        let nodes = edits["deviceNodes"].as_array().expect("a list").iter();
        let nodes = nodes.map(|it| {
            let path = it["path"].as_str().expect("a path").rsplit('/').next();
            format!("{} {}:{}", path.expect("a name"), it["major"], it["minor"])
        });
        let name = device["name"].as_str().expect("a name").to_owned();
        let mut given = json!({"nodes": nodes.collect::<Vec<_>>(), "env": edits["env"]});
        if let Some(mounts) = edits.get("mounts") {
            given["mounts"] = mounts.clone();
        }
        (name, given)
    });
    Some(Value::Object(devices.collect()))
}

/// Returns a function that returns a NIC's character devices, with the number of the uverbs device shifted by `by`.
fn moved(by: u32) -> impl Fn(&GrantedDevice) -> Option<Vec<CharNode>> {
    move |nic| {
        let number: u32 = nic.address.rsplit('.').next()?.parse().ok()?;
        let umad = CharNode {
            name: format!("umad{number}"),
            major: 231,
            minor: number,
        };
        Some(vec![uverbs(number + by), umad])
    }
}

#[test]
fn a_specification_has_a_device_for_each_request() {
    let directory = tempfile::tempdir().expect("a directory");
    prepared(directory.path(), false);
    let expected = json!({
        format!("{UID}-one"): {
            "nodes": ["uverbs1 231:193", "rdma_cm 10:120"],
            "env": ["PCIDEVICE_RDMA_VF=0000:3b:00.1"],
        },
        format!("{UID}-two"): {
            "nodes": ["uverbs2 231:194", "uverbs3 231:195", "rdma_cm 10:120"],
            "env": ["PCIDEVICE_RDMA_VF=0000:3b:00.2,0000:3b:00.3"],
        },
    });
    assert_eq!(injected(directory.path()), Some(expected));
    let name = cdi::full_name("hca.rdma", UID, "two");
    assert_eq!(name, format!("hca.rdma/claim={UID}-two"));
    assert_eq!(cdi::uid("hca.rdma", &name), Some(UID));
    let short = cdi::full_name("hca.rdma", "../..", "two");
    for other in [
        "gpu.example.org/claim=x-0",
        "hca.rdma/claim=x",
        "hca.rdma",
        &short,
    ] {
        assert_eq!(cdi::uid("hca.rdma", other), None, "{other}");
    }
    assert_eq!(cdi::uid("gpu.example.org", &name), None);
}

/// The record stores the hook of a request. Only containers of this request get the hook.
#[test]
fn a_request_has_the_hook_that_sets_its_limits() {
    let mut record = record(Path::new("/run"), false);
    let limits = ContainerLimits {
        memlock: Some(Memlock::Bytes(65536)),
        rdma: RdmaLimits {
            handles: None,
            objects: Some(100),
        },
    };
    record.requests[1].hook = Some(Hook::new(
        Path::new("/opt/bin"),
        limits,
        Path::new("/state"),
    ));
    let text = serde_json::to_string(&record).expect("JSON");
    let record: Record = serde_json::from_str(&text).expect("a record");
    let specification = cdi::specification(&record, Path::new("/files"));
    let hooks = |device: usize| &specification["devices"][device]["containerEdits"]["hooks"];
    assert_eq!(hooks(0), &Value::Null);
    let expected = json!([{
        "hookName": "createRuntime",
        "path": "/opt/bin/rdma-cni",
        "args": ["rdma-cni", "oci-hook", "--memlock=65536", "--rdma-objects=100", "--state-dir=/state"],
    }]);
    assert_eq!(hooks(1), &expected);
}

/// No specification exists before the first ADD and after the last DEL of the claim's pods. The runtime then creates no
/// container.
#[test]
fn without_a_network_there_is_no_specification() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), true);
    assert_eq!(injected(directory.path()), None);

    assert!(
        claims
            .joined(
                UID,
                "boot-1",
                ("sandbox-1", vec![], BTreeMap::new()),
                moved(4)
            )
            .expect("joined")
    );
    let first = injected(directory.path()).expect("a specification");
    let one = &first[format!("{UID}-one")];
    // the new numbers add no kind of device that containers did not have
    assert_eq!(one["nodes"], json!(["uverbs5 231:197", "rdma_cm 10:120"]));

    // a second pod of the claim and kubelet's second Prepare do not change the specification
    assert!(
        claims
            .joined(
                UID,
                "boot-1",
                ("sandbox-2", vec![], BTreeMap::new()),
                moved(4)
            )
            .expect("joined")
    );
    let again = claims.again(UID, "boot-1", moved(9)).expect("again");
    assert_eq!(again.expect("prepared").networks.len(), 2);
    assert_eq!(injected(directory.path()), Some(first));

    claims.left("sandbox-1").expect("left");
    assert!(injected(directory.path()).is_some());
    claims.left("sandbox-3").expect("nobody");
    claims.left("sandbox-2").expect("left");
    assert_eq!(injected(directory.path()), None);
    let left = claims.read(UID).expect("read").expect("still prepared");
    assert!(!left.is_final() && left.networks.is_empty() && left.rails.is_empty());

    assert!(is_removed(&claims));
    assert!(!is_removed(&claims));
    assert_eq!(claims.read(UID).expect("read"), None);
    assert!(
        !claims
            .joined(
                UID,
                "boot-1",
                ("sandbox-1", vec![], BTreeMap::new()),
                moved(0)
            )
            .expect("none")
    );
}

/// Kubelet prepares a claim once for each of its pods. If the calls overlap, the slower call keeps the networks that ADD
/// recorded after the faster call.
#[test]
fn a_slower_second_preparation_keeps_the_networks_of_the_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), true);
    let joined = claims.joined(
        UID,
        "boot-1",
        ("sandbox-1", vec![], BTreeMap::new()),
        moved(4),
    );
    assert!(joined.expect("joined"));
    let specification = injected(directory.path());
    assert!(specification.is_some());

    let mut slower = record(directory.path(), true);
    slower.pods = ["pod-2".to_owned()].into();
    let kept = claims.prepare(slower).expect("prepared");
    assert_eq!(kept.networks, ["sandbox-1".to_owned()].into());
    assert_eq!(kept.pods, ["pod-2".to_owned()].into());
    assert_eq!(claims.read(UID).expect("read"), Some(kept));
    assert_eq!(injected(directory.path()), specification);
}

/// Only root can read records. Root can use records and the lock with any mode, which a restored backup or a hardening
/// script may have set.
#[test]
fn records_are_roots_alone_and_unusable_modes_do_not_matter() {
    for mode in [0o600, 0o000, 0o111, 0o7777] {
        let directory = tempfile::tempdir().expect("a directory");
        let claims = prepared(directory.path(), true);
        let file = directory.path().join(format!("claims/{UID}.json"));
        let lock = directory.path().join("claims/lock");
        let mode_of = |path: &Path| fs::metadata(path).expect("a file").mode() & 0o7777;
        assert_eq!([mode_of(&file), mode_of(&lock)], [0o600; 2]);
        for path in [&file, &lock, &directory.path().join("claims")] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        }
        let joined = claims.joined(
            UID,
            "boot-1",
            ("sandbox", vec![], BTreeMap::new()),
            moved(4),
        );
        assert!(joined.expect("joined"), "{mode:o}");
        assert!(injected(directory.path()).is_some(), "{mode:o}");
        assert_eq!(mode_of(&file), 0o600, "{mode:o}");
        // the lock's mode may stay if it gives access only to root
        assert_eq!(mode_of(&lock) & 0o177, 0, "{mode:o}");
        let (all, unreadable) = claims.all();
        assert_eq!((all.len(), unreadable.len()), (1, 0), "{mode:o}");
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("set");
        claims.left("sandbox").expect("left");
        assert!(is_removed(&claims), "{mode:o}");
    }
}

/// Specifications and records can be on different disks, so the writing of either can fail alone.
#[test]
fn a_specification_that_cannot_be_written_is_written_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), false);
    let node = || injected(directory.path()).map(|it| it[format!("{UID}-one")]["nodes"][0].clone());
    assert_eq!(node(), Some(json!("uverbs1 231:193")));
    let check = || {
        let observe = || Ok::<_, FileError>(inventory(&[(1, 9), (2, 7), (3, 2)]));
        let check = claims.check("boot-1", observe).expect("a check");
        (check.changed.len(), check.failed.len())
    };
    let unfinished = format!("cdi/rdma-device-plugin-claim-{UID}.new");
    let unfinished = directory.path().join(unfinished);
    fs::create_dir(&unfinished).expect("a directory is in the way");
    for _ in 0..2 {
        assert_eq!(check(), (0, 1));
        assert_eq!(
            node(),
            None,
            "no container gets a number that another device has"
        );
    }
    fs::remove_dir(&unfinished).expect("it is gone");
    assert_eq!(check(), (1, 0));
    assert_eq!(node(), Some(json!("uverbs9 231:201")));
    assert_eq!(check(), (0, 0));
    // a killed writer or an earlier version left an outdated file
    let path = directory
        .path()
        .join(format!("cdi/rdma-device-plugin-claim-{UID}.json"));
    let text = fs::read_to_string(&path).expect("text");
    fs::write(&path, text.replace("201", "193")).expect("written");
    assert_eq!(check(), (1, 0));
    assert_eq!(node(), Some(json!("uverbs9 231:201")));
    // a difference that does not concern character devices is ignored
    fs::write(&path, text.replace("\"env\"", "\"of-later\"")).expect("written");
    assert_eq!(check(), (0, 0));
    // a cleanup below /var/run removes the specification
    fs::remove_dir_all(directory.path().join("cdi")).expect("removed");
    assert_eq!(check(), (1, 0));
    assert_eq!(node(), Some(json!("uverbs9 231:201")));
    claims.again(UID, "boot-1", moved(0)).expect("again");
    // the daemon cannot write the record with the devices' new numbers, and removes the specification
    fs::create_dir(directory.path().join(format!("claims/{UID}.new"))).expect("in the way");
    assert_eq!(check(), (0, 1));
    assert_eq!(node(), None);
}

#[test]
fn another_boot_has_other_numbers_and_no_networks() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = Claims::new(directory.path());
    let boot = |awaits| {
        replace_record(&claims, record(directory.path(), awaits));
        claims
            .joined(
                UID,
                "boot-1",
                ("sandbox-1", vec![], BTreeMap::new()),
                moved(1),
            )
            .expect("joined");
        fs::remove_dir_all(directory.path().join("cdi")).expect("a tmpfs");
        claims
            .again(UID, "boot-2", moved(7))
            .expect("again")
            .expect("prepared")
    };
    assert!(boot(true).networks.is_empty());
    assert_eq!(injected(directory.path()), None);
    boot(false);
    let devices = injected(directory.path()).expect("nothing is waited for");
    let one = &devices[format!("{UID}-one")];
    assert_eq!(one["nodes"], json!(["uverbs8 231:200", "rdma_cm 10:120"]));
}

#[test]
fn a_record_is_a_promise_to_other_versions() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = Claims::new(directory.path());
    let mut record = record(Path::new("/var/run"), true);
    record.devices.truncate(1);
    record.requests.truncate(1);
    record.devices[0].share = Some("s-1".into());
    record.networks.insert("sandbox-1".into());
    let status_entry = json!({"interface": "net1", "addresses": ["fd00::1/64", "10.0.0.1/24"]});
    let rail = JoinedRail {
        device: Some("rdma-vf-0000-3b-00-1".into()),
        hardware_address: Some("02:00:00:00:00:01".into()),
        status_entry,
    };
    record.rails.insert("sandbox-1".into(), vec![rail]);
    let nccl = |text: &str| [("nccl.conf".to_owned(), text.to_owned())].into();
    let files = nccl("NCCL_IB_HCA==mlx5_1\n");
    record.files.insert("sandbox-1".into(), files);
    record.requests[0].files = nccl("");
    record.pods.insert("p-1".into());
    record.parameters.mtu = Some(4200);
    record.absent.insert(nic(1).address);
    let text = include_str!("one-vf.json");
    let expected: Value = serde_json::from_str(text).expect("JSON");
    let written = serde_json::to_value(&record).expect("JSON");
    assert_eq!(written, expected, "{written:#}");
    let file = directory.path().join(format!("claims/{UID}.json"));
    fs::create_dir(directory.path().join("claims")).expect("a directory");
    fs::write(&file, text).expect("written");
    assert_eq!(claims.read(UID).expect("read"), Some(record));

    // a record of an earlier version, which does not have these fields
    let mut fields: Value = serde_json::from_str(text).expect("JSON");
    for later in ["pods", "rails", "files", "absent", "parameters"] {
        let fields = fields.as_object_mut().expect("an object");
        assert!(fields.remove(later).is_some(), "{later}");
    }
    fs::write(&file, fields.to_string()).expect("written");
    let read = claims.read(UID).expect("read").expect("a record");
    assert!(read.is_final() && read.pods.is_empty() && read.parameters.is_empty());

    for (text, words) in [
        (
            text.replace("\"format\": 1", "\"format\": 2"),
            "newer rdma-device-plugin",
        ),
        (text[..text.len() / 2].to_owned(), "cannot read"),
    ] {
        fs::write(&file, text).expect("written");
        let error = claims.read(UID).expect_err(words).to_string();
        assert!(error.contains(words) && error.contains(UID), "{error}");
    }
    // `left` reports the unreadable record
    assert!(claims.left("sandbox-1").is_err());
}

#[test]
fn unfinished_files_are_removed_with_the_claim() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), false);
    let files = ["claims", "cdi"].map(|it| directory.path().join(it));
    for (directory, name) in files
        .iter()
        .zip([UID.to_owned(), format!("rdma-device-plugin-claim-{UID}")])
    {
        fs::write(directory.join(format!("{name}.new")), "{").expect("written");
    }
    assert!(is_removed(&claims));
    for directory in files {
        let entries = fs::read_dir(directory).expect("a directory");
        let names: Vec<_> = entries
            .map(|it| it.expect("an entry").file_name())
            .collect();
        assert!(names.iter().all(|it| it == "lock"), "{names:?}");
    }
}
