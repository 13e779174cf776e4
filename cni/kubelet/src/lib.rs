// SPDX-License-Identifier: Apache-2.0
//! Kubelet's gRPC interfaces, over Unix sockets.
//!
//! | module | is served by | who asks |
//! |---|---|---|
//! | [`pod_resources`] | kubelet | `rdma-cni`, at ADD; the daemon, for its metrics |
//! | `device_plugin` | the daemon; its `Registration` by kubelet | kubelet; the daemon |
//! | `dra`, `dra_health`, `plugin_registration` | the daemon | kubelet |
//!
//! Without the feature `device-plugin` there is the client of pod-resources alone, on a runtime
//! of one thread: a CNI plugin is started for every pod.

pub mod pod_resources;

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    rustdoc::invalid_html_tags,
    reason = "generated code; proto/device_plugin.proto says what it is"
)]
pub mod device_plugin {
    tonic::include_proto!("v1beta1");

    /// The version that is registered.
    pub const VERSION: &str = "v1beta1";
    /// `Device.health` of a device that can be allocated.
    pub const HEALTHY: &str = "Healthy";
    /// `Device.health` of one that is there, and cannot.
    pub const UNHEALTHY: &str = "Unhealthy";
}

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    reason = "generated code; proto/dra.proto says what it is"
)]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");

    /// The version that is registered (`DRAPluginService` in kubelet's package of the interface).
    pub const VERSION: &str = "v1.DRAPlugin";
}

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    reason = "generated code; proto/dra_health.proto says what it is"
)]
pub mod dra_health {
    include!(concat!(env!("OUT_DIR"), "/dra-health/v1.rs"));

    /// The version that is registered (`DRAResourceHealthService` in kubelet's package of the interface).
    pub const VERSION: &str = "v1.DRAResourceHealth";
}

#[cfg(feature = "device-plugin")]
#[expect(
    missing_docs,
    reason = "generated code; proto/plugin_registration.proto says what it is"
)]
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");

    /// `PluginInfo.type` of a DRA driver.
    pub const DRA_PLUGIN: &str = "DRAPlugin";
}
