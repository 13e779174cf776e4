// SPDX-License-Identifier: Apache-2.0
//! Stand-in for kubelet's pod-resources. It has its own thread and its own asynchronous runtime. A test sets the pods,
//! and the answers to requests.

use crate::wait;
use kubelet_api::pod_resources::v1::{
    CdiDevice, ClaimResource, ContainerDevices, ContainerResources, DynamicResource,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use std::{
    fs,
    os::unix::net::UnixListener as StdListener,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{net::UnixListener, sync::oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};

/// Kubelet's answer to `Get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// The pod, or the error that it does not exist.
    Works,
    /// The error of a feature gate that is off.
    TurnedOff,
    /// The error of a kubelet that lacks `Get`.
    Unimplemented,
}

/// The treatment of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Answers immediately.
    Prompt,
    /// Answers after this time.
    Slow(Duration),
    /// Never answers.
    Silent,
    /// Refuses this many requests because they are too frequent.
    Busy(u32),
    /// Refuses all requests with this code.
    Refusing(Code),
}

#[derive(Debug)]
struct State {
    pods: Vec<PodResources>,
    get: Get,
    mood: Mood,
    requests: Vec<&'static str>,
}

/// The running stand-in. Drop ends it.
#[derive(Debug)]
pub struct PodResourcesServer {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Returns a pod. `containers` lists, for each container, the resources with their ids.
pub fn pod(namespace: &str, name: &str, containers: &[&[(&str, &[&str])]]) -> PodResources {
    let devices = |(resource, ids): &(&str, &[&str])| ContainerDevices {
        resource_name: (*resource).to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let containers = containers.iter().enumerate();
    let containers = containers.map(|(number, list)| ContainerResources {
        name: format!("container{number}"),
        devices: list.iter().map(devices).collect(),
        ..ContainerResources::default()
    });
    PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: containers.collect(),
    }
}

/// Adds to `pod` a container that uses a claim. `devices` has driver, name and CDI name of each device of the claim.
pub fn claiming(mut pod: PodResources, devices: &[(&str, &str, &str)]) -> PodResources {
    let resource = |(driver, device, name): &(&str, &str, &str)| ClaimResource {
        cdi_devices: vec![CdiDevice {
            name: (*name).to_owned(),
        }],
        driver_name: (*driver).to_owned(),
        pool_name: "node".to_owned(),
        device_name: (*device).to_owned(),
        share_id: None,
    };
    pod.containers.push(ContainerResources {
        name: "claiming".to_owned(),
        devices: vec![],
        dynamic_resources: vec![DynamicResource {
            claim_name: "claim".to_owned(),
            claim_namespace: pod.namespace.clone(),
            claim_resources: devices.iter().map(resource).collect(),
        }],
    });
    pod
}

impl PodResourcesServer {
    /// Starts a server at `socket`, without pods.
    #[track_caller]
    pub fn start(socket: &Path) -> Self {
        let state = State {
            pods: vec![],
            get: Get::Works,
            mood: Mood::Prompt,
            requests: vec![],
        };
        let mut server = Self {
            socket: socket.to_owned(),
            state: Arc::new(Mutex::new(state)),
            running: None,
        };
        server.come();
        server
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Replaces the known pods by `pods`.
    pub fn set_pods(&self, pods: &[PodResources]) {
        self.state().pods = pods.to_vec();
    }

    /// Sets the answer to `Get`.
    pub fn set_get(&self, get: Get) {
        self.state().get = get;
    }

    /// Sets the treatment of requests.
    pub fn set_mood(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// Returns the requests since the last call: `Get`, `List`.
    pub fn take_requests(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().requests)
    }

    /// Stops the server as when kubelet ends: the socket's file remains.
    pub fn go(&mut self) {
        if let Some(Running { stop, thread }) = self.running.take() {
            let _ = stop.send(());
            thread.join().expect("the server's thread ends");
        }
    }

    /// Starts the server again as kubelet does, with a new socket file.
    #[track_caller]
    pub fn come(&mut self) {
        self.go();
        let directory = self.socket.parent().expect("a socket is in a directory");
        fs::create_dir_all(directory).expect("the socket's directory");
        let _ = fs::remove_file(&self.socket);
        let listener = StdListener::bind(&self.socket).expect("the socket is free");
        listener.set_nonblocking(true).expect("a socket can be");
        let (stop, stopped) = oneshot::channel();
        let answers = Answers(Arc::clone(&self.state));
        let thread = thread::spawn(move || serve(listener, answers, stopped));
        self.running = Some(Running { stop, thread });
        let socket = &self.socket;
        wait::until("kubelet listens", || {
            std::os::unix::net::UnixStream::connect(socket).is_ok()
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PodResourcesServer {
    fn drop(&mut self) {
        self.go();
    }
}

/// Serves requests until it is stopped. Then it also ends requests that have no answer yet.
fn serve(listener: StdListener, answers: Answers, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let listener = UnixListener::from_std(listener).expect("a listener");
        let service = PodResourcesListerServer::new(answers);
        let server = Server::builder().add_service(service);
        let served = server.serve_with_incoming(UnixListenerStream::new(listener));
        tokio::select! {
            ended = served => ended.expect("the server goes on"),
            _ = stopped => {}
        }
    });
}

#[derive(Debug)]
struct Answers(Arc<Mutex<State>>);

impl Answers {
    async fn take(&self, question: &'static str) -> Result<(), Status> {
        let mood = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.requests.push(question);
            let mood = state.mood;
            if let Mood::Busy(left) = mood {
                state.mood = match left {
                    0 | 1 => Mood::Prompt,
                    left => Mood::Busy(left - 1),
                };
            }
            mood
        };
        match mood {
            Mood::Prompt | Mood::Busy(0) => Ok(()),
            Mood::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Mood::Silent => std::future::pending().await,
            // the message of `pkg/kubelet/apis/grpc/ratelimit.go`
            Mood::Busy(_) => Err(Status::resource_exhausted("rejected by rate limit")),
            Mood::Refusing(code) => Err(Status::new(code, "refused by the test")),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Answers {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.take("List").await?;
        let pod_resources = self.state().pods.clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    /// Answers as `pkg/kubelet/apis/podresources/server_v1.go` does. Its errors are plain Go errors, which gRPC for Go
    /// sends with the code Unknown.
    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.take("Get").await?;
        let GetPodResourcesRequest {
            pod_name,
            pod_namespace,
        } = request.into_inner();
        let state = self.state();
        match state.get {
            Get::Works => {}
            Get::TurnedOff => return Err(Status::unknown("PodResources API Get method disabled")),
            Get::Unimplemented => return Err(Status::unimplemented("unknown method Get")),
        }
        let is_it = |pod: &&PodResources| pod.name == pod_name && pod.namespace == pod_namespace;
        let not_found = || format!("pod {pod_name} in namespace {pod_namespace} not found");
        let pod = state.pods.iter().find(is_it);
        let pod = pod.ok_or_else(|| Status::unknown(not_found()))?;
        Ok(Response::new(GetPodResourcesResponse {
            pod_resources: Some(pod.clone()),
        }))
    }
}
