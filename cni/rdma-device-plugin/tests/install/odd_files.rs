// SPDX-License-Identifier: Apache-2.0
//! Tests of links, pipes, directories and a file of a gigabyte in place of the record of an installation, and of
//! unusable modes.

use crate::{FLANNEL, Node, refused, text_of};
use integration::{OddFile, stopwatch::Stopwatch};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    time::Duration,
};

const RECORD: &str = "state/install.json";

#[test]
fn a_record_of_an_installation_that_is_no_file_is_named_and_nothing_is_changed() {
    for odd in OddFile::ALL {
        for installed in [false, true] {
            let node = Node::with_list(FLANNEL);
            let elsewhere = tempfile::tempdir().expect("a directory");
            if installed {
                node.install();
            }
            let list = "etc/cni/net.d/10-flannel.conflist";
            let (before, record) = (node.read(list), node.path(RECORD));
            odd.put(&record, elsewhere.path());
            let new = node.path("new");
            let from = ["--from", new.to_str().expect("a path")];
            for (verb, arguments) in [("install", &from[..]), ("uninstall", &[])] {
                let at = Stopwatch::start();
                let error = refused(&node.run(verb, arguments));
                assert!(at.elapsed() < Duration::from_secs(10), "{odd:?}, {verb}");
                assert!(
                    error.contains(record.to_str().expect("a path")),
                    "{odd:?}, {verb}: {error}"
                );
                assert_eq!(node.read(list), before, "{odd:?}, {verb}");
            }
            OddFile::assert_left_alone(elsewhere.path());
        }
    }
}

/// A restored backup or a hardening script can set any mode. Root can still read and write the files.
#[test]
fn unusable_modes_keep_nothing_installed() {
    for mode in [0o000, 0o111, 0o7777] {
        let node = Node::with_list(FLANNEL);
        let before = node.seen();
        node.install();
        for below in [RECORD, "state"] {
            fs::set_permissions(node.path(below), Permissions::from_mode(mode)).expect("set");
        }
        text_of(&node.run("uninstall", &[]));
        assert_eq!(node.seen(), before, "{mode:o}");
    }
}
