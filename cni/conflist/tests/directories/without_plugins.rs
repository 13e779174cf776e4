// SPDX-License-Identifier: Apache-2.0
//! Tests of a list without `plugins`, whose plugins are all in the network's own directory. Runtimes with libcni 1.3 or
//! later accept such a list.

use crate::{FLANNEL, crio, directory, placed, present, set};
use conflist::{
    Broken, Called, Change, Choice, Entry, Obstacle, Picked, Placed, Placement, Runtime, called,
    pick,
    plan::{self, Plan},
};
use serde_json::json;
use std::collections::BTreeSet;

const FILE: &str = "10-net.conflist";
const LIST: &str = r#"{"cniVersion":"1.0.0","name":"net"}"#;
const BRIDGE: (&str, &str) = ("net/10-bridge.conf", r#"{"type":"bridge"}"#);
const OURS: &str = "net/99-rdma-cni.conf";

fn planned(files: &[(&str, &str)], runtime: &Runtime, placement: &Placement) -> Plan {
    plan::attach(
        &directory(files),
        runtime,
        (&Entry::default(), placement),
        &Placed::new(),
        &present(&["bridge", "flannel", "rdma-cni"]),
    )
}

#[test]
fn a_runtime_uses_it_if_the_directory_has_plugins() {
    let other = ("20-other.conflist", FLANNEL);
    let inlined = LIST.replace('{', r#"{"loadOnlyInlinedPlugins":true,"#);
    for (list, bridge, is_usable) in [
        (LIST, BRIDGE, true),
        (LIST, ("net/10-bridge.conflist", BRIDGE.1), false),
        (LIST, ("other/10-bridge.conf", BRIDGE.1), false),
        (&inlined, BRIDGE, false),
    ] {
        let files = directory(&[(FILE, list), bridge, other]);
        let [containerd, crio] =
            [Runtime::Containerd, crio(None)].map(|it| pick(&files, &it).choice);
        let file = |choice: &Choice| match choice {
            Choice::Picked(picked) => Some(picked.file.clone()),
            _ => None,
        };
        if is_usable {
            assert_eq!(
                [&containerd, &crio].map(file),
                [(); 2].map(|()| Some(FILE.into()))
            );
            continue;
        }
        let blocked = Choice::Blocked {
            file: FILE.into(),
            why: Broken::Missing {
                field: "plugins".into(),
            },
        };
        assert_eq!((containerd, file(&crio)), (blocked, Some(other.0.into())));
    }
    // libcni's cache has the text without the directory's plugins
    let cached = Picked::read(".conflist", LIST).expect("a list");
    assert_eq!((cached.network.as_str(), cached.types.len()), ("net", 0));
}

/// The entry can only be in the directory. containerd calls the directory's plugins at ADD and at DEL.
#[test]
fn the_directory_gets_the_entry_whatever_the_placement() {
    let auto = Placement::Auto {
        read: BTreeSet::new(),
    };
    for placement in [Placement::List, Placement::Directory, auto] {
        let plan = planned(&[(FILE, LIST), BRIDGE], &Runtime::Containerd, &placement);
        assert_eq!(plan.obstacle, None);
        let [Change::Write { file, text, like }] = &plan.changes[..] else {
            panic!("{:?}", plan.changes);
        };
        assert_eq!((file.as_str(), like.as_str()), (OURS, FILE));
        let files = [(FILE, LIST), BRIDGE, (OURS, text)];
        let directory = directory(&files);
        let runtime = Runtime::Containerd;
        let expected = Called {
            file: OURS.into(),
            network: "net".into(),
            by_others: false,
        };
        let placed = placed(OURS, json!({"type": "rdma-cni"}));
        assert_eq!(called(&directory, &runtime, &placed), Ok(expected));
        let (changes, obstacles) = plan::detach(&directory, &placed);
        let remove = Change::Remove { file: OURS.into() };
        assert_eq!((changes, obstacles), (vec![remove], vec![]));
    }
}

/// CRI-O does not call the directory's plugins at DEL. No test shows whether nerdctl and podman call them.
#[test]
fn another_runtimes_list_is_refused() {
    let named = Runtime::Named {
        network: "net".into(),
    };
    for runtime in [crio(None), named] {
        let plan = planned(&[(FILE, LIST), BRIDGE], &runtime, &Placement::List);
        assert_eq!(plan.changes, []);
        let why = plan.obstacle.expect("an obstacle").to_string();
        assert_eq!(
            why,
            "rdma-device-plugin does not change 10-net.conflist: the list has no plugins, and rdma-cni in the network's \
             own directory works only with containerd; move the network's plugins into the list"
        );
    }
}

#[test]
fn nothing_is_put_in_while_a_program_is_missing_that_the_directory_names() {
    let portmap = ("net/20-portmap.conf", r#"{"type":"portmap"}"#);
    let files = [(FILE, LIST), BRIDGE, portmap];
    let plan = planned(&files, &Runtime::Containerd, &Placement::List);
    assert_eq!(plan.changes, []);
    let Some(Obstacle::Elsewhere { file, programs, .. }) = plan.obstacle else {
        panic!("{:?}", plan.obstacle);
    };
    assert_eq!((file.as_str(), programs), (FILE, set(&["portmap"])));
}
