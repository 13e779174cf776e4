// SPDX-License-Identifier: Apache-2.0
//! The daemon as a DRA driver. For the resources of the configuration's section `dra`, Kubernetes allocates devices by
//! claims instead of the device plugin's ids.
//!
//! | module | |
//! |---|---|
//! | [`pool`] | resources in the node's ResourceSlices: pure |
//! | [`publisher`] | keeps the node's ResourceSlices up to date: a task of the leader |
//! | [`server`] | the driver's sockets for kubelet |
//! | [`service`] | kubelet's calls: prepares and unprepares claims |
//! | [`prepare`] | preparation of a claim |
//! | [`former_ids`] | makes kubelet drop ids that the device plugin allocated to ended pods |
//! | [`renumber`] | updates prepared claims when devices get other numbers, disappear or come back |
//! | [`reporter`] | reports the networks of claims to the API server: a task of the leader |
//! | [`health`] | reports the health of devices to kubelet |
//!
//! The crate `dra` contains the decisions, and the records of claims.

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
    kubelet::{PluginContext, socket},
    peers::Presence,
};
use daemon_conf::dra::{DRIVER, Dra};
use std::sync::Arc;

/// Starts the DRA driver. Dropping the returned future ends it. Returns `None` if the configuration has no section
/// `dra`. Removes the sockets of killed daemons, if `presence` is given.
pub fn serve(
    context: &Arc<PluginContext>,
    presence: Option<&Presence>,
) -> Option<impl Future<Output = ()> + Send + use<>> {
    let kubelet_dir = &context.arguments.kubelet_dir;
    let dra = context.node.borrow().conf.dra.clone();
    let driver = dra.as_ref().map_or(DRIVER, |dra| &dra.driver);
    if let Some(presence) = presence {
        for directory in server::directories(kubelet_dir, driver) {
            socket::remove_stale(&directory, |owner| presence.runs(owner));
        }
    }
    let Dra { driver, .. } = dra?;
    let paths = server::Paths::new(kubelet_dir, &driver, &context.name);
    let health = health::Health(context.clone());
    let state_dir = context.arguments.state_dir.clone();
    let renumbered = renumber::follow(context.node.clone(), context.hardware.clone(), state_dir);
    let preparer = prepare::Preparer {
        driver,
        context: context.clone(),
    };
    let former_ids = former_ids::FormerIds::new(context);
    let service = service::Service::new(preparer, former_ids.clone());
    let served = server::Served::start(&paths, service, health);
    Some(async move {
        tokio::select! {
            () = served.keep() => {}
            () = renumbered => {}
            () = former_ids.follow() => {}
        }
    })
}
