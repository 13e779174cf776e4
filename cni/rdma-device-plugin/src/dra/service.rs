// SPDX-License-Identifier: Apache-2.0
//! Calls of kubelet: registration of the driver, Prepare and Unprepare of claims.

use super::{
    former_ids::FormerIds,
    prepare::{PREPARE_TIMEOUT, Preparer},
};
use crate::metrics::{Known, Metrics};
use ::dra::{ClaimName, Record, cdi};
use kubelet_api::{
    dra::{
        self as api, Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
        NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
        NodeUnprepareResourcesResponse,
    },
    dra_health,
    plugin_registration::{
        self, DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    },
};
use std::{path::Path, sync::Arc};
use tokio::{sync::Notify, time::Instant};
use tonic::{Request, Response, Status};

/// The DRA driver's gRPC service.
#[derive(Clone)]
pub struct Service {
    preparer: Arc<Preparer>,
    former_ids: FormerIds,
    metrics: Metrics,
}

impl Service {
    /// Returns a service. `preparer` prepares claims, and `former_ids` makes kubelet drop ids.
    pub fn new(preparer: Preparer, former_ids: FormerIds) -> Self {
        Self {
            metrics: preparer.context.metrics.clone(),
            preparer: Arc::new(preparer),
            former_ids,
        }
    }

    async fn prepare(&self, claims: &[Claim]) -> NodePrepareResourcesResponse {
        let mut response = NodePrepareResourcesResponse::default();
        let end = Instant::now() + PREPARE_TIMEOUT;
        for claim in claims {
            let claim = name(claim);
            let started = Instant::now();
            let prepared = self.preparer.prepare(&claim, end).await;
            self.metrics.prepared(started.elapsed(), prepared.is_ok());
            let prepared = match prepared {
                Ok(record) => NodePrepareResourceResponse {
                    devices: devices(&record),
                    error: String::new(),
                },
                Err(error) => {
                    let error = error.to_string();
                    log::warn!("{error}");
                    NodePrepareResourceResponse {
                        devices: vec![],
                        error,
                    }
                }
            };
            response.claims.insert(claim.uid, prepared);
        }
        response
    }
}

fn name(claim: &Claim) -> ClaimName {
    ClaimName {
        namespace: claim.namespace.clone(),
        name: claim.name.clone(),
        uid: claim.uid.clone(),
    }
}

fn devices(record: &Record) -> Vec<Device> {
    let devices = record.devices.iter().map(|device| Device {
        request_names: vec![device.request.clone()],
        pool_name: device.pool.clone(),
        device_name: device.device.clone(),
        cdi_device_ids: vec![cdi::full_name(
            &record.driver,
            &record.claim.uid,
            &device.request,
        )],
        share_id: device.share.clone(),
    });
    devices.collect()
}

#[tonic::async_trait]
impl api::dra_plugin_server::DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        // a call proves that kubelet has registered the driver, whatever kubelet reported about the registration
        self.metrics.driver(self.preparer.driver(), Known::Yes);
        // make kubelet drop the ids of ended pods before the container starts: kubelet does not call again for a
        // prepared claim
        let (response, dropped) = tokio::join!(
            self.prepare(&request.get_ref().claims),
            self.former_ids.drop_ended()
        );
        if let Err(error) = dropped {
            log::warn!(
                "kubelet may keep ids of ended pods, which can prevent the start of containers: {error}"
            );
        }
        Ok(Response::new(response))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut response = NodeUnprepareResourcesResponse::default();
        for claim in &request.get_ref().claims {
            let claim = name(claim);
            let error = match self.preparer.unprepare(&claim).await {
                Ok(()) => String::new(),
                Err(error) => {
                    log::warn!("{error}");
                    error.to_string()
                }
            };
            let answer = NodeUnprepareResourceResponse { error };
            response.claims.insert(claim.uid, answer);
        }
        Ok(Response::new(response))
    }
}

/// gRPC service of the driver's registration.
#[derive(Clone, Debug)]
pub struct Registration {
    info: PluginInfo,
    registered: Arc<Notify>,
    metrics: Metrics,
}

impl Registration {
    /// Records that kubelet has unregistered the driver, or is about to unregister it.
    pub(super) fn unregistered(&self) {
        self.metrics.driver(&self.info.name, Known::NotYet);
    }

    /// Returns the registration of `service` at the socket `endpoint`. Records that kubelet has not registered the
    /// driver yet.
    pub fn new(service: &Service, endpoint: &Path) -> Self {
        let driver = service.preparer.driver();
        service.metrics.driver(driver, Known::NotYet);
        Self {
            registered: service.former_ids.registered(),
            metrics: service.metrics.clone(),
            info: PluginInfo {
                r#type: DRA_PLUGIN.to_owned(),
                name: driver.to_owned(),
                endpoint: endpoint.display().to_string(),
                supported_versions: [api::VERSION, dra_health::VERSION]
                    .map(str::to_owned)
                    .into(),
            },
        }
    }
}

#[tonic::async_trait]
impl plugin_registration::registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let driver = &self.info.name;
        match request.get_ref() {
            RegistrationStatus {
                plugin_registered: true,
                ..
            } => {
                log::info!("kubelet has registered the DRA driver {driver}");
                self.metrics.driver(driver, Known::Yes);
                self.registered.notify_one();
            }
            RegistrationStatus { error, .. } => {
                log::error!("kubelet refuses the DRA driver {driver}: {error}");
                self.metrics.driver(driver, Known::Refused(error.clone()));
            }
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::renumber::tests::{NIC, UID, claim, node},
        *,
    };
    use crate::kubelet::PluginContext;
    use ::dra::Claims;
    use api::dra_plugin_server::DraPlugin as _;
    use integration::Machine;
    use std::fs;

    /// Returns the error in the driver's answer to Unprepare; empty: Unprepare succeeded.
    async fn unprepared(machine: &Machine) -> String {
        let context = Arc::new(PluginContext::below(&machine.path(""), node()));
        let former_ids = FormerIds::new(&context);
        let preparer = Preparer {
            driver: "hca.rdma".to_owned(),
            context,
        };
        let service = Service::new(preparer, former_ids);
        let claim = Claim {
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: UID.to_owned(),
        };
        let claims = vec![claim];
        let request = Request::new(NodeUnprepareResourcesRequest { claims });
        let answer = service.node_unprepare_resources(request).await;
        let mut answer = answer.expect("an answer").into_inner();
        answer.claims.remove(UID).expect("of the claim").error
    }

    /// A pod would stay Terminating forever if Unprepare of its claim failed.
    #[tokio::test]
    async fn a_claim_is_unprepared_whatever_its_record_is() {
        for text in ["", "{\"format\": 1", "{\"format\": 9}"] {
            let machine = Machine::with(&[NIC]);
            let claims = Claims::new(&machine.path("state"));
            claims.prepare(claim(&machine)).expect("prepared");
            let record = claims.directory().join(format!("{UID}.json"));
            let specification = format!("cdi/rdma-device-plugin-claim-{UID}.json");
            let specification = machine.path(&specification);
            assert!(record.exists() && specification.exists());
            fs::write(&record, text).expect("written");
            for _ in 0..2 {
                assert_eq!(unprepared(&machine).await, "", "{text:?}");
                assert!(!record.exists() && !specification.exists(), "{text:?}");
            }
            let kept = fs::read_to_string(record.with_extension("corrupt"));
            assert_eq!(kept.expect("kept for people"), text);
        }
    }
}
