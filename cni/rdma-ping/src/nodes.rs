// SPDX-License-Identifier: Apache-2.0
//! Rails of nodes, from the ResourceSlices that the nodes' daemons publish for claims.

use crate::rails::Rail;
use kubernetes_api::{Access, AccessError, Client, Method, RequestError, access::Identity};
use serde_json::Value;
use std::{io, net::IpAddr, path::Path, time::Duration};

/// API path of ResourceSlices since Kubernetes 1.34.
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(10);

/// Reason why the rails of a node are unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error(
        "cannot query the API server for rails of nodes: {0}; run this in a pod with hostNetwork and the daemon's \
         service account in a cluster with claims (dra.enabled), or ping the addresses of the rails; to ping a pod, \
         write NAMESPACE/NAME"
    )]
    Access(#[from] AccessError),
    #[error("cannot read the ResourceSlices of node {node}: {source}")]
    Request { node: String, source: RequestError },
    #[error("cannot query the API server: {0}")]
    Runtime(#[from] io::Error),
    #[error(
        "no ResourceSlice of node {0} has a rail with an address: check the node's name, and that claims are on there \
         (dra.enabled), or ping the addresses of the rails"
    )]
    NoRails(String),
}

/// NICs in the ResourceSlices of this node and of another node. If a NIC's netdev is a port of a bond, the rail's netdev
/// is the bond.
pub(crate) struct Nodes {
    pub(crate) name: String,
    pub(crate) own: Vec<Rail>,
    pub(crate) others: Vec<Rail>,
}

impl Nodes {
    /// Reads the rails of this pod's node and of `node` from the API server. `directory` has the pod's token.
    ///
    /// # Errors
    /// The API server does not answer, refuses access, or has no rail with an address for one of the two nodes.
    pub(crate) fn read(directory: &Path, node: &str) -> Result<Self, NodeError> {
        let access = Access::of_pod(directory)?;
        let name = access
            .identity()
            .and_then(|it: Identity| it.node().map(str::to_owned))?;
        let client = Client::new(access, "rdma-device-plugin-ping", LIMIT);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build()?;
        let rails = |node: &str| {
            let path = format!("{SLICES}?fieldSelector=spec.nodeName%3D{node}");
            let list = runtime.block_on(client.ask(Method::GET, &path, None));
            let list = list.map_err(|source| NodeError::Request {
                node: node.to_owned(),
                source,
            })?;
            let rails = rails_of(&list, node);
            match rails.iter().any(|it| !it.addresses.is_empty()) {
                true => Ok(rails),
                false => Err(NodeError::NoRails(node.to_owned())),
            }
        };
        let (own, others) = (rails(&name)?, rails(node)?);
        Ok(Self { name, own, others })
    }

    /// Returns the place of `netdev`, a netdev of this node.
    pub(crate) fn place(&self, netdev: &str) -> Option<(String, i64)> {
        let found = self.own.iter().find(|it| it.netdev == netdev);
        found.and_then(|it| it.place.clone())
    }
}

/// Returns the rails of `node` from a list of ResourceSlices. A NIC of several resources is returned once.
fn rails_of(list: &Value, node: &str) -> Vec<Rail> {
    let slices = list["items"].as_array().into_iter().flatten();
    let slices = slices.filter(|it| it["spec"]["nodeName"] == node);
    let devices = slices.filter_map(|it| it["spec"]["devices"].as_array());
    let mut rails: Vec<Rail> = vec![];
    for rail in devices.flatten().filter_map(rail) {
        if rails.iter().all(|it| it.netdev != rail.netdev) {
            rails.push(rail);
        }
    }
    rails
}

fn rail(device: &Value) -> Option<Rail> {
    let attributes = &device["attributes"];
    let text = |name: &str| attributes[name]["string"].as_str();
    let place = (
        text("resource")?.to_owned(),
        attributes["rail"]["int"].as_i64()?,
    );
    let addresses = ["ipv6Address", "ipv4Address"].map(text);
    let addresses = addresses.into_iter().flatten().map(str::parse::<IpAddr>);
    let netdev = text("bond").or(text("netdev"))?.to_owned();
    let device = text("rdmaDevice").map(str::to_owned);
    Some(Rail {
        mac: text("hardwareAddress").and_then(|it| it.parse().ok()),
        place: Some(place),
        ..Rail::new(netdev, device, addresses.collect::<Result<_, _>>().ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn device(number: u32, resource: &str, address: Option<&str>) -> Value {
        let mut device = json!({"name": "x", "attributes": {
            "resource": {"string": resource}, "scope": {"string": "nic"}, "rail": {"int": number},
            "rdmaDevice": {"string": format!("mlx5_{number}")},
            "netdev": {"string": format!("ens{number}")},
        }});
        if let Some(address) = address {
            device["attributes"]["ipv6Address"] = json!({"string": address});
        }
        device
    }

    #[test]
    fn rails_are_nics_and_count_once() {
        let all = json!({"name": "rdma-hca-all", "attributes": {"resource": {"string": "rdma/hca"}, "rails": {"int": 2}}});
        let foreign = json!({"name": "gpu-0", "attributes": {"model": {"string": "B200"}}});
        let mut bonded = device(1, "rdma/hca", Some("fd00:1::7"));
        bonded["attributes"]["bond"] = json!({"string": "bond0"});
        let slice =
            |node: &str, devices: Value| json!({"spec": {"nodeName": node, "devices": devices}});
        let list = json!({"items": [
            slice("a", json!([all, device(0, "rdma/hca", Some("fd00::7")), bonded])),
            slice("a", json!([foreign, device(0, "rdma/nic", Some("fd00::7")), device(2, "rdma/hca", None)])),
            slice("a", json!([device(3, "rdma/hca", Some("fd00::/64"))])),
            slice("b", json!([device(4, "rdma/hca", Some("fd00::8"))])),
        ]});
        let found = rails_of(&list, "a");
        let found: Vec<_> = found
            .iter()
            .map(|it| {
                let (resource, number) = it.place.as_ref().expect("a place");
                (&**resource, *number, &*it.netdev, &it.addresses[..])
            })
            .collect();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(
            found,
            [
                ("rdma/hca", 0, "ens0", &[address("fd00::7")][..]),
                ("rdma/hca", 1, "bond0", &[address("fd00:1::7")][..]),
                // keep a rail without an address, because a lost address is a fault that `ping` must report
                ("rdma/hca", 2, "ens2", &[]),
            ]
        );
    }

    #[test]
    fn without_a_token_the_error_has_a_remedy() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = Nodes::read(directory.path(), "a").err().expect("no access");
        let text = error.to_string();
        assert!(
            text.starts_with("cannot query the API server for rails of nodes: "),
            "{text}"
        );
        assert!(
            text.ends_with(
                "or ping the addresses of the rails; to ping a pod, write NAMESPACE/NAME"
            ),
            "{text}"
        );
    }
}
