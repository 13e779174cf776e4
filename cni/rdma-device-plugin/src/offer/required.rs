// SPDX-License-Identifier: Apache-2.0
//! Whether a resource has the devices that it has to have, for jobs that had better wait than run with fewer.

use super::{Gone, OfferedDevice};
use crate::conf::{Require, ResourceConf};

/// How many devices there are to be.
pub(super) fn expected(
    require: Option<Require>,
    devices: &[OfferedDevice],
    gone: &[Gone],
) -> usize {
    match require {
        Some(Require::Number(number)) => number as usize,
        Some(Require::All) | None => devices.len() + gone.len(),
    }
}

/// Why no pod is to be given the resource, if that is so: in words, with what is missing.
pub(super) fn short(
    resource: &ResourceConf,
    devices: &[OfferedDevice],
    gone: &[Gone],
) -> Option<String> {
    let require = resource.require?;
    let expected = expected(Some(require), devices, gone);
    let fit = devices.iter().filter(|device| device.fault.is_none());
    let fit = fit.count();
    if fit >= expected {
        return None;
    }
    let faulty = devices.iter().filter_map(|device| {
        let fault = device.fault.as_ref()?;
        Some(format!("{} ({}): {fault}", device.address, device.hca.name))
    });
    let gone = gone
        .iter()
        .map(|gone| format!("{gone} is not on this node any more"));
    let missing: Vec<String> = faulty.chain(gone).collect();
    let missing = match missing.as_slice() {
        [] => String::new(),
        missing => format!(" ({})", missing.join("; ")),
    };
    Some(format!(
        "{}: {} has {fit} devices that can be used, and require: {require} asks for {expected}: all its ids are \
         unhealthy, and pods that ask for it wait{missing}",
        resource.place, resource.name
    ))
}
