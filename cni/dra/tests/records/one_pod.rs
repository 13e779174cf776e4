// SPDX-License-Identifier: Apache-2.0
//! Content of CDI specifications that depends on the pod's network, while the claim has one pod.

use crate::{UID, injected, is_removed, moved, prepared, record, replace_record};
use dra::{
    Claims,
    record::{JoinedRail, MetadataNames},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs};

/// `RDMA_RAILS` includes the rails of the pod's other claims. If the claim has two pods, the variable is absent,
/// because the pods' rails differ.
#[test]
fn containers_get_the_rails_of_their_one_pod() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), true);
    let rail = |interface: &str, device: Option<&str>| JoinedRail {
        device: device.map(str::to_owned),
        hardware_address: None,
        status_entry: json!({"interface": interface}),
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
    let rails_variable = || {
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
    assert_eq!(rails_variable().as_deref(), Some(expected));
    join("sandbox-2");
    assert_eq!(rails_variable(), None);
    claims.left("sandbox-1").expect("left");
    assert_eq!(rails_variable().as_deref(), Some(expected));
}

/// The files of a pod do not change while the pod runs, even if the claim gets another pod.
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
    replace_record(&claims, record.clone());
    let join = |sandbox: &str| {
        let network = (sandbox, vec![], files(sandbox));
        let joined = claims.joined(UID, "boot-1", network, moved(0));
        assert!(joined.expect("joined"));
    };
    let file = directory.path().join("claims").join(UID).join("libraries");
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

/// The metadata file has one object for each version of the format. `integration/device-metadata` tests Kubernetes' own
/// reader.
#[test]
fn containers_get_the_metadata_of_their_devices() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = Claims::new(directory.path());
    let mut record = record(directory.path(), true);
    record.requests[1].metadata = Some(MetadataNames {
        request: "two/fast".into(),
        pod_claim: None,
    });
    let attributes = json!({"rail": {"int": 3}});
    record.devices[1].attributes = attributes.as_object().expect("an object").clone();
    replace_record(&claims, record.clone());
    let join = |sandbox: &str| {
        let rail = JoinedRail {
            device: Some(record.devices[1].device.clone()),
            hardware_address: Some("02:00:00:00:00:07".into()),
            status_entry: json!({"interface": "rdma0", "addresses": ["fd00::7/64"]}),
        };
        let network = (sandbox, vec![rail], BTreeMap::new());
        let joined = claims.joined(UID, "boot-1", network, moved(0));
        assert!(joined.expect("joined"));
    };
    let file = directory
        .path()
        .join("claims")
        .join(UID)
        .join("metadata/two.json");
    let mounts = |container: &str| {
        let given = injected(directory.path()).expect("it has its network");
        let [one, two] = ["one", "two"].map(|it| given[format!("{UID}-{it}")].clone());
        assert_eq!(one["mounts"], Value::Null);
        assert_eq!(two["mounts"].as_array().map(Vec::len), Some(1));
        assert_eq!(two["mounts"][0]["hostPath"], json!(file));
        assert_eq!(two["mounts"][0]["containerPath"], container);
        let text = fs::read_to_string(&file).expect("a file");
        let objects = text
            .lines()
            .map(|it| serde_json::from_str(it).expect("JSON"));
        let [beta, alpha]: [Value; 2] = objects.collect::<Vec<_>>().try_into().expect("two");
        assert_eq!(beta["apiVersion"], "metadata.resource.k8s.io/v1beta1");
        assert_eq!(alpha["apiVersion"], "metadata.resource.k8s.io/v1alpha1");
        assert_eq!(beta["requests"], alpha["requests"]);
        beta
    };
    const ROOT: &str = "/var/run/kubernetes.io/dra-device-attributes";
    join("sandbox-1");
    let first = mounts(&format!(
        "{ROOT}/resourceclaims/a/two/hca.rdma-metadata.json"
    ));
    let network = json!({
        "interfaceName": "rdma0", "hardwareAddress": "02:00:00:00:00:07", "ips": ["fd00::7/64"],
    });
    let device = json!({
        "driver": "hca.rdma", "pool": "node-1", "name": "rdma-vf-0000-3b-00-2",
        "attributes": attributes, "networkData": network,
    });
    let request = &first["requests"][0];
    assert_eq!(
        (&request["name"], &request["devices"][0]),
        (&json!("two/fast"), &device)
    );
    assert_eq!(request["devices"].as_array().map(Vec::len), Some(2));
    assert_eq!(first["podClaimName"], Value::Null);

    let generation = |object: &Value| object["metadata"]["generation"].as_u64().expect("a number");
    let mut record = claims.read(UID).expect("read").expect("prepared");
    record.requests[1]
        .metadata
        .as_mut()
        .expect("names")
        .pod_claim = Some("nic".into());
    replace_record(&claims, record.clone());
    join("sandbox-2");
    let path = format!("{ROOT}/resourceclaimtemplates/nic/two/hca.rdma-metadata.json");
    let second = mounts(&path);
    assert_eq!(second["podClaimName"], "nic");
    assert!(generation(&second) > generation(&first));
    // with two pods, the metadata has no network
    assert_eq!(
        second["requests"][0]["devices"][0]["networkData"],
        Value::Null
    );
    assert!(is_removed(&claims));
    assert!(!file.exists());
}
