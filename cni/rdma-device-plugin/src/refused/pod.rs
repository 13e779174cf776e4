// SPDX-License-Identifier: Apache-2.0
//! Attributes of a pod by which the daemon decides whether to delete it.

use serde_json::Value;

/// Annotation of a static pod's mirror pod (`ConfigMirrorAnnotationKey` in `pkg/kubelet/types`).
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Attributes of a pod in the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// UID, which distinguishes pods with the same name.
    pub uid: String,
    /// Name of the pod's node.
    pub node: String,
    /// Creation time in the API server's format (`2026-01-31T10:00:00Z`), in which texts sort by time.
    pub created: String,
    /// Controller that makes another pod after this pod was deleted.
    pub owner: Option<Owner>,
    /// True for the mirror pod of a static pod. Only kubelet manages the static pod, so deleting the mirror pod has no
    /// effect.
    pub is_mirror: bool,
}

/// Controller of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// UID, which distinguishes owners with the same name.
    pub uid: String,
    /// Kind of the owner, such as `ReplicaSet`.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
}

impl Pod {
    /// Parses a pod object of the API server. Returns `None` if the object has no UID or no creation time.
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

    /// Returns the reason why the daemon never deletes the pod, or `None` if it may delete the pod. `node` is the
    /// daemon's node.
    pub fn stays(&self, node: &str) -> Option<&'static str> {
        if self.node != node {
            Some("a pod of this name is on another node")
        } else if self.is_mirror {
            Some("it is a static pod: move its manifest out of the manifest directory and back")
        } else if self.owner.is_none() {
            Some("it has no controller that would replace it: delete it, and create it again")
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
    fn only_pods_of_a_controller_are_deleted() {
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
            let reason = pod.stays("rdma-1").expect("it stays");
            assert!(reason.contains(why), "{reason}");
        }
        let reason = set.stays("rdma-2").expect("it stays");
        assert!(reason.contains("another node"), "{reason}");
    }

    #[test]
    fn other_objects_are_no_pods() {
        for object in [
            json!({}),
            json!(null),
            json!({"kind": "Status", "metadata": {}}),
        ] {
            assert_eq!(Pod::read(&object), None);
        }
    }
}
