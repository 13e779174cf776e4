// SPDX-License-Identifier: Apache-2.0
//! Links, pipes, directories and a gigabyte in the place of the daemon's files: it starts, and offers what there is, or
//! says which file keeps it from that.

use super::{FIRST, HCA, SECOND, ids, program};
use integration::{Machine, OddFile, kubelet::DeviceManager};
use rdma_resources::Grants;

#[test]
fn a_daemon_starts_whatever_is_in_the_place_of_its_files() {
    for odd in OddFile::ALL {
        let machine = Machine::with(&[FIRST, SECOND]);
        let elsewhere = tempfile::tempdir().expect("a directory");
        machine.configure(HCA);
        for file in [
            "state/granted/rdma@hca/0.json",
            "state/granted/rdma@hca/1.json.new",
            "state/daemons/0000000001-00000000.daemon",
            "state/attachments/net/a@eth0.json",
            "state/claims/0c1f6e1e.json",
            "state/erdma/instance",
            "state/install.json",
        ] {
            odd.put(&machine.path(file), elsewhere.path());
        }
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let _daemon = program::start(&machine);
        kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
        kubelet
            .ask_for("rdma/hca", &[&ids(&["2"])])
            .expect("allocated");
        let grants = Grants::new(&machine.path("state"));
        assert!(
            grants.read("rdma/hca", "2").expect("read").is_some(),
            "{odd:?}"
        );
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// What containers are to have cannot be told: kubelet hears of no device whose meaning `rdma-cni` would not know.
#[test]
fn a_published_file_that_is_no_file_is_replaced() {
    for odd in OddFile::ALL {
        let machine = Machine::with(&[FIRST]);
        let elsewhere = tempfile::tempdir().expect("a directory");
        machine.configure(HCA);
        let published = machine.path("state/resources.json");
        odd.put(&published, elsewhere.path());
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let daemon = program::start(&machine);
        if odd == OddFile::Directory {
            daemon.says("resources.json");
        } else {
            kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
            let found = std::fs::symlink_metadata(&published).expect("it");
            assert!(found.is_file() && found.len() < 1 << 20, "{odd:?}");
        }
        OddFile::assert_left_alone(elsewhere.path());
    }
}
