// SPDX-License-Identifier: Apache-2.0
//! The directory's files, read once, with those that networks have in directories of their own.
//!
//! libcni appends the plugins of `<network>/*.conf` to those of the network's list, sorted by name, since
//! version 1.3 (`NetworkPluginConfsFromFiles()`, `libcni/conf.go`); versions before pass over directories.

use crate::{Broken, list::is_network_name};
use std::{fs, io, path::Path};

/// What a runtime looks for; the rest of the directory is no business of anybody's here.
const EXTENSIONS: [&str; 3] = [".conf", ".conflist", ".json"];

/// What libcni looks for in a network's own directory.
const PLUGIN: &str = ".conf";

/// More containerd does not read.
const MOST: u64 = 2 * 1024 * 1024;

/// A file that a runtime looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name in the directory; one of a network's own directory: `cbr0/10-tuning.conf`.
    pub name: String,
    /// What is in it, or why that cannot be known.
    pub text: Result<String, Broken>,
}

/// The files that runtimes look at, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    files: Vec<File>,
    /// Those of networks' own directories.
    plugins: Vec<File>,
}

impl Directory {
    /// These files, of which those count that a runtime looks for.
    pub fn new(files: Vec<File>) -> Self {
        let is_plugin = |file: &File| file.name.contains('/');
        let (mut plugins, mut files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_plugin);
        files.retain(|file| is_looked_for(&file.name));
        plugins.retain(|file| file.name.ends_with(PLUGIN));
        for files in [&mut files, &mut plugins] {
            files.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Self { files, plugins }
    }

    /// What is in the directory at `path` now. None: there is no such directory.
    ///
    /// # Errors
    /// It cannot be read. A file that cannot be read is no error: runtimes differ in what they
    /// make of it.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let mut files = vec![];
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // as libcni, which follows links to a network's own directory
            if is_network_name(&name) && entry.path().is_dir() {
                add_plugins(&entry.path(), &name, &mut files);
            }
            if is_looked_for(&name) && !entry.file_type()?.is_dir() {
                add(&entry.path(), name, &mut files);
            }
        }
        Ok(Some(Self::new(files)))
    }

    /// The files, in the order in which a runtime looks at them.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Those of networks' own directories besides.
    pub fn all(&self) -> impl Iterator<Item = &File> {
        self.files.iter().chain(&self.plugins)
    }

    /// The files of the directory of `network`, in libcni's order.
    pub fn plugins_of(&self, network: &str) -> impl Iterator<Item = &File> {
        let is_its = move |file: &&File| {
            let directory = file.name.split_once('/').map(|(directory, _)| directory);
            directory == Some(network)
        };
        self.plugins.iter().filter(is_its)
    }

    /// The file called `name`.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.all().find(|file| file.name == name)
    }

    /// The same without files of which `leave` says so.
    pub(crate) fn without(&self, leave: impl Fn(&File) -> bool) -> Self {
        let files = self.files.iter().filter(|file| !leave(file));
        Self {
            files: files.cloned().collect(),
            plugins: self.plugins.clone(),
        }
    }
}

/// Adds the files in the directory of `network`, as far as it can be read: one that cannot, or that went away since
/// the directory above was read, keeps nobody from its list.
fn add_plugins(path: &Path, network: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(PLUGIN) && !entry.path().is_dir() {
            add(&entry.path(), format!("{network}/{name}"), files);
        }
    }
}

/// Adds the file at `path`, unless it went away since its directory was read. A link that leads to nothing is there:
/// a runtime stops at it, or sees what it leads to, if this is a container that has the directory alone.
fn add(path: &Path, name: String, files: &mut Vec<File>) {
    match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            let problem =
                "it is a symbolic link, and what it leads to is not to be seen from here".into();
            files.push(File {
                name,
                text: Err(Broken::Unreadable { problem }),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        text => files.push(File {
            name,
            text: text.unwrap_or_else(|error| Err(unreadable(&error))),
        }),
    }
}

/// A file's text, or why a runtime cannot use it.
fn read(path: &Path) -> io::Result<Result<String, Broken>> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Ok(Err(Broken::Unreadable {
            problem: "it is no regular file".into(),
        }));
    }
    if found.len() > MOST {
        return Ok(Err(Broken::Large { size: found.len() }));
    }
    let text = String::from_utf8(fs::read(path)?);
    Ok(text.map_err(|error| Broken::Syntax {
        problem: error.utf8_error().to_string(),
    }))
}

fn unreadable(error: &io::Error) -> Broken {
    Broken::Unreadable {
        problem: error.to_string(),
    }
}

fn is_looked_for(name: &str) -> bool {
    let extension = name.rfind('.').map(|at| &name[at..]);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}
