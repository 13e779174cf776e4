// SPDX-License-Identifier: Apache-2.0
//! Which file counts, and what has to change in a directory.

use conflist::{
    Broken, Change, Choice, Directory, Entry, File, Obstacle, Placement, Position, Programs,
    Runtime, pick,
    pick::{Skip, Skipped},
    plan::{self, Placed},
    programs::named,
};
use std::{collections::BTreeSet, fs, path::PathBuf};

const FLANNEL: &str = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;
const OURS: &str = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"},{"type":"rdma-cni","mtu":1}]}"#;
const TERWAY: &str = r#"{"cniVersion":"0.4.0","name":"terway","type":"terway"}"#;

fn directory(files: &[(&str, &str)]) -> Directory {
    let files = files.iter().map(|(name, text)| File {
        name: (*name).to_owned(),
        text: Ok((*text).to_owned()),
    });
    Directory::new(files.collect())
}

fn set(files: &[&str]) -> BTreeSet<String> {
    files.iter().map(|file| (*file).to_owned()).collect()
}

/// The runtime's directory with these programs in it.
fn present(names: &[&str]) -> Programs {
    Programs {
        dirs: vec!["/opt/cni/bin".into()],
        names: Ok(set(names)),
    }
}

const ALL: [&str; 5] = ["flannel", "terway", "multus", "multus-shim", "rdma-cni"];

fn picked(files: &[(&str, &str)], runtime: &Runtime) -> Option<String> {
    match pick(&directory(files), runtime).choice {
        Choice::Picked(picked) => Some(picked.file),
        _ => None,
    }
}

fn crio(network: Option<&str>) -> Runtime {
    Runtime::Crio {
        network: network.map(str::to_owned),
    }
}

/// `attach` until it has nothing more to do, as somebody would who carries it out.
fn carried_out(
    files: &mut Vec<(String, String)>,
    placed: &mut BTreeSet<String>,
) -> Result<Placed, Obstacle> {
    for _ in 0..3 {
        let now: Vec<_> = files
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        let now = directory(&now);
        let plan = plan::attach(
            &now,
            &Runtime::Containerd,
            (&Entry::default(), &Placement::List),
            placed,
            &present(&ALL),
        );
        if plan.changes.is_empty() {
            return plan.place;
        }
        for change in plan.changes {
            match change {
                Change::Write { file, text, .. } => {
                    placed.insert(file.clone());
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
        let mut placed = set(&["a.conflist"]);
        let done = carried_out(&mut files, &mut placed).expect("placed");
        assert!(done.by_others);
        let alone = with(theirs).replace(r#"{"type":"rdma-cni","mtu":1}"#, "");
        assert_eq!(files[0].1, alone);
    }
}

#[test]
fn the_first_name_counts_whatever_its_extension() {
    let files = [
        ("20-b.conflist", FLANNEL),
        ("10-a.json", TERWAY),
        ("05-x.conf.bak", "{"),
        ("README", ""),
    ];
    for runtime in [Runtime::Containerd, crio(None)] {
        assert_eq!(picked(&files, &runtime).as_deref(), Some("10-a.json"));
    }
    let hidden = [(".b.conflist", FLANNEL), ("10-a.json", TERWAY)];
    assert_eq!(
        picked(&hidden, &Runtime::Containerd).as_deref(),
        Some(".b.conflist")
    );
    assert_eq!(picked(&[], &Runtime::Containerd), None);
}

#[test]
fn a_broken_first_file_stops_containerd_and_not_crio() {
    let list_in_conf = Broken::Missing {
        field: "type".into(),
    };
    let files = directory(&[
        ("10-a.conf", FLANNEL),
        ("20-b.conflist", FLANNEL),
        ("30-c.conf", TERWAY),
    ]);
    let blocked = Choice::Blocked {
        file: "10-a.conf".into(),
        why: list_in_conf.clone(),
    };
    assert_eq!(pick(&files, &Runtime::Containerd).choice, blocked);
    let found = pick(&files, &crio(None));
    let Choice::Picked(picked) = found.choice else {
        panic!("nothing picked");
    };
    assert_eq!(
        (picked.file.as_str(), picked.network.as_str()),
        ("20-b.conflist", "cbr0")
    );
    assert_eq!(
        (picked.single, picked.types),
        (false, vec!["flannel".to_owned()])
    );
    let skipped = |file: &str, why| Skipped {
        file: file.to_owned(),
        why,
    };
    let expected = [
        skipped("10-a.conf", Skip::Broken(list_in_conf)),
        skipped("30-c.conf", Skip::Later),
    ];
    assert_eq!(found.skipped, expected);
}

#[test]
fn crio_can_be_told_a_network() {
    let files = [("10-a.conflist", FLANNEL), ("20-b.conf", TERWAY)];
    assert_eq!(
        picked(&files, &crio(Some("terway"))).as_deref(),
        Some("20-b.conf")
    );
    assert_eq!(picked(&files, &crio(Some("other"))), None);
    let found = pick(&directory(&files), &crio(Some("terway")));
    assert_eq!(found.skipped[0].why, Skip::OtherNetwork("cbr0".into()));
}

#[test]
fn files_are_read_as_a_runtime_reads_them() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path();
    assert_eq!(Directory::read(&path.join("absent")).expect("read"), None);
    fs::create_dir(path.join("00-directory.conf")).expect("made");
    fs::write(
        path.join("10-large.conflist"),
        vec![b' '; 2 * 1024 * 1024 + 1],
    )
    .expect("written");
    fs::write(path.join("20-binary.conf"), b"\xff").expect("written");
    fs::write(path.join("30-text.conflist"), FLANNEL).expect("written");
    std::os::unix::fs::symlink(path, path.join("40-link.conf")).expect("linked");
    fs::write(path.join("note.txt"), "").expect("written");
    let read = Directory::read(path).expect("read").expect("there");
    let texts: Vec<_> = read
        .files()
        .iter()
        .map(|it| (it.name.as_str(), &it.text))
        .collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
    assert_eq!(
        texts[0].1,
        &Err(Broken::Large {
            size: 2 * 1024 * 1024 + 1
        })
    );
    assert!(matches!(texts[1].1, Err(Broken::Syntax { .. })));
    assert_eq!(texts[2].1.as_deref(), Ok(FLANNEL));
    assert!(matches!(texts[3].1, Err(Broken::Unreadable { .. })));
}

#[test]
fn our_place_in_a_list_is_taken_once_and_given_back() {
    let mut files = vec![("10-flannel.conflist".to_owned(), FLANNEL.to_owned())];
    let mut placed = BTreeSet::new();
    let place = carried_out(&mut files, &mut placed).expect("placed");
    let expected = Placed {
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
fn what_is_in_a_list_of_somebody_elses_stays_theirs() {
    let files = directory(&[("10-a.conflist", OURS)]);
    let plan = plan::attach(
        &files,
        &Runtime::Containerd,
        (&Entry::default(), &Placement::List),
        &set(&[]),
        &present(&ALL),
    );
    assert_eq!(plan.changes, []);
    assert!(plan.place.expect("placed").by_others);
    assert_eq!(plan::detach(&files, &set(&[])).0, []);
    // the same list, where it is ours: the configuration is made to be as it is to be
    let placed = set(&["10-a.conflist"]);
    let plan = plan::attach(
        &files,
        &Runtime::Containerd,
        (&Entry::default(), &Placement::List),
        &placed,
        &present(&ALL),
    );
    assert_eq!(plan.changes.len(), 1);
    assert!(!plan.place.expect("placed").by_others);
}

#[test]
fn a_single_configuration_stays_and_its_list_follows_it() {
    let mut files = vec![("10-terway.conf".to_owned(), TERWAY.to_owned())];
    let mut placed = BTreeSet::new();
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
    // half-written: the list stays, as pods start by it
    let at = files
        .iter()
        .position(|it| it.0 == "10-terway.conf")
        .expect("it");
    files[at].1 = "{\"cniVersion\"".into();
    let obstacle = carried_out(&mut files, &mut placed).expect_err("broken");
    assert!(matches!(obstacle, Obstacle::Broken { .. }));
    assert!(text(&files).is_some());
    // a list takes its place
    files[at].1 = TERWAY.into();
    files.push(("05-a.conflist".into(), FLANNEL.into()));
    carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(text(&files), None);
    // and goes again; then all goes
    files.retain(|it| it.0 != "05-a.conflist");
    carried_out(&mut files, &mut placed).expect("placed");
    assert!(text(&files).is_some());
    files.retain(|it| it.0 != "10-terway.conf");
    assert_eq!(carried_out(&mut files, &mut placed), Err(Obstacle::Empty));
    assert_eq!(files, []);
}

#[test]
fn multus_is_followed_to_the_network_that_it_is_told() {
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
        let place = carried_out(&mut files, &mut BTreeSet::new()).expect("placed");
        assert_eq!(place.file, "10-flannel.conflist");
        assert_eq!(files.len(), 2);
        assert_eq!(find(&files, "00-multus.conf"), Some(multus(network)));
        let text = find(&files, "10-flannel.conflist").expect("the list");
        assert!(text.contains("rdma-cni"), "{text}");
    }
    // a single configuration's list is what it was told
    let list = "/etc/cni/net.d/10-terway+rdma-cni.conflist";
    let mut files = vec![("10-terway.conf".to_owned(), TERWAY.to_owned())];
    let mut placed = BTreeSet::new();
    carried_out(&mut files, &mut placed).expect("placed");
    files.push(("00-multus.conf".to_owned(), multus(list)));
    let place = carried_out(&mut files, &mut placed).expect("placed");
    assert_eq!(
        (place.file.as_str(), files.len()),
        ("10-terway+rdma-cni.conflist", 3)
    );
    // a network that is not there, one of the cluster, or a single configuration: behind Multus
    for network in ["gone", "cbr0", "/etc/cni/net.d/10-terway.conf"] {
        let mut files = vec![
            ("00-multus.conf".to_owned(), multus(network)),
            ("10-flannel.conflist".to_owned(), FLANNEL.to_owned()),
            ("10-terway.conf".to_owned(), TERWAY.to_owned()),
        ];
        let place = carried_out(&mut files, &mut BTreeSet::new()).expect("placed");
        assert_eq!(place.file, "00-multus+rdma-cni.conflist", "{network}");
        assert_eq!(files.len(), 4);
    }
}

#[test]
fn what_stands_in_the_way_is_told() {
    let attach = |files: &[(&str, &str)], runtime: &Runtime| {
        let plan = plan::attach(
            &directory(files),
            runtime,
            (&Entry::default(), &Placement::List),
            &set(&[]),
            &present(&ALL),
        );
        assert_eq!(plan.changes, []);
        plan.place.expect_err("an obstacle").to_string()
    };
    let old = FLANNEL.replace("1.0.0", "0.2.0");
    assert!(attach(&[], &Runtime::Containerd).starts_with("there is no network configuration yet"));
    assert_eq!(
        attach(
            &[("1.conflist", "{}"), ("2.conflist", FLANNEL)],
            &Runtime::Containerd
        ),
        "1.conflist cannot be used by the runtime, and is left as it is: name is missing"
    );
    assert!(attach(&[("1.conflist", "{}")], &crio(None)).starts_with("1.conflist cannot be used"));
    assert!(
        attach(&[("1.conflist", &old)], &Runtime::Containerd)
            .starts_with("1.conflist is left as it is: cniVersion is 0.2.0")
    );
    let alone = r#"{"name":"n","plugins":[{"type":"rdma-cni"}]}"#;
    let (changes, obstacles) = plan::detach(
        &directory(&[("1.conflist", alone), ("2.conflist", "{")]),
        &set(&["1.conflist", "2.conflist"]),
    );
    assert_eq!((changes.len(), obstacles.len()), (0, 2));
}

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
            &set(&[]),
            programs,
        )
    };
    assert!(attach(&list, &present(&complete)).place.is_ok());
    let without = |names: &[&str]| {
        let left = complete.iter().filter(|it| !names.contains(it));
        present(&left.copied().collect::<Vec<_>>())
    };
    let elsewhere = "runtime looks for plugins elsewhere";
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
        let why = plan.place.expect_err("an obstacle");
        assert!(why.is_of_programs());
        assert_eq!(why.is_ours_gone(), missing.contains(&"rdma-cni"));
        let why = why.to_string();
        assert!(words.iter().all(|it| why.contains(it)), "{why}");
    }
    // Multus is there, and what it calls is not
    let mut names = without(&["portmap"]).names.expect("names");
    names.insert("multus-shim".into());
    let dir = PathBuf::from("/opt/cni/bin");
    let programs = Programs {
        dirs: vec![dir],
        names: Ok(names),
    };
    let why = attach(&multus, &programs).place.expect_err("an obstacle");
    assert!(
        why.to_string()
            .starts_with("20-bridge.conflist names portmap"),
        "{why}"
    );
    // a container without the directory says nothing of what is in it
    let unseen = Programs {
        names: Err("it is not mounted".into()),
        ..present(&[])
    };
    let plan = attach(&list, &unseen);
    assert_eq!(plan.changes, []);
    let why = plan.place.expect_err("an obstacle").to_string();
    assert!(why.contains("is not known (it is not mounted)"), "{why}");
}

#[test]
fn the_programs_are_those_that_a_runtime_and_plugins_look_for() {
    let corpus = |file: &str| {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        fs::read_to_string(directory.join(file)).expect("a list")
    };
    for (file, types) in [
        (
            "azure-bridge.conflist",
            &["azure-vnet", "azure-vnet-ipam", "portmap"][..],
        ),
        // its IPAM is no program
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
    // Multus may look for them elsewhere
    let text = corpus("multus.conf").replacen('{', r#"{"binDir":"/opt/multus","#, 1);
    assert_eq!(named(&text), set(&["multus"]));
}
