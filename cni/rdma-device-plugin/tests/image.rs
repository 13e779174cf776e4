// SPDX-License-Identifier: Apache-2.0
//! Tests of `scripts/image` and `scripts/oci-archive`: the image's content, and that the image has the same bytes
//! wherever and whenever it is made.

use integration::oci::Archive;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

const BINARIES: [&str; 3] = ["rdma-cni", "rdma-device-plugin", "rdma-ipam"];

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts")
        .join(name)
}

/// Returns a directory with made-up binaries of the mode `mode`, in the layout of `dist/`.
fn binaries(mode: u32) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (architecture, below) in [("amd64", ""), ("arm64", "arm64")] {
        let below = directory.path().join(below);
        fs::create_dir_all(&below).expect("made");
        for name in BINARIES {
            let path = below.join(name);
            fs::write(&path, format!("{name} of {architecture}")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
    }
    directory
}

#[track_caller]
fn done(mut command: Command) -> String {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn words(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{error}")
}

fn image(binaries: &Path, caller: &Path, umask: &str, output: &str) -> PathBuf {
    let mut command = Command::new("bash");
    command.args(["-c", "umask \"$1\"; shift; exec \"$@\"", "bash", umask]);
    command.arg(script("image")).arg("--binaries").arg(binaries);
    command.args(["--output", output]).current_dir(caller);
    command.env_remove("SOURCE_DATE_EPOCH");
    done(command);
    caller.join(output)
}

fn json_of(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

#[test]
fn the_image_is_the_same_wherever_it_is_made() {
    let [one, other] =
        [tempfile::tempdir(), tempfile::tempdir()].map(|it| it.expect("a directory"));
    let first = image(binaries(0o755).path(), one.path(), "022", "a.oci.tar");
    // the second image is made with other times, modes, paths and time zone
    let second = image(
        binaries(0o700).path(),
        other.path(),
        "077",
        "below/b.oci.tar",
    );
    assert!(fs::read(first).expect("one") == fs::read(second).expect("another"));
    for architecture in ["amd64", "arm64"] {
        let sboms = ["a", "below/b"].map(|it| format!("{it}-{architecture}.cdx.json"));
        assert_eq!(
            json_of(&one.path().join(&sboms[0])),
            json_of(&other.path().join(&sboms[1]))
        );
    }
}

#[test]
fn the_image_has_three_binaries_and_no_shell() {
    let directory = tempfile::tempdir().expect("a directory");
    let archive = image(
        binaries(0o755).path(),
        directory.path(),
        "022",
        "image.oci.tar",
    );
    let archive = Archive::open(&archive);
    let name = concat!(
        "docker.io/library/rdma-device-plugin:",
        env!("CARGO_PKG_VERSION")
    );
    let named = archive.named();
    assert_eq!(named["annotations"]["io.containerd.image.name"], name);
    assert_eq!(archive.architectures(), ["amd64", "arm64"]);
    for architecture in archive.architectures() {
        is_whole(&archive, &architecture);
    }
}

/// Checks that the image of `architecture` has its complete content, for this architecture.
#[track_caller]
fn is_whole(archive: &Archive, architecture: &str) {
    let image = archive.image(architecture);
    let config = &image.config;
    assert_eq!(
        config["config"]["Entrypoint"],
        json!(["/usr/bin/rdma-device-plugin"])
    );
    let labels = &config["config"]["Labels"];
    let version = &labels["org.opencontainers.image.version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!(
        labels["org.opencontainers.image.licenses"],
        env!("CARGO_PKG_LICENSE")
    );
    let layers = image.layers();
    let [layer] = layers.as_slice() else {
        panic!("{layers:?}");
    };
    assert_eq!(
        config["rootfs"]["diff_ids"][0],
        image.manifest["layers"][0]["digest"]
    );

    let file = |path: &str| {
        let mut tar = Command::new("tar");
        tar.arg("-xOf").arg(layer).arg(path);
        done(tar)
    };
    for name in BINARIES {
        let binary = file(&format!("usr/bin/{name}"));
        assert_eq!(binary, format!("{name} of {architecture}"));
    }
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "-tvf"]).arg(layer);
    let listed = done(tar);
    let files: Vec<String> = listed
        .lines()
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            format!("{} {} {}", words[0], words[1], words[5])
        })
        .collect();
    let share = "usr/share/rdma-device-plugin/licenses/";
    let (licenses, files): (Vec<&String>, Vec<&String>) =
        files.iter().partition(|it| it.contains(share));
    assert!(
        licenses
            .iter()
            .all(|it| it.starts_with("drwxr-xr-x 0/0 ") || it.starts_with("-rw-r--r-- 0/0 ")),
        "{licenses:?}"
    );
    let sbom = file("usr/share/rdma-device-plugin/sbom.cdx.json");
    let sbom: Value = serde_json::from_str(&sbom).expect("JSON");
    let target = match architecture {
        "amd64" => "x86_64-unknown-linux-musl",
        _ => "aarch64-unknown-linux-musl",
    };
    assert_eq!(
        sbom["metadata"]["properties"],
        json!([{"name": "rust:target", "value": target}])
    );
    // components of other projects each need a license text
    let mut linked = 0;
    for component in sbom["components"].as_array().expect("components") {
        let name = component["name"].as_str().expect("a name");
        let directory = match (component["purl"].is_string(), name) {
            (true, _) => format!("{name}-{}", component["version"].as_str().expect("one")),
            (false, "musl" | "rust-std") => name.to_owned(),
            (false, _) => continue,
        };
        let below = format!("{share}{directory}/");
        let texts = licenses.iter().filter(|it| it.contains(&below));
        // the directory itself is one of the entries
        assert!(texts.count() > 1, "{directory} has no license text");
        linked += 1;
    }
    assert!(linked > 90, "{linked} components");
    assert_eq!(
        files,
        [
            "drwxr-xr-x 0/0 usr/",
            "drwxr-xr-x 0/0 usr/bin/",
            "-rwxr-xr-x 0/0 usr/bin/rdma-cni",
            "-rwxr-xr-x 0/0 usr/bin/rdma-device-plugin",
            "-rwxr-xr-x 0/0 usr/bin/rdma-ipam",
            "drwxr-xr-x 0/0 usr/share/",
            "drwxr-xr-x 0/0 usr/share/rdma-device-plugin/",
            "-rw-r--r-- 0/0 usr/share/rdma-device-plugin/LICENSE",
            "-rw-r--r-- 0/0 usr/share/rdma-device-plugin/sbom.cdx.json",
        ]
    );
}

#[test]
fn a_single_architecture_has_an_index_too() {
    let directory = binaries(0o755);
    let output = directory.path().join("image.oci.tar");
    let of = |architecture: &str| {
        let mut command = Command::new(script("image"));
        command.args(["--arch", architecture, "--binaries"]);
        command.arg(directory.path()).arg("--output").arg(&output);
        command.output().expect("run")
    };
    let made = of("arm64");
    assert!(made.status.success(), "{}", words(&made));
    let archive = Archive::open(&output);
    // a runtime on another architecture must refuse the archive: it refuses an index without its architecture, but
    // would start an image that the archive names directly
    let kind = "application/vnd.oci.image.index.v1+json";
    assert_eq!(archive.named()["mediaType"], kind);
    assert_eq!(archive.architectures(), ["arm64"]);
    is_whole(&archive, "arm64");

    let refused = of("s390x");
    assert_eq!(refused.status.code(), Some(2));
    let why = "image: --arch must be all, amd64 or arm64, not 's390x'\n";
    assert_eq!(words(&refused), why);
}

#[test]
fn the_sbom_names_what_is_linked_in() {
    for architecture in ["amd64", "arm64"] {
        let mut command = Command::new(script("sbom"));
        command.arg(architecture);
        names_what_is_linked_in(&serde_json::from_str(&done(command)).expect("JSON"));
    }
}

#[track_caller]
fn names_what_is_linked_in(sbom: &Value) {
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    let components = sbom["components"].as_array().expect("components");
    let named = |name: &str| components.iter().find(|it| it["name"] == name);
    for binary in BINARIES {
        assert_eq!(named(binary).expect("a binary")["type"], "application");
    }
    // one crate that only the daemon uses, one that only tests use, and one that only builds use
    assert!(named("tonic").is_some());
    assert!(named("k8s-openapi").is_none());
    assert!(named("tonic-prost-build").is_none());
    // procedural macros run only in the compiler
    assert!(named("syn").is_none());
    assert!(named("serde_derive").is_none());
    assert!(named("rust-std").is_some() && named("musl").is_some());
    for component in components {
        assert!(
            component["licenses"][0]["expression"].is_string(),
            "{component}"
        );
        // only a registry's package has a purl and a hash; the hash distinguishes this package from another package
        // with the same name
        let hash = &component["hashes"][0]["content"];
        assert_eq!(
            component["purl"].is_string(),
            hash.is_string(),
            "{component}"
        );
    }
    let known =
        |name: &Value| *name == "image" || components.iter().any(|it| it["bom-ref"] == *name);
    for dependency in sbom["dependencies"].as_array().expect("dependencies") {
        let needed = dependency["dependsOn"].as_array().expect("a list");
        assert!(
            known(&dependency["ref"]) && needed.iter().all(known),
            "{dependency}"
        );
    }
}

#[test]
fn names_are_those_that_kubelet_requires() {
    let directory = binaries(0o755);
    let archive = directory.path().join("a.tar");
    let config = directory.path().join("config.json");
    fs::write(&config, "{}").expect("written");
    let run = |name: &str| {
        let mut command = Command::new(script("oci-archive"));
        command
            .arg(name)
            .arg(&config)
            .arg(directory.path())
            .arg(&archive);
        command.output().expect("run")
    };
    for (name, full) in [
        ("a:1", "docker.io/library/a:1"),
        ("team/a:1", "docker.io/team/a:1"),
        ("localhost/a:1", "localhost/a:1"),
        ("localhost:5000/a:1", "localhost:5000/a:1"),
        ("registry.example/team/a:1", "registry.example/team/a:1"),
    ] {
        let output = run(name);
        assert!(output.status.success(), "{}", words(&output));
        assert!(
            words(&output).starts_with(&format!("{full} sha256:")),
            "{}",
            words(&output)
        );
    }
    for name in ["a", "registry.example:5000/a", "A:1", "a b:1", ""] {
        let output = run(name);
        assert!(!output.status.success(), "{name} is taken");
        assert!(words(&output).contains("with a tag"), "{}", words(&output));
    }
}

#[test]
fn an_image_that_cannot_be_made_leaves_the_one_before() {
    let directory = binaries(0o755);
    let archive = directory.path().join("before.tar");
    fs::write(&archive, "before").expect("written");
    let config = directory.path().join("config.json");
    for wrong in ["", "[]", "{} {}", "{\"Entrypoint\": "] {
        fs::write(&config, wrong).expect("written");
        let mut command = Command::new(script("oci-archive"));
        command
            .arg("a:1")
            .arg(&config)
            .arg(directory.path())
            .arg(&archive);
        let output = command.output().expect("run");
        assert!(!output.status.success(), "{wrong} is taken");
        assert!(
            words(&output).contains("cannot be read"),
            "{}",
            words(&output)
        );
        assert_eq!(fs::read(&archive).expect("it"), b"before");
    }
}
