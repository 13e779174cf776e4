// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin fabric`: the fabric watch, which sends RDMA requests from each rail to the same rail of other
//! nodes. It runs in a separate pod, because it needs `/dev/infiniband/rdma_cm`, which the daemon's container may not
//! open. The container of the fabric watch gets this device by the resource `rdma/connection-manager`.

use crate::{api::Api, cannot, cli::Fabric as Arguments, metrics, signals::Signals};
use anyhow::Result;
use node_state::{hardware::Hardware, log_once::LogOnce};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_ping::fabric::{Account, Event, Fabric, FabricRail, RailState, Report};
use rdma_resources::Published;
use std::{collections::BTreeSet, net::IpAddr, thread};
use tokio::runtime;

/// Watches the fabric until SIGTERM or SIGINT. Runs the watch on one thread, and metrics and probes on another thread.
///
/// # Errors
/// The pod has no token for the API server, or an address or socket cannot be bound.
pub fn run(arguments: &Arguments) -> Result<()> {
    let api = Api::new(&arguments.service_account_dir)?;
    let failed = cannot("watch the fabric");
    let runtime = || {
        let built = runtime::Builder::new_current_thread().enable_all().build();
        built.map_err(&failed)
    };
    let fabric = Fabric {
        account: Account {
            client: api.client,
            node: api.node,
            node_uid: api.node_uid,
            namespace: arguments.namespace.clone(),
        },
        manager: arguments.dev.join("infiniband/rdma_cm"),
        interval: arguments.interval,
        percent: arguments.unhealthy_percent,
        runtime: runtime()?,
        before: Report::read(&arguments.state_dir).unwrap_or_else(|error| {
            log::warn!("the fabric watch ignores the results of the earlier watch: {error}");
            Report::default()
        }),
    };
    let figures = metrics::Fabric::new(arguments.interval);
    let runtime = runtime()?;
    let (mut signals, serving) = runtime.block_on(async {
        let socket = arguments.probe_socket.as_deref();
        let serving = metrics::serve_fabric(arguments.metrics_address, socket, figures.clone());
        let signals = Signals::taken().map_err(&failed)?;
        serving.await.map(|serving| (signals, serving))
    })?;
    let hardware = Hardware::new(&arguments.sysfs, &arguments.dev);
    let state_dir = arguments.state_dir.clone();
    let rails = move || {
        let published = Published::read(&state_dir).map_err(|it| it.to_string())?;
        let inventory = hardware.observe().map_err(|it| it.to_string())?;
        Ok(published.map_or_else(Vec::new, |it| rails_of(&it, &inventory)))
    };
    let mut report = report(arguments);
    let take = move |event: Event<'_>| {
        if let Event::States(rails) = &event {
            report(rails);
        }
        figures.take(event);
    };
    let watch = thread::Builder::new().name("watch".to_owned());
    let started = watch.spawn(move || fabric.run(rails, take));
    started.map_err(&failed)?;
    runtime.block_on(async {
        tokio::select! {
            () = signals.end() => {}
            () = serving => {}
        }
    });
    Ok(())
}

/// Returns a function that writes the states of rails to the file that the daemon reads.
fn report(arguments: &Arguments) -> impl FnMut(&[RailState]) + use<> {
    let (state_dir, mut failed) = (arguments.state_dir.clone(), LogOnce::default());
    let lifetime = metrics::event_timeout(arguments.interval);
    move |rails| match Report::new(rails.to_vec(), lifetime).write(&state_dir) {
        Ok(()) => drop(failed.ends()),
        Err(error) => {
            let line = format!("cannot report unhealthy rails to the daemon: {error}");
            failed.warn(&line);
        }
    }
}

/// Returns the NICs of the daemon's resources, if netdev and RDMA device are in this process's net namespace. Returns
/// each NIC once, even if several resources have it.
fn rails_of(published: &Published, inventory: &Inventory) -> Vec<FabricRail> {
    let mut rails: Vec<FabricRail> = vec![];
    for (resource, devices) in &published.resources {
        let addresses = devices.all_devices().into_iter();
        for (number, address) in addresses.collect::<BTreeSet<_>>().into_iter().enumerate() {
            let rail = rail(address, inventory).map(|(device, addresses)| FabricRail {
                resource: resource.clone(),
                number,
                device,
                addresses,
                is_unreachable: false,
            });
            let is_new = |it: &FabricRail| rails.iter().all(|other| other.device != it.device);
            rails.extend(rail.filter(is_new));
        }
    }
    rails
}

fn rail(address: &DeviceAddress, inventory: &Inventory) -> Option<(String, Vec<IpAddr>)> {
    let function = inventory.function(address)?;
    let (netdev, hca) = (function.netdevs.first()?, function.hcas.first()?);
    let addresses = [netdev.ipv6.map(IpAddr::from), netdev.ipv4.map(IpAddr::from)];
    Some((hca.name.clone(), addresses.into_iter().flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A rail's number is its NIC's index in the sorted addresses of the resource. The number does not change while a
    /// pod has another NIC of the resource.
    #[test]
    fn rails_are_numbered_by_their_resource() {
        let nic = |number: u32| {
            json!({
                "address": format!("0000:0{number}:00.0"),
                "hcas": [{"name": format!("mlx5_{number}")}],
                "netdevs": [{
                    "name": format!("ens{number}"), "mac": "02:00:00:00:00:01",
                    "ipv6": format!("fd00:{number}::7"), "ipv4": format!("10.{number}.0.7"),
                }],
            })
        };
        let mut away = nic(1);
        away["netdevs"] = json!([]);
        let inventory = json!({"functions": [nic(0), away, nic(2), nic(3)]});
        let inventory: Inventory = serde_json::from_value(inventory).expect("an inventory");
        let all = ["0000:02:00.0", "0000:01:00.0", "0000:00:00.0"];
        let published = json!({"format": 2, "resources": {
            "rdma/a": {"sharing": "shared", "every": all},
            "rdma/b": {"sharing": "shared", "byId": {"x": [all[0]], "y": [all[0], "0000:03:00.0"]}},
        }});
        let published: Published = serde_json::from_value(published).expect("resources");
        let rails = rails_of(&published, &inventory);
        let found: Vec<_> = rails
            .iter()
            .map(|it| (&*it.resource, it.number, &*it.device))
            .collect();
        assert_eq!(
            found,
            [
                ("rdma/a", 0, "mlx5_0"),
                ("rdma/a", 2, "mlx5_2"),
                ("rdma/b", 1, "mlx5_3")
            ]
        );
        let addresses = rails[1].addresses.iter().map(IpAddr::to_string);
        assert_eq!(addresses.collect::<Vec<_>>(), ["fd00:2::7", "10.2.0.7"]);
    }
}
