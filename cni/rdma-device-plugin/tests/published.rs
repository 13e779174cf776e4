// SPDX-License-Identifier: Apache-2.0
//! Tests of `scripts/release push` into crane's registry, and of an operator's steps without internet access according
//! to `docs/deploy.md`. The scripts of the clone build crane and Helm if the lab's cache does not have them.

mod clone;

use clone::{Clone, stand_ins, text_of};
use integration::{oci::Archive, pages};
use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
};
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A registry in the memory of a process. Dropping this value ends the process.
struct Registry {
    process: Child,
    crane: PathBuf,
    /// Address and port of the registry.
    address: String,
}

impl Registry {
    fn start(clone: &Clone) -> Self {
        let crane = program(clone, &["release/build", "crane"]);
        let mut command = Command::new(&crane);
        command.args(["registry", "serve", "--address", "127.0.0.1:0"]);
        let mut process = command.stderr(Stdio::piped()).spawn().expect("a registry");
        let mut log = BufReader::new(process.stderr.take().expect("its log"));
        let mut line = String::new();
        log.read_line(&mut line).expect("a line");
        let port = line.rsplit("serving on port ").next().expect("a part");
        let address = format!("127.0.0.1:{}", port.trim());
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Self {
            process,
            crane,
            address,
        }
    }

    fn crane(&self, words: &[&str]) -> String {
        done(Command::new(&self.crane).args(words))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a script of `integration/`. Returns the path of the program that the script built.
#[track_caller]
fn program(clone: &Clone, words: &[&str]) -> PathBuf {
    let mut command = Command::new(clone.path().join("integration").join(words[0]));
    done(command.args(&words[1..])).trim().into()
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", text_of(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Builds a release for the project `team` of the registry. Its binaries are stand-ins that end in `text`.
#[track_caller]
fn built(clone: &Clone, registry: &Registry, text: &str) -> TempDir {
    let (binaries, output) = (stand_ins(text), tempfile::tempdir().expect("a directory"));
    let [from, to] = [&binaries, &output].map(|it| it.path().to_str().expect("UTF-8"));
    let registry = format!("{}/team", registry.address);
    let words = ["--binaries", from, "--output", to, "--registry", &registry];
    let outcome = clone.release(&[&["build"], &words[..]].concat());
    assert!(outcome.status.success(), "{}", text_of(&outcome));
    output
}

fn push(clone: &Clone, registry: &Registry, directory: &TempDir) -> Output {
    let directory = directory.path().to_str().expect("UTF-8");
    clone.release(&["push", directory, &format!("{}/team", registry.address)])
}

/// After the push, the registry has the archive's image for both architectures, with the archive's digest, and a chart
/// that names this image. A second push of the same bytes changes nothing, and a push of other bytes is refused.
#[test]
fn a_version_is_pushed_once() {
    let clone = Clone::new();
    let registry = Registry::start(&clone);
    let release = built(&clone, &registry, "");
    let pushed = push(&clone, &registry, &release);
    assert!(pushed.status.success(), "{}", text_of(&pushed));
    let names = String::from_utf8(pushed.stdout).expect("UTF-8");
    let team = format!("{}/team", registry.address);
    let archive = format!("rdma-device-plugin-{VERSION}-linux.oci.tar");
    let image = Archive::open(&release.path().join(archive)).named();
    let digest = image["digest"].as_str().expect("a digest");
    let lines: Vec<&str> = names.lines().collect();
    assert_eq!(lines[0], format!("{team}/rdma-device-plugin@{digest}"));
    let chart = format!("{team}/charts/rdma-device-plugin@sha256:");
    assert!(lines.len() == 2 && lines[1].starts_with(&chart), "{names}");

    for (platform, text) in [
        ("linux/amd64", "rdma-cni"),
        ("linux/arm64", "rdma-cni for arm64"),
    ] {
        let layers = tempfile::tempdir().expect("a directory");
        let tar = layers.path().join("tar");
        let to = tar.to_str().expect("UTF-8");
        registry.crane(&["export", "--platform", platform, lines[0], to]);
        let mut command = Command::new("tar");
        assert_eq!(done(command.args(["-xOf", to, "usr/bin/rdma-cni"])), text);
    }
    let mut helm = Command::new(program(&clone, &["helm/build"]));
    let from = format!("oci://{team}/charts/rdma-device-plugin");
    let rendered = done(helm.args([
        "template",
        "rdma",
        &from,
        "--version",
        VERSION,
        "--plain-http",
    ]));
    assert!(
        rendered.contains(&format!("image: {team}/rdma-device-plugin:{VERSION}\n")),
        "{rendered}"
    );

    let again = push(&clone, &registry, &release);
    assert!(again.status.success(), "{}", text_of(&again));
    assert_eq!(String::from_utf8(again.stdout).expect("UTF-8"), names);
    let other = push(&clone, &registry, &built(&clone, &registry, ", another"));
    assert_eq!(other.status.code(), Some(1), "{}", text_of(&other));
    let why = format!("the registry has {team}/rdma-device-plugin:{VERSION} with other bytes");
    assert!(text_of(&other).contains(&why), "{}", text_of(&other));
}

/// Runs the commands of `docs/deploy.md`. The test builds the release with internet access, with stand-ins for the
/// binaries. Then it checks the release's files and renders the chart in another directory. `integration/tests/cluster`
/// tests Helm's installation on a cluster.
#[test]
fn a_release_is_enough_without_internet_access() {
    let clone = Clone::new();
    let blocks = pages::blocks("docs/deploy.md").into_iter();
    let blocks: Vec<_> = blocks
        .filter(|it| it.heading == "Without internet access")
        .collect();
    let [build, install] = &blocks[..] else {
        panic!("two blocks: {blocks:?}");
    };
    let binaries = stand_ins("");
    let [line] = &build.lines[..] else {
        panic!("one line: {build:?}");
    };
    shell(
        &clone,
        clone.path(),
        &format!("{line} --binaries {}", binaries.path().display()),
    );

    // only the files of the release are in the other directory
    let elsewhere = tempfile::tempdir().expect("a directory");
    let made = clone.path().join("dist/release").join(VERSION);
    fs::rename(made, elsewhere.path().join(VERSION)).expect("moved");
    let there = elsewhere.path().join(VERSION);
    let [check, install] = &install.lines[..] else {
        panic!("two lines: {install:?}");
    };
    assert_eq!(check, "sha256sum --check SHA256SUMS");
    shell(&clone, &there, check);
    let render = install
        .replace("helm install", "helm template")
        .replace("VERSION", VERSION);
    assert_ne!(&render, install);
    let rendered = shell(&clone, &there, &render);
    let image = format!("image: registry.example/team/rdma-device-plugin:{VERSION}\n");
    assert!(rendered.contains(&image), "{rendered}");
    let archive = there.join(format!("rdma-device-plugin-{VERSION}.tgz"));
    fs::write(archive, "cut").expect("written");
    let damaged = command(&clone, &there, check).output().expect("run");
    assert!(!damaged.status.success(), "{}", text_of(&damaged));
}

/// Returns the command that runs `line` in a shell in `directory`, with Helm.
fn command(clone: &Clone, directory: &Path, line: &str) -> Command {
    let helm = program(clone, &["helm/build"]);
    let helm = helm.parent().expect("a directory").display();
    let path = env::var("PATH").expect("a path");
    let mut command = Command::new("sh");
    command.args(["-e", "-c", line]).current_dir(directory);
    command.env("PATH", format!("{helm}:{path}"));
    command
}

/// Runs `line` in a shell in `directory`, with Helm. The command must succeed. Returns its standard output.
#[track_caller]
fn shell(clone: &Clone, directory: &Path, line: &str) -> String {
    done(&mut command(clone, directory, line))
}
