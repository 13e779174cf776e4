// SPDX-License-Identifier: Apache-2.0
//! A node with a kubelet, and with files like the daemon's.

use crate::node::{Answer, Node, Pod, furnished};
use cni_protocol::Input;
use fake_kernel::World;
use integration::kubelet::pod_resources::{PodResourcesServer, pod};
use rdma_netns::{Device, DeviceAddress, RdmaDevice, RdmaMode};
use rdma_resources::{
    Cdi, CharNode, Grant, Grants, Published, Sharing, cdi::Entry, grant::GrantedDevice, published,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf};

pub(crate) struct Cluster {
    pub(crate) node: Node,
    pub(crate) kubelet: PodResourcesServer,
}

/// Resources and their ids, for one container.
pub(crate) type Devices<'a> = &'a [(&'a str, &'a [&'a str])];

pub(crate) fn address(text: &str) -> DeviceAddress {
    DeviceAddress::try_from(text.to_owned()).unwrap()
}

impl Cluster {
    pub(crate) fn new(mode: RdmaMode) -> Self {
        Self::with(furnished(mode))
    }

    pub(crate) fn with(world: World) -> Self {
        let node = Node::with(world);
        let kubelet = PodResourcesServer::start(&node.state.path().join("kubelet/kubelet.sock"));
        Self { node, kubelet }
    }

    /// Returns a cluster on which the lowest number of a character device is free. The kernel assigns this number at
    /// the next move, so the device has another number in the pod than on the host. With `cdi` the device has a CDI
    /// entry. Also returns a pod that gets the device at `vf`, and the pod's configuration.
    pub(crate) fn with_a_hole(vf: &str, cdi: bool) -> (Self, Value, Pod) {
        let mut world = furnished(RdmaMode::Exclusive);
        world.unplug("0000:3b:00.0");
        let cluster = Self::with(world);
        cluster.publish(&[("rdma/vf", every(&[vf], Sharing::Exclusive))], cdi);
        cluster.grant(("rdma/vf", vf), Sharing::Exclusive, cdi, &[vf]);
        let pod = cluster.pod("a", &[("rdma/vf", &[vf])]);
        let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
        (cluster, config, pod)
    }

    /// Returns a configuration with `fields` in which kubelet determines the devices.
    pub(crate) fn config(&self, fields: Value) -> Value {
        let mut config = self.node.config(fields);
        config["podResourcesSocket"] = self.kubelet.socket().to_str().unwrap().into();
        config
    }

    /// Returns a pod whose only container has `devices`. Kubelet knows no other pod.
    pub(crate) fn pod(&self, name: &str, devices: Devices<'_>) -> Pod {
        self.kubelet.set_pods(&[pod("default", name, &[devices])]);
        self.node.pod(name)
    }

    pub(crate) fn run(&self, command: &str, pod: &Pod, config: &Value) -> Answer {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={}",
            pod.container
        );
        self.run_with(command, pod, config, &args)
    }

    pub(crate) fn run_with(&self, command: &str, pod: &Pod, config: &Value, args: &str) -> Answer {
        self.node.run_with(command, pod, config, args)
    }

    pub(crate) fn add(&self, pod: &Pod, config: &Value) -> Answer {
        self.run("ADD", pod, config)
    }

    pub(crate) fn del(&self, pod: &Pod, config: &Value) -> Answer {
        self.run("DEL", pod, config)
    }

    /// Runs `rdma-cni plan` as an administrator does, and returns its output.
    pub(crate) fn plan(&self, pod: &Pod, config: &Value) -> String {
        let args = format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={}", pod.container);
        let input = Input {
            arguments: vec!["plan".into()],
            environment: BTreeMap::from([
                ("CNI_CONTAINERID".into(), pod.container.clone()),
                ("CNI_IFNAME".into(), "eth0".into()),
                ("CNI_NETNS".into(), pod.netns.display().to_string()),
                ("CNI_PATH".into(), "/nowhere".into()),
                ("CNI_ARGS".into(), args),
            ]),
        };
        let mut output = vec![];
        let stdin = config.to_string();
        let kernel = &self.node.kernel;
        let _ = rdma_cni::run(input, &mut stdin.as_bytes(), &mut output, kernel);
        String::from_utf8(output).unwrap()
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.node.state.path().join("state")
    }

    fn cdi_dir(&self) -> PathBuf {
        self.node.state.path().join("cdi")
    }

    pub(crate) fn cdi(&self) -> Cdi {
        Cdi::new(&self.cdi_dir(), &self.state_dir())
    }

    /// Returns the RDMA device of the hardware `device`, in any namespace.
    pub(crate) fn rdma(&self, device: &DeviceAddress) -> RdmaDevice {
        let found = self.node.kernel.with(|world| world.rdma_device(device));
        found.expect("an RDMA device")
    }

    /// Grants `id` the devices at `addresses` in their present state, as the daemon does at Allocate.
    pub(crate) fn grant(
        &self,
        (resource, id): (&str, &str),
        sharing: Sharing,
        cdi: bool,
        addresses: &[&str],
    ) {
        let devices = addresses.iter().map(|text| {
            let rdma = self.rdma(&address(text));
            GrantedDevice {
                address: address(text),
                char_devices: rdma.char_devices.iter().map(CharNode::from).collect(),
                rdma: rdma.name,
                parent: None,
            }
        });
        let grant = Grant {
            format: rdma_resources::grant::FORMAT,
            resource: resource.to_owned(),
            id: id.to_owned(),
            sharing,
            cdi,
            chained: false,
            promises_rails: false,
            limits: Default::default(),
            devices: devices.collect(),
        };
        Grants::new(&self.state_dir()).write(&grant).unwrap();
    }

    /// Publishes `resources` as the daemon does. With `cdi`, also writes a CDI entry for every device.
    pub(crate) fn publish(&self, resources: &[(&str, published::Resource)], cdi: bool) {
        let resources = resources.iter().cloned();
        let published = Published {
            format: published::FORMAT,
            cdi_dir: cdi.then(|| self.cdi_dir()),
            boot_id: None,
            resources: resources.map(|(name, it)| (name.to_owned(), it)).collect(),
            chain_names_resources: false,
            physical_functions: Default::default(),
        };
        published.write(&self.state_dir()).unwrap();
        if cdi {
            self.cdi().write(|| self.entries()).unwrap();
        }
    }

    /// Returns the CDI entries that the devices should have now.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let devices = self.node.kernel.with(|world| world.observe(None).devices);
        let with_rdma = devices.iter().filter(|it| !it.rdma.is_empty());
        let entry = |device: &Device| Entry {
            name: device.address.to_string(),
            nodes: {
                let rdma = self.rdma(&device.address);
                rdma.char_devices.iter().map(CharNode::from).collect()
            },
        };
        with_rdma.map(entry).collect()
    }

    /// Returns the CDI specification that the runtime would read.
    pub(crate) fn spec(&self) -> Value {
        let file = self.cdi_dir().join("rdma-device-plugin-rdma.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }

    /// Asserts that every CDI entry matches its device.
    #[track_caller]
    pub(crate) fn entries_must_be_right(&self, what: &str) {
        let found = self.spec();
        assert!(
            !self.cdi().write(|| self.entries()).unwrap(),
            "{what}: entries were wrong:\n{found:#}\nnow:\n{:#}",
            self.spec()
        );
    }
}

pub(crate) fn every(addresses: &[&str], sharing: Sharing) -> published::Resource {
    let addresses = addresses.iter().map(|text| address(text));
    published::Resource {
        sharing,
        devices: published::Devices::Every(addresses.collect()),
        parents: BTreeMap::new(),
        limited: false,
        ids: None,
    }
}

pub(crate) fn record(cluster: &Cluster, pod: &Pod) -> Value {
    let text = std::fs::read(cluster.node.record_of(pod)).unwrap();
    serde_json::from_slice(&text).unwrap_or(json!(null))
}
