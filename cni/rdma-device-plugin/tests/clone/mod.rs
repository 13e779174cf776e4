// SPDX-License-Identifier: Apache-2.0
//! A clone of the repository in which tests make a release, and stand-ins for the binaries.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};
use tempfile::TempDir;

/// Clone of this repository. Its last commit has the working tree's release scripts.
pub(crate) struct Clone(TempDir);

impl Clone {
    #[track_caller]
    pub(crate) fn new() -> Self {
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

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    #[track_caller]
    pub(crate) fn commit(&self) {
        let mut git = Command::new("git");
        done(git.arg("-C").arg(self.path()).args(["add", "--all"]));
        let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
        let words = ["commit", "--quiet", "--allow-empty", "-m", "test"];
        let mut git = Command::new("git");
        done(git.arg("-C").arg(self.path()).args(identity).args(words));
    }

    pub(crate) fn release(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.path().join("scripts/release"));
        let command = command.args(words).current_dir(self.path());
        command
            .env_remove("SOURCE_DATE_EPOCH")
            .output()
            .expect("run")
    }
}

#[track_caller]
fn done(command: &mut Command) {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", text_of(&output));
}

/// Returns standard output and standard error of a program.
pub(crate) fn text_of(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{error}")
}

/// Returns a directory with texts in place of the binaries of both architectures. Each text ends in
/// `text`.
pub(crate) fn stand_ins(text: &str) -> TempDir {
    let binaries = tempfile::tempdir().expect("a directory");
    let arm64 = binaries.path().join("arm64");
    fs::create_dir(&arm64).expect("made");
    for name in ["rdma-cni", "rdma-device-plugin", "rdma-ipam"] {
        fs::write(binaries.path().join(name), format!("{name}{text}")).expect("written");
        fs::write(arm64.join(name), format!("{name} for arm64{text}")).expect("written");
    }
    binaries
}
