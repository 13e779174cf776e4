// SPDX-License-Identifier: Apache-2.0
//! Records: a record that was read stays the same when it is written and read again.

use crate::{assert_comes_back, assert_one_line};
use attachments::{
    Key,
    pods::PodRails,
    store::{Record, decode},
};
use dra::cdi;
use rdma_device_plugin::chain::{record::Record as ChainRecord, sandbox};
use serde_json::Value;
use std::{collections::BTreeSet, net::IpAddr, path::Path};

/// The record of an attachment.
///
/// # Panics
/// The record differs when it is read again, a message has several lines, or an address of a rail is link-local.
pub fn attachment(input: &[u8]) {
    let value: Value = serde_json::from_slice(input).unwrap_or_default();
    let key: Key = serde_json::from_value(value["key"].clone()).unwrap_or_else(|_| Key {
        network: "net".into(),
        container: "c".into(),
        interface: "eth0".try_into().expect("a name"),
    });
    match decode(input, &key) {
        Record::Good(attachment) => {
            assert_comes_back(&*attachment);
            let rails = PodRails::from(&*attachment).rails.into_iter();
            for address in rails.flat_map(|it| it.addresses) {
                assert!(!matches!(address.ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
            }
        }
        Record::Corrupt(why) => assert_one_line(&why),
        Record::Newer(format) => assert!(format > u64::from(attachments::FORMAT)),
        Record::None => panic!("there is one"),
    }
    let other = Key {
        container: format!("{}x", key.container),
        ..key
    };
    if let Record::Corrupt(why) = decode(input, &other) {
        assert_one_line(&why);
    }
}

/// The record of `rdma-cni`'s entries in CNI lists.
///
/// # Panics
/// The record differs when it is read again, or a message has several lines.
pub fn chain(input: &[u8]) {
    match ChainRecord::parse(input, Path::new("/state/install.json")) {
        Ok(record) => assert_comes_back(&record),
        Err(error) => assert_one_line(&error),
    }
}

/// A file of libcni's cache.
///
/// # Panics
/// A second reading differs from the first.
pub fn cni_cache(input: &[u8]) {
    for pod in [("default", "a"), ("", "")] {
        let network = sandbox::cached_network(input, pod);
        assert_eq!(network, sandbox::cached_network(input, pod));
    }
    if let Some((pod, _)) = sandbox::uid(input) {
        // the file is about this pod
        let _ = sandbox::cached_network(input, (&pod.namespace, &pod.name));
    }
}

/// The record of a claim, and the CDI specification for it.
///
/// # Panics
/// The record differs when it is read again; an entry has a device node twice; a UID could be a path.
pub fn claim(input: &[u8]) {
    let Ok(record) = serde_json::from_slice::<dra::Record>(input) else {
        return;
    };
    assert_comes_back(&record);
    let specification = cdi::specification(&record, Path::new("/files"));
    let devices = specification["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), record.requests.len());
    for device in devices {
        let nodes = device["containerEdits"]["deviceNodes"]
            .as_array()
            .expect("a list");
        let paths: BTreeSet<_> = nodes.iter().map(|it| it["path"].as_str()).collect();
        assert_eq!(paths.len(), nodes.len());
    }
    let name = cdi::full_name(&record.driver, &record.claim.uid, "nic");
    if let Some(uid) = cdi::uid(&record.driver, &name) {
        assert!(!uid.contains(['/', '.']));
    }
}

/// The record of an eRDMA NIC that the daemon brought up, and the file about a device that `rdma-cni` could not restore
/// completely.
///
/// # Panics
/// A record or file differs when it is written and read again.
pub fn erdma(input: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<erdma::bring_up::record::Record>(input) {
        assert_comes_back(&record);
    }
    if let Ok(note) = serde_json::from_slice::<attachments::given_up::Note>(input) {
        assert_comes_back(&note);
    }
}
