// SPDX-License-Identifier: Apache-2.0
//! The driver's two sockets. Kubelet watches the directory of registrations, asks whoever serves a socket there who
//! it is, and finds the driver's own socket so. Each daemon of a node has its own: kubelet takes the newest.

use super::{
    health::Health,
    service::{Registration, Service},
};
use crate::kubelet::socket::{self, BoundSocket, Connection, accept, bind};
use kubelet_api::{
    dra::dra_plugin_server::DraPluginServer,
    dra_health::dra_resource_health_server::DraResourceHealthServer,
    plugin_registration::registration_server::RegistrationServer,
};
use std::{
    io,
    path::{Path, PathBuf},
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Server, server::Router};

/// Where sockets of a node's drivers are.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Where kubelet looks for registrations.
    registry: PathBuf,
    /// Where the driver's own socket is.
    plugin: PathBuf,
    file_name: [String; 2],
}

impl Paths {
    /// Those of `driver` below kubelet's directory, for the daemon `owner`.
    pub fn new(kubelet_dir: &Path, driver: &str, owner: &str) -> Self {
        let registry = kubelet_dir.join("plugins_registry");
        let plugin = kubelet_dir.join("plugins").join(driver);
        let file_name = [
            socket::registration_name(&registry, driver, owner),
            socket::file_name(&plugin, driver, owner),
        ];
        Self {
            registry,
            plugin,
            file_name,
        }
    }

    /// Takes away what killed daemons left; `runs` says whether one runs.
    pub fn remove_stale(&self, runs: impl Fn(&str) -> bool) {
        for directory in [&self.registry, &self.plugin] {
            socket::remove_stale(directory, &runs);
        }
    }

    fn registration(&self) -> PathBuf {
        self.registry.join(&self.file_name[0])
    }

    /// The socket that kubelet is told of.
    pub fn driver(&self) -> PathBuf {
        self.plugin.join(&self.file_name[1])
    }
}

/// The driver at both of its sockets, until this value goes.
#[derive(Debug)]
pub struct Served {
    // the registration goes first: nobody dials what is about to end
    _registration: BoundSocket,
    _driver: BoundSocket,
    tasks: JoinSet<()>,
}

impl Served {
    /// Serves.
    ///
    /// # Errors
    /// A socket cannot be made.
    pub fn start(paths: &Paths, service: Service, health: Health) -> io::Result<Self> {
        for directory in [&paths.registry, &paths.plugin] {
            std::fs::create_dir_all(directory)?;
        }
        let registered = service.registered();
        let registration = Registration::new(service.driver(), &paths.driver(), registered);
        let mut tasks = JoinSet::new();
        let driver = Server::builder()
            .add_service(DraPluginServer::new(service))
            .add_service(DraResourceHealthServer::new(health));
        let driver = serve(&paths.driver(), driver, &mut tasks)?;
        let registrar = Server::builder().add_service(RegistrationServer::new(registration));
        let registration = serve(&paths.registration(), registrar, &mut tasks)?;
        Ok(Self {
            _registration: registration,
            _driver: driver,
            tasks,
        })
    }

    /// Comes back when it serves no more, which it does not do by itself.
    pub async fn ended(mut self) {
        self.tasks.join_next().await;
    }
}

fn serve(path: &Path, router: Router, tasks: &mut JoinSet<()>) -> io::Result<BoundSocket> {
    let (socket, listener) = bind(path)?;
    let (connections, incoming) = mpsc::channel::<Connection>(1);
    tasks.spawn(accept(listener, connections));
    tasks.spawn(async move {
        let served = router.serve_with_incoming(ReceiverStream::new(incoming));
        if let Err(error) = served.await {
            log::error!("the DRA driver's server ended: {error}");
        }
    });
    Ok(socket)
}
