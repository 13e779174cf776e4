// SPDX-License-Identifier: Apache-2.0
//! Lookup of the memory to which requests refer.

use super::{
    regions::{Refusal, Regions, Window},
    requests::{Data, Segment},
};
use crate::transfer::Source;

/// Returns the location of a request's payload.
///
/// # Errors
/// The function refuses an access.
pub fn source(
    data: &Data,
    regions: &Regions,
    domain: u32,
    needed: u32,
) -> Result<Source<Window>, Refusal> {
    match data {
        Data::Inline(bytes) => Ok(Source::new(bytes.clone(), vec![])),
        Data::Segments(segments) => {
            let windows = segments
                .iter()
                .map(|it| window(it, regions, domain, needed));
            Ok(Source::new(vec![], windows.collect::<Result<_, _>>()?))
        }
    }
}

/// Returns the location of a segment's memory for an access with the rights `needed`.
///
/// # Errors
/// The function refuses the access.
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
