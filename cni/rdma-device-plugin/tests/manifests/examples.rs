// SPDX-License-Identifier: Apache-2.0
//! Tests of the pods in `conf/examples`.

use crate::{
    cluster::{arguments, cluster},
    documents, root,
    wanted::{ALL, BONDS, WHOLE_NICS},
    yaml_files,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use node_state::ipv6_prerequisite::parents;
use offer::{PreviousOffers, offers};
use rdma_device_plugin::cli::{Arguments, Command};
use rdma_netns::Inventory;
use rdma_ping::Place;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Returns the pods that a file's objects make. Ignores networks and services.
fn pods(file: &Path) -> Vec<Pod> {
    let objects = documents(file).into_iter();
    objects
        .filter_map(|object| {
            let pod = match object["kind"].as_str()? {
                "Pod" => object,
                "Job" | "Deployment" | "StatefulSet" => object["spec"]["template"].clone(),
                "Service" | "NetworkAttachmentDefinition" | "ResourceClaimTemplate" => return None,
                other => panic!("{file:?}: a {other}"),
            };
            Some(serde_json::from_value(pod).unwrap_or_else(|error| panic!("{file:?}: {error}")))
        })
        .collect()
}

fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().expect("spec")
}

/// Returns the resources of this project that a container requests, with the quantities.
fn requests(container: &Container) -> BTreeMap<String, String> {
    let resources = container.resources.as_ref();
    let limits = resources
        .and_then(|it| it.limits.clone())
        .unwrap_or_default();
    limits
        .into_iter()
        .filter(|(name, _)| name.starts_with("rdma/") || name.starts_with("aliyun/"))
        .map(|(name, quantity)| (name, quantity.0))
        .collect()
}

fn all() -> Vec<(PathBuf, Vec<Pod>)> {
    let files = yaml_files("conf/examples").into_iter();
    files.map(|file| (file.clone(), pods(&file))).collect()
}

fn on_the_host(file: &Path) -> bool {
    let name = file
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    name.ends_with("-host-network")
}

#[test]
fn examples_request_what_a_cluster_has() {
    let manifests = ALL
        .iter()
        .filter(|it| it.file.starts_with("conf/manifests/"));
    let offered: BTreeSet<String> = manifests
        .flat_map(|it| cluster(it.file).conf().0.resources)
        .map(|resource| resource.name.to_string())
        .collect();
    let mut wanted = BTreeSet::new();
    for (file, pods) in all() {
        for pod in &pods {
            let requested: Vec<_> = spec(pod).containers.iter().map(requests).collect();
            if spec(pod).resource_claims.is_some() {
                assert!(
                    requested.iter().all(BTreeMap::is_empty),
                    "{file:?} asks twice"
                );
                continue;
            }
            assert!(
                requested.iter().any(|it| !it.is_empty()),
                "{file:?} asks for nothing"
            );
            // all ids of a resource other than `rdma/nic` have the same devices
            let expected = |name: &str| if name == "rdma/nic" { "8" } else { "1" };
            let mut all = requested.iter().flatten();
            assert!(
                all.all(|(name, quantity)| quantity == expected(name)),
                "{file:?}"
            );
            wanted.extend(requested.into_iter().flatten().map(|(name, _)| name));
        }
    }
    assert_eq!(wanted, offered);
}

#[test]
fn the_hosts_network_is_used_by_the_examples_of_that_name() {
    let mut on_host = 0;
    for (file, pods) in all() {
        for pod in &pods {
            assert_eq!(
                spec(pod).host_network == Some(true),
                on_the_host(&file),
                "{file:?}"
            );
        }
        on_host += usize::from(on_the_host(&file));
    }
    assert_eq!(on_host, 3, "examples with hostNetwork");
}

/// Claims of the examples name classes of the chart, or classes of GPU drivers.
#[test]
fn claims_are_of_classes_that_the_chart_makes() {
    let files = [crate::claims::SHARED, crate::claims::OF_WHOLE_NICS];
    let made = files.map(crate::claims::classes).concat();
    let templates = all().into_iter().flat_map(|(file, _)| documents(&file));
    let templates = templates.filter(|it| it["kind"] == "ResourceClaimTemplate");
    let mut ours = 0;
    for template in templates {
        let requests = template["spec"]["spec"]["devices"]["requests"].clone();
        for request in requests.as_array().expect("requests") {
            let class = request["exactly"]["deviceClassName"].as_str();
            let class = class.expect("a class").to_owned();
            ours += usize::from(made.contains(&class));
            assert!(
                made.contains(&class) || class.starts_with("gpu."),
                "{class}"
            );
        }
    }
    assert_eq!(ours, 3);
}

/// Examples of other projects have privileged pods. Without hostNetwork, no pod needs privileges.
#[test]
fn pods_with_a_network_of_their_own_need_no_privilege() {
    let mut seen = 0;
    for (file, pods) in all() {
        if on_the_host(&file) {
            continue;
        }
        for container in pods.iter().flat_map(|pod| &spec(pod).containers) {
            let context = container.security_context.as_ref();
            assert_eq!(context.and_then(|it| it.privileged), None, "{file:?}");
            seen += 1;
        }
    }
    assert!(seen > 7, "{seen} containers");
}

/// A program that registers memory itself must be able to lock memory. With SMC and `ping`, the kernel registers
/// memory.
#[test]
fn programs_that_register_memory_may_lock_it() {
    for (file, pods) in all() {
        for pod in &pods {
            let annotations = pod.metadata.annotations.as_ref();
            let smc = annotations
                .is_some_and(|it| it.contains_key("network.alibabacloud.com/erdma-smcr"));
            for container in &spec(pod).containers {
                let pings = command(container).is_some();
                let context = container.security_context.as_ref();
                let privileged = context.and_then(|it| it.privileged) == Some(true);
                let added = context.and_then(|it| it.capabilities.as_ref()?.add.as_ref());
                let locks = added.is_some_and(|it| it.iter().any(|name| name == "IPC_LOCK"));
                assert!(smc || pings || privileged || locks, "{file:?}");
            }
        }
    }
}

#[test]
fn smc_r_is_requested_as_the_chain_reads_it() {
    let annotated = all()
        .into_iter()
        .flat_map(|(_, pods)| pods)
        .filter_map(|pod| {
            let annotations = pod.metadata.annotations?;
            annotations
                .get("network.alibabacloud.com/erdma-smcr")
                .cloned()
        });
    assert_eq!(annotated.collect::<Vec<_>>(), ["true"]);
}

/// Exclusive bonds, as in `docs/drop-in.md`: the rendered manifest has the values of the page, the daemon offers both
/// bonds of a node, and the chain waits for the bonds' addresses.
#[test]
fn the_values_of_the_exclusive_mode_are_those_of_the_page() {
    let page = fs::read_to_string(root().join("docs/drop-in.md")).expect("the page");
    let section = page.split("### Exclusive mode").nth(1).expect("a section");
    let block = section.split("```yaml").nth(1).expect("values");
    let block = block.split("```").next().expect("their end");
    let documented: Value = serde_saphyr::from_str(block).expect("YAML");
    let values = "integration/manifests/values/bonds-of-one-pod-each.yaml";
    assert_eq!(documents(&root().join(values)), [documented]);

    let cluster = cluster(BONDS);
    let conf = cluster.conf().0;
    let bonds = "cni/rdma-device-plugin/tests/nodes/lacp-bonds/node.json";
    let bonds: Inventory = cases::read_as(&root().join(bonds));
    let before = PreviousOffers::default();
    let (offers, remarks) = offers(&conf, &bonds, &[].into(), &[].into(), &before);
    assert_eq!(remarks, [] as [&str; 0]);
    let ids = offers.iter().flat_map(|it| &it.ids);
    let ids: Vec<_> = ids.map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["0000:3b:00.0", "0000:5e:00.0"]);
    let waited_for = parents(conf.chain.as_ref(), &offers, &bonds);
    let rdma: Vec<_> = waited_for.iter().map(|it| it.rdma.as_str()).collect();
    assert_eq!(rdma, ["mlx5_bond_0", "mlx5_bond_1"]);
}

/// A pod of the example requests as many NICs as the manifest for whole NICs offers on a node with eight GPUs. A node
/// gets at most one of the pods.
#[test]
fn a_whole_node_pod_requests_all_nics_of_its_node() {
    let conf = cluster(WHOLE_NICS).conf().0;
    let node = "cni/rdma-device-plugin/tests/nodes/hgx-h100/node.json";
    let node: Inventory = cases::read_as(&root().join(node));
    let before = PreviousOffers::default();
    let (offers, remarks) = offers(&conf, &node, &[].into(), &[].into(), &before);
    assert_eq!(remarks, [] as [&str; 0]);
    let [nics] = &offers[..] else {
        panic!("{} resources", offers.len())
    };
    let [pod] = &pods(&root().join("conf/examples/80-whole-node-training.yaml"))[..] else {
        panic!("not one template")
    };
    let requested = requests(&spec(pod).containers[0]);
    assert_eq!(requested["rdma/nic"], nics.ids.len().to_string());
    assert!(is_one_on_each_node(pod));
}

/// Returns true if the scheduler places at most one pod with the labels of `pod` on a node.
fn is_one_on_each_node(pod: &Pod) -> bool {
    let affinity = spec(pod).affinity.as_ref();
    let apart = affinity.and_then(|it| it.pod_anti_affinity.as_ref());
    let required = apart.and_then(|it| {
        it.required_during_scheduling_ignored_during_execution
            .as_deref()
    });
    let labels = pod.metadata.labels.as_ref();
    required.is_some_and(|it| {
        it.iter().any(|term| {
            let selector = term.label_selector.as_ref();
            term.topology_key == "kubernetes.io/hostname"
                && selector.and_then(|it| it.match_labels.as_ref()) == labels
        })
    })
}

/// Returns the arguments of a container with the image of this project. Returns `None` for another image.
fn command(container: &Container) -> Option<Arguments> {
    let image = container.image.as_ref()?;
    image.starts_with("rdma-device-plugin:").then(|| {
        let parsed = arguments(container);
        parsed.unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Two pods on two nodes run the image of the manifests, find each other by the headless Service, and need no
/// privileges.
#[test]
fn the_verification_is_of_two_pods_that_find_each_other() {
    let file = root().join("conf/examples/verify.yaml");
    let service = &documents(&file)[0];
    assert_eq!(service["spec"]["clusterIP"], "None");
    let [one, two] = &pods(&file)[..] else {
        panic!("not two pods")
    };
    assert_eq!(one.spec, two.spec);
    for pod in [one, two] {
        assert!(is_one_on_each_node(pod));
        // without a key, the scheduler may choose a node that is cordoned or not ready
        let tolerations = spec(pod).tolerations.iter().flatten();
        let keys: Vec<_> = tolerations.map(|it| it.key.as_deref()).collect();
        assert_eq!(keys, [Some("nvidia.com/gpu")]);
        let labels = serde_json::to_value(&pod.metadata.labels).expect("JSON");
        assert_eq!(service["spec"]["selector"], labels);
        assert_eq!(spec(pod).restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec(pod).automount_service_account_token, Some(false));
        let [container] = &spec(pod).containers[..] else {
            panic!("not one container")
        };
        assert_eq!(
            container.image,
            cluster("conf/manifests/hca.yaml").daemon().image
        );
        let context = container.security_context.as_ref().expect("a context");
        assert_eq!(context.capabilities, None);
        assert_eq!(context.allow_privilege_escalation, Some(false));
        let Some(Command::Ping(ping)) = command(container).expect("our image").command else {
            panic!("{:?}", container.args)
        };
        let name = service["metadata"]["name"].as_str().expect("a name");
        let place: Place = format!("{name}:7471").parse().expect("a place");
        assert_eq!(ping.exchange, Some(place));
        assert!(ping.targets.is_empty());
    }
}

/// A missing file would pass all tests above.
#[test]
fn there_are_examples_for_every_scenario() {
    let names: Vec<_> = yaml_files("conf/examples")
        .iter()
        .map(|file| {
            let below = file
                .strip_prefix(root().join("conf/examples"))
                .expect("below");
            below.display().to_string()
        })
        .collect();
    assert_eq!(
        names,
        [
            "10-bandwidth-host-network.yaml",
            "10-bandwidth.yaml",
            "20-lingjun-host-network.yaml",
            "20-lingjun.yaml",
            "30-erdma.yaml",
            "40-erdma-nccl-host-network.yaml",
            "40-erdma-nccl.yaml",
            "50-erdma-smc-r.yaml",
            "60-exclusive-vf.yaml",
            "70-gpu-and-nic-by-claim.yaml",
            "80-whole-node-training.yaml",
            "81-whole-nics-by-claim.yaml",
            "multus/10-every-rail.yaml",
            "multus/20-vf.yaml",
            "multus/30-behind-sriov-cni.yaml",
            "verify.yaml",
        ]
    );
}

/// An example with hostNetwork has pods of the same names as the example without it.
#[test]
fn both_ways_are_of_the_same_pods() {
    for file in yaml_files("conf/examples") {
        if !on_the_host(&file) {
            continue;
        }
        let other = file.to_string_lossy().replace("-host-network", "");
        let names = |file: &Path| -> Vec<Value> {
            let pods = documents(file)
                .into_iter()
                .filter(|it| it["kind"] != "Service");
            pods.map(|it| it["metadata"]["name"].clone()).collect()
        };
        assert_eq!(names(&file), names(Path::new(&other)), "{file:?}");
    }
}
