// SPDX-License-Identifier: Apache-2.0
//! Kubelet's gRPC interfaces, over Unix sockets.
//!
//! | module | server | client |
//! |---|---|---|
//! | [`pod_resources`] | kubelet | `rdma-cni`, the daemon, `doctor` |
//! | `device_plugin` | the daemon; kubelet for `Registration` | kubelet; the daemon for `Registration` |
//! | `dra`, `dra_health`, `plugin_registration` | the daemon | kubelet |
//!
//! Without the feature `device-plugin`, the crate contains only the client of pod-resources. The client's blocking
//! functions use a tokio runtime with one thread, because a CNI plugin starts for every pod.

pub mod pod_resources;

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    rustdoc::invalid_html_tags,
    reason = "generated code; proto/device_plugin.proto documents it"
)]
pub mod device_plugin {
    tonic::include_proto!("v1beta1");

    /// Version of the interface that the daemon passes at registration.
    pub const VERSION: &str = "v1beta1";
    /// `Device.health` of a device that can be allocated.
    pub const HEALTHY: &str = "Healthy";
    /// `Device.health` of a device that exists but cannot be allocated.
    pub const UNHEALTHY: &str = "Unhealthy";
}

#[cfg(feature = "device-plugin")]
#[expect(missing_docs, reason = "generated code; proto/dra.proto documents it")]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");

    /// Name and version of the service, which the daemon passes at registration (`DRAPluginService` in
    /// `k8s.io/kubelet/pkg/apis/dra/v1`).
    pub const VERSION: &str = "v1.DRAPlugin";
}

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    reason = "generated code; proto/dra_health.proto documents it"
)]
pub mod dra_health {
    include!(concat!(env!("OUT_DIR"), "/dra-health/v1.rs"));

    /// Name and version of the service, which the daemon passes at registration (`DRAResourceHealthService` in
    /// `k8s.io/kubelet/pkg/apis/dra-health/v1`).
    pub const VERSION: &str = "v1.DRAResourceHealth";
}

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    reason = "generated code; proto/plugin_registration.proto documents it"
)]
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");

    /// `PluginInfo.type` of a DRA driver.
    pub const DRA_PLUGIN: &str = "DRAPlugin";
}
