// SPDX-License-Identifier: Apache-2.0
//! What has to be known of a pod before it may be deleted.

use serde_json::Value;

/// Kubelet's mark on what stands for a static pod (`ConfigMirrorAnnotationKey` in
/// `pkg/kubelet/types`).
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// What tells it from another one of its name.
    pub uid: String,
    /// Where it is.
    pub node: String,
    /// By the API server's clock, as it writes it (`2026-01-31T10:00:00Z`): later is greater.
    pub created: String,
    /// Who makes another one when it is gone.
    pub owner: Option<Owner>,
    /// It stands for a static pod, which is its kubelet's: to delete it changes nothing there.
    pub is_mirror: bool,
}

/// A pod's controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// What tells it from another one of its name.
    pub uid: String,
    /// `ReplicaSet`
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Pod {
    /// Of the API server's object; none: it is no pod.
    pub fn read(object: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &object["metadata"];
        let owners = metadata["ownerReferences"].as_array();
        let controller = owners.and_then(|all| all.iter().find(|it| it["controller"] == true));
        let owner = controller.and_then(|it| {
            Some(Owner {
                uid: text(&it["uid"])?,
                kind: text(&it["kind"])?,
                name: text(&it["name"])?,
            })
        });
        Some(Self {
            uid: text(&metadata["uid"])?,
            node: text(&object["spec"]["nodeName"]).unwrap_or_default(),
            created: text(&metadata["creationTimestamp"])?,
            is_mirror: !metadata["annotations"][MIRROR].is_null()
                || owner.as_ref().is_some_and(|it| it.kind == "Node"),
            owner,
        })
    }

    /// Why it stays, whatever it was refused for; `node` is the one that this is.
    pub fn stays(&self, node: &str) -> Option<&'static str> {
        if self.node != node {
            Some("a pod of this name is on another node")
        } else if self.is_mirror {
            Some("it is a static pod: move its manifest away and back")
        } else if self.owner.is_none() {
            Some("no controller would make another: delete it, and make it again")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(owners: Value, annotations: Value) -> Pod {
        let object = json!({
            "metadata": {
                "uid": "u1", "creationTimestamp": "2026-01-31T10:00:00Z",
                "ownerReferences": owners, "annotations": annotations,
            },
            "spec": {"nodeName": "rdma-1"},
        });
        Pod::read(&object).expect("a pod")
    }

    fn owner(kind: &str, controller: bool) -> Value {
        json!({"kind": kind, "name": "it", "uid": "o1", "controller": controller})
    }

    #[test]
    fn only_what_a_controller_makes_anew_is_deleted() {
        let set = pod(
            json!([owner("Other", false), owner("ReplicaSet", true)]),
            json!({}),
        );
        assert_eq!(
            set.owner.as_ref().map(|it| it.kind.as_str()),
            Some("ReplicaSet")
        );
        assert_eq!(set.stays("rdma-1"), None);
        for (pod, why) in [
            (pod(json!(null), json!(null)), "no controller"),
            (pod(json!([]), json!({})), "no controller"),
            (
                pod(json!([owner("Workflow", false)]), json!({})),
                "no controller",
            ),
            (pod(json!([owner("Node", true)]), json!({})), "static"),
            (
                pod(json!([owner("ReplicaSet", true)]), json!({MIRROR: "1"})),
                "static",
            ),
        ] {
            let said = pod.stays("rdma-1").expect("it stays");
            assert!(said.contains(why), "{said}");
        }
        let said = set.stays("rdma-2").expect("it stays");
        assert!(said.contains("another node"), "{said}");
    }

    #[test]
    fn what_is_no_pod_is_none() {
        for object in [
            json!({}),
            json!(null),
            json!({"kind": "Status", "metadata": {}}),
        ] {
            assert_eq!(Pod::read(&object), None);
        }
    }
}
