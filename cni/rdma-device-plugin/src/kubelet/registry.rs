//! What kubelet's plugin watcher asks at a socket in `plugins_registry`.

use crate::conf::ResourceName;
use kubelet_api::{
    device_plugin::VERSION,
    plugin_registration::{
        DEVICE_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::Registration,
    },
};
use std::{path::PathBuf, sync::Arc};
use tonic::{Request, Response, Status};

/// Tells kubelet where a resource is served.
#[derive(Clone, Debug)]
pub struct Info {
    resource: ResourceName,
    endpoint: PathBuf,
    taken: Arc<tokio::sync::Notify>,
}

impl Info {
    /// Of `resource`, served at `endpoint`; `taken` hears when kubelet has taken it.
    pub fn new(resource: ResourceName, endpoint: PathBuf, taken: Arc<tokio::sync::Notify>) -> Self {
        Self {
            resource,
            endpoint,
            taken,
        }
    }
}

#[tonic::async_trait]
impl Registration for Info {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DEVICE_PLUGIN.into(),
            name: self.resource.to_string(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![VERSION.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        if status.plugin_registered {
            self.taken.notify_one();
        } else {
            log::warn!(
                "{}: kubelet's plugin watcher refuses: {}",
                self.resource,
                status.error
            );
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
