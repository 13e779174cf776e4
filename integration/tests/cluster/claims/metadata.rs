// SPDX-License-Identifier: Apache-2.0
//! The metadata of a claim's devices, read by Kubernetes' own reader.

use super::driver::NODE;
use serde_json::{Value, json};
use std::{
    env,
    fs::File,
    process::{Command, Stdio},
};

/// Environment variable with the path of the program that `integration/device-metadata/build` built.
const READER: &str = "RDMA_DEVICE_METADATA";

/// Checks the path and the two objects of the metadata file that a container with these `edits` has for the request
/// `nic` of `claim`. The claim was created from a template, and has `device` at the PCI address `address`.
pub(super) fn is_read(edits: &Value, claim: &Value, (device, address): (&str, &str)) {
    let [mount] = edits["mounts"].as_array().expect("a list").as_slice() else {
        panic!("{edits}");
    };
    let Some(reader) = env::var_os(READER) else {
        // scripts/test counts this test as skipped, with the reason
        println!("the reader of device metadata is not here");
        return;
    };
    let file = mount["hostPath"].as_str().expect("a path");
    let mut read = Command::new(reader);
    read.args(["nic.example.org", "nic", "nic", "template"]);
    let read = read
        .stdin(File::open(file).expect("a file"))
        .stderr(Stdio::inherit());
    let read = read.output().expect("a program");
    assert!(read.status.success());
    let read: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!(mount["containerPath"], read["path"]);
    let [beta, alpha] = read["objects"].as_array().expect("a list").as_slice() else {
        panic!("{read}");
    };
    for (object, version) in [(beta, "v1beta1"), (alpha, "v1alpha1")] {
        assert_eq!(
            object["apiVersion"],
            format!("metadata.resource.k8s.io/{version}")
        );
        assert_eq!(object["metadata"]["uid"], claim["metadata"]["uid"]);
        assert_eq!(object["metadata"]["generation"], 1);
        assert_eq!(object["podClaimName"], "nic");
        assert_eq!(object["requests"][0]["name"], "nic");
        let found = &object["requests"][0]["devices"][0];
        let name = json!(["nic.example.org", NODE, device]);
        assert_eq!(json!([found["driver"], found["pool"], found["name"]]), name);
        assert_eq!(found["attributes"]["address"]["string"], address);
    }
}
