// SPDX-License-Identifier: Apache-2.0
//! Judges whether RDMA devices can register the memory of the node's accelerators.

use super::{super::facts::Facts, Findings, devices::is_soft, some};
use rdma_netns::{
    Device, Observed,
    gpudirect::{Registration, accelerators_of},
};

pub(super) fn examine(facts: &Facts, findings: &mut Findings<'_>) {
    let (Some(gpudirect), Some(observed)) = (&facts.gpudirect, &facts.observed) else {
        return;
    };
    let with_rdma = observed
        .devices
        .iter()
        .filter(|it| it.rdma.iter().any(|name| !is_soft(name)));
    let makers = with_rdma.map(|device| maker(device, observed));
    let registrations = gpudirect.registrations(makers);
    for (vendor, module, registration) in &registrations {
        let gpus = format!("memory of {}", accelerators_of(vendor));
        match registration {
            Registration::DmaBuf => findings.ok(format!("{module} can register {gpus} by dma-buf")),
            Registration::PeerMemory => {
                findings.ok(format!("{module} can register {gpus} by peer memory"));
            }
            Registration::Impossible { why, remedy } => {
                findings.warning(format!("{module} cannot register {gpus}: {why}"), remedy);
            }
            Registration::Unknown(why) => findings.note(format!(
                "whether {module} can register {gpus} is unknown: {why}"
            )),
        }
    }
    if !registrations.is_empty() && !gpudirect.translated.is_empty() {
        let translated = gpudirect.translated.iter().map(ToString::to_string);
        let translated: Vec<String> = translated.collect();
        findings.warning(
            format!(
                "the IOMMU translates addresses of {}: NICs may reach GPUs' memory slowly or not at all",
                some(&translated)
            ),
            "boot with iommu=pt (arm64: iommu.passthrough=1), or switch the IOMMU off",
        );
    }
}

/// Returns a device that has made the RDMA device of `device`.
fn maker<'a>(device: &'a Device, observed: &'a Observed) -> &'a Device {
    let made_by = device.rdma_functions.first();
    made_by
        .and_then(|address| observed.device(address))
        .unwrap_or(device)
}
