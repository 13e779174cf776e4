// SPDX-License-Identifier: Apache-2.0
//! Tests of links, pipes, directories and a file of a gigabyte in place of the node's files: the program reports them
//! without waiting.

use super::{RECORDS, Root, STATE, doctor_in, joined, run};
use integration::{Netns, OddFile, stopwatch::Stopwatch};
use std::time::Duration;

#[test]
fn an_object_in_the_place_of_a_file_is_reported_without_waiting() {
    let netns = Netns::new("doctor");
    for (odd, words) in [
        (
            OddFile::Link,
            "it is a symbolic link, which is not followed",
        ),
        (
            OddFile::DanglingLink,
            "it is a symbolic link, which is not followed",
        ),
        (OddFile::Pipe, "it is no regular file"),
        (OddFile::Socket, "it is no regular file"),
        (OddFile::Directory, "it is a directory"),
        (OddFile::Huge, "it has 1073741824 bytes"),
    ] {
        let root = Root::new();
        let elsewhere = tempfile::tempdir().expect("a directory");
        for file in [
            &format!("{RECORDS}/web@eth0.json"),
            &format!("{RECORDS}/web@eth0.lock"),
            &format!("{STATE}/given-up/eth7.json"),
            &format!("{STATE}/resources.json"),
            "var/lib/cni/networks/pods/10.0.0.5",
            "etc/cni/net.d/99-last.conflist",
            "etc/modprobe.d/rdma.conf",
        ] {
            odd.put(&root.path(file), elsewhere.path());
        }
        let at = Stopwatch::start();
        let (_, report, errors) = run(doctor_in(&netns, &root, &[]));
        assert!(
            at.elapsed() < Duration::from_secs(20),
            "{odd:?}: {:?}",
            at.elapsed()
        );
        let report = joined(&report);
        let record =
            format!("the record of container web (eth0 of network pods) cannot be read: {words}");
        assert!(report.contains(&record), "{odd:?}: {report}{errors}");
        OddFile::assert_left_alone(elsewhere.path());
    }
}

#[test]
fn a_record_of_the_installation_that_cannot_be_read_is_reported() {
    let netns = Netns::new("doctor");
    let root = Root::new();
    let path = root.path(&format!("{STATE}/install.json"));
    for (text, problem) in [
        ("{\"format\":1,", "EOF while parsing"),
        (
            "{\"format\":9}",
            "its format is 9, which a newer rdma-device-plugin wrote: use that release",
        ),
    ] {
        root.write(&format!("{STATE}/install.json"), text);
        let (code, report, _) = run(doctor_in(&netns, &root, &[]));
        let report = joined(&report);
        let sentence =
            format!("not seen the record of the installation: cannot read {path:?}: {problem}");
        assert!(report.contains(&sentence), "{text}: {report}");
        assert_ne!(code, 0, "{text}: {report}");
    }
}
