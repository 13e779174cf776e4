// SPDX-License-Identifier: Apache-2.0
//! Search for the file from which a runtime calls our plugin.

use crate::{
    Choice, Directory, Obstacle, Position, Runtime, follow, pick,
    placement::{self, Placed},
};

/// The file from which a runtime calls our plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Name of the file.
    pub file: String,
    /// Name of the network.
    pub network: String,
    /// True if another program wrote the entry and owns its configuration.
    pub by_others: bool,
}

/// Returns the file from which `runtime` calls our plugin. An entry that is not in `placed` belongs to another program.
///
/// # Errors
/// The reason why the runtime does not call our plugin.
pub fn called(directory: &Directory, runtime: &Runtime, placed: &Placed) -> Result<Called, String> {
    let picked = match pick(directory, runtime).choice {
        Choice::Picked(picked) => follow(directory, picked),
        Choice::Blocked { file, why } => return Err(Obstacle::Broken { file, why }.to_string()),
        Choice::None => return Err(Obstacle::Empty.to_string()),
    };
    let network = picked.network.clone();
    let in_directory = placement::in_directory(directory, &picked).next();
    match (picked.ours, in_directory) {
        (None, Some(found)) => Ok(Called {
            by_others: !placed.contains_key(&found.file),
            file: found.file,
            network,
        }),
        (Some(ours), _) => Ok(Called {
            by_others: matches!(ours.place, Position::Delegate(_))
                || !placement::entries_in(placed, &picked.file).contains(&ours.configuration),
            file: picked.file,
            network,
        }),
        (None, None) => Err(format!("it is not in {}", picked.file)),
    }
}
