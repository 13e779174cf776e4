// SPDX-License-Identifier: Apache-2.0
//! One daemon's plugin takes the place of another one's, and at no moment are there no ids.
//!
//! A kubelet of 1.25 to 1.36 has one client for each resource's name
//! (`pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`). The new plugin's client takes the
//! name, and the old one's stream goes on. When that ends, `runClient` disconnects whichever client
//! has the name by then, which is the *new* one: all ids are unhealthy until it registers again, and a
//! pod that arrives in between fails for good (kubernetes/kubernetes issues 121994, 127803; mended in
//! 1.37).
//!
//! So nobody has the name when the old stream ends: an attempt to register that fails takes the name
//! away from whoever has it (`connectClient` → `deregisterClient`), and leaves the endpoint as it
//! is. When the other daemon is gone, the plugin registers once more by another socket, so that its own
//! end is noticed; the stream of before stays open, as its end would disconnect the new client, and
//! is not heard any more.
//!
//! | kubelet | the attempt that fails | registering once more |
//! |---|---|---|
//! | to 1.24 | not made: it does not ask for options, and would take the attempt for a plugin | not done |
//! | 1.25 to 1.36 | as above | as above |
//! | 1.37 | of another socket: changes nothing | a second client, both of which end with the daemon |

use super::{
    register::{RegisterError, register},
    service::Service,
    socket::{self, accept, bind},
};
use crate::conf::ResourceName;
use kubelet_api::device_plugin::device_plugin_server::DevicePluginServer;
use std::path::Path;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, transport::Server};

/// Why the attempt fails; it is in kubelet's log.
const WHY: &str = "no plugin: one daemon takes another one's place";

/// Lets kubelet at `kubelet` forget which client has the name of `resource`, by a socket at which `service` answers
/// nothing. Whether it did.
pub async fn detach(
    kubelet: &Path,
    resource: &ResourceName,
    owner: &str,
    service: Service,
) -> Result<(), String> {
    let directory = kubelet.parent().unwrap_or(Path::new("/"));
    let called = format!("{resource}~takeover");
    let name = socket::file_name(directory, &called, owner);
    let (_seat, listener) =
        bind(&directory.join(&name)).map_err(|error| format!("{directory:?}: {error}"))?;
    let (connections, incoming) = mpsc::channel(1);
    let mut serving = JoinSet::new();
    serving.spawn(accept(listener, connections));
    let refuse = |_: Request<()>| Err(Status::unavailable(WHY));
    let server =
        Server::builder().add_service(DevicePluginServer::with_interceptor(service, refuse));
    serving.spawn(async move {
        // what becomes of it is told by kubelet's answer
        let _ = server
            .serve_with_incoming(ReceiverStream::new(incoming))
            .await;
    });
    match register(kubelet, resource, &name).await {
        Err(RegisterError::Refused(status)) if status.message().contains(WHY) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(()) => Err("it took what is no plugin".to_owned()),
    }
}
