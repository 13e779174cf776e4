// SPDX-License-Identifier: Apache-2.0
//! Texts on the node that a pod, firmware or the node's own programs have written: a pod's `rails.json`, vital product
//! data, and short texts.

use attachments::Key;
use cni_protocol::lock;
use conflist::programs;
use doctor::gather::offline as parsers;
use rdma_cni::rails;
use rdma_netns::linux::offline;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};

/// `rails.json`. Root in a pod that mounts the file's directory may have written the file.
///
/// # Panics
/// A rail of the attachment itself is kept; a written file is longer than the limit for reading, or lacks a rail when
/// it is read.
pub fn rails_file(input: &[u8]) {
    let key = Key {
        network: "net".into(),
        container: "c".into(),
        interface: "eth0".try_into().expect("a name"),
    };
    let Some(others) = rails::others_of(input, &key) else {
        let content: Value = serde_json::from_slice(input).expect("another pod's JSON");
        assert_ne!(content["containerID"], "c");
        return;
    };
    assert!(others.iter().all(|rail| rail["ifname"] != "eth0"));
    let own = json!({"ifname": "eth0", "rdma": "mlx5_0"});
    let text = rails::text(Some("default/a"), &key, others.clone(), vec![own.clone()]);
    assert!(text.len() <= rails::LARGEST);
    let other = Key {
        interface: "eth1".try_into().expect("a name"),
        ..key.clone()
    };
    let again = rails::others_of(&text, &other).expect("the pod's own");
    assert_eq!(again.last(), Some(&own));
    let kept = rails::others_of(&text, &key).expect("the pod's own");
    // a file that would be too long keeps no rails of other attachments
    assert!(kept == others || kept.is_empty());
}

/// Vital product data. The first two bytes of the input are the keyword.
///
/// # Panics
/// The data do not have the value after its keyword and length.
pub fn vital_product_data(input: &[u8]) {
    let Some((keyword, data)) = input.split_first_chunk() else {
        return;
    };
    let Some(value) = offline::vital_product_data(data, keyword) else {
        return;
    };
    let length = u8::try_from(value.len()).expect("its length has one byte");
    let field = [&keyword[..], &[length], value].concat();
    assert!(data.windows(field.len()).any(|it| it == field));
}

/// Texts of the kernel, systemd, udev and modprobe, and CNI lists.
///
/// # Panics
/// A name from a text is not a valid name.
pub fn texts(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    for module in text.lines().filter_map(parsers::module) {
        assert!(!module.contains(['/', ':', '-', '\n']), "{module:?}");
    }
    for policy in text.lines().filter_map(parsers::policy) {
        let name = policy.strip_prefix("NAME_").expect("a policy");
        assert!(name.chars().all(|it| it.is_ascii_alphabetic()));
    }
    if let Some(lease) = parsers::lease(text, address) {
        assert!(!lease.container.is_empty() && lease.container.trim() == lease.container);
        assert!(lease.interface.is_none_or(|it| !it.is_empty()));
    }
    // any mode and any limit is right
    for line in text.lines() {
        let _ = parsers::option(line);
    }
    let _ = (parsers::unit(text), parsers::limit(text));
    let types = programs::named(text);
    assert!(types.iter().all(|it| !it.is_empty() && it != "rdma-cni"));
    if let Some(process) = lock::process(text, 0x801, 131_074) {
        assert!(text.contains(&process.to_string()));
    }
    // only the result matters to the caller, and any result is right
    let _ = offline::has_listener(text);
}
