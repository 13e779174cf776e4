// SPDX-License-Identifier: Apache-2.0
//! The daemon as a DRA driver: the resources that its configuration names under `dra` are allocated by claims,
//! and not by kubelet's device plugins.
//!
//! | module | |
//! |---|---|
//! | [`pool`] | the node's resources, as its slices are made of them: pure |
//! | [`publisher`] | keeps the node's ResourceSlices as they are to be: the leader's |
//! | [`server`] | the driver's sockets, by which kubelet finds and asks it |
//! | [`service`] | what kubelet asks: claims prepared and given up |
//! | [`prepare`] | what a claim is prepared with |
//! | [`former_ids`] | has kubelet forget what the device plugin gave to pods that have ended |
//! | [`renumber`] | keeps that true while devices are renumbered, go and come back |
//! | [`reporter`] | tells the API server of claims' networks: the leader's |
//! | [`health`] | what kubelet is told of devices that pods have |
//!
//! All that is decided without I/O is in the crate `dra`.

pub mod former_ids;
pub mod health;
pub mod pool;
pub mod prepare;
pub mod publisher;
pub mod renumber;
pub mod reporter;
pub mod server;
pub mod service;

use crate::{
    cli::Arguments,
    conf::dra::{DRIVER, Dra},
    kubelet::PluginContext,
    peers::Presence,
};
use std::io;

/// Prepares claims until what comes back is dropped; none: no resource is served by them. What killed daemons left of
/// sockets goes, where `presence` knows which ones run.
///
/// # Errors
/// A socket cannot be made.
pub fn serve(
    arguments: &Arguments,
    context: &PluginContext,
    presence: Option<&Presence>,
) -> io::Result<Option<impl Future<Output = ()> + Send + use<>>> {
    let node = context.node.clone();
    let dra = node.borrow().conf.dra.clone();
    let driver = dra.as_ref().map_or(DRIVER, |dra| &dra.driver);
    let paths = server::Paths::new(&arguments.kubelet_dir, driver, &context.name);
    if let Some(presence) = presence {
        paths.remove_stale(|owner| presence.runs(owner));
    }
    let Some(Dra { driver, .. }) = dra else {
        return Ok(None);
    };
    let health = health::Health {
        account: arguments.service_account_dir.clone(),
        node: node.clone(),
    };
    let (hardware, state_dir) = (context.hardware.clone(), arguments.state_dir.clone());
    let renumbered = renumber::follow(node.clone(), hardware, state_dir);
    let preparer = prepare::Preparer {
        driver,
        account: arguments.service_account_dir.clone(),
        state_dir: arguments.state_dir.clone(),
        cdi_dir: arguments.cdi_dir.clone(),
        node,
        hardware: context.hardware.clone(),
    };
    let former_ids = former_ids::FormerIds::new(context);
    let service = service::Service::new(preparer, former_ids.clone(), context.metrics.clone());
    let served = server::Served::start(&paths, service, health)?;
    Ok(Some(async move {
        tokio::select! {
            () = served.keep() => {}
            () = renumbered => {}
            () = former_ids.follow() => {}
        }
    }))
}
