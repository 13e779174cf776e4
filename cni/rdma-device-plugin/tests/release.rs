// SPDX-License-Identifier: Apache-2.0
//! Tests of `scripts/release`: it writes a version into all files, and its output is complete and the same each time.

mod clone;

use clone::{Clone, stand_ins, text_of};
use integration::oci::Archive;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn text(clone: &Clone, path: &str) -> String {
    let file = clone.path().join(path);
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn a_version_is_written_wherever_one_is() {
    let clone = Clone::new();
    let version = env!("CARGO_PKG_VERSION");
    let prepared = clone.release(&["prepare", "98.7.6"]);
    assert!(prepared.status.success(), "{}", text_of(&prepared));

    let mut grep = Command::new("git");
    let grep = grep
        .arg("-C")
        .arg(clone.path())
        .args(["grep", "-nF", version]);
    let left = grep
        .args(["--", "Cargo.toml", "conf"])
        .output()
        .expect("run");
    assert_eq!(text_of(&left), "", "the old version is left");
    for (path, line) in [
        ("Cargo.toml", "version = \"98.7.6\"\n"),
        ("Cargo.lock", "name = \"rdma-ipam\"\nversion = \"98.7.6\"\n"),
        (
            "conf/helm/rdma-device-plugin/Chart.yaml",
            "\nappVersion: 98.7.6\n",
        ),
        (
            "conf/manifests/hca.yaml",
            "image: rdma-device-plugin:98.7.6\n",
        ),
        ("CHANGELOG.md", "\n## [Unreleased]\n\n## [98.7.6] - 20"),
    ] {
        assert!(
            text(&clone, path).contains(line),
            "{path}: {}",
            text(&clone, path)
        );
    }
}

#[test]
fn a_run_without_a_new_version_changes_nothing() {
    let clone = Clone::new();
    let changelog = clone.path().join("CHANGELOG.md");
    fs::write(
        &changelog,
        text(&clone, "CHANGELOG.md") + "\n## [98.7.6] - 2026-01-01\n",
    )
    .expect("written");
    clone.commit();
    for (version, code, why) in [
        (
            "1.2",
            2,
            "'1.2' is not a version such as 0.2.0 or 0.2.0-rc.1",
        ),
        ("v1.2.3", 2, "'v1.2.3' is not a version such as 0.2.0"),
        ("98.7.6", 1, "CHANGELOG.md has a version 98.7.6 already"),
    ] {
        let refused = clone.release(&["prepare", version]);
        assert_eq!(refused.status.code(), Some(code), "{}", text_of(&refused));
        assert!(text_of(&refused).contains(why), "{}", text_of(&refused));
    }
    let mut git = Command::new("git");
    let status = git
        .arg("-C")
        .arg(clone.path())
        .args(["status", "--porcelain"]);
    assert_eq!(text_of(&status.output().expect("run")), "");
}

/// The release notes have one line for each list item, and absolute links. There are no notes for another
/// version than the tree's, or for a version without text.
#[test]
fn the_notes_are_the_changelogs_section() {
    let clone = Clone::new();
    let version = env!("CARGO_PKG_VERSION");
    let released = format!(
        "# Changelog\n\n## [Unreleased]\n\n- Later.\n\n## [{version}] - 2026-01-02\n\n### Added\n\n- One thing\n  \
         over two lines ([page](docs/install.md#upgrade)).\n- Another ([site](https://kubernetes.io/docs/)).\n\n\
         ### Changed\n\n- A third.\n\n## [0.0.1] - 2025-01-01\n\n- Earlier.\n"
    );
    fs::write(clone.path().join("CHANGELOG.md"), released).expect("written");
    let notes = clone.release(&["notes", version, "https://example.org/blob/v1"]);
    assert!(notes.status.success(), "{}", text_of(&notes));
    assert_eq!(
        text_of(&notes),
        "### Added\n\n- One thing over two lines ([page](https://example.org/blob/v1/docs/install.md#upgrade)).\n\
         - Another ([site](https://kubernetes.io/docs/)).\n\n### Changed\n\n- A third.\n"
    );

    let other = clone.release(&["notes", "98.7.6"]);
    assert_eq!(other.status.code(), Some(1));
    let why = format!("the tree is version {version}, not 98.7.6");
    assert!(text_of(&other).contains(&why), "{}", text_of(&other));
    fs::write(
        clone.path().join("CHANGELOG.md"),
        "## [Unreleased]\n\n- Later.\n",
    )
    .expect("written");
    let empty = clone.release(&["notes", version]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(
        text_of(&empty).contains("has nothing below"),
        "{}",
        text_of(&empty)
    );
}

fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(directory).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = paths
        .map(|path| (path.clone(), fs::read(path).expect("a file")))
        .collect();
    files.sort();
    files
        .iter_mut()
        .for_each(|(path, _)| *path = path.file_name().expect("a name").into());
    files
}

#[test]
fn a_release_is_whole_and_the_same_bytes_twice() {
    let clone = Clone::new();
    let binaries = stand_ins("");
    let made = ["one", "two"].map(|name| {
        let output = binaries.path().join(name);
        let [from, to] = [binaries.path(), &output].map(|it| it.to_str().expect("UTF-8"));
        let built = clone.release(&["build", "--binaries", from, "--output", to]);
        assert!(built.status.success(), "{}", text_of(&built));
        files(&output)
    });
    assert!(made[0] == made[1], "not the same bytes");

    let version = env!("CARGO_PKG_VERSION");
    let names: Vec<_> = made[0]
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    let expected = [
        "SHA256SUMS".to_owned(),
        format!("manifests-{version}.tar.gz"),
        format!("rdma-{version}-linux-amd64.tar.gz"),
        format!("rdma-{version}-linux-arm64.tar.gz"),
        format!("rdma-device-plugin-{version}-linux-amd64.cdx.json"),
        format!("rdma-device-plugin-{version}-linux-arm64.cdx.json"),
        format!("rdma-device-plugin-{version}-linux.oci.tar"),
        format!("rdma-device-plugin-{version}.tgz"),
    ];
    assert_eq!(names, expected);

    let list = |archive: &str| {
        let mut tar = Command::new("tar");
        let listed = tar
            .arg("-tvzf")
            .arg(binaries.path().join("one").join(archive));
        text_of(&listed.output().expect("run"))
    };
    let one = binaries.path().join("one");
    for (archive, of) in [(&expected[2], ""), (&expected[3], " for arm64")] {
        let listed = list(archive);
        let directory = archive.strip_suffix(".tar.gz").expect("an archive");
        assert!(
            listed.contains(&format!("{directory}/LICENSE\n")),
            "{listed}"
        );
        let plugin = format!("{directory}/kubectl-rdma -> rdma-device-plugin\n");
        assert!(listed.contains(&plugin), "{listed}");
        for name in ["rdma-cni", "rdma-device-plugin", "rdma-ipam"] {
            let mut tar = Command::new("tar");
            let tar = tar.arg("-xzOf").arg(one.join(archive));
            let binary = tar.arg(format!("{directory}/{name}")).output();
            assert_eq!(text_of(&binary.expect("run")), format!("{name}{of}"));
        }
    }
    let image = Archive::open(&one.join(&expected[6]));
    assert_eq!(image.architectures(), ["amd64", "arm64"]);
    let chart = list(&expected[7]);
    assert!(chart.contains("rdma-device-plugin/Chart.yaml\n"), "{chart}");
}

#[test]
fn a_tree_with_changes_is_not_released() {
    let clone = Clone::new();
    fs::write(clone.path().join("LICENSE"), "mine").expect("written");
    let refused = clone.release(&["build"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text_of(&refused));
    assert!(
        text_of(&refused).contains("commit first"),
        "{}",
        text_of(&refused)
    );
}
