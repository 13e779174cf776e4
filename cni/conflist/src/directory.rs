// SPDX-License-Identifier: Apache-2.0
//! The files of the CNI directory and of the networks' own directories. They are read once.
//!
//! Since version 1.3, libcni appends the plugins of `<network>/*.conf`, sorted by name, to the plugins of the network's
//! list (`NetworkPluginConfsFromFiles()`, `libcni/conf.go`). Earlier versions ignore such directories.

use crate::Broken;
use cni_protocol::environment::is_identifier;
use std::{fs, io, path::Path};

/// Extensions of the files that a runtime reads. This crate ignores all other files.
const EXTENSIONS: [&str; 3] = [".conf", ".conflist", ".json"];

/// Extension of the files that libcni reads in a network's own directory.
const PLUGIN: &str = ".conf";

/// Largest size of a file that containerd reads, bytes.
const LARGEST: u64 = 2 * 1024 * 1024;

/// A file that a runtime reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Name below the directory. For a file in a network's own directory: `cbr0/10-tuning.conf`.
    pub name: String,
    /// Content of the file, or the reason why the runtime cannot use it.
    pub text: Result<String, Broken>,
}

/// The files that a runtime reads, in the runtime's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    files: Vec<File>,
    /// Files in networks' own directories.
    plugins: Vec<File>,
}

impl Directory {
    /// Returns a directory with those of `files` that a runtime reads.
    pub fn new(files: Vec<File>) -> Self {
        let is_plugin = |file: &File| file.name.contains('/');
        let (mut plugins, mut files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_plugin);
        files.retain(|file| has_list_extension(&file.name));
        plugins.retain(|file| file.name.ends_with(PLUGIN));
        for files in [&mut files, &mut plugins] {
            files.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Self { files, plugins }
    }

    /// Reads the directory at `path`. Returns `None` if the directory does not exist. A file that cannot be read is no
    /// error, because not all runtimes stop at such a file. The [`File`] then contains the reason.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let mut files = vec![];
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // a network's own directory can be a link, which libcni follows
            if is_identifier(&name) && entry.path().is_dir() {
                add_plugins(&entry.path(), &name, &mut files);
            }
            if has_list_extension(&name) && !entry.file_type()?.is_dir() {
                add(&entry.path(), name, &mut files);
            }
        }
        Ok(Some(Self::new(files)))
    }

    /// Returns the files of the directory, in the order in which a runtime reads them.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Returns the files of the directory, followed by the files of networks' own directories.
    pub fn all(&self) -> impl Iterator<Item = &File> {
        self.files.iter().chain(&self.plugins)
    }

    /// Returns the files in the own directory of `network`, in libcni's order.
    pub fn plugins_of(&self, network: &str) -> impl Iterator<Item = &File> {
        let is_its = move |file: &&File| {
            let directory = file.name.split_once('/').map(|(directory, _)| directory);
            directory == Some(network)
        };
        self.plugins.iter().filter(is_its)
    }

    /// Returns the file `name`.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.all().find(|file| file.name == name)
    }

    /// Returns the directory without the files for which `leave` returns true. All files in networks' own directories
    /// remain.
    pub(crate) fn without(&self, leave: impl Fn(&File) -> bool) -> Self {
        let files = self.files.iter().filter(|file| !leave(file));
        Self {
            files: files.cloned().collect(),
            plugins: self.plugins.clone(),
        }
    }
}

/// Adds the files in the own directory of `network`. Ignores a directory that cannot be read or was deleted, because
/// the network works without it.
fn add_plugins(path: &Path, network: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(PLUGIN) && !entry.path().is_dir() {
            add(&entry.path(), format!("{network}/{name}"), files);
        }
    }
}

/// Adds the file at `path`. Adds nothing if the file was deleted after its directory was read. Adds a dangling link as
/// an unreadable file: a runtime fails at such a link, but the target may also be missing only in this container.
fn add(path: &Path, name: String, files: &mut Vec<File>) {
    match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            let problem = "it is a symbolic link, and this program cannot see its target";
            let text = unreadable(problem);
            files.push(File { name, text });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        text => files.push(File {
            name,
            text: text.unwrap_or_else(unreadable),
        }),
    }
}

/// Reads a file's text. The inner error is the reason why a runtime cannot use the file.
fn read(path: &Path) -> io::Result<Result<String, Broken>> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Ok(unreadable("it is no regular file"));
    }
    if found.len() > LARGEST {
        return Ok(Err(Broken::Large { size: found.len() }));
    }
    let text = String::from_utf8(fs::read(path)?);
    Ok(text.map_err(|error| Broken::Syntax {
        problem: error.utf8_error().to_string(),
    }))
}

fn unreadable(problem: impl ToString) -> Result<String, Broken> {
    let problem = problem.to_string();
    Err(Broken::Unreadable { problem })
}

fn has_list_extension(name: &str) -> bool {
    let extension = name.rfind('.').map(|at| &name[at..]);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}
