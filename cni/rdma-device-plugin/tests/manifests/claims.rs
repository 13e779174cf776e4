// SPDX-License-Identifier: Apache-2.0
//! Tests of resources that claims allocate: the daemon's configuration, and its permissions.

use crate::cluster::cluster;
use daemon_conf::{Conf, dra::DRIVER};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) const SHARED: &str = "integration/manifests/rendered/claims.yaml";
pub(crate) const OF_ANOTHER_NAME: &str =
    "integration/manifests/rendered/claims-of-another-name.yaml";
pub(crate) const OF_ERDMA: &str = "integration/manifests/rendered/claims-of-erdma.yaml";
pub(crate) const OF_VFS: &str = "integration/manifests/rendered/claims-of-vfs.yaml";
pub(crate) const OF_MOVED_VFS: &str = "integration/manifests/rendered/claims-of-moved-vfs.yaml";

pub(crate) const OF_WHOLE_NICS: &str = "integration/manifests/rendered/claims-of-whole-nics.yaml";

fn named<'a>(objects: &'a [Value], kind: &str, part: &str) -> Vec<&'a Value> {
    let is_it = |it: &&Value| {
        let name = it["metadata"]["name"].as_str().expect("a name");
        it["kind"] == kind && name.contains(part)
    };
    objects.iter().filter(is_it).collect()
}

pub(crate) fn classes(file: &'static str) -> Vec<String> {
    let objects = cluster(file).others;
    let made = named(&objects, "DeviceClass", "");
    let name = |it: &&Value| it["metadata"]["name"].as_str().expect("a name").to_owned();
    made.iter().map(name).collect()
}

#[test]
fn the_daemon_serves_the_resources_of_the_classes() {
    for (file, driver, resource, classes) in [
        (
            SHARED,
            DRIVER,
            "rdma/hca",
            ["rdma-hca", "rdma-hca-nic"].as_slice(),
        ),
        (OF_VFS, "nic.example.org", "rdma/vf", &["rdma-vf"]),
        (OF_MOVED_VFS, DRIVER, "rdma/vf", &["rdma-vf"]),
        (OF_WHOLE_NICS, DRIVER, "rdma/nic", &["rdma-nic"]),
        (
            OF_ERDMA,
            DRIVER,
            "aliyun/erdma",
            &["aliyun-erdma", "aliyun-erdma-nic"],
        ),
        (
            OF_ANOTHER_NAME,
            DRIVER,
            "example.com/hca_8",
            &["example.com-hca-8", "example.com-hca-8-nic"],
        ),
    ] {
        let cluster = cluster(file);
        let data = cluster.config_map.data.as_ref().expect("data");
        let conf = Conf::parse(&data["config.json"], Path::new("config.json"));
        let conf = conf.unwrap_or_else(|error| panic!("{file}: {error}")).conf;
        let dra = conf.dra.expect("dra");
        assert_eq!(dra.driver, driver);
        assert_eq!(dra.metadata, file == OF_ANOTHER_NAME);
        // the chart assigns all resources to claims
        assert!(dra.serves(resource) && dra.resources.is_none(), "{dra:?}");
        assert_eq!(self::classes(file), classes);
        for class in named(&cluster.others, "DeviceClass", "") {
            let selector = class["spec"]["selectors"][0]["cel"]["expression"].as_str();
            let selector = selector.expect("a selector");
            for words in [driver, resource] {
                assert!(selector.contains(&format!("\"{words}\"")), "{selector}");
            }
        }
        let mounts = cluster.pod().containers[0].volume_mounts.iter().flatten();
        let mounts: Vec<&str> = mounts.map(|it| &*it.mount_path).collect();
        let kubelet = "/var/lib/kubelet";
        for path in [
            format!("{kubelet}/plugins_registry"),
            format!("{kubelet}/plugins/{driver}"),
            "/var/run/cdi".to_owned(),
        ] {
            assert!(mounts.contains(&&*path), "{file}: {path}");
        }
    }
    // the API server for which this file is rendered ignores `extendedResourceName`
    let class = &named(&cluster(OF_VFS).others, "DeviceClass", "")[0]["spec"].clone();
    assert_eq!(class["extendedResourceName"], Value::Null);
    for (file, resource) in [(SHARED, "rdma/hca"), (OF_ERDMA, "aliyun/erdma")] {
        let class = &named(&cluster(file).others, "DeviceClass", "")[0]["spec"].clone();
        assert_eq!(class["extendedResourceName"], resource);
    }
}

#[test]
fn the_role_is_the_smallest() {
    for (file, driver) in [
        (SHARED, DRIVER),
        (OF_VFS, "nic.example.org"),
        (OF_MOVED_VFS, DRIVER),
        (OF_WHOLE_NICS, DRIVER),
    ] {
        let objects = cluster(file).others;
        let rules = json!([
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
            {
                "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"],
                "verbs": ["update"],
            },
            {
                "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"],
                "resourceNames": [driver], "verbs": ["associated-node:update"],
            },
            {
                "apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
                "verbs": ["list", "watch", "create", "update", "delete"],
            },
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        ]);
        let roles = named(&objects, "ClusterRole", "-dra.");
        assert_eq!((roles.len(), &roles[0]["rules"]), (1, &rules), "{file}");
        let subject = json!([{
            "kind": "ServiceAccount", "name": "rdma-device-plugin", "namespace": "kube-system",
        }]);
        let bindings = named(&objects, "ClusterRoleBinding", "-dra.");
        assert_eq!((bindings.len(), &bindings[0]["subjects"]), (1, &subject));
        // there is one account for all purposes
        assert_eq!(named(&objects, "ServiceAccount", "").len(), 1, "{file}");
        let policies = named(&objects, "ValidatingAdmissionPolicy", "-dra.");
        let bound = named(&objects, "ValidatingAdmissionPolicyBinding", "-dra.");
        assert_eq!((policies.len(), bound.len()), (2, 2));
        for (policy, bound) in policies.iter().zip(bound) {
            assert_eq!(policy["spec"]["failurePolicy"], "Fail");
            assert_eq!(bound["spec"]["validationActions"], json!(["Deny"]));
            assert_eq!(bound["spec"]["policyName"], policy["metadata"]["name"]);
        }
    }
}
