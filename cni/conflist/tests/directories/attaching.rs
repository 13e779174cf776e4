// SPDX-License-Identifier: Apache-2.0
//! Tests of adding our entry to the file that the runtime uses, and of removing it.

use crate::{FLANNEL, TERWAY, crio, directory, placed, present};
use conflist::{
    Called, Change, Choice, Entry, Obstacle, Placed, Placement, Position, Runtime, called, pick,
    plan::{self, Plan},
};
use serde_json::json;

const OURS: &str = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"},{"type":"rdma-cni","mtu":1}]}"#;

const ALL: [&str; 5] = ["flannel", "terway", "multus", "multus-shim", "rdma-cni"];

/// Returns the result of `attach` for `files` with containerd.
fn planned(files: &[(String, String)], placed: &Placed) -> Plan {
    let now = files.iter().map(|(a, b)| (a.as_str(), b.as_str()));
    plan::attach(
        &directory(&now.collect::<Vec<_>>()),
        &Runtime::Containerd,
        (&Entry::default(), &Placement::List),
        placed,
        &present(&ALL),
    )
}

/// Applies the changes of `attach` until it plans none. Returns how the runtime then calls our
/// plugin.
fn carried_out(files: &mut Vec<(String, String)>, placed: &mut Placed) -> Result<Called, Obstacle> {
    for _ in 0..3 {
        let plan = planned(files, placed);
        if plan.changes.is_empty() {
            let now = files.iter().map(|(a, b)| (a.as_str(), b.as_str()));
            let now = directory(&now.collect::<Vec<_>>());
            let called = || called(&now, &Runtime::Containerd, placed).expect("called");
            return plan.obstacle.map_or_else(|| Ok(called()), Err);
        }
        for change in plan.changes {
            match change {
                Change::Write { file, text, .. } => {
                    placed.insert(file.clone(), vec![Entry::default().fields().clone()]);
                    files.retain(|(name, _)| *name != file);
                    files.push((file, text));
                }
                Change::Remove { file } => files.retain(|(name, _)| *name != file),
            }
        }
    }
    panic!("it never ends: {files:?}");
}

#[test]
fn whom_somebody_else_calls_too_is_not_called_twice() {
    let with = |before: &str| {
        format!(
            r#"{{"cniVersion":"1.0.0","name":"cbr0","plugins":[{before}{{"type":"rdma-cni","mtu":1}}]}}"#
        )
    };
    for theirs in [
        r#"{"type":"rdma"}"#,
        r#"{"type":"multus","delegates":[{"type":"rdma"}]}"#,
    ] {
        let mut files = vec![("a.conflist".to_owned(), with(&format!("{theirs},")))];
        let mut placed = placed("a.conflist", json!({"type": "rdma-cni", "mtu": 1}));
        let done = carried_out(&mut files, &mut placed).expect("placed");
        assert!(done.by_others);
        let alone = with(theirs).replace(r#"{"type":"rdma-cni","mtu":1}"#, "");
        assert_eq!(files[0].1, alone);
    }
}

/// The user wrote the entry before or after ours. The plan removes only our entry, for each place of our entry.
#[test]
fn a_users_entry_of_our_type_stays_beside_ours() {
    let flannel = r#"{"type":"flannel"}"#;
    let ours = r#"{"type":"rdma-cni","mtu":1}"#;
    let theirs = r#"{ "mtu" :2, "type": "rdma-cni"}"#;
    let list = |plugins: &[&str]| {
        let plugins = plugins.join(" ,\n ");
        format!(r#"{{"cniVersion":"1.0.0","name":"cbr0","plugins":[{plugins}]}}"#)
    };
    let placed = placed("a.conflist", json!({"type": "rdma-cni", "mtu": 1}));
    let read = ["cbr0".to_owned()].into();
    let placements = [
        Placement::List,
        Placement::Directory,
        Placement::Auto { read },
    ];
    for (both, alone) in [
        ([flannel, ours, theirs], [flannel, theirs]),
        ([flannel, theirs, ours], [flannel, theirs]),
        ([ours, flannel, theirs], [flannel, theirs]),
        ([theirs, ours, flannel], [theirs, flannel]),
    ] {
        let both = list(&both);
        let files = directory(&[("a.conflist", &both)]);
        let removed = vec![Change::Write {
            file: "a.conflist".into(),
            text: list(&alone),
            like: "a.conflist".into(),
        }];
        for placement in &placements {
            let wanted = (&Entry::default(), placement);
            let runtime = Runtime::Containerd;
            let plan = plan::attach(&files, &runtime, wanted, &placed, &present(&ALL));
            assert_eq!((plan.changes, plan.obstacle), (removed.clone(), None));
        }
        assert_eq!(plan::detach(&files, &placed), (removed, vec![]));
    }
    // a copy of our entry is ours
    let files = directory(&[("a.conflist", &list(&[flannel, ours, ours]))]);
    let alone = list(&[flannel]);
    let (changes, _) = plan::detach(&files, &placed);
    assert!(matches!(&changes[..], [Change::Write { text, .. }] if *text == alone));
}

#[test]
fn our_place_in_a_list_is_taken_once_and_given_back() {
    let mut files = vec![("10-flannel.conflist".to_owned(), FLANNEL.to_owned())];
    let mut placed = Placed::new();
    let place = carried_out(&mut files, &mut placed).expect("placed");
    let expected = Called {
        file: "10-flannel.conflist".into(),
        network: "cbr0".into(),
        by_others: false,
    };
    assert_eq!(place, expected);
    let found = pick(
        &directory(&[(&files[0].0, &files[0].1)]),
        &Runtime::Containerd,
    );
    let Choice::Picked(picked) = found.choice else {
        panic!("nothing picked");
    };
    assert_eq!(picked.ours.expect("ours").place, Position::Plugin(1));
    let (changes, obstacles) = plan::detach(&directory(&[(&files[0].0, &files[0].1)]), &placed);
    let back = Change::Write {
        file: files[0].0.clone(),
        text: FLANNEL.to_owned(),
        like: files[0].0.clone(),
    };
    assert_eq!((changes, obstacles), (vec![back], vec![]));
}

#[test]
fn foreign_entries_in_a_list_stay() {
    let files = directory(&[("10-a.conflist", OURS)]);
    let plan = plan::attach(
        &files,
        &Runtime::Containerd,
        (&Entry::default(), &Placement::List),
        &Placed::new(),
        &present(&ALL),
    );
    assert_eq!(plan.changes, []);
    assert_eq!(plan.obstacle, None);
    let theirs = called(&files, &Runtime::Containerd, &Placed::new());
    assert!(theirs.expect("called").by_others);
    assert_eq!(plan::detach(&files, &Placed::new()).0, []);
    // the same list, but the entry is ours: the plan updates its configuration
    let placed = placed("10-a.conflist", json!({"type": "rdma-cni", "mtu": 1}));
    let plan = plan::attach(
        &files,
        &Runtime::Containerd,
        (&Entry::default(), &Placement::List),
        &placed,
        &present(&ALL),
    );
    assert_eq!(plan.changes.len(), 1);
    assert_eq!(plan.obstacle, None);
    let ours = called(&files, &Runtime::Containerd, &placed);
    assert!(!ours.expect("called").by_others);
}

#[test]
fn a_single_configuration_stays_and_its_list_follows_it() {
    let mut files = vec![("10-terway.conf".to_owned(), TERWAY.to_owned())];
    let mut placed = Placed::new();
    let place = carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(place.file, "10-terway+rdma-cni.conflist");
    assert_eq!(files[0].1, TERWAY);
    let text = |files: &[(String, String)]| {
        files
            .iter()
            .find(|it| it.0 == "10-terway+rdma-cni.conflist")
            .map(|it| it.1.clone())
    };
    let first = text(&files).expect("the list");
    files[0].1 = TERWAY.replace("0.4.0", "1.0.0");
    files.sort();
    carried_out(&mut files, &mut placed).expect("placed");
    assert_ne!(text(&files).expect("the list"), first);
    // another program has written half of the file: our list stays, because the runtime needs it to start pods
    let at = files
        .iter()
        .position(|it| it.0 == "10-terway.conf")
        .expect("it");
    files[at].1 = "{\"cniVersion\"".into();
    let obstacle = carried_out(&mut files, &mut placed).expect_err("broken");
    assert!(matches!(obstacle, Obstacle::Broken { .. }));
    assert!(text(&files).is_some());
    // a list that sorts before the single configuration: the runtime uses this list
    files[at].1 = TERWAY.into();
    files.push(("05-a.conflist".into(), FLANNEL.into()));
    carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(text(&files), None);
    // another program deletes its list, and then its single configuration
    files.retain(|it| it.0 != "05-a.conflist");
    carried_out(&mut files, &mut placed).expect("placed");
    assert!(text(&files).is_some());
    files.retain(|it| it.0 != "10-terway.conf");
    assert_eq!(carried_out(&mut files, &mut placed), Err(Obstacle::Empty));
    assert_eq!(files, []);
}

#[test]
fn plugins_that_others_put_into_our_list_stay() {
    let mut files = vec![("10-terway.conf".to_owned(), TERWAY.to_owned())];
    let mut placed = Placed::new();
    carried_out(&mut files, &mut placed).expect("placed");
    let list = |files: &[(String, String)]| {
        let is_it = |it: &&(String, String)| it.0 == "10-terway+rdma-cni.conflist";
        let text = files.iter().find(is_it).map(|it| it.1.clone());
        text.expect("the list")
    };
    let types = |text: &str| {
        let list: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let plugins = list["plugins"].as_array().expect("a list").iter();
        let types = plugins.map(|it| it["type"].as_str().expect("a text").to_owned());
        types.collect::<Vec<_>>()
    };
    // istio-cni parses the first file by name, and writes it in Go's layout
    let mut theirs: serde_json::Value = serde_json::from_str(&list(&files)).expect("JSON");
    let plugins = theirs["plugins"].as_array_mut().expect("a list");
    plugins.push(json!({"type": "istio-cni", "log_level": "info"}));
    let at = files.iter().position(|it| it.0.ends_with("conflist"));
    files[at.expect("it")].1 = theirs.to_string();
    carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(list(&files), theirs.to_string());
    // istio-cni's list without our plugin gets our entry again
    theirs["plugins"].as_array_mut().expect("a list").remove(1);
    files[at.expect("it")].1 = theirs.to_string();
    // each change names the file from which its text was made, so the daemon can detect that
    // another program has written it since
    let changes = planned(&files, &placed).changes;
    let compared = changes.iter().map(|change| match change {
        Change::Write { like, .. } => like,
        Change::Remove { file } => file,
    });
    assert_eq!(
        compared.collect::<Vec<_>>(),
        ["10-terway+rdma-cni.conflist"]
    );
    carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(types(&list(&files)), ["terway", "istio-cni", "rdma-cni"]);
    // another program also adds our plugin: the plan makes our list again, so the runtime calls our plugin once
    let mut twice = theirs.clone();
    let plugins = twice["plugins"].as_array_mut().expect("a list");
    plugins.push(json!({"type": "rdma"}));
    let at = files.iter().position(|it| it.0.ends_with("conflist"));
    files[at.expect("it")].1 = twice.to_string();
    carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(types(&list(&files)), ["terway", "rdma-cni"]);
    // the single configuration now has another version: the plan makes our list again
    let source = files.iter().position(|it| it.0.ends_with(".conf"));
    files[source.expect("it")].1 = TERWAY.replace("0.4.0", "1.0.0");
    carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(types(&list(&files)), ["terway", "rdma-cni"]);
}

#[test]
fn multus_is_followed_to_its_configured_network() {
    let multus = |network: &str| {
        format!(
            r#"{{"cniVersion":"0.3.1","name":"m","type":"multus-shim","clusterNetwork":"{network}"}}"#
        )
    };
    let find = |files: &[(String, String)], name: &str| {
        files.iter().find(|it| it.0 == name).map(|it| it.1.clone())
    };
    let path = "/host/etc/cni/net.d/10-flannel.conflist";
    for (network, list) in [(path, FLANNEL), (path, OURS), ("cbr0", OURS)] {
        let mut files = vec![
            ("00-multus.conf".to_owned(), multus(network)),
            ("10-flannel.conflist".to_owned(), list.to_owned()),
        ];
        let place = carried_out(&mut files, &mut Placed::new()).expect("placed");
        assert_eq!(place.file, "10-flannel.conflist");
        assert_eq!(files.len(), 2);
        assert_eq!(find(&files, "00-multus.conf"), Some(multus(network)));
        let text = find(&files, "10-flannel.conflist").expect("the list");
        assert!(text.contains("rdma-cni"), "{text}");
    }
    // Multus calls the list that this project made from a single configuration: our entry stays in this list
    let list = "/etc/cni/net.d/10-terway+rdma-cni.conflist";
    let mut files = vec![("10-terway.conf".to_owned(), TERWAY.to_owned())];
    let mut placed = Placed::new();
    carried_out(&mut files, &mut placed).expect("placed");
    files.push(("00-multus.conf".to_owned(), multus(list)));
    let place = carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(
        (place.file.as_str(), files.len()),
        ("10-terway+rdma-cni.conflist", 3)
    );
    // `clusterNetwork` is a name without a file, the name of a list without our entry, or the path of a single
    // configuration, which on OpenShift is in another directory: our entry gets into a list beside Multus' file
    let elsewhere = "/host/run/multus/cni/net.d/10-ovn-kubernetes.conf";
    for network in ["gone", "cbr0", "/etc/cni/net.d/10-terway.conf", elsewhere] {
        let mut files = vec![
            ("00-multus.conf".to_owned(), multus(network)),
            ("10-flannel.conflist".to_owned(), FLANNEL.to_owned()),
            ("10-terway.conf".to_owned(), TERWAY.to_owned()),
        ];
        let place = carried_out(&mut files, &mut Placed::new()).expect("placed");
        assert_eq!(place.file, "00-multus+rdma-cni.conflist", "{network}");
        assert_eq!(files.len(), 4);
    }
}

#[test]
fn obstacles_are_reported() {
    let attach = |files: &[(&str, &str)], runtime: &Runtime| {
        let plan = plan::attach(
            &directory(files),
            runtime,
            (&Entry::default(), &Placement::List),
            &Placed::new(),
            &present(&ALL),
        );
        assert_eq!(plan.changes, []);
        plan.obstacle.expect("an obstacle").to_string()
    };
    let old = FLANNEL.replace("1.0.0", "0.2.0");
    assert!(attach(&[], &Runtime::Containerd).starts_with("there is no network configuration yet"));
    assert_eq!(
        attach(
            &[("1.conflist", "{}"), ("2.conflist", FLANNEL)],
            &Runtime::Containerd
        ),
        "the runtime cannot use 1.conflist: name is missing; correct or remove that file"
    );
    assert!(
        attach(&[("1.conflist", "{}")], &crio(None))
            .starts_with("the runtime cannot use 1.conflist")
    );
    let named = Runtime::Named {
        network: "rails".to_owned(),
    };
    assert_eq!(
        attach(&[("1.conflist", "{}"), ("2.conflist", FLANNEL)], &named),
        "no network in the directory is named \"rails\" (networks there: cbr0); create it (podman network create, \
         nerdctl network create), or correct chain.network, and run install again"
    );
    assert!(
        attach(&[("1.conflist", &old)], &Runtime::Containerd)
            .starts_with("rdma-device-plugin does not change 1.conflist: cniVersion is 0.2.0")
    );
    let alone = r#"{"name":"n","plugins":[{"type":"rdma-cni"}]}"#;
    let [one, two] =
        ["1.conflist", "2.conflist"].map(|file| placed(file, json!({"type": "rdma-cni"})));
    let (changes, obstacles) = plan::detach(
        &directory(&[("1.conflist", alone), ("2.conflist", "{")]),
        &[one, two].into_iter().flatten().collect(),
    );
    assert_eq!((changes.len(), obstacles.len()), (0, 2));
}
