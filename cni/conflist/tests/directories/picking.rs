// SPDX-License-Identifier: Apache-2.0
//! Tests of the file that a runtime uses.

use crate::{FLANNEL, TERWAY, crio, directory};
use conflist::{
    Broken, Choice, Directory, Runtime, pick,
    pick::{Skip, Skipped},
};
use std::fs;

fn picked(files: &[(&str, &str)], runtime: &Runtime) -> Option<String> {
    match pick(&directory(files), runtime).choice {
        Choice::Picked(picked) => Some(picked.file),
        _ => None,
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
fn crio_can_have_a_default_network() {
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
    // the link's target is in a part of the file system that a container does not have
    std::os::unix::fs::symlink("/nowhere/net.conf", path.join("50-link.conf")).expect("linked");
    fs::write(path.join("note.txt"), "").expect("written");
    let read = Directory::read(path).expect("read").expect("there");
    let texts: Vec<_> = read
        .files()
        .iter()
        .map(|it| (it.name.as_str(), &it.text))
        .collect();
    assert_eq!(texts.len(), 5, "{texts:?}");
    assert_eq!(
        texts[0].1,
        &Err(Broken::Large {
            size: 2 * 1024 * 1024 + 1
        })
    );
    assert!(matches!(texts[1].1, Err(Broken::Syntax { .. })));
    assert_eq!(texts[2].1.as_deref(), Ok(FLANNEL));
    for (_, text) in &texts[3..] {
        assert!(matches!(text, Err(Broken::Unreadable { .. })), "{text:?}");
    }
}

/// podman and nerdctl use the network that a container names.
#[test]
fn a_named_network_is_found_behind_others_and_behind_broken_files() {
    let rails = FLANNEL.replace("cbr0", "rails");
    let files = [
        ("05-broken.conflist", "{"),
        ("10-a.conflist", FLANNEL),
        ("20-b.conflist", &rails),
        ("30-c.conflist", &rails),
    ];
    let named = |network: &str| Runtime::Named {
        network: network.to_owned(),
    };
    assert_eq!(
        picked(&files, &named("rails")).as_deref(),
        Some("20-b.conflist")
    );
    assert_eq!(
        picked(&files, &named("cbr0")).as_deref(),
        Some("10-a.conflist")
    );
    assert_eq!(picked(&files, &named("other")), None);
}
