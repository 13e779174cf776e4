// SPDX-License-Identifier: Apache-2.0
//! `--check-config`: prints the devices that this node would advertise.

use crate::{
    cannot,
    chain::{Chain, ChainStatus},
    cli::Arguments,
};
use ::erdma::{instance, metadata::Metadata};
use anyhow::Result;
use daemon_conf::Erdma;
use node_state::{
    erdma::{self, Discovery, discover, reconciler},
    hardware::Hardware,
    health, ipv6_prerequisite,
    notices::notices,
};
use offer::{PreviousOffers, offers, table};
use rdma_netns::Inventory;
use std::{io::Write, path::Path};

/// Prints the table of devices, remarks, the status of the chain, and the table of eRDMA NICs.
///
/// # Errors
/// The configuration has an error, sysfs cannot be read, or the output is closed.
pub fn check(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot("start"))?;
    let text = runtime.block_on(report(arguments))?;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(cannot("print"))
}

async fn report(arguments: &Arguments) -> Result<String> {
    let parsed = arguments.conf()?;
    let hardware = Hardware::new(&arguments.sysfs, &arguments.dev)
        .with_procfs(&arguments.procfs)
        .with_records(&arguments.state_dir);
    let inventory = hardware.observe()?;
    // determine health as the daemon does at its start, except for the verdicts of the fabric watch
    let mut health =
        health::Watch::still(&arguments.sysfs, &arguments.state_dir).with_conf(&parsed.conf);
    let unhealthy = health.unhealthy(&inventory);
    let previous = PreviousOffers::read(&arguments.state_dir);
    let (found, unknown) = discovery(&parsed.conf.erdma, &inventory, &arguments.state_dir).await;
    let hidden = found.hidden_addresses();
    let (offers, remarks) = offers(&parsed.conf, &inventory, &hidden, &unhealthy, &previous);
    let mut remarks = [parsed.remarks, remarks, found.remarks.clone()].concat();
    remarks.extend(unknown);
    let errors = &parsed.conf.errors;
    remarks.extend(health::unknown_counters(
        &arguments.sysfs,
        errors,
        &inventory,
    ));
    let parents = ipv6_prerequisite::parents(parsed.conf.chain.as_ref(), &offers, &inventory);
    let lacking = ipv6_prerequisite::lacking(parents.clone()).await;
    remarks.extend(notices(&parsed.conf, &offers, &inventory));
    let chain = parsed.conf.chain.map(|conf| Chain {
        conf,
        state_dir: arguments.state_dir.clone(),
        cni_cache: Some(arguments.cni_cache_dir.clone()),
        needs_kubelet: true,
    });
    let status = chain.map(|it| it.status(|| ipv6_prerequisite::blocker_now(&parents)));
    // a `Withheld` status already names the NICs in `lacking`
    let is_withheld = matches!(status, Some(ChainStatus::Withheld(_)));
    remarks.extend(ipv6_prerequisite::remark(&lacking).filter(|_| !is_withheld));
    let (driver, change) =
        reconciler::driver_status(&arguments.sysfs, inventory.erdma, &parsed.conf.erdma);
    let mut text = table(
        &parsed.conf.resources,
        &offers,
        &inventory,
        &unhealthy,
        &remarks,
    );
    text.extend(status.map(|it| format!("\n{it}\n")));
    text.push_str(&erdma::table(&found, &inventory, &driver, change));
    Ok(text)
}

/// Discovers the eRDMA NICs. Queries the metadata service only if the selection of NICs depends on the instance's id,
/// and the id is unknown. Also returns the reason if the query fails.
async fn discovery(
    erdma: &Erdma,
    inventory: &Inventory,
    state_dir: &Path,
) -> (Discovery, Option<String>) {
    let kept = instance::kept(state_dir);
    let found = discover(erdma, inventory, kept.as_deref());
    if !found.needs_instance {
        return (found, None);
    }
    let reply = match Metadata::new(&erdma.metadata) {
        Ok(mut metadata) => metadata
            .instance_id()
            .await
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match reply {
        Ok(instance) => (discover(erdma, inventory, Some(&instance)), None),
        Err(error) => (
            found,
            Some(format!(
                "erdma.exposedLocalERIs: the daemon does not use NICs whose selection depends on the instance's id: {error}"
            )),
        ),
    }
}
