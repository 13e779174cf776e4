// SPDX-License-Identifier: Apache-2.0
//! Kubelet's device manager: it starts, stops, is killed and starts again, in one directory.

use super::{
    allocation::Allocation,
    plugins::{Generation, Known, Manner, Registered, Resource, Shared},
};
use crate::wait::PATIENCE;
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

/// A device manager. What was allocated outlives its restarts, as kubelet's checkpoint does.
#[derive(Debug)]
pub struct DeviceManager {
    directory: PathBuf,
    shared: Shared,
    running: Option<Runtime>,
}

impl DeviceManager {
    /// Makes the kubelet in `kubelet_dir` (`/var/lib/kubelet`). It does not run yet.
    pub fn new(kubelet_dir: &Path) -> Self {
        Self {
            directory: kubelet_dir.to_owned(),
            shared: Shared::new(&kubelet_dir.join("device-plugins")),
            running: None,
        }
    }

    /// Does the same as `new`, and starts it.
    #[track_caller]
    pub fn started(kubelet_dir: &Path) -> Self {
        let mut manager = Self::new(kubelet_dir);
        manager.start();
        manager
    }

    /// Keeps its clients as `generation` does.
    pub fn of_generation(self, generation: Generation) -> Self {
        self.shared.change(|known| known.generation = generation);
        self
    }

    /// `kubelet.sock`
    pub fn socket(&self) -> PathBuf {
        self.directory.join("device-plugins/kubelet.sock")
    }

    /// Removes all sockets of its directory, and listens. When that was. One that its plugin removes at
    /// the same moment is no error, as for kubelet (`CleanupPluginDirectory` in
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

    /// Ends it as SIGTERM does: `kubelet.sock` goes.
    #[track_caller]
    pub fn stop(&mut self) {
        self.kill();
        fs::remove_file(self.socket()).expect("kubelet.sock removed");
    }

    /// Ends it as SIGKILL does: `kubelet.sock` stays.
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

    /// Ends it, and starts it. When its socket was there again.
    #[track_caller]
    pub fn restart(&mut self) -> Instant {
        self.stop();
        self.start()
    }

    /// Sets the answer to registrations of `resource`; an empty name stands for all.
    pub fn takes(&self, resource: &str, manner: Manner) {
        self.shared.change(|known| {
            known.manners.insert(resource.to_owned(), manner);
        });
    }

    /// Ends all streams, and nothing else.
    pub fn cut_streams(&self) {
        self.shared.change(|known| {
            for stream in known.streams.drain(..) {
                stream.abort();
            }
        });
    }

    /// Returns `resource` as soon as `is_it` is true for it; panics with `what` after [`PATIENCE`].
    #[track_caller]
    pub fn wait_for(
        &self,
        resource: &str,
        what: &str,
        is_it: impl Fn(&Resource) -> bool,
    ) -> Resource {
        let found = self.wait(PATIENCE, |known| {
            known
                .resources
                .get(resource)
                .filter(|it| is_it(it))
                .cloned()
        });
        found.unwrap_or_else(|| {
            panic!(
                "{resource}: not within {PATIENCE:?}: {what}; known is {:#?}",
                self.shared.lock().resources.get(resource)
            )
        })
    }

    /// Waits until `are_they` holds for the registrations of all lives of the device manager, and returns them.
    #[track_caller]
    pub fn wait_for_registrations(
        &self,
        what: &str,
        are_they: impl Fn(&[Registered]) -> bool,
    ) -> Vec<Registered> {
        let found = self.wait(PATIENCE, |known| {
            are_they(&known.registered).then(|| known.registered.clone())
        });
        found.unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
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

    /// All registrations that were taken, of all lives.
    pub fn registrations(&self) -> Vec<Registered> {
        self.shared.lock().registered.clone()
    }

    /// Returns the number of calls of `Register`, with any result.
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

    /// The stand-in's runtime, to ask plugins something.
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
