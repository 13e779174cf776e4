// SPDX-License-Identifier: Apache-2.0
//! What kubelet is told of the devices' health while pods have them: it comes to `allocatedResourcesStatus` of the
//! containers that use a claim.

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

/// So often kubelet hears of devices that did not change: after 30 s it knows nothing of them any more
/// (`DefaultHealthTimeout` in `cm/dra/healthinfo.go`).
const REPEATED: Duration = Duration::from_secs(10);

/// The health of a node's devices.
#[derive(Clone, Debug)]
pub struct Health {
    /// Where the token is, which says how the pool is called.
    pub account: PathBuf,
    /// What is known of the node.
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

/// The health of `devices` in the pool `pool`, as it is `now`.
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
