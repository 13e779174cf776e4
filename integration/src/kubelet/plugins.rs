//! Kubelet's view of its plugins: `Register`, the call back to the plugin, and its list.

use kubelet_api::device_plugin::{
    Device, DevicePluginOptions, Empty, HEALTHY, RegisterRequest, VERSION,
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

/// How long kubelet waits for a plugin that it dials.
const TO_DIAL: Duration = Duration::from_secs(10);

/// How a registration is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As kubelet does.
    Proper,
    /// Refused, with this message.
    Refusing(String),
    /// Never answered.
    Silent,
}

/// Which way a plugin came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `Register`
    KubeletSock,
    /// The plugin watcher found it.
    PluginWatcher,
}

/// A registration that was taken.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The resource.
    pub resource: String,
    /// The path of the plugin's socket.
    pub endpoint: PathBuf,
    /// Which way it came.
    pub way: Way,
    /// When.
    pub at: Instant,
}

/// A resource as kubelet has it.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The last list.
    pub devices: Vec<Device>,
    /// Lists that came by the streams of this life.
    pub lists: usize,
    /// Streams that are open.
    pub streams: usize,
    /// What the plugin said that it wants.
    pub options: DevicePluginOptions,
    pub(super) client: DevicePluginClient<Channel>,
}

impl Resource {
    /// The ids that can be allocated.
    pub fn healthy(&self) -> BTreeSet<&str> {
        let healthy = self.devices.iter().filter(|it| it.health == HEALTHY);
        healthy.map(|it| it.id.as_str()).collect()
    }
}

/// All that it knows.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) resources: BTreeMap<String, Resource>,
    pub(super) registered: Vec<Registered>,
    /// Calls of `Register`, whatever came of them.
    pub(super) calls: usize,
    pub(super) manners: BTreeMap<String, Manner>,
    pub(super) allocations: Vec<Allocation>,
    pub(super) streams: Vec<AbortHandle>,
}

/// The same, for all threads, and to be waited on.
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

    /// Waits until `found` finds something, at most `limit`.
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

    /// Calls back the plugin at `endpoint`, and keeps its list.
    pub(super) async fn connect(
        &self,
        resource: &str,
        endpoint: &Path,
        way: Way,
    ) -> Result<(), Status> {
        let mut client = dial(endpoint).await?;
        let options = client.get_device_plugin_options(Empty {}).await?;
        let options = options.into_inner();
        self.change(|known| {
            let new = Resource {
                devices: vec![],
                lists: 0,
                streams: 0,
                options,
                client: client.clone(),
            };
            let old = known.resources.insert(resource.to_owned(), new);
            // a restarted plugin's devices stay until it has sent its list, and its old stream
            // counts until it ends
            if let (Some(old), Some(new)) = (old, known.resources.get_mut(resource)) {
                new.devices = old.devices;
                new.streams = old.streams;
                new.lists = old.lists;
            }
            known.registered.push(Registered {
                resource: resource.to_owned(),
                endpoint: endpoint.to_owned(),
                way,
                at: Instant::now(),
            });
        });
        let stream = self.clone().follow(resource.to_owned(), client);
        let task = tokio::spawn(stream).abort_handle();
        self.change(|known| known.streams.push(task));
        Ok(())
    }

    async fn follow(self, resource: String, mut client: DevicePluginClient<Channel>) {
        let _open = Open::new(self.clone(), resource.clone());
        let Ok(stream) = client.list_and_watch(Empty {}).await else {
            return;
        };
        let mut stream = stream.into_inner();
        while let Ok(Some(list)) = stream.message().await {
            self.change(|known| {
                if let Some(known) = known.resources.get_mut(&resource) {
                    known.devices = list.devices;
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

/// A stream, as long as it is open.
struct Open {
    shared: Shared,
    resource: String,
}

impl Open {
    fn new(shared: Shared, resource: String) -> Self {
        let open = Self { shared, resource };
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
        match self.manner(&request.resource_name) {
            Manner::Proper => {}
            Manner::Refusing(message) => return Err(Status::unknown(message)),
            Manner::Silent => std::future::pending().await,
        }
        if request.version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported",
                request.version
            )));
        }
        let endpoint = self.directory.join(&request.endpoint);
        self.connect(&request.resource_name, &endpoint, Way::KubeletSock)
            .await?;
        Ok(Response::new(Empty {}))
    }
}
