// SPDX-License-Identifier: Apache-2.0
//! The memory that requests name.

use super::{
    regions::{Refusal, Regions, Window},
    requests::{Data, Segment},
};
use crate::transfer::Source;

/// Resolves the payload of a request.
///
/// # Errors
/// A key is refused.
pub fn source(
    data: &Data,
    regions: &Regions,
    domain: u32,
    needed: u32,
) -> Result<Source<Window>, Refusal> {
    match data {
        Data::Inline(bytes) => Ok(Source::Bytes(bytes.clone())),
        Data::Segments(segments) => {
            let windows = segments
                .iter()
                .map(|it| window(it, regions, domain, needed));
            Ok(Source::Windows(windows.collect::<Result<_, _>>()?))
        }
    }
}

/// Resolves a segment for an access with the rights `needed`.
///
/// # Errors
/// The key is refused.
pub fn window(
    segment: &Segment,
    regions: &Regions,
    domain: u32,
    needed: u32,
) -> Result<Window, Refusal> {
    regions.find(
        segment.key,
        domain,
        segment.address,
        segment.len.into(),
        needed,
    )
}
