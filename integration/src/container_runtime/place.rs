// SPDX-License-Identifier: Apache-2.0
//! Files and directories of a runtime, and the lab's images.

use std::path::PathBuf;

/// The default image of containers.
pub const TOOLS: &str = "localhost/tools:lab";

/// The image of pods' sandboxes.
pub(super) const PAUSE: &str = "localhost/pause:lab";

/// Files and directories of a runtime on a node.
#[derive(Debug)]
pub(super) struct Place {
    /// Directory of the runtime's programs.
    pub(super) programs: PathBuf,
    /// Program that creates containers.
    pub(super) runc: PathBuf,
    /// Directory of the state that survives a boot.
    pub(super) root: PathBuf,
    /// Directory of the state that does not survive a boot.
    pub(super) directory: PathBuf,
    pub(super) cdi: PathBuf,
}

impl Place {
    pub(super) fn socket(&self) -> PathBuf {
        self.at("runtime.sock")
    }

    /// Returns the path of `below` in the runtime's directory.
    pub(super) fn at(&self, below: &str) -> PathBuf {
        self.directory.join(below)
    }
}
