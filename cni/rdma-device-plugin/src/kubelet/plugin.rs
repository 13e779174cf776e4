// SPDX-License-Identifier: Apache-2.0
//! Task of one resource: its socket, the server on the socket, and the registration with kubelet.

use super::{
    plugin_context::PluginContext,
    register::{self, RegisterError, back_off, register},
    service::Service,
    socket::{self, Connection, Identity, Listening, SocketState, listen},
    streams::{Count, End, Streams},
    takeover,
};
use crate::peers::Role;
use daemon_conf::ResourceName;
use kubelet_api::device_plugin::device_plugin_server::DevicePluginServer;
use node_state::log_once::LogOnce;
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time from a registration until kubelet opens a stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after the end of a stream in which kubelet may open a new one. Without a new stream, the plugin registers
/// again.
const BETWEEN_STREAMS: Duration = Duration::from_millis(300);

/// Delay of the registration after another daemon's end. Meanwhile kubelet notices that the other daemon's streams have
/// ended.
const AFTER_ANOTHER: Duration = Duration::from_secs(1);

/// Device plugin of one resource.
#[derive(Debug)]
pub struct Plugin {
    end: watch::Sender<End>,
    task: JoinHandle<()>,
}

impl Plugin {
    /// Starts the tasks that advertise `resource` to kubelet and keep it registered.
    pub fn start(resource: ResourceName, context: Arc<PluginContext>) -> Self {
        let (end, ended) = watch::channel(End::NotYet);
        let streams = Streams::new(resource.clone(), &context, ended.clone());
        let count = streams.count();
        let service = Service::new(resource.clone(), streams, context.clone());
        let (connections, incoming) = mpsc::channel(1);
        let server = tokio::spawn(serve(service.clone(), incoming, ended.clone()));
        let task = Task {
            turn: 0,
            resource,
            service,
            directories: context.directories.clone(),
            role: context.role.clone(),
            context,
            count,
            connections,
            socket: None,
            registered: None,
            attach_at: None,
            failures: 0,
            tried: None,
            reported: LogOnce::default(),
        };
        Self {
            end,
            task: tokio::spawn(task.run(ended, server)),
        }
    }

    /// Stops the streams and the server, and removes the socket.
    pub async fn stop(mut self, why: End) {
        self.end.send_replace(why);
        if timeout(STOP_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

async fn serve(
    service: Service,
    incoming: mpsc::Receiver<Connection>,
    mut end: watch::Receiver<End>,
) {
    let served = Server::builder()
        .add_service(DevicePluginServer::new(service))
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async move {
            let _ = end.wait_for(|end| *end != End::NotYet).await;
        });
    if let Err(error) = served.await {
        log::error!("a plugin's server ended: {error}");
    }
}

#[derive(Clone, Copy)]
struct Registered {
    /// Identity of the `kubelet.sock` at which the plugin registered.
    kubelet: Identity,
    at: Instant,
    /// Number of streams that kubelet opened before the stream of this registration.
    streams: u64,
    /// True if kubelet may not notice the end of this plugin, because the plugin registered by a [`takeover`] while
    /// another daemon runs.
    detached: bool,
}

struct Task {
    resource: ResourceName,
    service: Service,
    context: Arc<PluginContext>,
    /// Number of sockets that this plugin used before.
    turn: u32,
    directories: watch::Receiver<u64>,
    role: watch::Receiver<Role>,
    count: watch::Receiver<Count>,
    connections: mpsc::Sender<Connection>,
    socket: Option<Listening>,
    registered: Option<Registered>,
    /// Time of a further registration, which follows the end of another daemon.
    attach_at: Option<Instant>,
    failures: u32,
    /// Identity of the `kubelet.sock` at which `failures` occurred.
    tried: Option<Identity>,
    /// Last line of [`log_once`](Self::log_once), which logs no line twice in succession.
    reported: LogOnce,
}

impl Task {
    async fn run(mut self, mut end: watch::Receiver<End>, mut server: JoinHandle<()>) {
        tokio::select! {
            _ = end.wait_for(|end| *end != End::NotYet) => {}
            () = self.keep_registered() => {}
        }
        // remove the socket first: kubelet must not connect to a socket that is about to close
        drop(self);
        if timeout(STOP_TIMEOUT / 2, &mut server).await.is_err() {
            server.abort();
        }
    }

    async fn keep_registered(&mut self) {
        loop {
            self.directories.mark_unchanged();
            if !self.role.borrow_and_update().leads {
                self.rest().await;
            }
            let listens = self.keep_socket();
            let kubelet = Identity::of(&self.kubelet());
            match self.registered {
                Some(registered) if listens && kubelet == Some(registered.kubelet) => {
                    self.while_registered(registered).await;
                }
                _ if !listens => self.pause(Some(back_off(self.failures.max(3)))).await,
                before => {
                    if before.is_some() {
                        self.forget_registration();
                        self.failures = 0;
                    }
                    match kubelet {
                        Some(identity) => self.register(identity).await,
                        None => {
                            self.info(format!("waits for kubelet at {:?}", self.kubelet()));
                            self.pause(None).await;
                        }
                    }
                }
            }
        }
    }

    /// Waits while a newer daemon offers the resource. The server still answers kubelet's calls. After the end of the
    /// newer daemon, prepares a registration at a new socket.
    async fn rest(&mut self) {
        self.info("another daemon takes over".into());
        if self.role.wait_for(|role| role.leads).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.info("the other daemon has ended".into());
        self.forget_registration();
        self.failures = 0;
        self.take_another_socket();
    }

    /// Makes the plugin use a new socket. Kubelet 1.37 refuses to register a socket again while it has a stream from
    /// this socket.
    fn take_another_socket(&mut self) {
        self.turn += 1;
        self.socket = None;
    }

    /// Returns the owner part of the socket's file name: the daemon's name and the number of earlier sockets.
    fn owner(&self) -> String {
        format!("{}-{}", self.context.name, self.turn)
    }

    fn endpoint(&self) -> String {
        let directory = self.context.arguments.device_plugins();
        socket::file_name(&directory, self.resource.as_str(), &self.owner())
    }

    fn kubelet(&self) -> PathBuf {
        self.context.arguments.device_plugins().join("kubelet.sock")
    }

    fn info(&mut self, line: String) {
        self.log_once(log::Level::Info, line);
    }

    fn warn(&mut self, line: String) {
        self.log_once(log::Level::Warn, line);
    }

    fn log_once(&mut self, level: log::Level, line: String) {
        if self.reported.is_news(&line) {
            log::log!(level, "{}: {line}", self.resource);
        }
    }

    fn forget_registration(&mut self) {
        self.context.metrics.forgotten(self.resource.as_str());
        self.registered = None;
    }

    /// Makes the socket if necessary. Returns true if the plugin's socket exists afterwards.
    fn keep_socket(&mut self) -> bool {
        match self.socket.as_ref().map(Listening::state) {
            Some(SocketState::Ours) => return true,
            Some(SocketState::Taken) => {
                self.warn(
                    "another program serves this resource's socket; the daemon waits until that socket is removed"
                        .into(),
                );
                return false;
            }
            Some(SocketState::Empty) => {
                log::info!(
                    "{}: its socket was removed; the daemon made it again",
                    self.resource
                );
            }
            None => {}
        }
        let path = self
            .context
            .arguments
            .device_plugins()
            .join(self.endpoint());
        match listen(&path, &self.connections) {
            Ok(socket) => {
                self.socket = Some(socket);
                // kubelet's open streams need no new registration, because the socket has the same path
                true
            }
            Err(error) => {
                self.socket = None;
                let directory = self.context.arguments.device_plugins();
                match error.kind() {
                    io::ErrorKind::NotFound => {
                        self.info(format!("waits for kubelet's directory {directory:?}"));
                    }
                    _ => self.warn(format!("cannot listen at {path:?}: {error}")),
                }
                false
            }
        }
    }

    /// Waits while the resource is registered. Returns when the registration must be checked: kubelet has no stream
    /// open, kubelet's directory or this daemon's role has changed, or the plugin has tried to register again.
    async fn while_registered(&mut self, registered: Registered) {
        let is_due = registered.detached && self.role.borrow().is_alone;
        // keep an earlier time: each write in kubelet's directory would otherwise restart the delay
        let soon = Instant::now() + AFTER_ANOTHER;
        self.attach_at = is_due.then(|| self.attach_at.unwrap_or(soon));
        let attach_at = self.attach_at;
        let lost = tokio::select! {
            () = lost(&mut self.count, registered) => true,
            _ = self.directories.changed() => false,
            _ = self.role.changed() => false,
            () = sleep_until(attach_at.unwrap_or(soon)), if attach_at.is_some() => {
                self.attach_at = None;
                return self.attach().await;
            }
        };
        if lost {
            self.info("kubelet has no ListAndWatch stream open; registering again".into());
            self.forget_registration();
            let lasted = registered.at.elapsed() > STREAM_TIMEOUT;
            self.failures = if lasted { 0 } else { self.failures + 1 };
            if self.failures > 1 {
                self.pause(Some(back_off(self.failures))).await;
            }
        }
    }

    /// Registers through another socket after the other daemon has ended, so that kubelet will notice the end of this
    /// plugin.
    async fn attach(&mut self) {
        self.take_another_socket();
        if let (true, Some(kubelet)) = (self.keep_socket(), Identity::of(&self.kubelet())) {
            self.register(kubelet).await;
        }
        let detached = self.registered.is_some_and(|it| it.detached);
        match detached {
            true => self
                .warn("kubelet may not notice the end of this plugin; registering it again".into()),
            false => {
                self.info("registered again, so that kubelet notices the end of this plugin".into())
            }
        }
    }

    /// Prevents kubelet from disconnecting this plugin when another daemon's plugin ends ([`takeover`]). Returns true
    /// if kubelet, as a side effect, may no longer notice the end of this plugin.
    async fn detach(&mut self, streams: u64, requests: u64) -> bool {
        // a kubelet before 1.25 does not request the options, and does not disconnect this plugin
        if self.role.borrow().is_alone || self.count.borrow().options_requests == requests {
            return false;
        }
        let listed = self.count.wait_for(|count| count.listed > streams);
        if timeout(STREAM_TIMEOUT, listed).await.is_err() {
            return false;
        }
        let service = self.service.clone();
        let detached =
            takeover::detach(&self.kubelet(), &self.resource, &self.owner(), service).await;
        if let Err(error) = detached {
            self.warn(format!(
                "cannot replace the other daemon's plugin: {error}; when that daemon ends, kubelet may have no healthy \
                 ids until this plugin registers again"
            ));
        }
        // also after an error: a kubelet that has not answered may have forgotten its client
        true
    }

    async fn register(&mut self, kubelet: Identity) {
        if self.tried.replace(kubelet) != Some(kubelet) {
            self.failures = 0;
        }
        let Count {
            opened: streams,
            options_requests: requests,
            ..
        } = *self.count.borrow();
        let path = self.kubelet();
        let endpoint = self.endpoint();
        let answer = tokio::select! {
            answer = register(&path, &self.resource, &endpoint, register::LIMIT) => answer,
            () = other(&mut self.directories, &path, kubelet) => return,
        };
        let is_known = match answer {
            Ok(()) => false,
            Err(RegisterError::Known) if self.count.borrow().open > 0 => true,
            Err(error) => {
                self.failures += 1;
                self.warn(format!(
                    "registration failed, the daemon tries again: {error}"
                ));
                self.context
                    .metrics
                    .registered(self.resource.as_str(), false);
                return self.pause(Some(back_off(self.failures))).await;
            }
        };
        let line = match is_known {
            true => "kubelet has already registered it",
            false => "registered with kubelet",
        };
        self.info(line.into());
        let metrics = self.context.metrics.clone();
        metrics.registered(self.resource.as_str(), true);
        self.registered = Some(Registered {
            kubelet,
            at: Instant::now(),
            streams: streams.saturating_sub(u64::from(is_known)),
            detached: !is_known && self.detach(streams, requests).await,
        });
        metrics.settled(self.resource.as_str());
    }

    /// Waits for a change of kubelet's directory, at most for `limit`. `None`: without a limit.
    async fn pause(&mut self, limit: Option<Duration>) {
        let end = Instant::now() + limit.unwrap_or_default();
        tokio::select! {
            _ = self.directories.changed() => {}
            () = sleep_until(end), if limit.is_some() => {}
        }
    }
}

/// Returns when the file at `path` no longer has the identity `kubelet`.
async fn other(directories: &mut watch::Receiver<u64>, path: &std::path::Path, kubelet: Identity) {
    while Identity::of(path) == Some(kubelet) {
        if directories.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns when kubelet's newest stream has ended and no new stream follows, or when kubelet has not opened a stream
/// within [`STREAM_TIMEOUT`] after the registration.
async fn lost(count: &mut watch::Receiver<Count>, registered: Registered) {
    let opened = count.wait_for(|count| count.opened > registered.streams);
    let is_opened = tokio::time::timeout_at(registered.at + STREAM_TIMEOUT, opened)
        .await
        .is_ok();
    if !is_opened {
        return;
    }
    loop {
        let _ = count.wait_for(|count| !count.newest_is_open).await;
        let again = timeout(
            BETWEEN_STREAMS,
            count.wait_for(|count| count.newest_is_open),
        );
        if again.await.is_err() {
            return;
        }
    }
}
