// SPDX-License-Identifier: Apache-2.0
//! `scripts/release`: a version is written everywhere, and what is published is whole and the same each time.

use integration::oci::Archive;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

/// A clone of this repository with the scripts as they are in the tree, committed.
struct Clone(TempDir);

impl Clone {
    #[track_caller]
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let directory = tempfile::tempdir().expect("a directory");
        let clone = Self(directory);
        let mut git = Command::new("git");
        done(git.args(["clone", "--quiet"]).arg(&root).arg(clone.path()));
        let of_a_release = ["release", "image", "oci-archive", "sbom", "licenses"];
        for name in of_a_release.into_iter().chain(["prerequisites.sh"]) {
            let script = Path::new("scripts").join(name);
            fs::copy(root.join(&script), clone.path().join(&script)).expect("a copy");
        }
        clone.commit();
        clone
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    #[track_caller]
    fn commit(&self) {
        let mut git = Command::new("git");
        done(git.arg("-C").arg(self.path()).args(["add", "--all"]));
        let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
        let words = ["commit", "--quiet", "--allow-empty", "-m", "test"];
        let mut git = Command::new("git");
        done(git.arg("-C").arg(self.path()).args(identity).args(words));
    }

    fn release(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.path().join("scripts/release"));
        let command = command.args(words).current_dir(self.path());
        command
            .env_remove("SOURCE_DATE_EPOCH")
            .output()
            .expect("run")
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

#[track_caller]
fn done(command: &mut Command) {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", said(&output));
}

fn said(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{error}")
}

#[test]
fn a_version_is_written_wherever_one_is() {
    let clone = Clone::new();
    let version = env!("CARGO_PKG_VERSION");
    let prepared = clone.release(&["prepare", "98.7.6"]);
    assert!(prepared.status.success(), "{}", said(&prepared));

    let mut grep = Command::new("git");
    let grep = grep
        .arg("-C")
        .arg(clone.path())
        .args(["grep", "-nF", version]);
    let left = grep
        .args(["--", "Cargo.toml", "conf"])
        .output()
        .expect("run");
    assert_eq!(said(&left), "", "the old version is left");
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
            clone.text(path).contains(line),
            "{path}: {}",
            clone.text(path)
        );
    }
}

#[test]
fn what_is_no_new_version_changes_nothing() {
    let clone = Clone::new();
    let changelog = clone.path().join("CHANGELOG.md");
    fs::write(
        &changelog,
        clone.text("CHANGELOG.md") + "\n## [98.7.6] - 2026-01-01\n",
    )
    .expect("written");
    clone.commit();
    for (version, code, why) in [
        (
            "1.2",
            2,
            "'1.2' is no version of three numbers, such as 0.2.0",
        ),
        ("v1.2.3", 2, "'v1.2.3' is no version of three numbers"),
        ("98.7.6", 1, "CHANGELOG.md has a version 98.7.6 already"),
    ] {
        let refused = clone.release(&["prepare", version]);
        assert_eq!(refused.status.code(), Some(code), "{}", said(&refused));
        assert!(said(&refused).contains(why), "{}", said(&refused));
    }
    let mut git = Command::new("git");
    let status = git
        .arg("-C")
        .arg(clone.path())
        .args(["status", "--porcelain"]);
    assert_eq!(said(&status.output().expect("run")), "");
}

/// The files in the directory with their bytes.
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
fn what_is_published_is_whole_and_the_same_bytes_twice() {
    let clone = Clone::new();
    let binaries = tempfile::tempdir().expect("a directory");
    let arm64 = binaries.path().join("arm64");
    fs::create_dir(&arm64).expect("made");
    for name in ["rdma-cni", "rdma-device-plugin", "rdma-ipam"] {
        fs::write(binaries.path().join(name), name).expect("written");
        fs::write(arm64.join(name), format!("{name} for arm64")).expect("written");
    }
    let made = ["one", "two"].map(|name| {
        let output = binaries.path().join(name);
        let [from, to] = [binaries.path(), &output].map(|it| it.to_str().expect("UTF-8"));
        let built = clone.release(&["build", "--binaries", from, "--output", to]);
        assert!(built.status.success(), "{}", said(&built));
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
            .arg("-tzf")
            .arg(binaries.path().join("one").join(archive));
        said(&listed.output().expect("run"))
    };
    let one = binaries.path().join("one");
    for (archive, of) in [(&expected[2], ""), (&expected[3], " for arm64")] {
        let listed = list(archive);
        let directory = archive.strip_suffix(".tar.gz").expect("an archive");
        assert!(
            listed.contains(&format!("{directory}/LICENSE\n")),
            "{listed}"
        );
        for name in ["rdma-cni", "rdma-device-plugin", "rdma-ipam"] {
            let mut tar = Command::new("tar");
            let tar = tar.arg("-xzOf").arg(one.join(archive));
            let binary = tar.arg(format!("{directory}/{name}")).output();
            assert_eq!(said(&binary.expect("run")), format!("{name}{of}"));
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
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(
        said(&refused).contains("commit first"),
        "{}",
        said(&refused)
    );
}
