// SPDX-License-Identifier: Apache-2.0
//! Kubelet's side of dynamic resource allocation: it finds a driver by the driver's socket, and requests that the
//! driver prepare claims.

use crate::wait;
use kubelet_api::{
    dra::{
        Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest,
        NodeUnprepareResourcesRequest, dra_plugin_client::DraPluginClient,
    },
    dra_health::{HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse},
    plugin_registration::{
        InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use serde_json::Value;
use std::{
    fs,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::runtime::Runtime;
use tonic::{
    Request, Streaming,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// Time limit of kubelet for a call (`PluginClientTimeout` in its package `cm/dra/plugin`).
const LIMIT: Duration = Duration::from_secs(45);

/// Kubelet's connection with a driver that it has found.
#[derive(Debug)]
pub struct ClaimManager {
    /// The information that the driver returned about itself.
    pub info: PluginInfo,
    runtime: Runtime,
    driver: DraPluginClient<Channel>,
    health: Grpc<Channel>,
}

/// A driver's reports of its devices' health.
#[derive(Debug)]
pub struct HealthReports<'a> {
    runtime: &'a Runtime,
    stream: Streaming<NodeWatchResourcesResponse>,
}

/// Returns the sockets that kubelet would find in a directory.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_seen = |it: &fs::DirEntry| {
        let hidden = it.file_name().to_string_lossy().starts_with('.');
        !hidden && it.file_type().is_ok_and(|kind| kind.is_socket())
    };
    entries.filter(is_seen).map(|it| it.path()).collect()
}

/// Returns a socket's path in the form that kubelet's gRPC uses as the host at a registration
/// (`encodeAuthority` in grpc-go).
fn as_host(socket: &Path) -> String {
    socket.to_string_lossy().replace('/', "%2F")
}

/// Connects to `socket`, with `host` as the server's name.
async fn channel(socket: &Path, host: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let origin = format!("http://{host}").parse();
    let origin = origin.unwrap_or_else(|error| panic!("{host} is no host: {error}"));
    endpoint.origin(origin).timeout(LIMIT).connect().await
}

impl ClaimManager {
    /// Waits for the only driver in kubelet's directory `directory`, and registers it.
    #[track_caller]
    pub fn register(directory: &Path) -> Self {
        let registry = directory.join("plugins_registry");
        let mut found = vec![];
        wait::until("one driver answers at its socket", || {
            found = sockets(&registry);
            found.len() == 1 && UnixStream::connect(&found[0]).is_ok()
        });
        let socket = found.remove(0);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let (info, driver, health) = runtime.block_on(async {
            let channel = channel(&socket, &as_host(&socket)).await;
            let channel = channel.expect("it listens");
            let mut client = RegistrationClient::new(channel);
            let info = client.get_info(InfoRequest {}).await.expect("an answer");
            let info = info.into_inner();
            let status = RegistrationStatus {
                plugin_registered: true,
                error: String::new(),
            };
            let response = client.notify_registration_status(status).await;
            response.expect("a response");
            let channel = self::channel(Path::new(&info.endpoint), "localhost").await;
            let channel = channel.expect("it listens");
            let health = Grpc::new(channel.clone());
            (info, DraPluginClient::new(channel), health)
        });
        Self {
            info,
            runtime,
            driver,
            health,
        }
    }

    /// Opens the stream of health reports by the interface of `version`: kubelet 1.36 calls `v1alpha1`, 1.37 `v1`.
    #[track_caller]
    pub fn health(&self, version: &str) -> HealthReports<'_> {
        let path = format!("/{version}.DRAResourceHealth/NodeWatchResources");
        let path = path.parse().expect("a path");
        let request = Request::new(NodeWatchResourcesRequest {});
        let mut driver = self.health.clone();
        let opened = self.runtime.block_on(async {
            driver.ready().await.expect("a connection");
            let codec = ProstCodec::default();
            driver.server_streaming(request, path, codec).await
        });
        let stream = opened.expect("a stream");
        HealthReports {
            runtime: &self.runtime,
            stream: stream.into_inner(),
        }
    }

    /// Requests the preparation of `claim`, an object of the API server.
    #[track_caller]
    pub fn prepare(&self, claim: &Value) -> NodePrepareResourceResponse {
        self.try_prepare(claim).expect("an answer")
    }

    /// Requests the preparation like [`Self::prepare`]. Returns `None` if the call fails, for example because the
    /// driver ended.
    #[track_caller]
    pub fn try_prepare(&self, claim: &Value) -> Option<NodePrepareResourceResponse> {
        let claim = named(claim);
        let mut driver = self.driver.clone();
        let request = NodePrepareResourcesRequest {
            claims: vec![claim.clone()],
        };
        let answer = self
            .runtime
            .block_on(driver.node_prepare_resources(request));
        let mut answer = answer.ok()?.into_inner();
        Some(answer.claims.remove(&claim.uid).expect("of the claim"))
    }

    /// Requests that the driver unprepare the claim. Returns the driver's error, which is empty after a success.
    #[track_caller]
    pub fn unprepare(&self, claim: &Value) -> String {
        self.try_unprepare(claim).expect("an answer")
    }

    /// Requests the unpreparation like [`Self::unprepare`]. Returns `None` if the call fails.
    #[track_caller]
    pub fn try_unprepare(&self, claim: &Value) -> Option<String> {
        let claim = named(claim);
        let mut driver = self.driver.clone();
        let request = NodeUnprepareResourcesRequest {
            claims: vec![claim.clone()],
        };
        let answer = self
            .runtime
            .block_on(driver.node_unprepare_resources(request));
        let mut answer = answer.ok()?.into_inner();
        let of_claim = answer.claims.remove(&claim.uid);
        Some(of_claim.expect("of the claim").error)
    }
}

impl HealthReports<'_> {
    /// Returns the messages of unhealthy devices in the next report. Empty: all devices are healthy.
    #[track_caller]
    pub fn report(&mut self) -> Vec<String> {
        let next = self.runtime.block_on(self.stream.message());
        let report = next.expect("a report").expect("the stream goes on");
        let sick = report
            .devices
            .into_iter()
            .filter(|it| it.health() != HealthStatus::Healthy);
        sick.map(|it| {
            let device = it.device.expect("a device");
            format!(
                "{}/{}: {}",
                device.pool_name, device.device_name, it.message
            )
        })
        .collect()
    }

    /// Returns the first report for which `fits` returns true. Panics if `fits` returns false for ten reports.
    #[track_caller]
    pub fn until(&mut self, fits: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut reports = (0..10).map(|_| self.report());
        let found = reports.find(|sick| fits(sick));
        found.expect("a report that fits")
    }
}

fn named(claim: &Value) -> Claim {
    let text = |field: &str| {
        claim["metadata"][field]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    Claim {
        namespace: text("namespace"),
        uid: text("uid"),
        name: text("name"),
    }
}
