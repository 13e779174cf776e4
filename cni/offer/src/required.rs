// SPDX-License-Identifier: Apache-2.0
//! Requirements of a whole resource. `require` is for jobs that must wait instead of running with fewer devices. Limits
//! of RDMA resources require the kernel's rdma controller: without it, `rdma-cni` refuses each container with such
//! limits.

use crate::{Gone, OfferedDevice};
use daemon_conf::{Require, ResourceConf};
use rdma_netns::RdmaCgroup;

/// Returns the number of devices that the resource should have.
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

/// Returns a sentence about the faulty and gone devices if the resource has fewer usable devices than it requires.
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
        .map(|gone| format!("{gone} is no longer on this node"));
    let missing: Vec<String> = faulty.chain(gone).collect();
    let missing = match missing.as_slice() {
        [] => String::new(),
        missing => format!(" ({})", missing.join("; ")),
    };
    Some(format!(
        "{}: {} has {fit} usable devices, and require: {require} requires {expected}: all its ids are \
         unhealthy, and pods that request it wait{missing}",
        resource.place, resource.name
    ))
}

/// Returns the reason why no pod may get the resource, if the resource has limits of RDMA resources and the node cannot
/// set these limits.
pub(super) fn unlimited(resource: &ResourceConf, limiter: RdmaCgroup) -> Option<String> {
    let (what, remedy) = limiter
        .lack()
        .filter(|_| !resource.limits.rdma.is_empty())?;
    Some(format!(
        "{}.limits: {what}: all ids of {} are unhealthy, and pods that request it wait; {remedy}, or leave limits out",
        resource.place, resource.name
    ))
}
