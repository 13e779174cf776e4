// SPDX-License-Identifier: Apache-2.0
//! Leases that host-local or `rdma-ipam` wrote, and other short texts on a node.

use rdma_device_plugin::node_features::Labels;
use rdma_ipam::{
    resolv,
    store::{Lease, Owner, REFUSED, note},
};
use rdma_netns::linux::offline;

/// A lease, a note's file name and addresses, and the time in a conflict's mark.
///
/// # Panics
/// An owner or a note's addresses differ when they are written and read again; a file name could lead into another
/// directory; a text that is no number, or a time an hour away, counts as a recent conflict.
pub fn leases(input: &[u8]) {
    match Lease::parse(input) {
        Lease::Of(owner) => {
            assert_eq!(
                Lease::parse(owner.content().as_bytes()),
                Lease::Of(owner.clone())
            );
            assert!(!owner.file_name().contains(['/', '\0']));
            assert_eq!(Owner::of_file_name(&owner.file_name()), Some(owner));
        }
        Lease::OfContainer(container) => {
            assert_eq!(
                Lease::parse(container.as_bytes()),
                Lease::OfContainer(container)
            );
        }
        Lease::Empty | Lease::Foreign => {}
    }
    if let Some(owner) = str::from_utf8(input).ok().and_then(Owner::of_file_name) {
        assert_eq!(owner.file_name().as_bytes(), input);
    }
    // `rdma-ipam` reads a note from a link's target, as lossy UTF-8
    notes(&String::from_utf8_lossy(input));
}

fn notes(text: &str) {
    if let Some(ips) = note::addresses(text) {
        // every element is read, and the name of its lease is a file name
        assert_eq!(ips.len(), text.split(',').count());
        assert!(ips.iter().all(|ip| !ip.to_string().contains(['/', '\0'])));
        assert_eq!(note::addresses(&note::text_of(&ips)), Some(ips));
    }
    let is_of = |now: u64| note::is_within(text, now, REFUSED);
    match text.parse::<u64>() {
        Ok(seen) => {
            assert!(is_of(seen));
            let [before, after] = [seen.checked_sub(3600), seen.checked_add(3600)];
            assert!(![before, after].into_iter().flatten().any(is_of));
        }
        Err(_) => assert!(![0, 1 << 31, u64::MAX].into_iter().any(is_of)),
    }
}

/// `resolv.conf`, a kubeconfig, and the labels of the node.
///
/// # Panics
/// Labels differ when they are written and read again; an element of `resolv.conf` has white space; an API server has a
/// loopback address.
pub fn node_texts(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let dns = resolv::dns(text);
    for list in ["nameservers", "search", "options"] {
        for word in dns[list].as_array().into_iter().flatten() {
            let word = word.as_str().expect("a text");
            assert!(!word.is_empty() && !word.contains(char::is_whitespace));
        }
    }
    let servers = offline::api_servers(text);
    assert!(servers.iter().all(|it| !it.is_loopback()));
    let labels = Labels::parse(text);
    assert_eq!(Labels::parse(&labels.to_string()), labels);
}
