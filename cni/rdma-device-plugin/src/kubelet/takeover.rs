// SPDX-License-Identifier: Apache-2.0
//! Replaces another daemon's plugin, so that kubelet has healthy ids all the time.
//!
//! Kubelet 1.25 to 1.36 has one client for each resource's name
//! (`pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`). When the new plugin registers, its client replaces the
//! old client under this name. The old client's stream continues. When the old stream ends, `runClient` disconnects the
//! client that has the name, which is the *new* client. All ids are then unhealthy until the new plugin registers
//! again. A pod that arrives meanwhile fails permanently (kubernetes/kubernetes issues 121994, 127803; fixed in 1.37).
//!
//! No client may therefore have the name when the old stream ends. A failed registration removes the client of the name
//! (`connectClient` → `deregisterClient`), but keeps the endpoint. The new plugin therefore makes a registration fail.
//!
//! After the end of the other daemon, the plugin registers again through another socket, also if kubelet did not answer
//! the failing registration. Kubelet then notices the later
//! end of this plugin. The plugin keeps its first stream open although kubelet no longer uses it: the end of the first
//! stream would disconnect the new client.
//!
//! | kubelet | failed registration | another registration |
//! |---|---|---|
//! | to 1.24 | not made: kubelet does not request options, so the registration would succeed | not made |
//! | 1.25 to 1.36 | made | made |
//! | 1.37 | at another socket: changes nothing | a second client; both end with the daemon |

use super::{
    register::{RegisterError, register},
    service::Service,
    socket::{self, listen},
};
use daemon_conf::ResourceName;
use kubelet_api::device_plugin::device_plugin_server::DevicePluginServer;
use std::{path::Path, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, transport::Server};

/// Error of the failed registration, which appears in kubelet's log.
const WHY: &str = "no plugin at this socket: one daemon is replacing another";

/// Time limit of the failing registration. Kubelet connects for at most 10 s (`dial()` in
/// `plugin/v1beta1/client.go`), and forgets its client before it answers. A later failure would make kubelet forget
/// the client of a later registration.
const LIMIT: Duration = Duration::from_secs(15);

/// Makes the kubelet at the socket `kubelet` forget its client for `resource`: registers a temporary socket that
/// refuses all calls. Returns an error if this registration succeeds, or fails for another reason.
pub async fn detach(
    kubelet: &Path,
    resource: &ResourceName,
    owner: &str,
    service: Service,
) -> Result<(), String> {
    let directory = kubelet.parent().unwrap_or(Path::new("/"));
    let called = format!("{resource}~takeover");
    let name = socket::file_name(directory, &called, owner);
    let (connections, incoming) = mpsc::channel(1);
    let _socket = listen(&directory.join(&name), &connections)
        .map_err(|error| format!("{directory:?}: {error}"))?;
    let mut serving = JoinSet::new();
    let refuse = |_: Request<()>| Err(Status::unavailable(WHY));
    let server =
        Server::builder().add_service(DevicePluginServer::with_interceptor(service, refuse));
    serving.spawn(async move {
        // ignore the server's result: kubelet's answer shows whether the registration failed
        let _ = server
            .serve_with_incoming(ReceiverStream::new(incoming))
            .await;
    });
    match register(kubelet, resource, &name, LIMIT).await {
        Err(RegisterError::Refused(status)) if status.message().contains(WHY) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(()) => Err(
            "kubelet accepted the daemon's temporary plugin, which refuses all calls".to_owned(),
        ),
    }
}
