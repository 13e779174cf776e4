// SPDX-License-Identifier: Apache-2.0
//! Metadata of a claim's devices for programs in containers, in the format of all DRA drivers (KEP-5304, "DRA device
//! metadata in containers" in Kubernetes' documentation). This module has no I/O.

use crate::{
    record::{MetadataNames, Record, Request},
    status,
};
use serde_json::json;
use std::fmt::Write;

/// Directory in a container that contains the metadata files of all drivers (`ContainerDir` in `api/metadata/types.go`
/// of `k8s.io/dynamic-resource-allocation` 0.37).
const DIRECTORY: &str = "/var/run/kubernetes.io/dra-device-attributes";

/// Versions of the format, the newest first. A reader uses the first version that it supports.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// Returns the path of the metadata file of `request` in a container.
pub(crate) fn path(record: &Record, request: &Request, names: &MetadataNames) -> String {
    let claim = match &names.pod_claim {
        Some(name) => format!("resourceclaimtemplates/{name}"),
        None => format!("resourceclaims/{}", record.claim.name),
    };
    let (driver, request) = (&record.driver, &request.name);
    format!("{DIRECTORY}/{claim}/{request}/{driver}-metadata.json")
}

/// Returns the content of the metadata file of `request`: one object for each version.
pub(crate) fn text(record: &Record, request: &Request, names: &MetadataNames) -> String {
    let own = record.devices.iter();
    let own = own.filter(|it| it.request == request.name);
    let devices = own.map(|device| {
        let mut object = json!({
            "driver": record.driver,
            "pool": device.pool,
            "name": device.device,
            "attributes": device.attributes,
        });
        if let Some(network) = status::of_device(device, record).get("networkData") {
            object["networkData"] = network.clone();
        }
        object
    });
    let devices: Vec<_> = devices.collect();
    let mut text = String::new();
    for version in VERSIONS {
        let mut object = json!({
            "apiVersion": format!("metadata.resource.k8s.io/{version}"),
            "kind": "DeviceMetadata",
            "metadata": {
                "namespace": record.claim.namespace,
                "name": record.claim.name,
                "uid": record.claim.uid,
                "generation": record.generation,
            },
            "requests": [{"name": names.request, "devices": devices}],
        });
        if let Some(name) = &names.pod_claim {
            object["podClaimName"] = name.as_str().into();
        }
        let _ = writeln!(text, "{object}");
    }
    text
}
