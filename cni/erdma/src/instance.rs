// SPDX-License-Identifier: Apache-2.0
//! The instance's id, stored for the daemon's next start. Until the id is known, the daemon does not offer NICs whose
//! selection depends on it. The file `<stateDir>/erdma/instance` is valid for one boot only, because the disk may later
//! be attached to another instance.

use rdma_netns::{Kernel, Linux};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    boot_id: String,
    instance: String,
}

/// Returns the id that a daemon stored in this boot.
pub fn kept(state_dir: &Path) -> Option<String> {
    let stored: Option<Stored> = match file::read(&path(state_dir)) {
        Ok(stored) => stored,
        Err(error) => {
            log::warn!("{error}; querying the instance's id again");
            None
        }
    };
    let boot_id = Linux::new().boot_id().ok()?;
    let stored = stored.filter(|stored| stored.boot_id == boot_id);
    stored.map(|stored| stored.instance)
}

/// Stores the id. Does nothing if the boot id is unknown.
///
/// # Errors
/// The file cannot be written.
pub fn keep(state_dir: &Path, instance: &str) -> Result<(), FileError> {
    let Ok(boot_id) = Linux::new().boot_id() else {
        return Ok(());
    };
    let stored = Stored {
        boot_id,
        instance: instance.to_owned(),
    };
    file::replace(&path(state_dir), &stored, 0o600).map(drop)
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("erdma/instance")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_instance_id_is_kept_for_one_boot() {
        let state = tempfile::tempdir().expect("a directory");
        assert_eq!(kept(state.path()), None);
        keep(state.path(), "i-bp1").expect("written");
        assert_eq!(kept(state.path()).as_deref(), Some("i-bp1"));
        let path = path(state.path());
        let other = r#"{"bootId": "another", "instance": "i-bp1"}"#;
        for text in [other, "{", ""] {
            fs::write(&path, text).expect("written");
            assert_eq!(kept(state.path()), None, "{text:?}");
        }
        keep(state.path(), "i-bp2").expect("written");
        assert_eq!(kept(state.path()).as_deref(), Some("i-bp2"));
    }
}
