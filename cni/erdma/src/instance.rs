// SPDX-License-Identifier: Apache-2.0
//! The instance's id, kept for the next start: NICs that hang on it are hidden until it is known.
//!
//! `<stateDir>/erdma/instance`. It holds for one boot: a node's disk can be another instance's
//! after it.

use rdma_netns::{Kernel, Linux};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    boot_id: String,
    instance: String,
}

/// The id that was kept in this boot.
pub fn kept(state_dir: &Path) -> Option<String> {
    let kept: Option<Kept> = match file::read(&path(state_dir)) {
        Ok(kept) => kept,
        Err(error) => {
            log::warn!("the instance's id is asked for again: {error}");
            None
        }
    };
    let boot_id = Linux::new().boot_id().ok()?;
    let kept = kept.filter(|kept| kept.boot_id == boot_id);
    kept.map(|kept| kept.instance)
}

/// Keeps it. Where the boot is not known, nothing is kept.
///
/// # Errors
/// The file cannot be written.
pub fn keep(state_dir: &Path, instance: &str) -> Result<(), FileError> {
    let Ok(boot_id) = Linux::new().boot_id() else {
        return Ok(());
    };
    let kept = Kept {
        boot_id,
        instance: instance.to_owned(),
    };
    file::replace(&path(state_dir), &kept, 0o600).map(drop)
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("erdma/instance")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_kept_for_one_boot() {
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
