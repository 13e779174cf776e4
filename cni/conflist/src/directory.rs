// SPDX-License-Identifier: Apache-2.0
//! The directory's files, read once.

use crate::Broken;
use std::{fs, io, path::Path};

/// What a runtime looks for; the rest of the directory is no business of anybody's here.
const EXTENSIONS: [&str; 3] = [".conf", ".conflist", ".json"];

/// More containerd does not read.
const MOST: u64 = 2 * 1024 * 1024;

/// A file that a runtime looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name in the directory.
    pub name: String,
    /// What is in it, or why that cannot be known.
    pub text: Result<String, Broken>,
}

/// The files that runtimes look at, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    files: Vec<File>,
}

impl Directory {
    /// These files, of which those count that a runtime looks for.
    pub fn new(mut files: Vec<File>) -> Self {
        files.retain(|file| is_looked_for(&file.name));
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Self { files }
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
            if is_looked_for(&name) && !entry.file_type()?.is_dir() {
                match read(&entry.path()) {
                    // it went away since the directory was read
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    text => files.push(File {
                        name,
                        text: text.unwrap_or_else(|error| Err(unreadable(&error))),
                    }),
                }
            }
        }
        Ok(Some(Self::new(files)))
    }

    /// The files, in the order in which a runtime looks at them.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// The file called `name`.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The same without files of which `leave` says so.
    pub(crate) fn without(&self, leave: impl Fn(&File) -> bool) -> Self {
        let files = self.files.iter().filter(|file| !leave(file));
        Self {
            files: files.cloned().collect(),
        }
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
