// SPDX-License-Identifier: Apache-2.0
//! Passes a pod's rails and a container's limits to containers. The rails are still unknown when kubelet calls
//! Allocate. A container therefore gets them by a CDI entry with the variable [`RAILS`], and by a mounted directory
//! with configuration files of libraries. The daemon writes both before the runtime creates the container.
//!
//! Entry and directory are named after the container's smallest id of a resource, which no other container has. The
//! entry also has the [`Hook`] that sets the container's limits. One CDI file has the entries of all containers of the
//! node.

use crate::{
    FileError, Hook,
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

/// Variable with the pod's rails: a JSON list with the objects of `rails.json`.
pub const RAILS: &str = "RDMA_RAILS";

/// Path of the mounted directory in a container.
pub const MOUNTED: &str = "/run/rdma";

/// A file in the mounted directory. It sets variables of a library. Environment variables of the container override
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryFile {
    /// `nccl.conf`, which NCCL since 2.23 reads as `NCCL_CONF_FILE` (`initEnv()`, `src/misc/param.cc`).
    Nccl,
    /// `ucx.conf`, which UCX since 1.11 reads in `UCX_CONFIG_DIR` (`ucs_config_parse_config_files()`,
    /// `src/ucs/config/parser.c`).
    Ucx,
}

impl LibraryFile {
    /// All files.
    pub const ALL: [Self; 2] = [Self::Nccl, Self::Ucx];

    /// Returns the file's name in [`MOUNTED`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl.conf",
            Self::Ucx => "ucx.conf",
        }
    }

    /// Returns the variable by which the library finds the file in [`MOUNTED`].
    pub fn variable(self) -> (&'static str, String) {
        match self {
            Self::Nccl => ("NCCL_CONF_FILE", format!("{MOUNTED}/{}", self.name())),
            Self::Ucx => ("UCX_CONFIG_DIR", MOUNTED.to_owned()),
        }
    }

    /// Returns the lines of the file with these `variables`.
    pub fn text<N: AsRef<str>>(variables: impl IntoIterator<Item = (N, String)>) -> String {
        let lines = variables.into_iter();
        lines
            .map(|(name, value)| format!("{}={value}\n", name.as_ref()))
            .collect()
    }
}

/// The CDI file and the directories of a node's containers.
#[derive(Clone, Debug)]
pub struct Containers {
    path: PathBuf,
    known: PathBuf,
    lock: PathBuf,
    root: PathBuf,
}

/// The ids of each container with an entry, by the entry's name.
pub type Known = BTreeMap<String, BTreeSet<String>>;

/// Key of a container. `id` is the smallest of the container's ids of `resource`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerId<'a> {
    /// Name of the resource.
    pub resource: &'a str,
    /// Id that kubelet allocated.
    pub id: &'a str,
}

impl<'a> ContainerId<'a> {
    /// Returns the key of the container with `ids`, in any order. Returns `None` if there are no ids.
    pub fn of(resource: &'a str, ids: &'a [String]) -> Option<Self> {
        let id = ids.iter().min()?;
        Some(Self { resource, id })
    }

    /// Returns the full CDI name of the container's entry, such as `rdma-device-plugin/container=rdma--hca:17`.
    pub fn full_name(self) -> String {
        format!("{KIND}={}", self.name())
    }

    /// Returns the entry's name, which has only letters, digits and `_-.:` (`ValidateDeviceName()` in the
    /// specification's `pkg/parser`).
    fn name(self) -> String {
        let Self { resource, id } = self;
        format!("{resource}:{id}").replace('/', "--")
    }
}

impl Containers {
    /// Returns the containers of a node. Their CDI file is in `cdi_directory`, and their directories and lock are in
    /// `state_dir`.
    pub fn new(cdi_directory: &Path, state_dir: &Path) -> Self {
        Self {
            path: cdi_directory.join("rdma-device-plugin-container.json"),
            known: state_dir.join("containers.json"),
            lock: state_dir.join("containers.lock"),
            root: state_dir.join("containers"),
        }
    }

    /// Makes the container's directory, or removes the library files from an existing one, and returns its path.
    ///
    /// # Errors
    /// The directory cannot be made, or an old file cannot be removed.
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

    /// Returns the path of the container's directory.
    pub fn directory(&self, container: ContainerId<'_>) -> PathBuf {
        let resource = self.root.join(file_name(container.resource));
        resource.join(file_name(container.id))
    }

    /// Locks the entries until the returned guard is dropped. Other writers wait. The caller must hold the lock while
    /// it reads the pods' records.
    ///
    /// # Errors
    /// The lock's file cannot be made, or another process holds the lock until the time limit.
    pub fn lock(&self) -> Result<impl Drop, FileError> {
        file::lock(&self.lock)
    }

    /// Writes the entry of the container with `ids` of `resource`. Also removes each entry with rails whose container
    /// has ended: none of its ids is in `held`, the ids of existing pods' containers. The caller holds the
    /// [`lock`](Self::lock).
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_entry(
        &self,
        (resource, ids): (&str, &[String]),
        edits: &Edits,
        held: &[ContainerId<'_>],
    ) -> Result<(), FileError> {
        // a file that cannot be read counts as empty, and is replaced
        let content: Value = file::read(&self.path).ok().flatten().unwrap_or_default();
        let known: Known = file::read(&self.known).ok().flatten().unwrap_or_default();
        let Some((specification, known)) =
            with_entry((&content, known), (resource, ids), edits, held)
        else {
            return Ok(());
        };
        file::replace(&self.known, &known, 0o600)?;
        file::replace(&self.path, &specification, 0o644).map(drop)
    }

    /// Writes `file` in the container's directory with these `variables`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_library_file<'a>(
        &self,
        container: ContainerId<'_>,
        file: LibraryFile,
        variables: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<(), FileError> {
        let path = self.directory(container).join(file.name());
        let text = LibraryFile::text(variables);
        file::replace_text(&path, text.as_bytes(), 0o644).map(drop)
    }
}

/// Content of a container's entry. At least one field is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits {
    /// Rails of the container's pod. `None`: Allocate did not promise rails to the container.
    pub rails: Option<Vec<Value>>,
    /// Hook that sets the container's limits.
    pub hook: Option<Hook>,
}

impl Edits {
    fn json(&self) -> Value {
        let mut edits = json!({});
        if let Some(rails) = &self.rails {
            edits["env"] = json!([format!("{RAILS}={}", json!(rails))]);
        }
        if let Some(hook) = &self.hook {
            edits["hooks"] = json!([hook.json()]);
        }
        edits
    }
}

/// Returns the CDI file and the ids of its containers as [`write_entry`](Containers::write_entry) writes them.
/// `content` and `known` are the file and the ids before this write. Returns `None` if the container has no ids.
pub fn with_entry(
    (content, mut known): (&Value, Known),
    (resource, ids): (&str, &[String]),
    edits: &Edits,
    held: &[ContainerId<'_>],
) -> Option<(Value, Known)> {
    let own = ContainerId::of(resource, ids)?.name();
    let held: BTreeSet<String> = held.iter().map(|it| it.name()).collect();
    let mut entries = content["devices"].as_array().cloned().unwrap_or_default();
    entries.retain(|entry| {
        let name = entry["name"].as_str().unwrap_or_default();
        let ids = known.get(name);
        let is_held = ids.is_some_and(|ids| !ids.is_disjoint(&held));
        name != own && (has_no_rails(entry) || is_held)
    });
    known.retain(|name, _| entries.iter().any(|entry| entry["name"] == **name));
    let ids = ids.iter().map(|id| ContainerId { resource, id }.name());
    known.insert(own.clone(), ids.collect());
    entries.push(json!({"name": own, "containerEdits": edits.json()}));
    let specification = json!({"cdiVersion": VERSION, "kind": KIND, "devices": entries});
    Some((specification, known))
}

/// Returns true for an entry that has only a hook, and for an entry with an empty list of rails, which a pod with
/// `hostNetwork` has. Such a pod has no record.
fn has_no_rails(entry: &Value) -> bool {
    let edits = &entry["containerEdits"];
    edits["env"][0] == format!("{RAILS}=[]")
        || (edits["env"].is_null() && edits["hooks"].is_array())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContainerLimits, Memlock};

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
        let names_after_write = |id: &str, rails: &[Value], held: &[&str]| {
            let held: Vec<_> = held.iter().map(|id| container(id)).collect();
            let _lock = containers.lock().expect("nobody has it");
            // each container has two ids, and only one of them is in `held`
            let ids = [id.to_owned(), format!("{id}x")];
            let edits = Edits {
                rails: Some(rails.to_vec()),
                hook: None,
            };
            let written = containers.write_entry(("rdma/hca", &ids), &edits, &held);
            written.expect("written");
            let text = fs::read(&containers.path).expect("the file");
            let content: Value = serde_json::from_slice(&text).expect("JSON");
            let entries = content["devices"].as_array().expect("a list").iter();
            let names = entries.map(|it| it["name"].as_str().expect("a name").to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names_after_write("1", &[rail(5)], &["1x"]), ["rdma--hca:1"]);
        assert_eq!(
            names_after_write("2", &[], &["1x"]),
            ["rdma--hca:1", "rdma--hca:2"]
        );
        let left = names_after_write("3", &[rail(7)], &["3"]);
        assert_eq!(left, ["rdma--hca:2", "rdma--hca:3"]);
        // an empty file, which a power loss can leave, is replaced by a new file
        fs::write(&containers.path, "").expect("written");
        assert_eq!(names_after_write("3", &[rail(7)], &["3"]), ["rdma--hca:3"]);
    }

    #[test]
    fn an_entry_has_what_its_container_was_promised() {
        let limits = ContainerLimits {
            memlock: Some(Memlock::Unlimited),
            ..ContainerLimits::default()
        };
        let hook = || Hook::new(Path::new("/opt/cni/bin"), limits, Path::new("/state"));
        let ids = ["17".to_owned()];
        let container_edits = |edits: &Edits| {
            let before = (&Value::Null, Known::new());
            let (content, _) = with_entry(before, ("rdma/hca", &ids), edits, &[]).expect("ids");
            content["devices"][0]["containerEdits"].clone()
        };
        let hooks = json!([{
            "hookName": "createRuntime",
            "path": "/opt/cni/bin/rdma-cni",
            "args": ["rdma-cni", "oci-hook", "--memlock=unlimited"],
        }]);
        let mut edits = Edits {
            rails: None,
            hook: Some(hook()),
        };
        assert_eq!(container_edits(&edits), json!({"hooks": hooks}));
        edits.rails = Some(vec![]);
        assert_eq!(
            container_edits(&edits),
            json!({"env": ["RDMA_RAILS=[]"], "hooks": hooks})
        );
        edits.hook = None;
        assert_eq!(container_edits(&edits), json!({"env": ["RDMA_RAILS=[]"]}));
    }

    #[test]
    fn a_directory_is_made_without_another_containers_rails() {
        let directory = tempfile::tempdir().expect("a directory");
        let containers = Containers::new(&directory.path().join("cdi"), directory.path());
        for file in LibraryFile::ALL {
            let made = containers.make(container("17")).expect("made");
            assert_eq!(fs::read_dir(&made).expect("it is there").count(), 0);
            let variables = [("ONE", "=mlx5_0".to_owned()), ("TWO", "5".to_owned())];
            let written = containers.write_library_file(container("17"), file, variables);
            written.expect("written");
            let text = fs::read_to_string(made.join(file.name())).expect("the file");
            assert_eq!(text, "ONE==mlx5_0\nTWO=5\n");
        }
    }
}
