// SPDX-License-Identifier: Apache-2.0
//! The driver's two sockets. Kubelet watches the directory of registration sockets, and queries each socket there for
//! the path of the driver's socket. Each daemon of a node has its own two sockets; kubelet uses the newest ones.

use super::{
    health::Health,
    service::{Registration, Service},
};
use crate::{
    kubelet::socket::{self, BoundSocket, Connection, SocketState, accept, bind},
    log_once::LogOnce,
    watch::Watch,
};
use kubelet_api::{
    dra::dra_plugin_server::DraPluginServer,
    dra_health::dra_resource_health_server::DraResourceHealthServer,
    plugin_registration::registration_server::RegistrationServer,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Server, server::Router};

/// Time in which successive events are handled together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Delay before the next attempt to make a socket.
const AGAIN: Duration = Duration::from_secs(1);

/// Paths of the sockets of a node's driver.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Directory of kubelet's registrations.
    registry: PathBuf,
    /// Directory of the driver's socket.
    plugin: PathBuf,
    file_name: [String; 2],
}

impl Paths {
    /// Returns the paths of `driver` below kubelet's directory, for the daemon `owner`.
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

    /// Removes sockets of killed daemons; `runs` returns true for a daemon that runs.
    pub fn remove_stale(&self, runs: impl Fn(&str) -> bool) {
        for directory in [&self.registry, &self.plugin] {
            socket::remove_stale(directory, &runs);
        }
    }

    fn registration(&self) -> PathBuf {
        self.registry.join(&self.file_name[0])
    }

    /// Returns the path of the socket that kubelet gets.
    pub fn driver(&self) -> PathBuf {
        self.plugin.join(&self.file_name[1])
    }
}

/// The driver at both of its sockets, until the value is dropped.
#[derive(Debug)]
pub struct Served {
    // drop the registration first, so that kubelet does not connect to a socket that is about to close
    registration: Socket,
    driver: Socket,
    tasks: JoinSet<()>,
    registrar: Registration,
}

/// A socket of the driver, and the task that accepts its connections.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    bound: BoundSocket,
    connections: mpsc::Sender<Connection>,
    accepting: JoinSet<()>,
    /// Last error of making it again, which is logged once.
    reported: LogOnce,
}

impl Served {
    /// Starts to serve.
    ///
    /// # Errors
    /// A socket cannot be made.
    pub fn start(paths: &Paths, service: Service, health: Health) -> io::Result<Self> {
        let registration = Registration::new(&service, &paths.driver());
        let mut tasks = JoinSet::new();
        let driver = Server::builder()
            .add_service(DraPluginServer::new(service))
            .add_service(DraResourceHealthServer::new(health));
        let driver = Socket::serve(paths.driver(), driver, &mut tasks)?;
        let registrar = registration.clone();
        let registration = Server::builder().add_service(RegistrationServer::new(registration));
        let registration = Socket::serve(paths.registration(), registration, &mut tasks)?;
        Ok(Self {
            registration,
            driver,
            tasks,
            registrar,
        })
    }

    /// Makes the sockets again if they are removed. Kubelet needs both. If the registration socket was removed, kubelet
    /// unregisters the driver until it finds the new socket. Returns when a server has ended, which happens only after
    /// an error.
    pub async fn keep(mut self) {
        let directories = [&self.driver, &self.registration].map(|it| it.directory().to_owned());
        let mut watch = Watch::new(directories.into());
        loop {
            if self.registration.is_gone() {
                self.registrar.unregistered();
            }
            let are_there = [&mut self.driver, &mut self.registration].map(Socket::keep);
            let is_whole = !are_there.contains(&false);
            tokio::select! {
                _ = self.tasks.join_next() => return,
                // a failed attempt changes the directories too
                () = watch.changed(), if is_whole => sleep(TOGETHER).await,
                () = sleep(AGAIN), if !is_whole => {}
            }
        }
    }
}

impl Socket {
    fn serve(path: PathBuf, router: Router, tasks: &mut JoinSet<()>) -> io::Result<Self> {
        let (connections, incoming) = mpsc::channel(1);
        let (bound, accepting) = listen(&path, &connections)?;
        tasks.spawn(async move {
            let served = router.serve_with_incoming(ReceiverStream::new(incoming));
            if let Err(error) = served.await {
                log::error!("the DRA driver's server ended: {error}");
            }
        });
        Ok(Self {
            path,
            bound,
            connections,
            accepting,
            reported: LogOnce::default(),
        })
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns true if another program removed the socket.
    fn is_gone(&self) -> bool {
        self.bound.state() == SocketState::Empty
    }

    /// Makes the socket again if it was removed. Returns true if the socket exists afterwards.
    fn keep(&mut self) -> bool {
        if !self.is_gone() {
            return true;
        }
        match listen(&self.path, &self.connections) {
            Ok((bound, accepting)) => {
                log::info!("{:?} was removed; made again", self.path);
                (self.bound, self.accepting) = (bound, accepting);
                self.reported.ends();
                true
            }
            Err(error) => {
                let line = format!("{:?} was removed, and cannot be made: {error}", self.path);
                self.reported.warn(&line);
                false
            }
        }
    }
}

fn listen(
    path: &Path,
    connections: &mpsc::Sender<Connection>,
) -> io::Result<(BoundSocket, JoinSet<()>)> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let (bound, listener) = bind(path)?;
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(listener, connections.clone()));
    Ok((bound, accepting))
}
