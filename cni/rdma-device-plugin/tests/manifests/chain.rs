// SPDX-License-Identifier: Apache-2.0
//! Tests of the switch "RDMA for pods without hostNetwork": which container installs the plugins on a node, which entry
//! the network's list gets, and which container removes them.

use crate::{
    claims,
    cluster::{Cluster, arguments, capabilities, cluster},
    documents,
    paths::{DEVICE_INFO, Mounts, mounts},
    platforms, refused, report, root,
    wanted::{ALL, BONDS, WHOLE_NICS},
};
use daemon_conf::{
    Reader,
    chain::{CONF_DIR, pod_resources},
};
use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};
use rdma_device_plugin::{
    chain::{file::hash, record::BIN_DIR},
    cli::{Arguments, Command, Install},
};
use rdma_resources::Memlock;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

pub(crate) const UNINSTALL: [&str; 3] = [
    "conf/manifests/uninstall.yaml",
    "integration/manifests/rendered/uninstall-device-info.yaml",
    "integration/manifests/rendered/uninstall-node-features.yaml",
];

/// Files in which the switch is on, each with the fields of its entry. The switch is off in all other files.
const CHAINED: [(&str, &str); 35] = [
    ("conf/manifests/erdma.yaml", r#"{"smcr":"annotation"}"#),
    ("conf/manifests/lingjun.yaml", PARENT),
    (
        "conf/manifests/roce-ipv4.yaml",
        r#"{"ipam":{"type":"rdma-ipam","from":"parent","family":"ipv4"}}"#,
    ),
    ("conf/manifests/vf.yaml", VFS),
    ("integration/manifests/rendered/limits.yaml", PARENT),
    (WHOLE_NICS, NICS),
    (
        "integration/manifests/rendered/another-format-chained.yaml",
        r#"{"resources":["rdma/hca_shared"]}"#,
    ),
    (
        "integration/manifests/rendered/another-name-of-nics.yaml",
        r#"{"resources":["example.com/nic"]}"#,
    ),
    (
        "integration/manifests/rendered/another-name.yaml",
        ANOTHER_NAME,
    ),
    (
        BONDS,
        r#"{"ipam":{"type":"rdma-ipam","from":"parent"},"resources":["rdma/hca"]}"#,
    ),
    (claims::OF_ANOTHER_NAME, ANOTHER_NAME),
    (
        "integration/manifests/rendered/crio-and-other-places.yaml",
        r#"{"child":{"mode":"l2","type":"ipvlan"},"ipam":{"dataDir":"/var/lib/cni/rails","from":"parent","strategy":"stable","type":"rdma-ipam"},"mtu":4200}"#,
    ),
    ("integration/manifests/rendered/no-chain-said.yaml", PARENT),
    (
        "integration/manifests/rendered/other-nodes.yaml",
        r#"{"ipam":{"type":"rdma-ipam","from":"parent"},"podResourcesSocket":"/var/lib/k0s/kubelet/pod-resources/kubelet.sock"}"#,
    ),
    (claims::OF_ERDMA, r#"{"smcr":"annotation"}"#),
    (claims::OF_MOVED_VFS, VFS),
    (claims::OF_WHOLE_NICS, NICS),
    (platforms::GKE, VFS),
    (
        platforms::K0S,
        r#"{"resources":["rdma/vf"],"podResourcesSocket":"/var/lib/k0s/kubelet/pod-resources/kubelet.sock"}"#,
    ),
    (platforms::K3S, VFS),
    (platforms::KUBESPRAY, VFS),
    (
        platforms::MICROK8S,
        r#"{"resources":["rdma/vf"],"podResourcesSocket":"/var/snap/microk8s/common/var/lib/kubelet/pod-resources/kubelet.sock"}"#,
    ),
    (platforms::OPENSHIFT, VFS),
    (platforms::OPENSHIFT_REFUSED, r#"{"smcr":"annotation"}"#),
    (platforms::SELINUX, VFS),
    (platforms::TALOS, VFS),
    (claims::SHARED, PARENT),
    (refused::BY_ANOTHER_ACCOUNT, PARENT),
    (refused::FILE, PARENT),
    (report::BY_ANOTHER_ACCOUNT, PARENT),
    (report::FILE, PARENT),
    (WITH_ENVIRONMENT, PARENT),
    (
        "integration/manifests/rendered/the-chain-as-it-comes.yaml",
        "{}",
    ),
    (WITHOUT_ENVIRONMENT, PARENT),
    (
        "integration/manifests/rendered/two-kinds-of-vfs.yaml",
        r#"{"resources":["rdma/vf","rdma/vf-storage"]}"#,
    ),
];
const WITHOUT_ENVIRONMENT: &str = "integration/manifests/rendered/the-environment-as-it-was.yaml";
const WITH_ENVIRONMENT: &str = "integration/manifests/rendered/shared-with-environment.yaml";
const ANOTHER_NAME: &str =
    r#"{"ipam":{"type":"rdma-ipam","from":"parent"},"resources":["example.com/hca_8"]}"#;
const VFS: &str = r#"{"resources":["rdma/vf"]}"#;
const NICS: &str = r#"{"resources":["rdma/nic"]}"#;
const PARENT: &str = r#"{"ipam":{"type":"rdma-ipam","from":"parent"}}"#;

/// Returns the objects that remove the installation from the nodes. These objects have no ConfigMap.
pub(crate) fn uninstall(file: &'static str) -> Cluster {
    let (sets, others): (Vec<_>, Vec<_>) = documents(&root().join(file))
        .into_iter()
        .partition(|it| it["kind"] == "DaemonSet");
    let [set] = sets.try_into().expect("one DaemonSet");
    Cluster {
        file,
        config_map: Default::default(),
        daemon_set: serde_json::from_value(set).expect("a DaemonSet"),
        others,
    }
}

pub(crate) fn installer(cluster: &Cluster) -> Option<(&Container, Arguments)> {
    match cluster.pod().init_containers.as_deref() {
        None => None,
        Some([one]) => {
            let parsed = arguments(one);
            Some((
                one,
                parsed.unwrap_or_else(|error| panic!("{}: {error}", cluster.file)),
            ))
        }
        Some(several) => panic!("{}: {} init containers", cluster.file, several.len()),
    }
}

#[test]
fn a_shared_resource_has_its_enabled_parts() {
    let conf = cluster(WITH_ENVIRONMENT).conf().0;
    let [hca] = &conf.resources[..] else {
        panic!("{:?}", conf.resources);
    };
    assert!(conf.cdi);
    assert_eq!(hca.environment.len(), 4, "{:?}", hca.environment);
    assert_eq!(hca.limits.memlock, Some(Memlock::Unlimited));
    assert_eq!(hca.limits.rdma.objects, Some(20_000));
    let parents = format!("{:?}", hca.parents);
    assert!(parents.contains("bond*.100"), "{parents}");
}

/// With the chain, NCCL uses the pod's own GID. The variable `RDMA_RAILS` requires CDI names.
#[test]
fn containers_are_set_up_for_nccl_unless_it_is_turned_off() {
    let (nccl, all) = (&[Reader::Nccl][..], &[Reader::Rails, Reader::Nccl][..]);
    for (file, readers) in [
        ("conf/manifests/lingjun.yaml", nccl),
        ("conf/manifests/roce-ipv4.yaml", nccl),
        (BONDS, nccl),
        ("conf/manifests/vf.yaml", all),
        (WHOLE_NICS, all),
        ("conf/manifests/hca.yaml", &[]),
        ("conf/manifests/erdma.yaml", &[]),
        (claims::SHARED, nccl),
        (claims::OF_WHOLE_NICS, all),
        (claims::OF_VFS, &[]),
        (claims::OF_ERDMA, &[]),
        (WITHOUT_ENVIRONMENT, &[]),
    ] {
        let readers: BTreeSet<Reader> = readers.iter().copied().collect();
        for resource in cluster(file).conf().0.resources {
            assert_eq!(resource.environment, readers, "{file}");
        }
    }
}

#[test]
fn the_chain_is_taken_where_the_switch_is_on() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let chain = cluster.conf().0.chain;
        let listed = CHAINED.iter().find(|(file, _)| *file == wanted.file);
        assert_eq!(chain.is_some(), listed.is_some(), "{}", wanted.file);
        assert_eq!(
            installer(&cluster).is_some(),
            listed.is_some(),
            "{}",
            wanted.file
        );
        let (Some(chain), Some((_, fields))) = (chain, listed) else {
            continue;
        };
        // leave out fields that every entry has
        let entry_fields: Map<String, Value> = chain.entry.fields().clone();
        let entry_fields = entry_fields
            .into_iter()
            .filter(|(name, _)| name != "type" && name != "capabilities");
        let fields: Value = serde_json::from_str(fields).expect("JSON");
        assert_eq!(
            Value::Object(entry_fields.collect()),
            fields,
            "{}",
            wanted.file
        );
    }
}

/// Returns the value with fields sorted by name, as Helm and `jq -S` write JSON.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(k, v)| (k.clone(), sorted(v))).collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(values) => values.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// The pod template has a checksum of the chain, so that a changed chain takes effect node by node. An update of the
/// ConfigMap alone reaches all nodes within a minute.
#[test]
fn another_chain_goes_to_the_nodes_with_the_roll_out() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let config: Value = serde_json::from_str(cluster.config()).unwrap_or_default();
        let chain = config
            .get("chain")
            .map(|_| hash(sorted(&entry(&config)).to_string().as_bytes()));
        let spec = &cluster.daemon_set.spec;
        let annotations = spec
            .template
            .metadata
            .as_ref()
            .and_then(|it| it.annotations.as_ref());
        let checksum = annotations.and_then(|it| it.get("checksum/chain"));
        assert_eq!(
            checksum,
            chain.as_ref(),
            "{}: SHA-256 of chain",
            wanted.file
        );
    }
}

/// Returns the part of `config` that determines the entry of `rdma-cni`. It is `chain`, and, if `chain` names no
/// resources, also the fields from which the names of the offered resources follow. `config` can have any format.
fn entry(config: &Value) -> Value {
    let chain = &config["chain"];
    if !chain["plugin"]["resources"].is_null() {
        return chain.clone();
    }
    let lists = ["resources", "configList", "resourceList"].map(|it| config[it].as_array());
    let names = lists.into_iter().flatten().flatten();
    let names = names.map(|it| json!([it["name"], it["resourcePrefix"], it["resourceName"]]));
    json!([
        chain,
        config["mode"],
        config["customResourceName"],
        !config["erdma"].is_null(),
        names.collect::<Vec<_>>(),
    ])
}

/// Runs the command of `docs/deploy.md` that computes the checksum.
#[test]
fn the_command_of_the_page_makes_the_checksum() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy.md");
    let page = fs::read_to_string(page).expect("the page");
    let command = page.lines().find(|it| it.starts_with("jq -jcS "));
    let command = command.expect("a command").replace(" config.json ", " ");
    let mut seen = 0;
    for wanted in ALL {
        let text = cluster(wanted.file).config().to_owned();
        let config: Value = serde_json::from_str(&text).unwrap_or_default();
        if config["chain"].is_null() {
            continue;
        }
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", &command]).stdin(Stdio::piped());
        let mut child = shell.stdout(Stdio::piped()).spawn().expect("a shell");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(text.as_bytes()).expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends").stdout;
        let printed = String::from_utf8(output).expect("text");
        let expected = hash(sorted(&entry(&config)).to_string().as_bytes());
        assert_eq!(
            printed.split(' ').next(),
            Some(&*expected),
            "{}",
            wanted.file
        );
        seen += 1;
    }
    assert!(seen > 3, "{seen}");
}

#[test]
fn the_resources_are_those_that_the_chain_attaches() {
    for wanted in ALL {
        let (conf, _) = cluster(wanted.file).conf();
        let Some(chain) = conf.chain else { continue };
        // the default of rdma-cni, according to reference.md
        let default = json!(["rdma/hca", "aliyun/erdma"]);
        let attached = chain.entry.fields().get("resources").unwrap_or(&default);
        for resource in conf.resources {
            let name = Value::from(resource.name.to_string());
            let attached = attached.as_array().expect("a list");
            assert!(
                attached.contains(&name),
                "{}: {name} is not attached",
                wanted.file
            );
        }
    }
}

#[test]
fn the_installer_sees_only_files_that_it_uses() {
    let mut seen = 0;
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let Some((container, arguments)) = installer(&cluster) else {
            continue;
        };
        let Some(Command::Install(install)) = arguments.command else {
            panic!("{}: {:?}", wanted.file, container.args)
        };
        // both containers read one file, so that they require the same chain
        assert_eq!(
            install.config,
            cluster.arguments().config,
            "{}",
            wanted.file
        );
        assert_eq!(install.state_dir, cluster.arguments().state_dir);
        // obstacles in a list must not stop the daemon
        assert!(install.init_container && !install.without_kubelet);
        assert_eq!(install.kubelet_dir, cluster.arguments().kubelet_dir);
        // the image has the binaries beside the program
        assert_eq!((&install.from, &install.cni_conf_dir), (&None, &None));
        assert_eq!(container.image, cluster.daemon().image);
        let chain = cluster.conf().0.chain.expect("a chain");
        let bin_dirs = bin_dirs(&install);
        let mut needed = on_the_node([&bin_dirs[0], &chain.conf_dir, &install.state_dir]);
        // the first directory gets the binaries, and the network's plugins may be in any directory
        for further in bin_dirs[1..].iter().map(|it| it.display().to_string()) {
            needed.insert(further.clone(), (further, true));
        }
        // the directory of the socket by which `rdma-cni` queries kubelet
        let socket = pod_resources(&install.kubelet_dir);
        let directory = socket.parent().expect("a directory").display().to_string();
        needed.insert(directory.clone(), (directory, true));
        let map = "configMap rdma-devices".to_owned();
        needed.insert("/etc/rdma-device-plugin".into(), (map, true));
        assert_eq!(mounts(&cluster, container), needed, "{}", wanted.file);
        seen += 1;
    }
    assert_eq!(seen, CHAINED.len());
}

pub(crate) fn bin_dirs(install: &Install) -> Vec<PathBuf> {
    match install.cni_bin_dir.as_slice() {
        [] => vec![BIN_DIR.into()],
        directories => directories.to_vec(),
    }
}

/// Returns writable mounts of the node's directories at the same paths.
fn on_the_node<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Mounts {
    let paths = paths.into_iter().map(|path| path.display().to_string());
    paths.map(|path| (path.clone(), (path, false))).collect()
}

#[test]
fn the_chain_can_be_removed_from_nodes() {
    UNINSTALL.into_iter().for_each(takes_it_off);
}

#[track_caller]
fn takes_it_off(file: &'static str) {
    let cluster = uninstall(file);
    assert!(cluster.others.is_empty(), "{:?}", cluster.others);
    let installed = crate::cluster::cluster("conf/manifests/lingjun.yaml");
    assert_eq!(cluster.pod().node_selector, installed.pod().node_selector);
    assert_eq!(cluster.pod().affinity, installed.pod().affinity);
    assert_eq!(cluster.pod().tolerations, installed.pod().tolerations);
    assert_ne!(
        cluster.daemon_set.metadata.name,
        installed.daemon_set.metadata.name
    );
    assert_ne!(
        cluster.daemon_set.spec.selector,
        installed.daemon_set.spec.selector
    );
    // no init container: `kubectl logs POD` does not show the log of an init container
    assert!(installer(&cluster).is_none());
    let container = cluster.daemon();
    let Ok(Arguments {
        command: Some(Command::Uninstall(uninstall)),
        ..
    }) = arguments(container)
    else {
        panic!("{:?}", container.args)
    };
    assert!(!uninstall.force);
    // the program must keep running: kubelet would restart an ended container at growing intervals. Its readiness shows
    // that it is done
    assert!(uninstall.stay);
    let probe = container.readiness_probe.as_ref().expect("a probe");
    let command = probe.exec.as_ref().and_then(|it| it.command.clone());
    let [_, arguments @ ..] = command.as_deref().expect("a command") else {
        panic!("no command")
    };
    let probed = Container {
        args: Some(arguments.to_vec()),
        ..Container::default()
    };
    let Ok(Arguments {
        command: Some(Command::Uninstall(probed)),
        ..
    }) = crate::cluster::arguments(&probed)
    else {
        panic!("{arguments:?}")
    };
    assert!(probed.check);
    assert_eq!(probed.state_dir, uninstall.state_dir);
    assert_eq!(probed.node_features, uninstall.node_features);
    assert_eq!(uninstall.node_features.is_some(), file == UNINSTALL[2]);
    let spec = &cluster.daemon_set.spec;
    // `helm --wait` waits for all pods except those that may be unavailable
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|it| it.rolling_update.as_ref());
    let rolling = rolling.expect("a strategy");
    assert_eq!(rolling.max_unavailable, Some(IntOrString::Int(0)));
    assert_eq!(cluster.pod().containers.len(), 1);
    assert_eq!(container.image, installed.daemon().image);
    let bin_dir = uninstall.cni_bin_dir.unwrap_or(BIN_DIR.into());
    let conf_dir = uninstall.cni_conf_dir.unwrap_or(CONF_DIR.into());
    let cgroups = PathBuf::from("/sys/fs/cgroup");
    let directories = [&bin_dir, &conf_dir, &uninstall.state_dir, &cgroups];
    let mut needed = on_the_node(directories.into_iter().chain(&uninstall.node_features));
    let (cache, above_multus) = ("/var/lib/cni/results", "/var/lib/cni");
    for path in ["/run/netns", cache, above_multus] {
        needed.insert(path.into(), (path.into(), true));
    }
    assert_eq!(uninstall.cni_cache_dir, Path::new(cache));
    assert_eq!(uninstall.multus_dir.parent(), Some(Path::new(above_multus)));
    if file == UNINSTALL[1] {
        // the state directory has the record of the daemon's files
        needed.extend(on_the_node([&PathBuf::from(DEVICE_INFO)]));
    }
    assert_eq!(mounts(&cluster, container), needed);
    let mounted = container.volume_mounts.iter().flatten();
    let mut netns = mounted.filter(|it| it.mount_path == "/run/netns");
    // the container must also see the end of pods while it retries
    let propagation = netns.next().and_then(|it| it.mount_propagation.as_deref());
    assert_eq!(propagation, Some("HostToContainer"));
    let context = container
        .security_context
        .as_ref()
        .expect("a security context");
    assert_eq!(context.capabilities, Some(capabilities(&[])));
    assert_eq!(context.privileged, Some(false));
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
}
