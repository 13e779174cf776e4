// SPDX-License-Identifier: Apache-2.0
//! OCI image archives, read as a container runtime reads them: the index selects the image of the machine's
//! architecture, and the image lists its layers (<https://github.com/opencontainers/image-spec>, `image-layout.md`,
//! `image-index.md`).

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An archive, unpacked into a separate directory.
#[derive(Debug)]
pub struct Archive(TempDir);

/// An image of an archive.
#[derive(Debug)]
pub struct Image<'a> {
    archive: &'a Archive,
    /// The image's manifest.
    pub manifest: Value,
    /// The image's configuration. It contains `architecture` and, in `config`, the program to
    /// start.
    pub config: Value,
}

impl Archive {
    /// Unpacks the archive.
    #[track_caller]
    pub fn open(archive: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        unpack(archive, directory.path());
        Self(directory)
    }

    /// Returns the descriptor of the archive's only named object: an image, or an index of several
    /// images.
    #[track_caller]
    pub fn named(&self) -> Value {
        let index = json(&self.0.path().join("index.json"));
        match index["manifests"].as_array().expect("a list").as_slice() {
            [one] => one.clone(),
            all => panic!("not one, but {all:?}"),
        }
    }

    /// Checks digest and size of a descriptor's blob, and returns the blob's file.
    #[track_caller]
    pub fn blob(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().expect("a digest");
        let name = digest.strip_prefix("sha256:").expect("SHA-256");
        let path = self.0.path().join("blobs/sha256").join(name);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let found = Sha256::digest(&bytes);
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, name);
        assert_eq!(descriptor["size"], bytes.len());
        path
    }

    /// Returns the architectures of the images, by their descriptors.
    #[track_caller]
    pub fn architectures(&self) -> Vec<String> {
        let platform = |descriptor: &Value| {
            assert_eq!(descriptor["platform"]["os"], "linux", "{descriptor}");
            let architecture = &descriptor["platform"]["architecture"];
            architecture.as_str().expect("an architecture").to_owned()
        };
        self.images().iter().map(platform).collect()
    }

    /// Returns the image that a Linux runtime on `architecture` selects.
    #[track_caller]
    pub fn image(&self, architecture: &str) -> Image<'_> {
        let images = self.images();
        let is_ours = |it: &&Value| it["platform"]["architecture"] == architecture;
        let descriptor = images
            .iter()
            .find(is_ours)
            .unwrap_or_else(|| panic!("nothing for {architecture} in {images:?}"));
        let manifest = json(&self.blob(descriptor));
        let config = json(&self.blob(&manifest["config"]));
        assert_eq!(
            config["architecture"], architecture,
            "differs from the index"
        );
        Image {
            archive: self,
            manifest,
            config,
        }
    }

    fn images(&self) -> Vec<Value> {
        let named = self.named();
        if named["mediaType"] != INDEX {
            return vec![named];
        }
        let index = json(&self.blob(&named));
        index["manifests"].as_array().expect("a list").clone()
    }
}

impl Image<'_> {
    /// Returns the image's layers as tar archives, the lowest first.
    #[track_caller]
    pub fn layers(&self) -> Vec<PathBuf> {
        let layers = self.manifest["layers"].as_array().expect("layers");
        layers
            .iter()
            .map(|layer| self.archive.blob(layer))
            .collect()
    }

    /// Unpacks the image's root file system into `directory`, which this function creates.
    #[track_caller]
    pub fn unpack(&self, directory: &Path) {
        fs::create_dir_all(directory).expect("made");
        for layer in self.layers() {
            unpack(&layer, directory);
        }
    }
}

#[track_caller]
fn unpack(archive: &Path, directory: &Path) {
    let mut tar = Command::new("tar");
    let tar = tar.arg("-xf").arg(archive).arg("-C").arg(directory);
    let output = tar.output().expect("tar runs");
    assert!(output.status.success(), "{archive:?}: {output:?}");
}

#[track_caller]
fn json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
