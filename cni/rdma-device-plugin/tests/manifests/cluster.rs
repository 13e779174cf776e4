// SPDX-License-Identifier: Apache-2.0
//! Tests of DaemonSet and ConfigMap for each kind of nodes: names, resources and permissions.

use crate::{
    chain, claims, documents, platforms, refused, report, root,
    wanted::{ALL, LOADING, OTHER_NODES},
    yaml_files,
};
use clap::Parser;
use daemon_conf::{Conf, Lldp};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Capabilities, ConfigMap, Container, PodSpec},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::{self, Int};
use rdma_device_plugin::{
    cli::{Arguments, Command},
    probes::ask::Question,
};
use serde_json::Value;
use std::{ffi::OsString, path::Path};

/// Objects of one file.
pub(crate) struct Cluster {
    pub(crate) file: &'static str,
    pub(crate) config_map: ConfigMap,
    pub(crate) daemon_set: DaemonSet,
    /// All other objects of the file.
    pub(crate) others: Vec<Value>,
}

/// Addresses that kubelet can put into arguments, one of each family: the manifest must work with both families.
const NODE_ADDRESSES: [&str; 2] = ["192.0.2.7", "2001:db8::7"];

pub(crate) fn cluster(file: &'static str) -> Cluster {
    let mut objects = documents(&root().join(file)).into_iter();
    let mut next = || {
        objects
            .next()
            .unwrap_or_else(|| panic!("{file}: two objects"))
    };
    let config_map =
        serde_json::from_value(next()).unwrap_or_else(|error| panic!("{file}: {error}"));
    let daemon_set =
        serde_json::from_value(next()).unwrap_or_else(|error| panic!("{file}: {error}"));
    Cluster {
        file,
        config_map,
        daemon_set,
        others: objects.collect(),
    }
}

impl Cluster {
    pub(crate) fn pod(&self) -> &PodSpec {
        let template = &self.daemon_set.spec.template;
        template.spec.as_ref().expect("a pod")
    }

    /// Returns the daemon's container, which is the only one that is not an init container.
    pub(crate) fn daemon(&self) -> &Container {
        match self.pod().containers.as_slice() {
            [one] => one,
            several => panic!("{}: {} containers", self.file, several.len()),
        }
    }

    pub(crate) fn arguments(&self) -> Arguments {
        arguments(self.daemon()).unwrap_or_else(|error| panic!("{}: {error}", self.file))
    }

    pub(crate) fn config(&self) -> &str {
        &self.config_map.data.as_ref().expect("data")["config.json"]
    }

    /// Returns the configuration as the daemon reads it, and its remarks.
    pub(crate) fn conf(&self) -> (Conf, Vec<String>) {
        let parsed = Conf::parse(self.config(), Path::new("config.json"));
        let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", self.file));
        (parsed.conf, parsed.remarks)
    }
}

pub(crate) fn arguments(container: &Container) -> Result<Arguments, clap::Error> {
    arguments_at(container, NODE_ADDRESSES[1])
}

fn arguments_at(container: &Container, node_address: &str) -> Result<Arguments, clap::Error> {
    let given = container.args.iter().flatten();
    let given = given.map(|it| {
        let given = it.replace("$(NODE_ADDRESS)", node_address);
        given.replace("$(NODE)", "rdma-1").into()
    });
    Arguments::try_parse_from(
        [OsString::from("rdma-device-plugin")]
            .into_iter()
            .chain(given),
    )
}

#[test]
fn there_is_a_test_for_each() {
    let found = ["conf/manifests", "integration/manifests/rendered"]
        .iter()
        .flat_map(|directory| yaml_files(directory));
    let tested = ALL.map(|wanted| root().join(wanted.file));
    // leave out the files that remove an installation: those of the chain, and OpenShift's
    let found = found.filter(|file| {
        let mut all = chain::UNINSTALL
            .iter()
            .chain([&platforms::OPENSHIFT_UNINSTALL]);
        !all.any(|it| file.ends_with(it))
    });
    assert_eq!(found.collect::<Vec<_>>(), tested);
}

#[test]
fn names_are_those_that_users_know() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let map = &cluster.config_map.metadata;
        assert_eq!(map.name.as_deref(), Some("rdma-devices"), "{}", wanted.file);
        assert_eq!(map.namespace.as_deref(), Some("kube-system"));
        let keys: Vec<_> = cluster
            .config_map
            .data
            .iter()
            .flatten()
            .map(|(key, _)| key)
            .collect();
        assert_eq!(keys, ["config.json"]);
        let set = &cluster.daemon_set.metadata;
        assert_eq!(set.name.as_deref(), Some("ack-rdma-dp-ds"));
        assert_eq!(set.namespace.as_deref(), Some("kube-system"));
        let label = "aliyun.accelerator/rdma";
        assert_eq!(
            cluster.pod().node_selector.as_ref().expect("a selector")[label],
            "true"
        );
    }
}

/// Returns the architectures of the nodes that get a pod.
fn architectures(cluster: &Cluster) -> Vec<String> {
    let affinity = cluster.pod().affinity.as_ref();
    let nodes = affinity.and_then(|it| it.node_affinity.as_ref());
    let required = nodes.and_then(|it| {
        it.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let terms = &required.expect("what nodes have to be").node_selector_terms;
    let [term] = terms.as_slice() else {
        panic!("{terms:?}");
    };
    let Some([needed]) = term.match_expressions.as_deref() else {
        panic!("{term:?}");
    };
    assert_eq!(
        (needed.key.as_str(), needed.operator.as_str()),
        ("kubernetes.io/arch", "In")
    );
    needed.values.clone().unwrap_or_default()
}

#[test]
fn nodes_are_those_for_which_the_image_has_programs() {
    for wanted in ALL {
        let expected: &[&str] = match wanted.file {
            // the image is for one architecture
            OTHER_NODES => &["amd64"],
            _ => &["amd64", "arm64"],
        };
        assert_eq!(
            architectures(&cluster(wanted.file)),
            expected,
            "{}",
            wanted.file
        );
    }
}

#[test]
fn the_daemon_set_selects_its_own_pods() {
    for wanted in ALL {
        let spec = cluster(wanted.file).daemon_set.spec;
        let selected = spec.selector.match_labels.expect("labels");
        let labels = spec
            .template
            .metadata
            .and_then(|it| it.labels)
            .expect("labels");
        assert!(!selected.is_empty());
        assert!(
            selected
                .iter()
                .all(|(name, value)| labels.get(name) == Some(value)),
            "{}",
            wanted.file
        );
    }
}

#[test]
fn configurations_come_to_these_resources() {
    for wanted in ALL {
        let (conf, remarks) = cluster(wanted.file).conf();
        let names: Vec<_> = conf
            .resources
            .iter()
            .map(|it| it.name.to_string())
            .collect();
        assert_eq!(names, wanted.resources, "{}", wanted.file);
        assert_eq!(
            remarks.len(),
            wanted.remarks,
            "{}: {remarks:?}",
            wanted.file
        );
    }
}

#[test]
fn nothing_may_do_more_than_it_needs() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let pod = cluster.pod();
        assert_eq!(pod.automount_service_account_token, Some(false));
        let account = match wanted.file {
            OTHER_NODES | refused::BY_ANOTHER_ACCOUNT | report::BY_ANOTHER_ACCOUNT => Some("rdma"),
            refused::FILE
            | claims::SHARED
            | claims::OF_VFS
            | report::FILE
            | claims::OF_ERDMA
            | claims::OF_MOVED_VFS
            | claims::OF_WHOLE_NICS
            | claims::OF_ANOTHER_NAME
            | platforms::OPENSHIFT
            | platforms::OPENSHIFT_REFUSED => Some("rdma-device-plugin"),
            _ => None,
        };
        assert_eq!(pod.service_account_name.as_deref(), account);
        assert_eq!(pod.host_ipc, None);
        assert_eq!(pod.host_network, Some(true));
        let loading = wanted.capabilities == LOADING;
        assert_eq!(pod.host_pid, loading.then_some(true), "{}", wanted.file);
        let seccomp = pod
            .security_context
            .as_ref()
            .and_then(|it| it.seccomp_profile.as_ref());
        assert_eq!(seccomp.map(|it| it.type_.as_str()), Some("RuntimeDefault"));
        for container in pod
            .containers
            .iter()
            .chain(pod.init_containers.iter().flatten())
        {
            let context = container
                .security_context
                .as_ref()
                .expect("a security context");
            assert_eq!(context.privileged, Some(false), "{}", wanted.file);
            assert_eq!(context.allow_privilege_escalation, Some(false));
            assert_eq!(context.read_only_root_filesystem, Some(true));
            assert_eq!(context.seccomp_profile, None);
        }
        let context = cluster
            .daemon()
            .security_context
            .as_ref()
            .expect("a security context");
        let mut add = vec!["NET_ADMIN", "NET_BROADCAST"];
        add.extend(wanted.capabilities);
        // packet sockets for LLDP need NET_RAW
        let listens = cluster.conf().0.lldp == Some(Lldp::Listen);
        add.extend(listens.then_some("NET_RAW"));
        add.extend(wanted.chain_capabilities);
        assert_eq!(
            context.capabilities,
            Some(capabilities(&add)),
            "{}",
            wanted.file
        );
        for container in pod.init_containers.iter().flatten() {
            let context = container
                .security_context
                .as_ref()
                .expect("a security context");
            assert_eq!(
                context.capabilities,
                Some(capabilities(wanted.chain_capabilities)),
                "{}",
                wanted.file
            );
        }
    }
}

/// The runtime's AppArmor profile forbids mounts and reads of other processes, whatever capabilities a container has.
/// Kubernetes has a field to switch it off since 1.30, and had an annotation before.
#[test]
fn app_armor_is_off_where_it_would_forbid_what_is_needed() {
    let mut ways = [0, 0];
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let template = &cluster.daemon_set.spec.template;
        let metadata = template.metadata.as_ref().expect("metadata");
        let annotation = "container.apparmor.security.beta.kubernetes.io/rdma-device-plugin";
        let annotations = metadata.annotations.as_ref();
        let annotated = annotations.and_then(|it| Some(it.get(annotation)?.as_str()));
        let context = cluster.daemon().security_context.as_ref();
        let field = context.and_then(|it| it.app_armor_profile.as_ref());
        let field = field.map(|it| it.type_.as_str());
        let off = !wanted.capabilities.is_empty();
        match (annotated, field) {
            (None, None) => assert!(!off, "{}", wanted.file),
            (Some("unconfined"), None) if off => ways[0] += 1,
            (None, Some("Unconfined")) if off => ways[1] += 1,
            other => panic!("{}: {other:?}", wanted.file),
        }
    }
    assert_eq!(ways, [1, 3]);
}

pub(crate) fn capabilities(add: &[&str]) -> Capabilities {
    Capabilities {
        add: (!add.is_empty()).then(|| add.iter().map(|it| (*it).to_owned()).collect()),
        drop: Some(vec!["ALL".to_owned()]),
    }
}

#[test]
fn nodes_are_not_left_without_it() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let pod = cluster.pod();
        let class = match wanted.file {
            OTHER_NODES => "cluster-rdma",
            _ => "system-node-critical",
        };
        assert_eq!(pod.priority_class_name.as_deref(), Some(class));
        assert!(!pod.tolerations.as_ref().expect("tolerations").is_empty());
        // the ending daemon waits at most 20 s for a driver that is being loaded
        assert!(
            pod.termination_grace_period_seconds
                .is_some_and(|it| it > 20)
        );
        let resources = cluster.daemon().resources.as_ref().expect("resources");
        assert!(
            resources
                .requests
                .as_ref()
                .is_some_and(|it| it.contains_key("cpu"))
        );
        assert!(
            resources
                .limits
                .as_ref()
                .is_some_and(|it| it.contains_key("memory"))
        );
    }
}

#[test]
fn the_image_is_the_version_of_this_tree() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let pod = cluster.pod();
        for container in pod
            .containers
            .iter()
            .chain(pod.init_containers.iter().flatten())
        {
            let image = container.image.as_deref().expect("an image");
            if wanted.file == OTHER_NODES {
                let (name, digest) = image.split_once("@sha256:").expect("a digest");
                assert_eq!(name, "registry.example/team/rdma-device-plugin");
                assert_eq!(digest.len(), 64);
                continue;
            }
            let (_, tag) = image.rsplit_once(':').expect("a tag");
            assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{}: {image}", wanted.file);
        }
    }
}

/// The probes must query the daemon of their own container. Two pods of a node have one address, at which the other
/// pod's daemon may answer.
///
/// Kubernetes deletes an old pod that is not ready, even if the new pod is not ready either, and no longer counts it
/// for `maxSurge` (`podsShouldBeOnNode` and `rollingUpdate` in `pkg/controller/daemon`). A version that never becomes
/// ready would then be rolled out to all nodes.
#[test]
fn the_probes_query_the_daemon_of_their_container() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let daemon = cluster.daemon();
        // no declared port: because the pod uses the node's network, the port would be a port of the node. The
        // scheduler would then not admit the new daemon beside the old one
        assert_eq!(daemon.ports, None, "{}", wanted.file);
        for (declared, question) in [
            (&daemon.liveness_probe, Question::Live),
            (&daemon.readiness_probe, Question::Ready),
        ] {
            let declared = declared.as_ref().expect("a probe");
            let command = declared.exec.as_ref().and_then(|it| it.command.clone());
            let [program, words @ ..] = &*command.expect("a command") else {
                panic!("no command")
            };
            assert_eq!(program, "/usr/bin/rdma-device-plugin");
            let words = Container {
                args: Some(words.to_vec()),
                ..Container::default()
            };
            let Some(Command::Probe(probe)) = arguments(&words).expect("taken").command else {
                panic!("{words:?}")
            };
            assert_eq!(probe.question, question, "{}", wanted.file);
            let socket = cluster.arguments().probe_socket;
            assert_eq!(Some(probe.socket), socket, "{}", wanted.file);
        }
        // kubelet must detect soon that the new daemon is ready
        let ready = daemon.readiness_probe.as_ref();
        assert!(ready.is_some_and(|it| it.period_seconds <= Some(5)));
    }
}

#[test]
fn the_nodes_address_is_taken_whichever_it_is() {
    let cluster = cluster(OTHER_NODES);
    let env = cluster.daemon().env.as_deref().expect("env");
    let from = env.iter().find(|it| it.name == "NODE_ADDRESS");
    let from = from.and_then(|it| it.value_from.as_ref());
    let field = from.and_then(|it| it.field_ref.as_ref()).expect("a field");
    assert_eq!(field.field_path, "status.hostIP");
    for address in NODE_ADDRESSES {
        let arguments = arguments_at(cluster.daemon(), address).expect("taken");
        let listens = arguments.metrics_address;
        assert_eq!(listens.ip().to_string(), address);
        assert_eq!(listens.port(), 19102);
    }
    assert_eq!(
        cluster.arguments().kubelet_dir,
        Path::new("/var/lib/k0s/kubelet")
    );
    let selinux = cluster.pod().security_context.as_ref();
    let selinux = selinux.and_then(|it| it.se_linux_options.as_ref());
    assert_eq!(selinux.and_then(|it| it.type_.as_deref()), Some("spc_t"));
}

/// If the old daemon ended before a new one runs, kubelet would have no ids meanwhile. `helm --wait` and `kubectl
/// rollout status` wait for all nodes except those that may be unavailable.
#[test]
fn the_new_daemon_is_there_before_the_old_one_ends() {
    for wanted in ALL {
        let set = cluster(wanted.file).daemon_set;
        let strategy = set.spec.update_strategy.expect("a strategy");
        assert_eq!(strategy.type_.as_deref(), Some("RollingUpdate"));
        let rolling = strategy.rolling_update.expect("how");
        assert_eq!(rolling.max_unavailable, Some(Int(0)), "{}", wanted.file);
        let surge = match wanted.file {
            OTHER_NODES => Int(1),
            _ => IntOrString::String("10%".into()),
        };
        assert_eq!(rolling.max_surge, Some(surge), "{}", wanted.file);
    }
}
