// SPDX-License-Identifier: Apache-2.0
//! STATUS: checks the requirements of ADD: state directory, RDMA subsystem, devices, SMC-R, IPAM. STATUS writes
//! nothing, because runtimes call it every few seconds.

use crate::{
    error::Error,
    ipam::{Ipam, IpamError, Known, Master},
    node::Node,
};
use attachments::{Attachment, Rail};
use cni_protocol::SpecVersion;
use network_conf::Devices;
use plan::{
    self,
    select::{self, Choice, SelectError, Selected},
};
use rdma_netns::{Kernel, Link};

/// Reports only conditions that make every ADD of every pod fail: after an error of STATUS, the scheduler places no
/// pod on the node.
///
/// If kubelet's allocation determines a pod's devices, only the configuration is checked. A full address range and a
/// read-only state directory affect only pods that request devices, and a missing kubelet socket is temporary. The
/// affected ADDs and `rdma-device-plugin doctor` report these conditions.
pub fn status<K: Kernel>(node: &Node<'_, K>) -> Result<(), Error> {
    node.conf.network.since("STATUS", SpecVersion::V1_1_0)?;
    if let Some(Devices::Resources(_)) = &node.conf.devices {
        return Ok(());
    }
    node.conf.smc.check_ueid()?;
    let mut reasons = vec![];
    let mut limited = false;
    let mut rails: Vec<Rail> = vec![];
    if let Err(error) = node.store.probe() {
        reasons.push(error.to_string());
    }
    let choice = match &node.conf.devices {
        Some(Devices::Address(address)) => Some(Choice::Address(address)),
        Some(Devices::Selectors(selectors)) => Some(Choice::Selectors(selectors)),
        // each ADD gets its devices from kubelet
        Some(Devices::Resources(_)) => None,
        None if node.conf.takes_device_id() => None,
        None => {
            reasons.extend(node.conf.required_devices().err().map(|it| it.to_string()));
            None
        }
    };
    let observed = match &choice {
        Some(choice) => node.observe(choice, None)?,
        None => node.kernel.observe(None)?,
    };
    let others = node.store.living(node.kernel, &observed.boot_id);
    let others = others.map_err(Error::State)?;
    if let Some(choice) = choice {
        match select::rails(node.conf, &choice, &observed, &others) {
            Ok(Selected { rails: found, .. }) => {
                let shared = found.iter().filter_map(|rail| rail.shared.as_ref());
                reasons.extend(shared.filter_map(|shared| {
                    let mtu = node.conf.mtu.unwrap_or(shared.parent_mtu);
                    Some(plan::bearer(shared, mtu, &observed).err()?.to_string())
                }));
                rails = found;
            }
            // a pod uses the device, so the device works
            Err(SelectError::InUse { .. } | SelectError::Elsewhere(_)) => {}
            // the configured address may be an example: at ADD the runtime passes the device in runtimeConfig
            Err(SelectError::NotFound(_)) if matches!(choice, Choice::Address(_)) => {}
            Err(error) => reasons.push(error.to_string()),
        }
    }
    reasons.extend(smcr::apply::status(node.smcr()));
    if let Some(name) = &node.conf.ipam {
        let known = Known {
            away: others.iter().flat_map(Attachment::away).collect(),
            ..Known::default()
        };
        let on_host: Vec<&Link> = rails
            .iter()
            .filter_map(|rail| rail.on_host(&observed))
            .collect();
        for error in ask(node, name, &Master::of(&on_host, &known)) {
            limited |= matches!(error, IpamError::Refused { code: Some(51), .. });
            reasons.push(error.to_string());
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Error::NotReady { limited, reasons })
    }
}

/// Returns the errors of IPAM's STATUS, which is called once for each netdev of the rails, if the netdevs are known.
fn ask<K>(node: &Node<'_, K>, name: &str, masters: &[Master<'_>]) -> Vec<IpamError> {
    let ipam = match Ipam::find(name, node.environment, &node.conf.raw) {
        Ok(ipam) => ipam,
        Err(error) => return vec![error],
    };
    let results: Vec<_> = match masters {
        [] => vec![ipam.status(None)],
        masters => masters
            .iter()
            .map(|master| ipam.status(Some(master)))
            .collect(),
    };
    let mut complaints: Vec<IpamError> = vec![];
    for error in results.into_iter().filter_map(Result::err) {
        // reports an error of several rails only once
        if !complaints
            .iter()
            .any(|it| it.to_string() == error.to_string())
        {
            complaints.push(error);
        }
    }
    complaints
}
