// SPDX-License-Identifier: Apache-2.0
//! Leases, as host-local and `rdma-ipam` write them, and other short texts of a node.

use rdma_device_plugin::node_features::Labels;
use rdma_ipam::{
    resolv,
    store::{Lease, Owner, REFUSED, note},
};
use rdma_netns::linux::offline;

/// A lease, and a note: its name, its addresses, and the seconds in a conflict's mark.
///
/// # Panics
/// Who holds it is another one when it is written again; a name leads elsewhere; a note tells other addresses when it is
/// written again; what is no number, or an hour away, marks a conflict of this minute.
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
    // as the end of a link is read
    notes(&String::from_utf8_lossy(input));
}

fn notes(text: &str) {
    if let Some(ips) = note::addresses(text) {
        // none is passed over, and each is the name of a lease
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

/// resolv.conf, a kubeconfig, the labels of the node.
///
/// # Panics
/// A label does not come back; a name server is two words.
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
