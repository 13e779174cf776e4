// SPDX-License-Identifier: Apache-2.0
use super::*;
use kubelet_api::pod_resources::v1::{ContainerDevices, ContainerResources};
use rdma_resources::{CharNode, Grant, Sharing, grant::GrantedDevice};
use std::os::unix::fs::symlink;

fn address(text: &str) -> DeviceAddress {
    text.to_owned().try_into().expect("an address")
}

fn erdma() -> WatchedDevice {
    WatchedDevice {
        addresses: vec![address("0000:00:07.0"), address("0000:00:06.0")],
        rdma: Some("erdma_none".into()),
        // no process has /dev/full open
        numbers: vec![(1, 7)],
    }
}

struct Site {
    paths: Paths,
    root: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths {
            state_dir: root.path().join("state"),
            socket: root.path().join("none.sock"),
            proc: root.path().join("proc"),
        };
        fs::create_dir_all(&paths.proc).expect("made");
        Self { paths, root }
    }

    fn grant(&self, id: &str, device: &str) {
        let grant = Grant {
            format: rdma_resources::grant::FORMAT,
            resource: "aliyun/erdma".into(),
            id: id.into(),
            sharing: Sharing::Shared,
            cdi: false,
            chained: false,
            promises_rails: false,
            limits: Default::default(),
            devices: vec![GrantedDevice {
                address: address(device),
                rdma: "erdma_0".into(),
                parent: None,
                char_devices: vec![CharNode {
                    name: "uverbs0".into(),
                    major: 231,
                    minor: 192,
                }],
            }],
        };
        let grants = Grants::new(&self.paths.state_dir);
        grants.write(&grant).expect("written");
    }

    fn users(&self, pods: Result<Vec<PodResources>, String>) -> Vec<String> {
        let users = gather_blocking(&self.paths, &[erdma()], DriverMode::Default, &[], pods);
        users.iter().map(ToString::to_string).collect()
    }
}

fn pod(name: &str, id: &str) -> PodResources {
    PodResources {
        name: name.into(),
        namespace: "team".into(),
        containers: vec![ContainerResources {
            devices: vec![ContainerDevices {
                resource_name: "aliyun/erdma".into(),
                device_ids: vec![id.into()],
            }],
            ..ContainerResources::default()
        }],
    }
}

#[test]
fn pods_with_an_allocated_device_of_the_driver() {
    let site = Site::new();
    site.grant("erdma_0/3", "0000:00:07.0");
    site.grant("mlx5_0/3", "0000:3b:00.0");
    let pods = vec![pod("a", "erdma_0/3"), pod("b", "mlx5_0/3"), pod("c", "x")];
    assert_eq!(site.users(Ok(pods)), ["pod team/a"]);
    // kubelet has released the id: the file of the grant alone does not prove a user
    assert_eq!(site.users(Ok(vec![])), [] as [&str; 0]);
}

/// The claim's pods have no attachment yet, or have `hostNetwork`. Kubelet reports no ids for these pods.
#[test]
fn claims_that_were_prepared_with_a_device_of_the_driver() {
    let site = Site::new();
    let text = include_str!("../../../dra/tests/records/one-vf.json");
    let mut record: dra::Record = serde_json::from_str(text).expect("a record");
    let claims = dra::Claims::new(&site.paths.state_dir);
    record.cdi_dir = site.root.path().join("cdi");
    claims.prepare(record.clone()).expect("written");
    assert_eq!(site.users(Ok(vec![])), [] as [&str; 0]);
    let removed = claims.remove(&record.claim.uid, &record.cdi_dir);
    removed.expect("removed");
    record.devices[0].nics[0].address = address("0000:00:07.0");
    claims.prepare(record.clone()).expect("written");
    assert_eq!(site.users(Ok(vec![])), ["claim default/a"]);
    let file = claims
        .directory()
        .join(format!("{}.json", record.claim.uid));
    fs::write(file, "damaged").expect("written");
    let users = site.users(Ok(vec![]));
    assert!(users[0].starts_with("unknown users"), "{users:?}");
}

#[test]
fn without_kubelet_every_grant_counts_as_a_user() {
    let site = Site::new();
    let away = || Err("kubelet does not answer".to_owned());
    assert_eq!(site.users(away()), [] as [&str; 0]);
    site.grant("mlx5_0/3", "0000:3b:00.0");
    assert_eq!(site.users(away()), [] as [&str; 0]);
    site.grant("erdma_0/3", "0000:00:07.0");
    let users = site.users(away());
    assert_eq!(users.len(), 1, "{users:?}");
    assert!(users[0].contains("kubelet does not answer"), "{users:?}");
}

impl Site {
    /// Adds a process with a descriptor whose link leads to `leads_to`.
    fn process(&self, pid: &str, leads_to: &Path) {
        let process = self.paths.proc.join(pid);
        fs::create_dir_all(process.join("fd")).expect("made");
        fs::write(process.join("comm"), "trainer\n").expect("written");
        symlink(leads_to, process.join("fd/5")).expect("a link");
    }

    /// Makes the file `infiniband/<name>` with the device numbers of `device`.
    fn named(&self, name: &str, device: &str) -> PathBuf {
        let directory = self.root.path().join("infiniband");
        fs::create_dir_all(&directory).expect("made");
        symlink(device, directory.join(name)).expect("a link");
        directory.join(name)
    }
}

#[test]
fn processes_that_have_it_open() {
    let site = Site::new();
    let ours = site.named("uverbs0", "/dev/full");
    site.process("17", &ours);
    site.process("18", &site.named("uverbs1", "/dev/null"));
    site.process("self", &ours);
    // the path does not contain `infiniband/`, so the daemon ignores the process
    site.process("19", Path::new("/dev/full"));
    // one process closed its descriptor meanwhile, and another process ended meanwhile
    site.process("20", &site.root.path().join("infiniband/uverbs9"));
    fs::create_dir_all(site.paths.proc.join("21")).expect("made");
    assert_eq!(site.users(Ok(vec![])), ["process 17 (trainer)"]);
}

#[test]
fn processes_are_not_read_after_a_known_user() {
    let site = Site::new();
    site.process("17", &site.named("uverbs0", "/dev/full"));
    site.grant("erdma_0/3", "0000:00:07.0");
    let pods = vec![pod("a", "erdma_0/3")];
    assert_eq!(site.users(Ok(pods)), ["pod team/a"]);
}

#[test]
fn an_unreachable_source_is_a_user() {
    let site = Site::new();
    let process = site.paths.proc.join("17");
    fs::create_dir_all(&process).expect("made");
    // a file in place of the directory: the daemon treats it like a directory that cannot be read
    fs::write(process.join("fd"), "").expect("written");
    let users = site.users(Ok(vec![]));
    assert!(users[0].contains("unknown users: cannot read"), "{users:?}");
    fs::remove_dir_all(&site.paths.proc).expect("removed");
    let users = site.users(Ok(vec![]));
    assert!(users[0].contains("unknown users: cannot read"), "{users:?}");
    let refused = Err("RDMA netlink: not permitted".to_owned());
    let users = of_counts(refused, DriverMode::Compat);
    assert_eq!(users, [User::Unknown("RDMA netlink: not permitted".into())]);
}

#[test]
fn a_device_that_is_made_anew_this_moment_has_its_users() {
    let site = Site::new();
    site.grant("erdma_0/3", "0000:00:07.0");
    let absent = WatchedDevice {
        rdma: None,
        numbers: vec![],
        ..erdma()
    };
    let pods = Ok(vec![pod("a", "erdma_0/3")]);
    let users = gather_blocking(&site.paths, &[absent], DriverMode::Default, &[], pods);
    assert_eq!(users, [User::Pod("team/a".into())]);
}

#[test]
fn objects_with_an_owner() {
    use DriverMode::{Compat, Default, Ofed};
    let counts = |ctx, qp| [("pd", 1), ("ctx", ctx), ("qp", qp)].map(|(n, c)| (n.to_owned(), c));
    for (ctx, qp, mode, wanted) in [
        (0, 0, Default, None),
        // the queue pair is a link of SMC-R
        (0, 1, Default, Some("1 queue pair")),
        // the queue pair is the one for management
        (0, 1, Compat, None),
        (0, 1, Ofed, None),
        (0, 4, Compat, Some("4 queue pairs")),
        (1, 5, Default, Some("1 context")),
        (2, 5, Default, Some("2 contexts")),
        (2, 0, Compat, Some("2 contexts")),
    ] {
        let found = of_users(&counts(ctx, qp), mode);
        assert_eq!(found.as_deref(), wanted, "{ctx} {qp} {mode}");
    }
    assert_eq!(of_users(&[], Default), None);
}

#[test]
fn pods_of_records_and_records_that_cannot_be_read() {
    let site = Site::new();
    let records = site.paths.state_dir.join("attachments/rails");
    fs::create_dir_all(&records).expect("a directory");
    let boot_id = Linux::new().boot_id().expect("a boot");
    let record = |boot_id: &str, device: &str| {
        let rdma =
            serde_json::json!({"name": "erdma_0", "index": 1, "node_guid": "", "parent": device});
        serde_json::json!({
            "format": 1, "key": {"network": "rails", "container": "c", "interface": "eth0"}, "pod": "team/train-0",
            "bootId": boot_id, "netns": "/run/netns/a", "netnsId": {"device": 4, "inode": 1, "cookie": 2},
            "phase": "attached", "rdmaMode": "exclusive", "dad": "off", "acceptRa": false,
            "rails": [{"podName": "rdma0", "rdma": rdma}], "config": {},
        })
        .to_string()
    };
    for (text, expected) in [
        (record(&boot_id, "0000:00:07.0"), &["pod team/train-0"][..]),
        (record(&boot_id, "0000:3b:00.0"), &[]),
        (record("before", "0000:00:07.0"), &[]),
        (
            "damaged".to_owned(),
            &["unknown users: the record of container c (eth0 of network rails) cannot be read"],
        ),
    ] {
        fs::write(records.join("c@eth0.json"), &text).expect("written");
        assert_eq!(site.users(Ok(vec![])), expected, "{text}");
    }
}
