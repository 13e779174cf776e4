// SPDX-License-Identifier: Apache-2.0
//! Pods with a primary interface, attached by a bridge plugin and `rdma-cni`, and connections between these pods.

use super::{Client, Connected, Server, SmcPeer, Socket, active};
use crate::{Attachment, Conflist, Netns, Runtime, plugin, stopwatch::Stopwatch};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

/// Name of the pods' primary interface. It is not `eth0`: the tests would otherwise miss code that relies on this
/// name.
pub const PRIMARY: &str = "net0";

/// User EID of the configurations.
pub const UEID: &str = "RDMA-CNI.LAB";

/// Time limit for a connection, by [`Stopwatch`]. It is shorter than any time for which the kernel waits for a peer.
const SOON: Duration = Duration::from_millis(900);

/// Time limit for an exchange.
const LIMIT: Duration = Duration::from_secs(400);

/// Capability by which the runtime passes annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// A pod, with its conflist and attachment.
#[derive(Debug)]
pub struct SmcPod {
    /// The pod's namespace.
    pub netns: Netns,
    /// The conflist: bridge, then `rdma-cni`.
    pub list: Conflist,
    /// The pod's attachment.
    pub attachment: Attachment,
}

/// Returns the configuration of Debian's bridge with addresses of a separate network, as a node's primary plugin.
/// Leases are in `leases`.
pub fn bridge(leases: &Path) -> Value {
    plugin::debian("bridge");
    json!({
        "type": "bridge", "bridge": "cni0",
        "ipam": {"type": "host-local", "dataDir": leases,
                 "ranges": [[{"subnet": "10.88.0.0/16", "rangeEnd": "10.88.0.250"}]]},
    })
}

/// Makes a pod, and so the bridge. The bridge remains when the pod has ended.
#[track_caller]
pub fn make_bridge(runtime: &Runtime<'_>, leases: &Path) {
    let netns = Netns::new("first");
    let list = Conflist::new("1.0.0", vec![bridge(leases)]);
    let attachment = Attachment::new("first", netns.path(), PRIMARY);
    runtime.add(&list, &attachment).expect("ADD of the bridge");
    runtime.del(&list, &attachment).expect("DEL of the bridge");
}

impl SmcPod {
    /// Makes the pod `name`, whose list is `bridge` and then `plugin`. `annotation` is the value of the pod's SMC-R
    /// annotation. Calls no plugin yet.
    #[track_caller]
    pub fn new(name: &str, [bridge, mut plugin]: [Value; 2], annotation: Option<&str>) -> Self {
        let netns = Netns::new(name);
        netns.ip("link set dev lo up");
        plugin["capabilities"] = json!({ ANNOTATIONS: true });
        let container = format!("c-{name}");
        let mut attachment =
            Attachment::new(&container, netns.path(), PRIMARY).of_pod("team", name);
        if let Some(value) = annotation {
            let annotations = json!({ "network.alibabacloud.com/erdma-smcr": value });
            attachment = attachment.with_capability(ANNOTATIONS, annotations);
        }
        let list = Conflist::new("1.0.0", vec![bridge, plugin]);
        Self {
            netns,
            list,
            attachment,
        }
    }

    /// Runs ADD of both plugins, which must succeed.
    #[track_caller]
    pub fn add(&self, runtime: &Runtime<'_>) -> Value {
        let added = runtime.add(&self.list, &self.attachment);
        added.unwrap_or_else(|outcome| panic!("{outcome}"))
    }

    /// Runs DEL of both plugins, which must succeed.
    #[track_caller]
    pub fn del(&self, runtime: &Runtime<'_>) {
        let deleted = runtime.del(&self.list, &self.attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    }

    /// Returns the list with only `rdma-cni`.
    pub fn only(&self) -> Conflist {
        Conflist {
            plugins: self.list.plugins[1..].to_vec(),
            ..self.list.clone()
        }
    }

    /// Runs CHECK of `rdma-cni` only. CHECK of Debian's bridge would report that udev has changed the MAC of the
    /// bridge's veth.
    #[track_caller]
    pub fn check(&self, runtime: &Runtime<'_>) {
        let checked = runtime.check(&self.only(), &self.attachment);
        checked.unwrap_or_else(|outcome| panic!("{outcome}"));
    }

    /// Returns the IPv4 address of an interface.
    #[track_caller]
    pub fn ipv4(&self, interface: &str) -> String {
        let addresses = self.netns.addresses(interface);
        let address = addresses.iter().find(|it| !it.contains(':'));
        let address = address.unwrap_or_else(|| panic!("{interface} has no IPv4 address"));
        address.split('/').next().expect("an address").to_owned()
    }

    /// Returns the protocols of the pod's established connections without duplicates: `smcr`, or `tcp: ` with the
    /// reason.
    #[track_caller]
    pub fn carried(&self) -> Vec<String> {
        let words = |of: &Value| of["words"].as_str().unwrap_or_default().to_owned();
        let carried = active(&self.netns).into_iter().map(|connection| {
            let mode = connection["mode"].as_str().expect("a mode");
            let fallback = &connection["fallback"];
            let reasons = [&fallback["reason"], &fallback["peer"]].map(words);
            let reasons: Vec<String> = reasons.into_iter().filter(|it| !it.is_empty()).collect();
            match reasons.is_empty() {
                true => mode.to_owned(),
                false => format!("{mode}: {}", reasons.join("; ")),
            }
        });
        let mut carried: Vec<String> = carried.collect();
        carried.sort();
        carried.dedup();
        carried
    }
}

/// Opens connections of [`Socket::Smc`] from the second pod to `address` of the first, and exchanges bytes that both
/// ends compare. `work` is as for [`SmcPeer::connect`]. Asserts that no connection waited for the other end.
#[track_caller]
pub fn exchange(
    peer: &SmcPeer,
    pods: [&SmcPod; 2],
    address: &str,
    work: (usize, u64),
) -> (Server, Client) {
    let [server, client] = pods.map(|it| &it.netns);
    let listener = peer.serve(server, Socket::Smc, &format!("{address}:0"));
    let stopwatch = Stopwatch::start();
    let mut client = peer.open(client, Socket::Smc, listener.address(), work);
    assert_eq!(client.connected().len(), work.0);
    for Connected { took, .. } in client.connected() {
        println!("to {address}: connected after {took:?}");
    }
    let mut connected = client.connected().iter();
    let soon = connected.all(|it| stopwatch.corrected(it.took) < SOON);
    let carried = || pods.map(SmcPod::carried);
    assert!(soon, "{:?}: {:#?}", client.connected(), carried());
    client.has_exchanged(LIMIT);
    (listener, client)
}
