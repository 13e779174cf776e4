// SPDX-License-Identifier: Apache-2.0
//! Kubelet's side of the plugin interface: `Register`, the call back to the plugin, and the plugin's list.

use kubelet_api::device_plugin::{
    Device, DevicePluginOptions, Empty, HEALTHY, RegisterRequest, UNHEALTHY, VERSION,
    device_plugin_client::DevicePluginClient, registration_server::Registration,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};

use super::allocation::Allocation;

/// Time limit of kubelet for a connection to a plugin.
const TO_DIAL: Duration = Duration::from_secs(10);

/// Kubelet's answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// The answer of a real kubelet.
    Proper,
    /// An error with this message.
    Refusing(String),
    /// No answer.
    Silent,
    /// The answer of a real kubelet. The error of a failed connection comes after the plugin's time limit.
    FailingLate,
}

/// Rules by which a version of kubelet keeps the clients of a resource (`pkg/kubelet/cm/devicemanager`). A resource has
/// two clients while one daemon replaces another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// Kubelet 1.25 to 1.36: one client for each name of a resource (`plugin/v1beta1/handler.go`). The stream of a
    /// replaced client remains open. When this stream ends, kubelet disconnects the name's present client. After a
    /// failed attempt to connect, the name's present client loses the name.
    #[default]
    ByName,
    /// Kubelet 1.37: one client for each pair of name and socket. Ids become unhealthy when the last client ends. A
    /// second client with the same socket is refused.
    BySocket,
    /// Kubelet up to 1.24: the new endpoint replaces the old one, whose connection kubelet closes. Kubelet does not
    /// request the plugin's options (`addEndpoint` in `manager.go`).
    Replacing,
}

/// An accepted registration.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The resource.
    pub resource: String,
    /// The path of the plugin's socket.
    pub endpoint: PathBuf,
    /// Time of the registration.
    pub at: Instant,
}

/// A resource and its state in kubelet.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The plugin's last list.
    pub devices: Vec<Device>,
    /// Number of lists since kubelet's start.
    pub lists: usize,
    /// Number of open streams.
    pub streams: usize,
    /// Options of the plugin.
    pub options: DevicePluginOptions,
    /// Number of allocatable ids after each change of this number.
    pub allocatable: Vec<usize>,
    /// True if the endpoint is stopped: the plugin gets no further request.
    pub stopped: bool,
    pub(super) client: DevicePluginClient<Channel>,
}

impl Resource {
    /// Returns the ids that can be allocated.
    pub fn healthy(&self) -> BTreeSet<&str> {
        let healthy = self.devices.iter().filter(|it| it.health == HEALTHY);
        healthy.map(|it| it.id.as_str()).collect()
    }

    fn listed(&mut self, devices: Vec<Device>) {
        self.devices = devices;
        let count = self.healthy().len();
        if self.allocatable.last() != Some(&count) {
            self.allocatable.push(count);
        }
    }

    /// Makes all ids unallocatable until a plugin registers again, like kubelet's `PluginDisconnected`.
    fn disconnected(&mut self) {
        let unhealthy = |it: Device| Device {
            health: UNHEALTHY.into(),
            ..it
        };
        self.stopped = true;
        let devices = std::mem::take(&mut self.devices);
        self.listed(devices.into_iter().map(unhealthy).collect());
    }
}

/// Kubelet's client of a plugin.
#[derive(Clone, Debug)]
pub(super) struct Client {
    number: usize,
    resource: String,
    endpoint: PathBuf,
    stream: Option<AbortHandle>,
}

/// Kubelet's state.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) resources: BTreeMap<String, Resource>,
    pub(super) registered: Vec<Registered>,
    /// Number of calls of `Register`, successful or not.
    pub(super) calls: usize,
    pub(super) manners: BTreeMap<String, Manner>,
    pub(super) allocations: Vec<Allocation>,
    pub(super) streams: Vec<AbortHandle>,
    pub(super) generation: Generation,
    /// Clients that a disconnection can affect.
    pub(super) clients: Vec<Client>,
    dialled: usize,
}

impl Known {
    /// Adds a client, like kubelet's `registerClient`.
    fn add_client(&mut self, resource: &str, endpoint: &Path) -> usize {
        if self.generation != Generation::BySocket {
            let (replaced, others) = std::mem::take(&mut self.clients)
                .into_iter()
                .partition::<Vec<_>, _>(|it| it.resource == resource);
            self.clients = others;
            if self.generation == Generation::Replacing {
                let streams = replaced.into_iter().filter_map(|it| it.stream);
                streams.for_each(|stream| stream.abort());
            }
        }
        self.dialled += 1;
        self.clients.push(Client {
            number: self.dialled,
            resource: resource.to_owned(),
            endpoint: endpoint.to_owned(),
            stream: None,
        });
        self.dialled
    }

    /// Removes the clients of the name, or of the name and the socket, like kubelet's `deregisterClient`.
    fn drop_clients(&mut self, resource: &str, endpoint: &Path) -> Vec<Client> {
        let by_socket = self.generation == Generation::BySocket;
        let is_it =
            |it: &mut Client| it.resource == resource && (!by_socket || it.endpoint == endpoint);
        self.clients.extract_if(.., is_it).collect()
    }

    /// Handles the end of the stream of client `number`, like kubelet's `runClient`.
    fn stream_ended(&mut self, resource: &str, endpoint: &Path, number: usize) {
        if self.generation == Generation::Replacing
            && !self.clients.iter().any(|it| it.number == number)
        {
            return;
        }
        let dropped = self.drop_clients(resource, endpoint);
        if dropped.is_empty() {
            return;
        }
        // closes their connections
        for stream in dropped.into_iter().filter_map(|it| it.stream) {
            stream.abort();
        }
        let is_last = !self.clients.iter().any(|it| it.resource == resource);
        if let Some(known) = self.resources.get_mut(resource).filter(|_| is_last) {
            known.disconnected();
        }
    }
}

/// State that all threads share. A thread can wait for changes of it.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    directory: PathBuf,
    known: Arc<(Mutex<Known>, Condvar)>,
}

impl Shared {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            known: Arc::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let answer = change(&mut self.lock());
        self.known.1.notify_all();
        answer
    }

    /// Waits until `found` returns a value, for at most `limit`.
    pub(super) fn wait<T>(
        &self,
        limit: Duration,
        mut found: impl FnMut(&Known) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + limit;
        let mut known = self.lock();
        loop {
            if let Some(it) = found(&known) {
                return Some(it);
            }
            let left = end.checked_duration_since(Instant::now())?;
            let waited = self.known.1.wait_timeout(known, left);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connects to the plugin at `endpoint`, and stores its lists.
    pub(super) async fn connect(
        &self,
        resource: &str,
        endpoint: &Path,
        options: Option<DevicePluginOptions>,
    ) -> Result<(), Status> {
        let number = self.change(|known| known.add_client(resource, endpoint));
        let generation = self.lock().generation;
        let connected = async {
            let mut client = dial(endpoint).await?;
            let options = match generation {
                Generation::Replacing => options.unwrap_or_default(),
                _ => client
                    .get_device_plugin_options(Empty {})
                    .await?
                    .into_inner(),
            };
            let is_it = |it: &&Client| it.resource == resource && it.endpoint == endpoint;
            let same = self.lock().clients.iter().filter(is_it).count();
            if generation == Generation::BySocket && same > 1 {
                let socket = endpoint.display();
                return Err(Status::unknown(format!(
                    "device plugin already connected: {socket}"
                )));
            }
            Ok((client, options))
        };
        let (client, options) = match connected.await {
            Ok(connected) => connected,
            Err(status) => {
                self.change(|known| known.drop_clients(resource, endpoint));
                return Err(status);
            }
        };
        self.change(|known| {
            let new = Resource {
                devices: vec![],
                lists: 0,
                streams: 0,
                options,
                allocatable: vec![],
                stopped: false,
                client: client.clone(),
            };
            let old = known.resources.insert(resource.to_owned(), new);
            // a restarted plugin keeps its devices until it sends its list, and its old stream counts as open until
            // that stream ends
            if let (Some(old), Some(new)) = (old, known.resources.get_mut(resource)) {
                new.devices = old.devices;
                new.streams = old.streams;
                new.lists = old.lists;
                new.allocatable = old.allocatable;
            }
            known.registered.push(Registered {
                resource: resource.to_owned(),
                endpoint: endpoint.to_owned(),
                at: Instant::now(),
            });
        });
        let stream = self
            .clone()
            .follow(resource.to_owned(), endpoint.to_owned(), number, client);
        let task = tokio::spawn(stream).abort_handle();
        self.change(|known| {
            if let Some(it) = known.clients.iter_mut().find(|it| it.number == number) {
                it.stream = Some(task.clone());
            }
            known.streams.push(task);
        });
        Ok(())
    }

    async fn follow(
        self,
        resource: String,
        endpoint: PathBuf,
        number: usize,
        mut client: DevicePluginClient<Channel>,
    ) {
        let _open = Open::new(self.clone(), resource.clone(), endpoint, number);
        let Ok(stream) = client.list_and_watch(Empty {}).await else {
            return;
        };
        let mut stream = stream.into_inner();
        while let Ok(Some(list)) = stream.message().await {
            self.change(|known| {
                if let Some(known) = known.resources.get_mut(&resource) {
                    known.listed(list.devices);
                    known.lists += 1;
                }
            });
        }
    }

    fn manner(&self, resource: &str) -> Manner {
        let known = self.lock();
        let manner = known.manners.get(resource).or(known.manners.get(""));
        manner.cloned().unwrap_or(Manner::Proper)
    }
}

/// A stream. It counts as open until this value is dropped.
struct Open {
    shared: Shared,
    resource: String,
    endpoint: PathBuf,
    number: usize,
}

impl Open {
    fn new(shared: Shared, resource: String, endpoint: PathBuf, number: usize) -> Self {
        let open = Self {
            shared,
            resource,
            endpoint,
            number,
        };
        open.count(1);
        open
    }

    fn count(&self, by: isize) {
        self.shared.change(|known| {
            if let Some(resource) = known.resources.get_mut(&self.resource) {
                resource.streams = resource.streams.saturating_add_signed(by);
            }
        });
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count(-1);
        self.shared
            .change(|known| known.stream_ended(&self.resource, &self.endpoint, self.number));
    }
}

async fn dial(endpoint: &Path) -> Result<DevicePluginClient<Channel>, Status> {
    let failed = |error: tonic::transport::Error| {
        Status::unknown(format!("failed to dial device plugin: {error}"))
    };
    let address = format!("unix://{}", endpoint.display());
    let connected = Endpoint::from_shared(address).map_err(failed)?;
    let connected = connected.connect_timeout(TO_DIAL).connect().await;
    Ok(DevicePluginClient::new(connected.map_err(failed)?).max_decoding_message_size(4 << 20))
}

#[tonic::async_trait]
impl Registration for Shared {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        self.change(|known| known.calls += 1);
        let manner = self.manner(&request.resource_name);
        match &manner {
            Manner::Proper | Manner::FailingLate => {}
            Manner::Refusing(message) => return Err(Status::unknown(message.as_str())),
            Manner::Silent => std::future::pending().await,
        }
        if request.version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported",
                request.version
            )));
        }
        let endpoint = self.directory.join(&request.endpoint);
        let options = request.options;
        let resource = &request.resource_name;
        let connected = self.connect(resource, &endpoint, options).await;
        if connected.is_err() && manner == Manner::FailingLate {
            std::future::pending::<()>().await;
        }
        connected.map(|()| Response::new(Empty {}))
    }
}
