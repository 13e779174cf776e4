// SPDX-License-Identifier: Apache-2.0
//! Reports devices' health to kubelet, which adds it to `allocatedResourcesStatus` of the containers that use a claim.

use super::pool::Netdevs;
use crate::{api::Api, node::Node};
use ::dra::{PoolDevice, pool};
use kubelet_api::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse, dra_resource_health_server::DraResourceHealth,
};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Interval of reports about unchanged devices. Kubelet treats a device's health as unknown after 30 s without a report
/// (`DefaultHealthTimeout` in `cm/dra/healthinfo.go`).
const REPEATED: Duration = Duration::from_secs(10);

/// Service that reports the health of a node's devices.
#[derive(Clone, Debug)]
pub struct Health {
    /// Directory of the token, which has the pool's name.
    pub account: PathBuf,
    /// Latest state of the node.
    pub node: watch::Receiver<Arc<Node>>,
}

#[tonic::async_trait]
impl DraResourceHealth for Health {
    type NodeWatchResourcesStream = ReceiverStream<Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let api = Api::new(&self.account).map_err(|it| Status::unavailable(it.to_string()))?;
        let mut node = self.node.clone();
        let (reports, received) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let devices =
                    pool::devices(&Netdevs::default().resources(&node.borrow_and_update()));
                let report = report(&devices, &api.node, SystemTime::now());
                if reports.send(Ok(report)).await.is_err() {
                    return;
                }
                if let Ok(Err(_)) = timeout(REPEATED, node.changed()).await {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(received)))
    }
}

/// Returns the health of `devices` in the pool `pool` at the time `now`.
fn report(devices: &[PoolDevice], pool: &str, now: SystemTime) -> NodeWatchResourcesResponse {
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |it| i64::try_from(it.as_secs()).unwrap_or(i64::MAX));
    let of = |device: &PoolDevice| DeviceHealth {
        device: Some(DeviceIdentifier {
            pool_name: pool.to_owned(),
            device_name: device.name.clone(),
        }),
        health: match device.faults.is_empty() {
            true => HealthStatus::Healthy,
            false => HealthStatus::Unhealthy,
        }
        .into(),
        last_updated_time: now,
        message: device.faults.join("; "),
    };
    NodeWatchResourcesResponse {
        devices: devices.iter().map(of).collect(),
    }
}
