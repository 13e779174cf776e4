// SPDX-License-Identifier: Apache-2.0
//! Reports the health of devices to kubelet. Kubelet adds it to `allocatedResourcesStatus` of the containers that use a
//! claim.

use super::pool::Netdevs;
use crate::{api::Api, kubelet::PluginContext};
use ::dra::{PoolDevice, pool};
use kubelet_api::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
    dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer},
};
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};

/// Interval of reports without a change. After 30 s without a report, a device's health is unknown to kubelet
/// (`DefaultHealthTimeout` in `cm/dra/healthinfo.go`).
const REPEATED: Duration = Duration::from_secs(10);

/// Service that reports the health of a node's devices.
#[derive(Clone)]
pub struct Health(pub Arc<PluginContext>);

#[tonic::async_trait]
impl DraResourceHealth for Health {
    type NodeWatchResourcesStream = ReceiverStream<Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        // the pool has the name of the token's node
        let api = Api::new(&self.0.arguments.service_account_dir);
        let api = api.map_err(|it| Status::unavailable(it.to_string()))?;
        let mut node = self.0.node.clone();
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

/// [`Health`] as the gRPC service `v1alpha1.DRAResourceHealth`, which kubelet up to 1.36 calls. Its messages are those
/// of `v1` (`k8s.io/kubelet/pkg/apis/dra-health`).
#[derive(Clone)]
pub struct HealthV1Alpha1(pub DraResourceHealthServer<Health>);

impl NamedService for HealthV1Alpha1 {
    const NAME: &'static str = "v1alpha1.DRAResourceHealth";
}

impl Service<http::Request<Body>> for HealthV1Alpha1 {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = <DraResourceHealthServer<Health> as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        *request.uri_mut() = http::Uri::from_static("/v1.DRAResourceHealth/NodeWatchResources");
        self.0.call(request)
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
