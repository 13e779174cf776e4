// SPDX-License-Identifier: Apache-2.0

use super::*;
use k8s_openapi::api::core::v1::Pod;

fn daemon() -> Daemon {
    let manifest = include_str!("../../../../conf/manifests/lingjun.yaml");
    let mut documents = manifest.split("\n---\n");
    let daemon_set = documents.find(|it| it.contains("kind: DaemonSet"));
    let daemon_set: Value = serde_saphyr::from_str(daemon_set.expect("a DaemonSet")).expect("YAML");
    let mut pod = daemon_set["spec"]["template"].clone();
    pod["metadata"]["name"] = "ack-rdma-dp-ds-x".into();
    pod["metadata"]["uid"] = "u-1".into();
    pod["spec"]["nodeName"] = "node-1".into();
    Daemon(pod)
}

#[test]
fn the_pod_has_the_daemons_image_and_view_on_its_node() {
    let arguments = ["ping".to_owned(), "fd00::7".to_owned()];
    let made: Pod = serde_json::from_value(pod(&daemon(), &arguments)).expect("a pod");
    let owners = made.metadata.owner_references.expect("an owner");
    assert_eq!(
        (owners[0].name.as_str(), owners[0].uid.as_str()),
        ("ack-rdma-dp-ds-x", "u-1")
    );
    let spec = made.spec.expect("spec");
    assert_eq!(spec.node_name.as_deref(), Some("node-1"));
    let volumes = spec.volumes.expect("volumes");
    let paths = volumes
        .iter()
        .map(|it| it.host_path.as_ref().map(|it| &*it.path));
    assert_eq!(
        paths.collect::<Vec<_>>(),
        [Some("/var/lib/cni/rdma-cni"), Some("/run/netns")]
    );
    let container = &spec.containers[0];
    assert_eq!(container.args.as_deref(), Some(&arguments[..]));
    assert!(
        container
            .image
            .as_ref()
            .is_some_and(|it| it.starts_with("rdma-device-plugin:"))
    );
    let mounts = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|it| &*it.mount_path);
    assert_eq!(
        mounts.collect::<Vec<_>>(),
        ["/var/lib/cni/rdma-cni", "/run/netns"]
    );
}
