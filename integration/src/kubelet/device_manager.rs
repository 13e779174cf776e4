// SPDX-License-Identifier: Apache-2.0
//! Stand-in for kubelet's device manager in one directory. A test can start, stop, kill and restart it.

use super::{
    allocation::Allocation,
    plugins::{Generation, Known, Manner, Registered, Resource, Shared},
};
use crate::wait::TIMEOUT;
use kubelet_api::{
    device_plugin::registration_server::RegistrationServer,
    pod_resources::v1::{ContainerDevices, ContainerResources, PodResources},
};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, runtime::Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

/// A device manager. Its allocations survive restarts, like those in kubelet's checkpoint.
#[derive(Debug)]
pub struct DeviceManager {
    directory: PathBuf,
    shared: Shared,
    running: Option<Runtime>,
}

impl DeviceManager {
    /// Makes a stopped kubelet in `kubelet_dir` (`/var/lib/kubelet`).
    pub fn new(kubelet_dir: &Path) -> Self {
        Self {
            directory: kubelet_dir.to_owned(),
            shared: Shared::new(&kubelet_dir.join("device-plugins")),
            running: None,
        }
    }

    /// Makes and starts a kubelet in `kubelet_dir`.
    #[track_caller]
    pub fn started(kubelet_dir: &Path) -> Self {
        let mut manager = Self::new(kubelet_dir);
        manager.start();
        manager
    }

    /// Sets the version whose rules kubelet uses for the plugins' clients.
    pub fn of_generation(self, generation: Generation) -> Self {
        self.shared.change(|known| known.generation = generation);
        self
    }

    /// Returns the path of `kubelet.sock`.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("device-plugins/kubelet.sock")
    }

    /// Removes all sockets in the plugins' directory, and listens. Returns the time at which `kubelet.sock` exists. If
    /// a plugin removes its socket at the same moment, this is no error, as for kubelet (`CleanupPluginDirectory` in
    /// `pkg/kubelet/cm/devicemanager/manager.go`: `os.RemoveAll`).
    #[track_caller]
    pub fn start(&mut self) -> Instant {
        assert!(self.running.is_none(), "kubelet runs already");
        let plugins = self.directory.join("device-plugins");
        fs::create_dir_all(&plugins).expect("the plugins' directory");
        for entry in fs::read_dir(&plugins).expect("the plugins' directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|it| it == "sock")
                && let Err(error) = fs::remove_file(&path)
            {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{path:?}: {error}");
            }
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(async { UnixListener::bind(self.socket()) });
        let at = Instant::now();
        let server = Server::builder()
            .add_service(RegistrationServer::new(self.shared.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener.expect("kubelet.sock")));
        runtime.spawn(server);
        self.running = Some(runtime);
        at
    }

    /// Ends kubelet as SIGTERM does: `kubelet.sock` is removed.
    #[track_caller]
    pub fn stop(&mut self) {
        self.kill();
        fs::remove_file(self.socket()).expect("kubelet.sock removed");
    }

    /// Ends kubelet as SIGKILL does: `kubelet.sock` remains.
    #[track_caller]
    pub fn kill(&mut self) {
        let running = self.running.take().expect("kubelet runs");
        running.shutdown_timeout(Duration::from_secs(5));
        self.shared.change(|known| {
            known.resources.clear();
            known.streams.clear();
            known.clients.clear();
        });
    }

    /// Stops and starts kubelet. Returns the time at which its socket existed again.
    #[track_caller]
    pub fn restart(&mut self) -> Instant {
        self.stop();
        self.start()
    }

    /// Sets the answer to registrations of `resource`. An empty name sets the answer for resources that have no
    /// setting.
    pub fn takes(&self, resource: &str, manner: Manner) {
        self.shared.change(|known| {
            known.manners.insert(resource.to_owned(), manner);
        });
    }

    /// Ends all streams of plugins, as if their connections broke.
    pub fn cut_streams(&self) {
        self.shared.change(|known| {
            for stream in known.streams.drain(..) {
                stream.abort();
            }
        });
    }

    /// Waits until `is_it` returns true for `resource`, and returns the resource. Panics with `what` after
    /// [`TIMEOUT`].
    #[track_caller]
    pub fn wait_for(
        &self,
        resource: &str,
        what: &str,
        is_it: impl Fn(&Resource) -> bool,
    ) -> Resource {
        let found = self.wait(TIMEOUT, |known| {
            known
                .resources
                .get(resource)
                .filter(|it| is_it(it))
                .cloned()
        });
        found.unwrap_or_else(|| {
            panic!(
                "{resource}: not within {TIMEOUT:?}: {what}; kubelet has {:#?}",
                self.shared.lock().resources.get(resource)
            )
        })
    }

    /// Waits until `are_they` returns true for the registrations since this value was made, and returns them.
    #[track_caller]
    pub fn wait_for_registrations(
        &self,
        what: &str,
        are_they: impl Fn(&[Registered]) -> bool,
    ) -> Vec<Registered> {
        let found = self.wait(TIMEOUT, |known| {
            are_they(&known.registered).then(|| known.registered.clone())
        });
        found.unwrap_or_else(|| panic!("not within {TIMEOUT:?}: {what}"))
    }

    /// Returns true if `is_it` becomes true for `resource` within `limit`.
    pub fn within(
        &self,
        limit: Duration,
        resource: &str,
        is_it: impl Fn(Option<&Resource>) -> bool,
    ) -> bool {
        let found = self.wait(limit, |known| {
            is_it(known.resources.get(resource)).then_some(())
        });
        found.is_some()
    }

    fn wait<T>(&self, limit: Duration, found: impl FnMut(&Known) -> Option<T>) -> Option<T> {
        self.shared.wait(limit, found)
    }

    /// Returns the present state of `resource`.
    pub fn resource(&self, resource: &str) -> Option<Resource> {
        self.shared.lock().resources.get(resource).cloned()
    }

    /// Returns all accepted registrations, including those before restarts.
    pub fn registrations(&self) -> Vec<Registered> {
        self.shared.lock().registered.clone()
    }

    /// Returns the number of calls of `Register`, successful or not.
    pub fn calls(&self) -> usize {
        self.shared.lock().calls
    }

    /// Returns the containers' allocations.
    pub fn allocations(&self) -> Vec<Allocation> {
        self.shared.lock().allocations.clone()
    }

    /// Returns the containers' allocations in the form of kubelet's pod-resources.
    pub fn pod_resources(&self) -> Vec<PodResources> {
        let mut pods: Vec<PodResources> = vec![];
        for it in self.allocations() {
            let (namespace, name) = it.pod;
            let is_pod = |pod: &PodResources| pod.namespace == namespace && pod.name == name;
            let pod = match pods.iter().position(is_pod) {
                Some(place) => &mut pods[place],
                None => pods.push_mut(PodResources {
                    name: name.clone(),
                    namespace: namespace.clone(),
                    containers: vec![],
                }),
            };
            let is_container = |known: &ContainerResources| known.name == it.container;
            let container = match pod.containers.iter().position(is_container) {
                Some(place) => &mut pod.containers[place],
                None => pod.containers.push_mut(ContainerResources {
                    name: it.container.clone(),
                    ..ContainerResources::default()
                }),
            };
            container.devices.push(ContainerDevices {
                resource_name: it.resource,
                device_ids: it.ids,
            });
        }
        pods
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the stand-in's asynchronous runtime, for calls to plugins.
    #[track_caller]
    pub(super) fn running(&self) -> &Runtime {
        self.running.as_ref().expect("kubelet runs")
    }
}

impl Drop for DeviceManager {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown_timeout(Duration::from_secs(5));
        }
    }
}
