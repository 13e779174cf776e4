// SPDX-License-Identifier: Apache-2.0
//! Tests of the programs that a list names, and of those that our entry needs.

use crate::{directory, present, set};
use conflist::{Entry, Placed, Placement, Programs, Runtime, plan, programs::named};
use std::{fs, path::PathBuf};

#[test]
fn nothing_is_put_in_while_a_program_is_missing_that_the_list_names() {
    let bridge = r#"{"cniVersion":"1.0.0","name":"n","plugins":[
        {"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#;
    let shim = r#"{"cniVersion":"0.3.1","name":"m","type":"multus-shim",
        "clusterNetwork":"/host/etc/cni/net.d/20-bridge.conflist"}"#;
    let fields = serde_json::json!({"ipam": {"type": "rdma-ipam", "from": "parent"}});
    let entry = Entry::new(fields.as_object().cloned().expect("fields"));
    let complete = ["bridge", "host-local", "portmap", "rdma-cni", "rdma-ipam"];
    let list = [("20-bridge.conflist", bridge)];
    let multus = [("00-multus.conf", shim), list[0]];
    let attach = |files: &[(&str, &str)], programs: &Programs| {
        let files = directory(files);
        plan::attach(
            &files,
            &Runtime::Containerd,
            (&entry, &Placement::List),
            &Placed::new(),
            programs,
        )
    };
    assert!(attach(&list, &present(&complete)).obstacle.is_none());
    let without = |names: &[&str]| {
        let left = complete.iter().filter(|it| !names.contains(it));
        present(&left.copied().collect::<Vec<_>>())
    };
    let elsewhere = "runtime uses other plugin directories";
    for (files, missing, words) in [
        (
            &list[..],
            &["bridge", "host-local", "portmap"][..],
            [
                "20-bridge.conflist names bridge, host-local and portmap, not in \"/opt/cni/bin\"",
                elsewhere,
            ],
        ),
        (
            &list,
            &["host-local"],
            ["names host-local, not in", "containerd config dump"],
        ),
        (
            &multus,
            &["portmap"],
            ["00-multus.conf names multus-shim, not in", "--cni-bin-dir"],
        ),
        (
            &list,
            &["rdma-ipam"],
            ["rdma-ipam is not in \"/opt/cni/bin\"", "run install again"],
        ),
        (
            &list,
            &["rdma-cni", "rdma-ipam"],
            ["rdma-cni and rdma-ipam are not in", "run install"],
        ),
    ] {
        let plan = attach(files, &without(missing));
        assert_eq!(plan.changes, []);
        let why = plan.obstacle.expect("an obstacle");
        assert!(why.is_of_programs());
        assert_eq!(why.is_ours_gone(), missing.contains(&"rdma-cni"));
        let why = why.to_string();
        assert!(words.iter().all(|it| why.contains(it)), "{why}");
    }
    // Multus exists, but a plugin that it calls does not
    let mut names = without(&["portmap"]).names.expect("names");
    names.insert("multus-shim".into());
    let dir = PathBuf::from("/opt/cni/bin");
    let programs = Programs {
        dirs: vec![dir],
        names: Ok(names),
    };
    let why = attach(&multus, &programs).obstacle.expect("an obstacle");
    assert!(
        why.to_string()
            .starts_with("20-bridge.conflist names portmap"),
        "{why}"
    );
    // in a container without the directory, its programs are unknown
    let unseen = Programs {
        names: Err("it is not mounted".into()),
        ..present(&[])
    };
    let plan = attach(&list, &unseen);
    assert_eq!(plan.changes, []);
    let why = plan.obstacle.expect("an obstacle").to_string();
    assert!(why.contains("are unknown (it is not mounted)"), "{why}");
}

#[test]
fn the_programs_are_those_that_a_runtime_and_plugins_search() {
    let corpus = |file: &str| {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        fs::read_to_string(directory.join(file)).expect("a list")
    };
    for (file, types) in [
        (
            "azure-bridge.conflist",
            &["azure-vnet", "azure-vnet-ipam", "portmap"][..],
        ),
        // the IPAM type of this plugin has no program
        ("azure-overlay.conflist", &["azure-vnet", "portmap"]),
        (
            "calico.conflist",
            &["bandwidth", "calico", "calico-ipam", "portmap"],
        ),
        (
            "aws-vpc-cni.conflist",
            &["aws-cni", "egress-cni", "host-local", "portmap"],
        ),
        ("multus.conf", &["flannel", "multus", "portmap"]),
        ("multus-shim.conf", &["multus-shim"]),
        ("ovn-kubernetes.conflist", &["ovn-k8s-cni-overlay"]),
    ] {
        assert_eq!(named(&corpus(file)), set(types), "{file}");
    }
    // with `binDir`, Multus may search another directory
    let text = corpus("multus.conf").replacen('{', r#"{"binDir":"/opt/multus","#, 1);
    assert_eq!(named(&text), set(&["multus"]));
}

/// `install` copies our two programs. Another IPAM plugin must come from its provider.
#[test]
fn a_missing_program_of_the_entry_names_its_own_remedy() {
    let fields = serde_json::json!({"ipam": {"type": "whereabouts"}});
    let entry = Entry::new(fields.as_object().cloned().expect("fields"));
    let files = directory(&[(
        "10-a.conflist",
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"}]}"#,
    )]);
    let obstacle = |programs: &[&str]| {
        let programs = present(programs);
        let why = plan::lacking(&files, &Runtime::Containerd, &entry, &programs);
        why.expect("an obstacle").to_string()
    };
    let missing = "whereabouts is not in \"/opt/cni/bin\"";
    let install = "install the IPAM plugin whereabouts";
    let text = obstacle(&["bridge", "rdma-cni"]);
    assert!(text.contains(missing) && text.contains(install), "{text}");
    assert!(!text.contains("run install again"), "{text}");
    let text = obstacle(&["bridge"]);
    assert!(
        text.contains(install) && text.contains("run install again"),
        "{text}"
    );
}
