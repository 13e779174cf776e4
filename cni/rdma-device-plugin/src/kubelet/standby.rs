//! A socket in `plugins_registry`, for kubelet's plugin watcher to find.

use super::{
    registry::Info,
    socket::{self, Place, Seat, accept, bind},
};
use crate::conf::ResourceName;
use kubelet_api::plugin_registration::registration_server::RegistrationServer;
use std::{io, path::Path, sync::Arc};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

/// A resource that the plugin watcher may find; it ends with this value.
#[derive(Debug)]
pub struct Standby {
    seat: Seat,
    taken: Arc<Notify>,
    streams: u64,
    _tasks: JoinSet<()>,
}

impl Standby {
    /// Tells whoever asks in `directory` that `resource` is served at `endpoint`, by the socket of
    /// `owner`. `streams` is how many streams had been opened before.
    ///
    /// # Errors
    /// There can be no socket.
    pub fn start(
        directory: &Path,
        resource: &ResourceName,
        endpoint: &Path,
        owner: &str,
        streams: u64,
    ) -> io::Result<Self> {
        let path = directory.join(socket::file_name(directory, resource.as_str(), owner));
        let (seat, listener) = bind(&path)?;
        let taken = Arc::new(Notify::new());
        let info = Info::new(resource.clone(), endpoint.to_owned(), taken.clone());
        let (connections, incoming) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, connections));
        tasks.spawn(async move {
            let server = Server::builder().add_service(RegistrationServer::new(info));
            let served = server.serve_with_incoming(ReceiverStream::new(incoming));
            if let Err(error) = served.await {
                log::error!("the server for the plugin watcher ended: {error}");
            }
        });
        Ok(Self {
            seat,
            taken,
            streams,
            _tasks: tasks,
        })
    }

    /// Whether its socket still is in its place.
    pub fn is_seated(&self) -> bool {
        self.seat.place() == Place::Ours
    }

    /// Waits until the plugin watcher has taken it; for ever, if there is nothing to take. How
    /// many streams had been opened before.
    pub async fn taken(standby: Option<&Self>) -> u64 {
        let Some(standby) = standby else {
            return std::future::pending().await;
        };
        standby.taken.notified().await;
        standby.streams
    }
}
