// SPDX-License-Identifier: Apache-2.0
//! Loss of power at each sync. Unsynced data are lost, on ext4, and with `--full` also on XFS.

use integration::{
    crash::{
        Tally,
        attachment::{Attachments, Mode, Verb},
        daemon::Writes,
        lease::Leases,
        power_loss::{Boots, boots, loses_power},
        program::{self, Programs},
    },
    daemon::rdma_device_plugin,
    disk::{self, Disk, Format},
    extent,
    plugin::rdma_cni,
};
use std::{
    fs::{self, File},
    path::PathBuf,
};
use tempfile::TempDir;

fn injector() -> PathBuf {
    env!("CARGO_BIN_EXE_fault-injector").into()
}

/// Runs `stories` on ext4, and with `--full` also on XFS. Of each story, at most `most_unmet` points may be unmet: the
/// story ended before such a point, and power was lost at the story's end.
#[track_caller]
fn on_each_format(most_unmet: usize, stories: impl Fn(&Disk) -> Vec<Tally>) {
    for format in Format::ALL.into_iter().take(extent::of(1, usize::MAX)) {
        let disk = Disk::for_temporary_directories(format);
        for tally in stories(&disk) {
            assert!(
                tally.killed > 1 && tally.unmet <= most_unmet,
                "{format:?}: {tally}"
            );
            let left = tally.left.join("\n");
            assert!(tally.left.is_empty(), "{format:?}: {tally}\n{left}");
        }
    }
}

#[test]
fn unsynced_writes_are_lost() {
    for format in Format::ALL {
        let disk = Disk::for_temporary_directories(format);
        let directory = TempDir::new().expect("a directory");
        disk::settle();
        let at = |name: &str| directory.path().join(name);
        for name in ["synced", "renamed", "written"] {
            fs::write(at(name), name).expect("a file");
        }
        File::open(at("synced"))
            .and_then(|it| it.sync_all())
            .expect("a sync");
        fs::rename(at("renamed"), at("new")).expect("a name");
        fs::write(at("later"), "").expect("a file");
        disk.lose_power();
        let content = fs::read_to_string(at("synced"));
        assert_eq!(content.expect("it is there"), "synced", "{format:?}");
        assert!(
            !at("new").exists(),
            "{format:?}: a rename that was not synced"
        );
        assert!(
            !at("later").exists(),
            "{format:?}: a file that was not synced"
        );
        let written = fs::read_to_string(at("written")).unwrap_or_default();
        assert_eq!(written, "", "{format:?}: what was written and not synced");
    }
}

#[test]
fn leases_lose_power() {
    on_each_format(0, |disk| {
        let of = |(name, verb)| {
            let ipam = rdma_cni().with_file_name("rdma-ipam");
            loses_power(&mut Leases::new(name, verb, [ipam, injector()]), disk)
        };
        let verbs = [
            ("rdma-ipam ADD", Verb::Add),
            ("rdma-ipam DEL", Verb::Del),
            ("rdma-ipam GC", Verb::Gc),
        ];
        verbs.map(of).into()
    });
}

#[test]
fn install_and_uninstall_lose_power() {
    on_each_format(0, |disk| {
        let of = |verb| {
            let mut story = Programs::new(verb, [rdma_device_plugin(), injector()]);
            loses_power(&mut story, disk)
        };
        [program::Verb::Install, program::Verb::Uninstall]
            .map(of)
            .into()
    });
}

#[test]
fn the_daemon_loses_power() {
    // the number of its checks, and therefore of its writes, differs from run to run
    on_each_format(2, |disk| {
        let mut story = Writes::new([rdma_device_plugin(), injector()]);
        vec![loses_power(&mut story, disk)]
    });
}

#[test]
fn attachments_lose_power() {
    on_each_format(0, |disk| {
        let of = |(name, mode, verb)| {
            let of = Attachments::of_node(mode, [rdma_cni(), injector()]);
            boots(Boots {
                name,
                verb,
                of,
                disk,
            })
        };
        let verbs = [
            ("share ADD", Mode::Share, Verb::Add),
            ("share DEL", Mode::Share, Verb::Del),
            ("share GC", Mode::Share, Verb::Gc),
            ("move ADD", Mode::Move, Verb::Add),
            ("move DEL", Mode::Move, Verb::Del),
            ("move GC", Mode::Move, Verb::Gc),
        ];
        verbs.map(of).into()
    });
}
