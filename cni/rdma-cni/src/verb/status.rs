//! STATUS: would ADD work? State directory, RDMA subsystem, devices, IPAM.

use super::{Node, survey};
use crate::{
    conf::Devices,
    error::Error,
    ipam::{Ipam, IpamError},
    select::{self, SelectError},
};
use cni_protocol::{Command, SpecVersion};
use rdma_netns::Kernel;

/// Finds whatever would make an ADD fail, whichever pod it were for.
pub fn status<K: Kernel>(node: &Node<'_, K>) -> Result<(), Error> {
    node.conf.network.since("STATUS", SpecVersion::V1_1_0)?;
    let mut reasons = vec![];
    let mut limited = false;
    if let Err(error) = node.store.probe() {
        reasons.push(error.to_string());
    }
    let observed = node.kernel.observe(None)?;
    let others = survey::living(node, &observed.boot_id)?;
    match &node.conf.devices {
        // the device comes with each ADD
        None if takes_device_id(node) => {}
        None => reasons.extend(node.conf.required_devices().err().map(|it| it.to_string())),
        Some(devices) => match select::rails(node.conf, devices, &observed, &others) {
            // a device that a pod has is one that works
            Ok(_) | Err(SelectError::InUse { .. } | SelectError::Elsewhere(_)) => {}
            // runtimeConfig names it at ADD; this one may have been an example
            Err(SelectError::NotFound(_)) if matches!(devices, Devices::Address(_)) => {}
            Err(error) => reasons.push(error.to_string()),
        },
    }
    if let Some(name) = &node.conf.ipam {
        let forwarded = Ipam::find(name, node.environment, &node.conf.raw)
            .and_then(|ipam| ipam.network(Command::Status));
        if let Err(error) = forwarded {
            limited = matches!(error, IpamError::Refused { code: Some(51), .. });
            reasons.push(error.to_string());
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Error::NotReady { limited, reasons })
    }
}

/// Whether the runtime hands the device over at ADD (`runtimeConfig.deviceID`).
fn takes_device_id<K>(node: &Node<'_, K>) -> bool {
    let capabilities = node.conf.raw.get("capabilities");
    capabilities.is_some_and(|capabilities| capabilities["deviceID"] == true)
}
