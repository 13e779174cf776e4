// SPDX-License-Identifier: Apache-2.0
//! What containers get of their pod's network, while the claim has one pod.

use crate::{UID, injected, is_removed, moved, prepared, record};
use dra::{Claims, record::JoinedRail};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs};

/// Includes rails of another claim of the pod. Pods of one claim have different rails: no variable would be right for
/// all.
#[test]
fn containers_get_the_rails_of_their_one_pod() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), true);
    let rail = |interface: &str, device: Option<&str>| JoinedRail {
        device: device.map(str::to_owned),
        hardware_address: None,
        told: json!({"interface": interface}),
    };
    let rails = vec![
        rail("net1", Some("rdma-vf-0000-3b-00-1")),
        rail("net1", Some("rdma-vf-0000-3b-00-2")),
        rail("net2", None),
    ];
    let join = |sandbox: &str| {
        let joined = claims.joined(
            UID,
            "boot-1",
            (sandbox, rails.clone(), BTreeMap::new()),
            moved(0),
        );
        assert!(joined.expect("joined"));
    };
    let told = || {
        let given = injected(directory.path()).expect("it has its network");
        let of = |request: &str| {
            let env = given[format!("{UID}-{request}")]["env"].clone();
            let env: Vec<String> = serde_json::from_value(env).expect("a list");
            let mut env = env.into_iter();
            env.find_map(|it| Some(it.strip_prefix("RDMA_RAILS=")?.to_owned()))
        };
        let [one, two] = ["one", "two"].map(of);
        assert_eq!(one, two);
        one
    };
    let expected = r#"[{"interface":"net1"},{"interface":"net2"}]"#;
    join("sandbox-1");
    assert_eq!(told().as_deref(), Some(expected));
    join("sandbox-2");
    assert_eq!(told(), None);
    claims.left("sandbox-1").expect("left");
    assert_eq!(told().as_deref(), Some(expected));
}

/// The files of a pod stay as they are while the pod runs, also beside another pod of the claim.
#[test]
fn containers_get_the_library_files_of_their_one_pod() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = Claims::new(directory.path());
    let mut record = record(directory.path(), true);
    let files = |text: &str| {
        let all = ["nccl.conf", "ucx.conf"];
        all.map(|name| (name.to_owned(), text.to_owned())).into()
    };
    record.requests[0].files = files("");
    record.requests[0].files.remove("ucx.conf");
    claims.prepare(&record).expect("prepared");
    let join = |sandbox: &str| {
        let network = (sandbox, vec![], files(sandbox));
        let joined = claims.joined(UID, "boot-1", network, moved(0));
        assert!(joined.expect("joined"));
    };
    let file = directory.path().join("claims").join(UID);
    let text = || fs::read_to_string(file.join("nccl.conf")).expect("a file");
    let is_given = || {
        let given = injected(directory.path()).expect("it has its network");
        let [one, two] = ["one", "two"].map(|it| given[format!("{UID}-{it}")].clone());
        assert_eq!(two["mounts"], Value::Null);
        let variable = "NCCL_CONF_FILE=/run/rdma/nccl.conf";
        let env = one["env"].as_array().expect("a list");
        assert!(!env.iter().any(|it| it == "UCX_CONFIG_DIR=/run/rdma"));
        let is_given = env.iter().any(|it| it == variable);
        let mount = json!([{
            "hostPath": file,
            "containerPath": "/run/rdma",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }]);
        assert_eq!(one["mounts"] == mount, is_given, "{one}");
        is_given
    };
    join("sandbox-1");
    assert!(is_given());
    assert_eq!(text(), "sandbox-1");
    join("sandbox-2");
    assert!(!is_given());
    assert_eq!(text(), "sandbox-1");
    claims.left("sandbox-1").expect("left");
    assert!(is_given());
    assert_eq!(text(), "sandbox-2");
    let left = claims.read(UID).expect("read").expect("prepared");
    assert_eq!(left.files.len(), 1);
    assert!(is_removed(&claims));
    assert!(!file.exists());
}
