// SPDX-License-Identifier: Apache-2.0
//! The DRA driver's two sockets: one for the registration and one for the driver's service. Kubelet watches a directory
//! for registration sockets, and requests the path of the service's socket from each of them. Each daemon of a node has
//! its own two sockets. Kubelet uses the sockets that were registered last.

use super::{
    health::{Health, HealthV1Alpha1},
    service::{Registration, Service},
};
use crate::kubelet::socket::{self, Connection, Listening, SocketState};
use kubelet_api::{
    dra::dra_plugin_server::DraPluginServer,
    dra_health::dra_resource_health_server::DraResourceHealthServer,
    plugin_registration::registration_server::RegistrationServer,
};
use node_state::{log_once::LogOnce, watch::Watch};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Server, server::Router};

/// Time for which the daemon waits for further events before it handles all of them.
const TOGETHER: Duration = Duration::from_millis(50);

/// Delay before the next attempt to make a socket.
const AGAIN: Duration = Duration::from_secs(1);

/// Returns the directory of kubelet's registration sockets, and the directory of `driver`'s socket.
pub fn directories(kubelet_dir: &Path, driver: &str) -> [PathBuf; 2] {
    [
        kubelet_dir.join("plugins_registry"),
        kubelet_dir.join("plugins").join(driver),
    ]
}

/// Paths of the DRA driver's sockets.
#[derive(Clone, Debug)]
pub struct Paths {
    registration: PathBuf,
    /// Path of the driver's socket, which kubelet gets at registration.
    pub driver: PathBuf,
}

impl Paths {
    /// Returns the paths of `driver` below kubelet's directory, for the daemon with the name `owner`.
    pub fn new(kubelet_dir: &Path, driver: &str, owner: &str) -> Self {
        let [registry, plugin] = directories(kubelet_dir, driver);
        Self {
            registration: registry.join(socket::registration_name(&registry, driver, owner)),
            driver: plugin.join(socket::driver_name(owner)),
        }
    }
}

/// Running servers of the driver's two sockets. Dropping this value stops them.
#[derive(Debug)]
pub struct Served {
    // drop the registration first: kubelet must not connect to a driver socket that is about to close
    registration: Socket,
    driver: Socket,
    tasks: JoinSet<()>,
    registrar: Registration,
}

/// One socket of the driver.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    /// `None`: the socket could not be made yet.
    listening: Option<Listening>,
    connections: mpsc::Sender<Connection>,
    /// Last error of making the socket, which is logged once.
    reported: LogOnce,
}

impl Served {
    /// Makes both sockets and accepts connections. [`Self::keep`] tries again if a socket cannot be made.
    pub fn start(paths: &Paths, service: Service, health: Health) -> Self {
        let registration = Registration::new(&service, &paths.driver);
        let mut tasks = JoinSet::new();
        let health = DraResourceHealthServer::new(health);
        let driver = Server::builder()
            .add_service(DraPluginServer::new(service))
            .add_service(HealthV1Alpha1(health.clone()))
            .add_service(health);
        let driver = Socket::serve(&paths.driver, driver, &mut tasks);
        let registrar = registration.clone();
        let registration = Server::builder().add_service(RegistrationServer::new(registration));
        let registration = Socket::serve(&paths.registration, registration, &mut tasks);
        let mut served = Self {
            registration,
            driver,
            tasks,
            registrar,
        };
        served.make_sockets();
        served
    }

    /// Makes missing sockets. Makes the registration only if the driver's socket exists, because kubelet would register
    /// a driver that does not answer. Returns true if both exist.
    fn make_sockets(&mut self) -> bool {
        self.driver.make() && self.registration.make()
    }

    /// Makes the sockets that could not be made, or that another program removes. Kubelet needs both sockets: without
    /// the registration socket, kubelet unregisters the driver until it finds a new registration socket. Returns when a
    /// server has ended, which happens only after an error.
    pub async fn keep(mut self) {
        let directories = [&self.driver, &self.registration].map(|it| it.directory().to_owned());
        let mut watch = Watch::new(directories.into());
        loop {
            if self.registration.is_gone() {
                self.registrar.unregistered();
            }
            let is_whole = self.make_sockets();
            tokio::select! {
                _ = self.tasks.join_next() => return,
                // wait longer after a failed attempt: the attempt itself changes the directories
                () = watch.changed(), if is_whole => sleep(TOGETHER).await,
                () = sleep(AGAIN), if !is_whole => {}
            }
        }
    }
}

impl Socket {
    fn serve(path: &Path, router: Router, tasks: &mut JoinSet<()>) -> Self {
        let (connections, incoming) = mpsc::channel(1);
        tasks.spawn(async move {
            let served = router.serve_with_incoming(ReceiverStream::new(incoming));
            if let Err(error) = served.await {
                log::error!("the DRA driver's server ended: {error}");
            }
        });
        Self {
            path: path.to_owned(),
            listening: None,
            connections,
            reported: LogOnce::default(),
        }
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn is_gone(&self) -> bool {
        let listening = self.listening.as_ref();
        listening.is_none_or(|it| it.state() == SocketState::Empty)
    }

    /// Makes the socket if it does not exist. Returns true if the socket exists afterwards.
    fn make(&mut self) -> bool {
        if !self.is_gone() {
            return true;
        }
        match listen(&self.path, &self.connections) {
            Ok(listening) => {
                if self.listening.replace(listening).is_some() {
                    log::info!("{:?} was removed; the daemon made it again", self.path);
                }
                self.reported.ends();
                true
            }
            Err(error) => {
                let path = &self.path;
                let line = format!("cannot make {path:?}: {error}; kubelet prepares no claim");
                self.reported.warn(&line);
                false
            }
        }
    }
}

fn listen(path: &Path, connections: &mpsc::Sender<Connection>) -> io::Result<Listening> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    socket::listen(path, connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon makes each socket under a hidden name, with a dot in front.
    #[test]
    fn the_longest_name_of_a_driver_has_sockets() {
        let driver = "d".repeat(63);
        let paths = Paths::new(Path::new("/var/lib/kubelet"), &driver, "0a1b2c3d");
        for path in [paths.driver, paths.registration] {
            let hidden = path.as_os_str().len() + 1;
            assert!(hidden <= socket::LONGEST_PATH, "{path:?}: {hidden}");
        }
    }
}
