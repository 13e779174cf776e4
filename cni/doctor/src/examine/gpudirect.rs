// SPDX-License-Identifier: Apache-2.0
//! Examines whether RDMA devices can register the memory of the node's accelerators, and whether IOMMU or ACS slow the
//! access.

use super::{super::facts::Facts, Findings, devices::is_soft, named};
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
    // sources: "Supported Systems" in NVIDIA's "GPUDirect RDMA" for CUDA, and "Troubleshooting" in
    // NCCL's documentation
    let slowed = [
        (
            &gpudirect.translated,
            "the IOMMU translates addresses of",
            "boot with iommu=pt (arm64: iommu.passthrough=1), or switch the IOMMU off",
        ),
        (
            &gpudirect.redirecting,
            "ACS redirects traffic between GPUs and NICs to the CPU at",
            "unless virtual machines have functions of this node, switch ACS off in the firmware, or by \
             setpci -s PORT ECAP_ACS+6.w=0",
        ),
    ];
    for (devices, what, remedy) in slowed {
        if let (Some(devices), false) = (named(devices), registrations.is_empty()) {
            findings.warning(
                format!("{what} {devices}: NICs may reach GPUs' memory slowly or not at all"),
                remedy,
            );
        }
    }
}

/// Returns the PCI function that made the RDMA device of `device`: an eRDMA function, or `device` itself.
fn maker<'a>(device: &'a Device, observed: &'a Observed) -> &'a Device {
    let made_by = device.rdma_functions.first();
    made_by
        .and_then(|address| observed.device(address))
        .unwrap_or(device)
}
