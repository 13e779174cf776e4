// SPDX-License-Identifier: Apache-2.0
//! Rails of nodes in the API server. Each node has one ConfigMap. The ConfigMap's label is the node's group, which
//! derives from the node's name.

use super::{FabricRail, choice::hash, watch::Peer};
use crate::rails::is_link_local;
use kubernetes_api::{Client, Method, RequestError};
use rdma_netns::linux::seconds_since_boot;
use serde_json::{Value, json};
use std::sync::Arc;

/// Part of a ConfigMap's name before the node's name.
const PREFIX: &str = "rdma-fabric-";
/// Label with the node's group.
const GROUP: &str = "rdma-fabric-group";
/// Label of the ConfigMaps of nodes with unreachable rails.
const UNREACHABLE: &str = "rdma-fabric-unreachable";
/// Key of a number in the ConfigMap. While a rail of the node is unreachable, the node's watch changes this number
/// before each list of its peers.
const RENEWAL: &str = "renewal";
/// Largest number of a node's rails that other nodes read from the ConfigMap.
const MOST_RAILS: usize = 64;

/// Node of this watch, and its access to the API server.
#[derive(Debug)]
pub struct Account {
    /// Client with the token of the watch's pod.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// UID of the Node object, which is the owner of the ConfigMap.
    pub node_uid: Option<String>,
    /// Namespace of the ConfigMaps.
    pub namespace: String,
}

impl Account {
    fn collection(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    /// Writes the ConfigMap of this node. The API server stores nothing if the content is unchanged and no rail is
    /// unreachable.
    ///
    /// # Errors
    /// The API server does not answer, or refuses the request.
    pub(super) async fn publish(
        &self,
        group: u32,
        rails: &[FabricRail],
    ) -> Result<(), RequestError> {
        let node = (&*self.node, self.node_uid.as_deref());
        let renewal = seconds_since_boot().unwrap_or_default();
        let object = object(node, &self.namespace, group, rails, renewal);
        let collection = self.collection();
        let path = format!("{collection}/{PREFIX}{}", self.node);
        match self.client.ask(Method::PUT, &path, Some(&object)).await {
            Err(error) if error.code() == Some(404) => {
                let made = self.client.ask(Method::POST, &collection, Some(&object));
                made.await.map(drop)
            }
            written => written.map(drop),
        }
    }

    /// Lists the nodes of `groups`. Requests an answer from the API server's cache, without a query to etcd
    /// (`resourceVersion=0`).
    ///
    /// # Errors
    /// The API server does not answer, or refuses the request.
    pub(super) async fn list(&self, groups: &[u32]) -> Result<Vec<Arc<Peer>>, RequestError> {
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let selector = format!("{GROUP}%20in%20({})", groups.join(","));
        self.selected(&selector).await
    }

    /// Lists the nodes with unreachable rails. The list can be old. If it contains a verdict of this node, the list is
    /// at least as new as this verdict.
    ///
    /// # Errors
    /// The API server does not answer, or refuses the request.
    pub(super) async fn unreachable(&self) -> Result<Vec<Arc<Peer>>, RequestError> {
        self.selected(UNREACHABLE).await
    }

    async fn selected(&self, selector: &str) -> Result<Vec<Arc<Peer>>, RequestError> {
        let collection = self.collection();
        let path = format!("{collection}?labelSelector={selector}&resourceVersion=0");
        let list = self.client.ask(Method::GET, &path, None).await?;
        let items = list["items"].as_array().into_iter().flatten();
        Ok(items.filter_map(peer).map(Arc::new).collect())
    }
}

/// Returns the ConfigMap of the node with this name and UID. The ConfigMap contains `renewal` if a rail is unreachable.
fn object(
    (node, uid): (&str, Option<&str>),
    namespace: &str,
    group: u32,
    rails: &[FabricRail],
    renewal: u64,
) -> Value {
    let mut data = json!({"rails": json!(rails).to_string()});
    let mut metadata = json!({
        "name": format!("{PREFIX}{node}"),
        "namespace": namespace,
        "labels": {GROUP: group.to_string()},
    });
    if rails.iter().any(|it| it.is_unreachable) {
        metadata["labels"][UNREACHABLE] = json!("true");
        data[RENEWAL] = json!(renewal.to_string());
    }
    if let Some(uid) = uid {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid});
        metadata["ownerReferences"] = json!([owner]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": data,
    })
}

/// Returns the node that a ConfigMap describes. Returns `None` if the ConfigMap has another purpose, or if it has the
/// format of another version of the watch.
fn peer(object: &Value) -> Option<Peer> {
    let node = object["metadata"]["name"].as_str()?.strip_prefix(PREFIX)?;
    let mut rails: Vec<FabricRail> =
        serde_json::from_str(object["data"]["rails"].as_str()?).ok()?;
    rails.truncate(MOST_RAILS);
    for rail in &mut rails {
        rail.addresses.retain(|it| !is_link_local(*it));
    }
    let renewal = object["data"][RENEWAL].as_str();
    Some(Peer {
        node: node.to_owned(),
        hash: hash(node),
        rails,
        renewal: renewal.and_then(|it| it.parse().ok()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail() -> FabricRail {
        FabricRail {
            resource: "rdma/hca".to_owned(),
            number: 3,
            device: "mlx5_3".to_owned(),
            addresses: vec!["fd00:3::7".parse().expect("an address")],
            is_unreachable: false,
        }
    }

    #[test]
    fn a_config_map_comes_back_and_another_one_is_no_node() {
        let mut object = object(("node-1", Some("0-1")), "kube-system", 17, &[rail()], 5);
        assert_eq!(object["metadata"]["labels"][GROUP], "17");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "0-1");
        let found = peer(&object).expect("a node");
        assert_eq!((found.hash, found.rails), (hash("node-1"), vec![rail()]));
        assert_eq!((&*found.node, found.renewal), ("node-1", 0));
        assert_eq!(object["metadata"]["labels"][UNREACHABLE], Value::Null);
        let lost = FabricRail {
            is_unreachable: true,
            ..rail()
        };
        let marked = super::object(
            ("node-1", None),
            "kube-system",
            17,
            std::slice::from_ref(&lost),
            5,
        );
        assert_eq!(marked["metadata"]["labels"][UNREACHABLE], "true");
        let found = peer(&marked).expect("a node");
        assert_eq!((found.rails, found.renewal), (vec![lost], 5));
        // a link-local address does not show the netdev to use
        object["data"]["rails"] =
            json!([{"resource": "rdma/hca", "number": 0, "device": "mlx5_0", "addresses": ["fe80::1", "10.0.0.1"]}])
                .to_string()
                .into();
        let found = peer(&object).expect("a node").rails.remove(0).addresses;
        assert_eq!(
            found,
            ["10.0.0.1".parse::<std::net::IpAddr>().expect("an address")]
        );
        object["data"]["rails"] = "[{]".into();
        assert!(peer(&object).is_none());
        assert!(peer(&json!({"metadata": {"name": "kube-root-ca.crt"}})).is_none());
    }
}
