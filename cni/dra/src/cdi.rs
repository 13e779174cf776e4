// SPDX-License-Identifier: Apache-2.0
//! CDI specification of a claim: one file with one device for each request of the claim. A container that uses a
//! request gets all devices that were allocated for this request.

use crate::{
    metadata,
    record::{Record, Request},
};
use rdma_resources::{
    CharNode,
    cdi::{VERSION, device_node},
    container::{LibraryFile, MOUNTED},
    file,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// CDI class of the devices of all claims. The CDI vendor is the driver.
const CLASS: &str = "claim";

/// Returns the full CDI name of `request` of the claim `uid`, such as `hca.rdma/claim=<uid>-<request>`.
pub fn full_name(driver: &str, uid: &str, request: &str) -> String {
    format!("{driver}/{CLASS}={}", name(uid, request))
}

/// Returns the claim's UID in `full_name`. Returns `None` if [`full_name`] did not make this name for `driver`.
pub fn uid<'a>(driver: &str, full_name: &'a str) -> Option<&'a str> {
    /// Length of a UUID in characters.
    const UID: usize = 36;
    let (kind, name) = full_name.split_once('=')?;
    let (vendor, class) = kind.split_once('/')?;
    let (uid, rest) = name.split_at_checked(UID)?;
    let is_ours = vendor == driver && class == CLASS && rest.starts_with('-');
    (is_ours && crate::claim::is_plain(uid)).then_some(uid)
}

fn name(uid: &str, request: &str) -> String {
    format!("{uid}-{request}")
}

/// Returns the path of the specification of the claim `uid`.
pub(crate) fn path(directory: &Path, uid: &str) -> PathBuf {
    directory.join(format!("rdma-device-plugin-claim-{uid}.json"))
}

/// Environment variable with the pod's rails. It has the same value for all requests of a claim.
const RAILS: &str = "RDMA_RAILS";

/// Returns true if the CDI specification at `path` has the character devices of `record`. Ignores other content, such
/// as the paths of mounted files: during an upgrade, a daemon of another version may have written the specification.
pub(crate) fn gives(path: &Path, record: &Record) -> bool {
    let there: Option<Value> = file::read(path).ok().flatten();
    there.is_some_and(|it| char_devices(&it) == char_devices(&specification(record, path)))
}

/// Returns the name of each device in a specification, with the paths and numbers of its character devices.
fn char_devices(specification: &Value) -> Vec<(&Value, Vec<[&Value; 3]>)> {
    fn list(value: &Value) -> impl Iterator<Item = &Value> {
        value.as_array().into_iter().flatten()
    }
    let devices = list(&specification["devices"]).map(|device| {
        let nodes = list(&device["containerEdits"]["deviceNodes"]);
        let nodes = nodes.map(|it| ["path", "major", "minor"].map(|key| &it[key]));
        (&device["name"], nodes.collect())
    });
    devices.collect()
}

/// Returns the directory of the library files below `files`, the directory of a claim's files. Containers mount the
/// library files at [`MOUNTED`].
pub(crate) fn libraries(files: &Path) -> PathBuf {
    files.join("libraries")
}

/// Returns the path of the metadata of `request` below `files`, the directory of a claim's files.
pub(crate) fn metadata(files: &Path, request: &Request) -> PathBuf {
    files
        .join("metadata")
        .join(format!("{}.json", request.name))
}

fn mount(from: &Path, to: &str) -> Value {
    json!({
        "hostPath": from,
        "containerPath": to,
        "options": ["ro", "nosuid", "nodev", "bind"],
    })
}

/// Returns the content of the specification. `files` is the directory of the claim's files.
pub fn specification(record: &Record, files: &Path) -> Value {
    let present = record.files_of_one_pod();
    let has_file = |request: &Request, file: LibraryFile| {
        let is_present = present.is_some_and(|it| it.contains_key(file.name()));
        is_present && request.files.contains_key(file.name())
    };
    let rails = record.rails_of_one_pod();
    let rails = rails.map(|rails| format!("{RAILS}={}", json!(rails)));
    let devices = record.requests.iter().map(|request| {
        let own = record
            .devices
            .iter()
            .filter(|it| it.request == request.name);
        let nics = own.flat_map(|device| &device.nics);
        let mut nodes: Vec<&CharNode> = vec![];
        let all = nics.flat_map(|nic| &nic.char_devices);
        for node in all.chain(&request.connection_manager) {
            if !nodes.iter().any(|known| known.name == node.name) {
                nodes.push(node);
            }
        }
        let nodes: Vec<Value> = nodes.into_iter().map(device_node).collect();
        let mut edits = json!({"deviceNodes": nodes});
        let env = request.env.iter();
        let env = env.map(|(name, value)| format!("{name}={value}"));
        let own = LibraryFile::ALL.into_iter();
        let own = own.filter(|file| has_file(request, *file));
        let own: Vec<String> = own
            .map(|file| file.variable())
            .map(|(name, path)| format!("{name}={path}"))
            .collect();
        let mut mounts = vec![];
        if !own.is_empty() {
            mounts.push(mount(&libraries(files), MOUNTED));
        }
        if let Some(names) = &request.metadata {
            let path = metadata::path(record, request, names);
            mounts.push(mount(&self::metadata(files, request), &path));
        }
        if !mounts.is_empty() {
            edits["mounts"] = mounts.into();
        }
        let env: Vec<String> = env.chain(own).chain(rails.clone()).collect();
        if !env.is_empty() {
            edits["env"] = env.into();
        }
        if let Some(hook) = &request.hook {
            edits["hooks"] = json!([hook.json()]);
        }
        json!({"name": name(&record.claim.uid, &request.name), "containerEdits": edits})
    });
    json!({
        "cdiVersion": VERSION,
        "kind": format!("{}/{CLASS}", record.driver),
        "devices": devices.collect::<Vec<_>>(),
    })
}
