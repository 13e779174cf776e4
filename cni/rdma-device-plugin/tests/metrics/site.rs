// SPDX-License-Identifier: Apache-2.0
//! A node for tests of the metrics: two devices, a stand-in for kubelet, and a client.

use daemon_conf::{Ids, ResourceName};
use kubelet_api::pod_resources::v1::{
    ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse,
    ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use node_state::node::Node;
use offer::{Environment, Gone, Offer, OfferedDevice, OfferedId};
use rdma_device_plugin::metrics::{self, Metrics, Sources, View};
use rdma_netns::{DeviceAddress, Inventory, PciPath};
use rdma_resources::Sharing;
use serde_json::json;
use std::{fs, net::SocketAddr, path::Path, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixListener},
    task::{AbortHandle, JoinSet},
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, async_trait, transport};

pub(crate) const DEVICES: [&str; 2] = ["0000:3b:00.2", "0000:5e:00.0"];

/// Behaviour of kubelet.
#[derive(Clone)]
pub(crate) enum Kubelet {
    Answers(Vec<PodResources>),
    Hangs,
}

#[async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        match self {
            Self::Answers(pods) => Ok(Response::new(ListPodResourcesResponse {
                pod_resources: pods.clone(),
            })),
            Self::Hangs => std::future::pending().await,
        }
    }

    async fn get(
        &self,
        _: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("no request for one pod is expected"))
    }
}

/// A node with `mlx5_0` and `mlx5_1`. Its directories are below [`Site::path`].
pub(crate) struct Site {
    pub(crate) metrics: Metrics,
    directory: tempfile::TempDir,
    offers: Vec<Offer>,
    /// Devices of `rdma/hca` that disappeared from their bus.
    pub(crate) gone: Vec<Gone>,
    /// State of another node, in place of the node with the two devices.
    pub(crate) view: Option<View>,
    kubelet: Vec<AbortHandle>,
}

impl Drop for Site {
    fn drop(&mut self) {
        for kubelet in &self.kubelet {
            kubelet.abort();
        }
    }
}

impl Site {
    pub(crate) fn new(offers: Vec<Offer>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for device in ["mlx5_0", "mlx5_1"] {
            let port = format!("sys/class/infiniband/{device}/ports/1");
            let port = directory.path().join(port);
            for (file, text) in [
                ("state", "4: ACTIVE\n"),
                ("counters/port_rcv_data", "250\n"),
                ("hw_counters/out_of_sequence", "7\n"),
            ] {
                let file = port.join(file);
                fs::create_dir_all(file.parent().expect("a directory")).expect("made");
                fs::write(file, text).expect("written");
            }
        }
        for kubelet in ["device-plugins", "pod-resources"] {
            fs::create_dir_all(directory.path().join("kubelet").join(kubelet)).expect("made");
        }
        Self {
            metrics: Metrics::new(),
            directory,
            offers,
            gone: Vec::new(),
            view: None,
            kubelet: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn kubelet(&mut self, kubelet: Kubelet) {
        let socket = self.path().join("kubelet/pod-resources/kubelet.sock");
        let listener = UnixListener::bind(socket).expect("a socket");
        let server = transport::Server::builder()
            .add_service(PodResourcesListerServer::new(kubelet))
            .serve_with_incoming(UnixListenerStream::new(listener));
        self.kubelet.push(tokio::spawn(server).abort_handle());
    }

    /// Starts a kubelet with this behaviour in place of the previous kubelet.
    pub(crate) fn kubelet_anew(&mut self, kubelet: Kubelet) {
        self.kubelet.drain(..).for_each(|it| it.abort());
        let socket = self.path().join("kubelet/pod-resources/kubelet.sock");
        fs::remove_file(socket).expect("one that answered");
        self.kubelet(kubelet);
    }

    pub(crate) fn make_kubelet_socket(&self) {
        let socket = self.path().join("kubelet/device-plugins/kubelet.sock");
        drop(UnixListener::bind(socket).expect("a socket"));
    }

    pub(crate) async fn serve(&self) -> Client {
        let functions: Vec<_> = DEVICES
            .iter()
            .enumerate()
            .map(|(place, address)| {
                json!({
                    "address": address, "driver": "mlx5_core", "numa_node": 1,
                    "hcas": [{"name": format!("mlx5_{place}")}],
                })
            })
            .collect();
        let inventory: Inventory =
            serde_json::from_value(json!({ "functions": functions })).expect("an inventory");
        let own = || View {
            node: Arc::new(Node {
                offers: self.offers.clone(),
                inventory: Arc::new(inventory),
                gone: [("rdma/hca".to_owned(), self.gone.clone())].into(),
                ..Node::default()
            }),
            ..View::default()
        };
        let view = self.view.clone().unwrap_or_else(own);
        self.serve_view(Arc::new(move || view.clone())).await
    }

    /// Serves the metrics of a node that changes. `view` returns the node's present state.
    pub(crate) async fn serve_view(&self, view: Arc<dyn Fn() -> View + Send + Sync>) -> Client {
        let sources = Sources {
            view,
            node: "node-1".to_owned(),
            state_dir: self.path().to_owned(),
            kubelet_dir: self.path().join("kubelet"),
            sysfs: self.path().join("sys"),
        };
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = metrics::serve(address, self.metrics.clone(), sources).await;
        let (address, serving) = server.expect("a server");
        let mut server = JoinSet::new();
        server.spawn(serving);
        Client {
            address,
            _server: server,
        }
    }

    /// Returns the number of this process' threads with the name `name`.
    pub(crate) fn threads_called(&self, name: &str) -> usize {
        let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|it| it.trim_end() == name).count()
    }
}

/// A running server, with functions that send requests to it.
pub(crate) struct Client {
    address: SocketAddr,
    _server: JoinSet<()>,
}

impl Client {
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await;
        stream.expect("connected")
    }

    pub(crate) async fn get(&self, method: &str, path: &str) -> (u16, String) {
        let (head, body) = self.answer(method, path).await;
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
        (status.expect("a status"), body)
    }

    /// Returns head and body of an answer.
    pub(crate) async fn answer(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = self.connect().await;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: node\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    pub(crate) async fn metrics(&self) -> String {
        let (status, text) = self.get("GET", "/metrics").await;
        assert_eq!(status, 200, "{text}");
        text
    }
}

pub(crate) fn address(text: &str) -> DeviceAddress {
    text.to_owned().try_into().expect("an address")
}

/// Returns a resource with both devices. Each id comes with the indices of its devices.
pub(crate) fn offer(name: &str, sharing: Sharing, ids: &[(&str, &[usize])]) -> Offer {
    let ids = ids.iter().map(|(id, devices)| OfferedId {
        id: (*id).to_owned(),
        devices: devices.to_vec(),
        numa_nodes: vec![],
        healthy: true,
    });
    Offer {
        name: ResourceName::new(name).expect("a name"),
        kind: Ids::Exclusive,
        sharing,
        devices: devices(DEVICES),
        ids: ids.collect(),
        keeps_count: false,
        has_parents: false,
        cdi: false,
        umad: false,
        limits: Default::default(),
        environment: Environment::default(),
        expected: DEVICES.len(),
        short: None,
    }
}

/// Returns usable devices. The names of their RDMA devices follow from their indices.
pub(crate) fn devices(addresses: impl IntoIterator<Item: AsRef<str>>) -> Vec<OfferedDevice> {
    let all = addresses.into_iter().enumerate();
    let device = |(place, at): (usize, _)| OfferedDevice {
        address: address(AsRef::<str>::as_ref(&at)),
        hca: serde_json::from_value(json!({"name": format!("mlx5_{place}")})).expect("a device"),
        numa_node: None,
        path: PciPath::default(),
        data_direct: None,
        mac: None,
        parent: None,
        fault: None,
    };
    all.map(device).collect()
}

pub(crate) fn pod(namespace: &str, name: &str, container: ContainerResources) -> PodResources {
    PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: vec![container],
    }
}

pub(crate) fn container(name: &str, resource: &str, ids: &[&str]) -> ContainerResources {
    let devices = ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    ContainerResources {
        name: name.to_owned(),
        // kubelet lists a resource once for each NUMA node
        devices: vec![devices.clone(), devices],
        ..ContainerResources::default()
    }
}
