// SPDX-License-Identifier: Apache-2.0
//! Tests of unreadable records: the claim is unprepared by its UID alone, and the renamed record stays for
//! administrators.

use super::{UID, injected, prepared, record};
use dra::{
    Claims,
    store::{Removed, Unreadable},
};
use integration::OddFile;
use std::{fs, os::unix::fs::symlink, path::Path};

/// Returns unreadable contents of a record: a description, the content, and a part of the reported reason.
fn texts(whole: &str) -> Vec<(&'static str, String, &'static str)> {
    let format = format!("\"format\": {}", dra::record::FORMAT);
    assert!(whole.contains(&format), "{whole}");
    let other = UID.replace('0', "7");
    vec![
        ("empty", String::new(), "EOF"),
        ("cut", whole[..whole.len() / 2].to_owned(), "EOF"),
        ("no record", "[]".to_owned(), "invalid"),
        (
            "of a later version",
            whole.replace(&format, "\"format\": 9"),
            "its format is 9, which a newer rdma-device-plugin wrote",
        ),
        (
            "of a later version without a field",
            whole
                .replace(&format, "\"format\": 9")
                .replace("awaitsNetwork", "of-later"),
            "its format is 9, which a newer rdma-device-plugin wrote",
        ),
        (
            "another claim's",
            whole.replace(UID, &other),
            "it is the record of claim",
        ),
    ]
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|it| it.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Unprepares the claim. Checks that its unreadable record is renamed, and that the claim can be prepared again.
fn is_unprepared(directory: &Path, claims: &Claims, what: &str, reason: &str) {
    let removed = claims.remove(UID, &directory.join("cdi")).expect(what);
    let Removed::Aside(Unreadable { file, why }) = removed else {
        panic!("{what}: {removed:?}");
    };
    assert!(why.to_string().contains(reason), "{what}: {why}");
    assert_eq!(
        file,
        directory.join(format!("claims/{UID}.corrupt")),
        "{what}"
    );
    assert_eq!(claims.aside(), [file], "{what}");
    let left = [format!("{UID}.corrupt"), "lock".to_owned()];
    assert_eq!(names(&directory.join("claims")), left, "{what}");
    assert_eq!(injected(directory), None, "{what}");
    let (all, unreadable) = claims.all();
    assert_eq!((all.len(), unreadable.len()), (0, 0), "{what}");
    // Unprepare succeeds without a record
    let again = claims.remove(UID, &directory.join("cdi")).expect(what);
    assert!(matches!(again, Removed::Nothing), "{what}: {again:?}");
    claims.prepare(record(directory, false)).expect(what);
    assert!(injected(directory).is_some(), "{what}");
    let removed = claims.remove(UID, &directory.join("cdi")).expect(what);
    assert!(matches!(removed, Removed::Record), "{what}: {removed:?}");
}

#[test]
fn a_claim_whose_record_cannot_be_read_is_unprepared() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let file = directory.join(format!("claims/{UID}.json"));
    prepared(directory, false);
    let whole = fs::read_to_string(&file).expect("text");
    for (what, text, reason) in texts(&whole) {
        let claims = prepared(directory, false);
        fs::write(&file, &text).expect("written");
        assert!(injected(directory).is_some());
        is_unprepared(directory, &claims, what, reason);
        // the file replaces the renamed record of the previous round
        let aside = directory.join(format!("claims/{UID}.corrupt"));
        assert_eq!(fs::read_to_string(&aside).expect("text"), text, "{what}");
    }
}

/// The specifications were in another directory when the claim was prepared, and the record still names it.
#[test]
fn the_specification_of_a_later_version_is_removed_where_it_was_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let claims = prepared(directory, false);
    let file = directory.join(format!("claims/{UID}.json"));
    let text = fs::read_to_string(&file).expect("text");
    fs::write(&file, text.replace("\"format\": 1", "\"format\": 9")).expect("written");
    let removed = claims.remove(UID, &directory.join("another"));
    assert!(matches!(removed, Ok(Removed::Aside(_))), "{removed:?}");
    assert_eq!(injected(directory), None);
}

#[test]
fn an_odd_file_in_place_of_a_record_is_renamed() {
    for odd in OddFile::ALL {
        let directory = tempfile::tempdir().expect("a directory");
        let elsewhere = tempfile::tempdir().expect("a directory");
        let claims = prepared(directory.path(), false);
        let file = directory.path().join(format!("claims/{UID}.json"));
        fs::remove_file(&file).expect("removed");
        odd.put(&file, elsewhere.path());
        is_unprepared(directory.path(), &claims, &format!("{odd:?}"), "");
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// The record's path is a link to another file. The other file must stay.
#[test]
fn a_link_is_renamed_and_not_its_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = prepared(directory.path(), false);
    let file = directory.path().join(format!("claims/{UID}.json"));
    let other = directory.path().join("other");
    fs::rename(&file, &other).expect("renamed");
    symlink(&other, &file).expect("a link");
    is_unprepared(directory.path(), &claims, "a link", "symbolic link");
    assert!(other.exists());
}
