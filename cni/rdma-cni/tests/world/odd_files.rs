// SPDX-License-Identifier: Apache-2.0
//! Tests of links, pipes, sockets, directories and a file of a gigabyte at the paths of files that `rdma-cni` and the
//! daemon read as root. `rdma-cni` does not write to the target of a link, and does not wait.

use crate::{
    claims,
    kubelet::{Cluster, address},
    node::{Node, Pod},
};
use integration::{
    OddFile,
    stopwatch::{Stopwatch, WITHOUT_A_LOCK},
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

const VF: &str = "0000:3b:00.2";

fn file(node: &Node) -> PathBuf {
    node.state.path().join("cdi/rdma-device-plugin-rdma.json")
}

/// Asserts that the device is on the host, with any character device number, and that no record exists.
#[track_caller]
fn is_back(cluster: &Cluster, pod: &Pod) {
    assert!(!cluster.node.record_of(pod).exists());
    let rdma = cluster.rdma(&address(VF)).name;
    let kernel = &cluster.node.kernel;
    let (place, host) = kernel.with(|it| (it.place_of_rdma(&rdma), it.observe(None).host.id));
    assert_eq!(place, Some(host));
}

fn remove(path: &Path) {
    match path.is_dir() && !path.is_symlink() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
    .unwrap();
}

#[test]
fn an_object_at_the_cdi_path_is_reported() {
    for odd in OddFile::ALL {
        let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
        let elsewhere = tempfile::tempdir().unwrap();
        let path = file(&cluster.node);
        odd.put(&path, elsewhere.path());
        let began = Stopwatch::start();
        let message = cluster.add(&pod, &config).must_fail(106);
        assert!(began.elapsed() < WITHOUT_A_LOCK, "{odd:?}");
        assert!(
            message.contains(path.to_str().unwrap()),
            "{odd:?}: {message}"
        );
        is_back(&cluster, &pod);
        OddFile::assert_left_alone(elsewhere.path());
        // now the object replaces the file while a pod has the device
        remove(&path);
        cluster.cdi().write(|| cluster.entries()).unwrap();
        cluster.add(&pod, &config).must_succeed();
        odd.put(&path, elsewhere.path());
        cluster.del(&pod, &config).must_succeed();
        is_back(&cluster, &pod);
        OddFile::assert_left_alone(elsewhere.path());
    }
}

#[test]
fn an_object_at_the_temporary_cdi_path_is_not_written_to() {
    for odd in OddFile::ALL {
        let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
        let elsewhere = tempfile::tempdir().unwrap();
        let path = file(&cluster.node);
        let unfinished = path.with_extension("new");
        odd.put(&unfinished, elsewhere.path());
        let answer = cluster.add(&pod, &config);
        if odd == OddFile::Directory {
            let message = answer.must_fail(106);
            assert!(message.contains("it is a directory"), "{message}");
        } else {
            answer.must_succeed();
            let found = fs::symlink_metadata(&path).unwrap();
            assert!(found.is_file() && found.len() < 1 << 20, "{odd:?}");
            cluster.entries_must_be_right(&format!("{odd:?}"));
        }
        OddFile::assert_left_alone(elsewhere.path());
    }
}

#[test]
fn a_lock_of_the_cdi_file_that_is_no_file_is_named() {
    for odd in OddFile::ALL {
        let (cluster, config, pod) = Cluster::with_a_hole(VF, true);
        let elsewhere = tempfile::tempdir().unwrap();
        let lock = cluster.state_dir().join("cdi.lock");
        odd.put(&lock, elsewhere.path());
        let began = Stopwatch::start();
        let answer = cluster.add(&pod, &config);
        assert!(began.elapsed() < WITHOUT_A_LOCK, "{odd:?}");
        if odd == OddFile::Huge {
            // a regular file can be locked, whatever it contains
            answer.must_succeed();
            assert_eq!(fs::metadata(&lock).unwrap().len(), 1 << 30);
        } else {
            let message = answer.must_fail(106);
            assert!(
                message.contains(lock.to_str().unwrap()),
                "{odd:?}: {message}"
            );
        }
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// Puts each kind of odd object at the lock's path `below` the state directory of a new node. For kinds in `locked`,
/// ADD locks the object like a regular file. For other kinds, ADD's error names the object, and `undone` checks that
/// ADD has left nothing. DEL always succeeds.
fn is_named_or_locked(
    make: impl Fn() -> (Cluster, Value, Pod),
    below: &str,
    locked: &[OddFile],
    undone: impl Fn(&Cluster),
) {
    for odd in OddFile::ALL {
        let (cluster, config, pod) = make();
        let elsewhere = tempfile::tempdir().unwrap();
        let lock = cluster.state_dir().join(below);
        odd.put(&lock, elsewhere.path());
        let began = Stopwatch::start();
        let answer = cluster.add(&pod, &config);
        if locked.contains(&odd) {
            answer.must_succeed();
        } else {
            let message = answer.must_fail(106);
            assert!(
                message.contains(lock.to_str().unwrap()),
                "{odd:?}: {message}"
            );
            is_back(&cluster, &pod);
            undone(&cluster);
            remove(&lock);
            cluster.add(&pod, &config).must_succeed();
            odd.put(&lock, elsewhere.path());
        }
        if odd == OddFile::Huge {
            assert_eq!(fs::metadata(&lock).unwrap().len(), 1 << 30);
        }
        cluster.del(&pod, &config).must_succeed();
        is_back(&cluster, &pod);
        assert!(began.elapsed() < WITHOUT_A_LOCK, "{odd:?}");
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// A pod that mounts `rails/` can replace the lock. A pipe is opened for both directions, so opening it does not wait.
#[test]
fn an_object_at_the_rails_lock_is_reported_or_locked() {
    let make = || Cluster::with_a_hole(VF, true);
    let locked = [OddFile::Pipe, OddFile::Huge];
    is_named_or_locked(make, "rails/.lock", &locked, |_| {});
}

#[test]
fn a_lock_of_the_claims_that_is_no_file_is_named() {
    let undone = |cluster: &Cluster| assert_eq!(claims::given(cluster), None);
    is_named_or_locked(claims::with_a_hole, "claims/lock", &[OddFile::Huge], undone);
}

/// The link leads to a valid record, so a program that follows the link would succeed.
#[test]
fn a_link_in_the_place_of_a_claims_record_is_neither_read_nor_written_through() {
    let (cluster, config, pod) = claims::with_a_hole();
    let elsewhere = tempfile::tempdir_in(cluster.node.state.path()).unwrap();
    let record = cluster
        .state_dir()
        .join(format!("claims/{}.json", claims::UID));
    let theirs = elsewhere.path().join("record.json");
    let plant = || {
        let text = fs::read(&record).unwrap();
        fs::rename(&record, &theirs).unwrap();
        symlink(&theirs, &record).unwrap();
        text
    };
    let text = plant();
    let message = cluster.add(&pod, &config).message();
    assert!(message.contains(record.to_str().unwrap()), "{message}");
    is_back(&cluster, &pod);
    assert_eq!(claims::given(&cluster), None);
    assert_eq!(fs::read(&theirs).unwrap(), text);
    // now the link replaces the record while the pod has its network
    fs::rename(&theirs, &record).unwrap();
    cluster.add(&pod, &config).must_succeed();
    let text = plant();
    cluster.del(&pod, &config).must_succeed();
    is_back(&cluster, &pod);
    assert_eq!(fs::read(&theirs).unwrap(), text);
    assert!(record.is_symlink());
}

#[test]
fn an_object_at_a_temporary_claim_path_is_not_written_to() {
    for odd in OddFile::ALL {
        let (cluster, config, pod) = claims::with_a_hole();
        let elsewhere = tempfile::tempdir().unwrap();
        let record = cluster
            .state_dir()
            .join(format!("claims/{}.json", claims::UID));
        odd.put(&record.with_extension("new"), elsewhere.path());
        let answer = cluster.add(&pod, &config);
        if odd == OddFile::Directory {
            let message = answer.must_fail(106);
            assert!(message.contains("it is a directory"), "{message}");
            is_back(&cluster, &pod);
        } else {
            answer.must_succeed();
            let found = fs::symlink_metadata(&record).unwrap();
            assert!(found.is_file() && found.len() < 1 << 20, "{odd:?}");
            assert!(claims::given(&cluster).is_some(), "{odd:?}");
        }
        OddFile::assert_left_alone(elsewhere.path());
    }
}
