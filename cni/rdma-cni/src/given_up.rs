// SPDX-License-Identifier: Apache-2.0
//! Notes of what netdevs came back to the host without, when an attachment is restored.

use crate::apply::{GivenUp, Restored};
use attachments::{
    Attachment,
    given_up::{Lack, Note, earlier, remove, write},
};
use std::path::Path;

/// Writes down what the netdevs of `attachment` are without, and takes away what was written of
/// those that are whole. All that they are without, a sentence for each thing.
pub fn note(root: &Path, attachment: &Attachment, restored: &Restored) -> Vec<String> {
    let mut told = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let Some(host_link) = &rail.host_link else {
            continue;
        };
        let own = restored.given_up.iter().filter(|it| it.rail == index);
        let own = own.map(|GivenUp { attribute, why, .. }| Lack {
            attribute: attribute.clone(),
            why: why.clone(),
        });
        let mut note = earlier(root, attachment, host_link).unwrap_or_else(|| Note {
            boot_id: attachment.boot_id.clone(),
            holder: attachment.holder(),
            host_link: host_link.clone(),
            observed_at: attachment.observed_at,
            lacks: vec![],
        });
        let missing = plan::given_up::missing(&note, &restored.observed);
        note.lacks.retain(|it| missing.contains(&it.attribute));
        for lack in own {
            note.lacks.retain(|it| it.attribute != lack.attribute);
            note.lacks.push(lack);
        }
        told.extend(note.lacks.iter().map(|lack| lack.why.clone()));
        let done = match note.lacks.is_empty() {
            true => remove(root, &host_link.name),
            false => write(root, &note),
        };
        if let Err(error) = done {
            log::warn!("{error}");
        }
    }
    told
}
