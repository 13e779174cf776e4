// SPDX-License-Identifier: Apache-2.0
//! What a container is told of its pod's rails, which are not known yet when kubelet allocates: an entry of CDI with the
//! variable [`RAILS`], and a directory with files of libraries that is mounted into it. Both are called by what kubelet
//! knows a container by: the least of its ids of a resource, which no other container has. They are written before the
//! container is created.
//!
//! There is one CDI file for all containers of the node.

use crate::{
    FileError,
    cdi::VERSION,
    file::{self, file_name},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// Vendor and class of all entries.
const KIND: &str = "rdma-device-plugin/container";

/// The variable with the pod's rails, as JSON: a list of what `rails.json` says of each.
pub const RAILS: &str = "RDMA_RAILS";

/// Where a container has its directory.
pub const MOUNTED: &str = "/run/rdma";

/// A file in that directory, with variables for a library. What the environment has wins over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryFile {
    /// `nccl.conf`, which NCCL since 2.23 reads as `NCCL_CONF_FILE` (`initEnv()`, `src/misc/param.cc`).
    Nccl,
    /// `ucx.conf`, which UCX since 1.11 reads in `UCX_CONFIG_DIR` (`ucs_config_parse_config_files()`,
    /// `src/ucs/config/parser.c`).
    Ucx,
}

impl LibraryFile {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Nccl, Self::Ucx];

    /// Its name in [`MOUNTED`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl.conf",
            Self::Ucx => "ucx.conf",
        }
    }
}

/// What containers of a node are told.
#[derive(Clone, Debug)]
pub struct Containers {
    path: PathBuf,
    known: PathBuf,
    lock: PathBuf,
    root: PathBuf,
}

/// The ids of each container that has an entry, all by names.
pub type Known = BTreeMap<String, BTreeSet<String>>;

/// The container that has `id` of `resource`, the least of those that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerId<'a> {
    /// The resource's name.
    pub resource: &'a str,
    /// Kubelet's id.
    pub id: &'a str,
}

impl<'a> ContainerId<'a> {
    /// The one that was allocated `ids`, in whichever order; none: it has none.
    pub fn of(resource: &'a str, ids: &'a [String]) -> Option<Self> {
        let id = ids.iter().min()?;
        Some(Self { resource, id })
    }

    /// The full CDI name of its entry, `rdma-device-plugin/container=rdma--hca:17`.
    pub fn full_name(self) -> String {
        format!("{KIND}={}", self.name())
    }

    /// Of letters, digits and `_-.:` alone (`ValidateDeviceName()` in the specification's `pkg/parser`).
    fn name(self) -> String {
        let Self { resource, id } = self;
        format!("{resource}:{id}").replace('/', "--")
    }
}

impl Containers {
    /// Entries in the CDI directory, directories and a lock in the state directory.
    pub fn new(cdi_directory: &Path, state_dir: &Path) -> Self {
        Self {
            path: cdi_directory.join("rdma-device-plugin-container.json"),
            known: state_dir.join("containers.json"),
            lock: state_dir.join("containers.lock"),
            root: state_dir.join("containers"),
        }
    }

    /// The container's directory, which is there and empty from now on.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(&self, container: ContainerId<'_>) -> Result<PathBuf, FileError> {
        let directory = self.directory(container);
        let make = || {
            fs::create_dir_all(&directory)?;
            for file in LibraryFile::ALL {
                match fs::remove_file(directory.join(file.name())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        };
        make().map_err(|source| FileError::new("make", &directory, source))?;
        Ok(directory)
    }

    /// The container's directory.
    pub fn directory(&self, container: ContainerId<'_>) -> PathBuf {
        let resource = self.root.join(file_name(container.resource));
        resource.join(file_name(container.id))
    }

    /// Nobody else writes while the answer is held: what pods have is looked up then.
    ///
    /// # Errors
    /// Somebody else has it for long.
    pub fn lock(&self) -> Result<impl Drop, FileError> {
        file::lock(&self.lock)
    }

    /// Has the entry of the container with `ids` of `resource` say that its pod has these `rails`. Entries of containers
    /// with rails go of whose ids none is among `held`, what pods have. The caller has the [`lock`](Self::lock).
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn tell_rails(
        &self,
        (resource, ids): (&str, &[String]),
        rails: &[Value],
        held: &[ContainerId<'_>],
    ) -> Result<(), FileError> {
        // what says nothing any more is written anew
        let content: Value = file::read(&self.path).ok().flatten().unwrap_or_default();
        let known: Known = file::read(&self.known).ok().flatten().unwrap_or_default();
        let Some((specification, known)) = told((&content, known), (resource, ids), rails, held)
        else {
            return Ok(());
        };
        file::replace(&self.known, &known, 0o600)?;
        file::replace(&self.path, &specification, 0o644).map(drop)
    }

    /// Has `file` in the container's directory set these `variables`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn tell_library<'a>(
        &self,
        container: ContainerId<'_>,
        file: LibraryFile,
        variables: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<(), FileError> {
        let path = self.directory(container).join(file.name());
        let lines = variables.into_iter();
        let lines: String = lines
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        file::replace_text(&path, lines.as_bytes(), 0o644).map(drop)
    }
}

/// What the file of CDI and the ids of its containers, `content` and `known`, become by
/// [`tell_rails`](Containers::tell_rails). None: the container has no ids.
pub fn told(
    (content, mut known): (&Value, Known),
    (resource, ids): (&str, &[String]),
    rails: &[Value],
    held: &[ContainerId<'_>],
) -> Option<(Value, Known)> {
    let own = ContainerId::of(resource, ids)?.name();
    let held: BTreeSet<String> = held.iter().map(|it| it.name()).collect();
    let mut entries = content["devices"].as_array().cloned().unwrap_or_default();
    entries.retain(|entry| {
        let name = entry["name"].as_str().unwrap_or_default();
        let ids = known.get(name);
        let is_held = ids.is_some_and(|ids| !ids.is_disjoint(&held));
        name != own && (has_none(entry) || is_held)
    });
    known.retain(|name, _| entries.iter().any(|entry| entry["name"] == **name));
    let ids = ids.iter().map(|id| ContainerId { resource, id }.name());
    known.insert(own.clone(), ids.collect());
    let variable = format!("{RAILS}={}", json!(rails));
    entries.push(json!({"name": own, "containerEdits": {"env": [variable]}}));
    let specification = json!({"cdiVersion": VERSION, "kind": KIND, "devices": entries});
    Some((specification, known))
}

/// Whether it tells of no rails, as that of a pod with `hostNetwork`: what holds it is in no record.
fn has_none(entry: &Value) -> bool {
    entry["containerEdits"]["env"][0] == format!("{RAILS}=[]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str) -> ContainerId<'_> {
        let resource = "rdma/hca";
        ContainerId { resource, id }
    }

    fn rail(index: u64) -> Value {
        json!({"rdmaDevice": "mlx5_0", "gidIndex": index})
    }

    #[test]
    fn a_container_is_known_by_the_least_of_its_ids_in_whichever_order() {
        let ids = ["7", "3", "5"].map(str::to_owned);
        let found = ContainerId::of("rdma/hca", &ids).expect("one");
        assert_eq!(
            found.full_name(),
            "rdma-device-plugin/container=rdma--hca:3"
        );
        assert_eq!(ContainerId::of("rdma/hca", &[]), None);
    }

    #[test]
    fn entries_go_with_their_pods_records_and_those_without_rails_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let containers = Containers::new(&directory.path().join("cdi"), directory.path());
        let tell = |id: &str, rails: &[Value], held: &[&str]| {
            let held: Vec<_> = held.iter().map(|id| container(id)).collect();
            let _lock = containers.lock().expect("nobody has it");
            // no rail was made of its first id
            let ids = [id.to_owned(), format!("{id}x")];
            let told = containers.tell_rails(("rdma/hca", &ids), rails, &held);
            told.expect("written");
            let text = fs::read(&containers.path).expect("the file");
            let content: Value = serde_json::from_slice(&text).expect("JSON");
            let entries = content["devices"].as_array().expect("a list").iter();
            let names = entries.map(|it| it["name"].as_str().expect("a name").to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(tell("1", &[rail(5)], &["1x"]), ["rdma--hca:1"]);
        assert_eq!(tell("2", &[], &["1x"]), ["rdma--hca:1", "rdma--hca:2"]);
        let left = tell("3", &[rail(7)], &["3"]);
        assert_eq!(left, ["rdma--hca:2", "rdma--hca:3"]);
        // a file that a machine without power left is written anew
        fs::write(&containers.path, "").expect("written");
        assert_eq!(tell("3", &[rail(7)], &["3"]), ["rdma--hca:3"]);
    }

    #[test]
    fn a_directory_is_made_without_what_another_container_was_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let containers = Containers::new(&directory.path().join("cdi"), directory.path());
        for file in LibraryFile::ALL {
            let made = containers.make(container("17")).expect("made");
            assert_eq!(fs::read_dir(&made).expect("it is there").count(), 0);
            let variables = [("ONE", "=mlx5_0".to_owned()), ("TWO", "5".to_owned())];
            let told = containers.tell_library(container("17"), file, variables);
            told.expect("written");
            let text = fs::read_to_string(made.join(file.name())).expect("the file");
            assert_eq!(text, "ONE==mlx5_0\nTWO=5\n");
        }
    }
}
