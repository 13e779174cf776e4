// SPDX-License-Identifier: Apache-2.0
//! The daemon with its node and its token, a stand-in for kubelet, and the pods and claims that the daemon serves.

use crate::{manifests, text};
use integration::{
    ControlPlane, Daemon, Machine,
    kubelet::{ClaimManager, DeviceManager, pod_resources::PodResourcesServer},
    machine::Nic,
    wait,
};
use kubelet_api::dra::NodePrepareResourceResponse;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{fs, path::Path, thread, time::Duration};

pub(super) const NODE: &str = "claims-1";

pub(super) const NICS: [Nic<'_>; 2] = [
    Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 0,
    },
    Nic {
        address: "0000:5e:00.0",
        rdma: "mlx5_1",
        netdev: "ens2",
        numa_node: 1,
        number: 1,
    },
];

/// The minor release of the API server: 34 for 1.34.
pub(super) fn release(cluster: &ControlPlane) -> u32 {
    let version = cluster.ask("/version").expect("a version");
    let version: Value = serde_json::from_str(&version).expect("JSON");
    let minor = version["minor"].as_str().expect("a text");
    minor.trim_end_matches('+').parse().expect("a number")
}

/// A daemon with its node and its token.
pub(super) struct Driver {
    pub(super) daemon: Daemon,
    pub(super) kubelet: ClaimManager,
    pub(super) pods: PodResourcesServer,
    /// A stand-in for kubelet's device manager, which offers no resources.
    _devices: DeviceManager,
    pub(super) machine: Machine,
    pub(super) name: &'static str,
}

/// Applies the manifest `file`, and requests the daemon's token, bound to its pod, as kubelet does.
#[track_caller]
pub(super) fn token(cluster: &mut ControlPlane, file: &str) -> String {
    cluster.apply("apply --server-side --validate=strict -f -", &text(file));
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    let pods = cluster.get("pods -n kube-system");
    let name = pods[0]["metadata"]["name"].as_str().expect("a name");
    let account = "-n kube-system create token rdma-device-plugin";
    let token = cluster.kubectl(&format!(
        "{account} --bound-object-kind Pod --bound-object-name {name}"
    ));
    token.trim().to_owned()
}

/// Returns the daemon's HTTP answer at `path`.
pub(super) fn ask(cluster: &ControlPlane, path: &str) -> String {
    let ask = "import http.client, sys; it = http.client.HTTPConnection('127.0.0.1', 9102); \
               it.request('GET', sys.argv[1]); print(it.getresponse().read().decode())";
    let mut command = cluster.command(Path::new("python3"));
    let output = command.args(["-c", ask, path]).output().expect("python3");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
pub(super) fn start(cluster: &ControlPlane, machine: &Machine) -> Daemon {
    Daemon::start(&mut cluster.daemon(machine, machine))
}

pub(super) fn configure(
    machine: &Machine,
    (resource, kind, name): (&str, &str, &str),
    require: Value,
) {
    let devices = json!([{"driver": "mlx5_core"}]);
    let configuration = json!({
        "resources": [{
            "name": resource, "kind": kind, "devices": devices, "require": require, "environment": ["nccl"],
        }],
        "dra": {"driverName": name, "metadata": true},
        "chain": {"confDir": machine.path("net.d"), "plugin": {"resources": [resource]}},
    });
    machine.configure(&configuration.to_string());
}

/// Waits until the daemon's `/readyz` shows that kubelet has (`is_known`) or has not registered `driver`.
#[track_caller]
fn is_known(cluster: &ControlPlane, driver: &str, is_known: bool) {
    let unknown = format!("kubelet has not registered the DRA driver {driver} yet");
    wait::until("the daemon reports the registration", || {
        let answer = ask(cluster, "/readyz");
        // the daemon answers the request
        answer.contains("rdma-cni") && answer.contains(&unknown) != is_known
    });
}

impl Driver {
    /// Starts a daemon with one `resource` of the kind `kind`, and a chain that attaches the devices allocated from
    /// it.
    #[track_caller]
    pub(super) fn new(
        cluster: &mut ControlPlane,
        file: &str,
        (resource, kind, name): (&str, &str, &'static str),
    ) -> Self {
        let machine = Machine::with(&NICS);
        fs::create_dir_all(machine.path("account")).expect("a directory");
        fs::create_dir_all(machine.path("net.d")).expect("a directory");
        machine.write("account/ca.crt", &cluster.ca());
        machine.write("account/token", &token(cluster, file));
        configure(&machine, (resource, kind, name), Value::Null);
        let pods = PodResourcesServer::start(&machine.path("kubelet/pod-resources/kubelet.sock"));
        let devices = DeviceManager::started(&machine.path("kubelet"));
        let daemon = start(cluster, &machine);
        is_known(cluster, name, false);
        let kubelet = ClaimManager::register(&machine.path("kubelet"));
        is_known(cluster, name, true);
        assert_eq!(kubelet.info.name, name);
        let services = ["v1.DRAPlugin", "v1.DRAResourceHealth"];
        assert_eq!(kubelet.info.supported_versions, services);
        daemon.wait_for_log(&format!("kubelet has registered the DRA driver {name}"));
        Self {
            daemon,
            kubelet,
            pods,
            _devices: devices,
            machine,
            name,
        }
    }

    /// Removes the driver's sockets, and waits until the driver has created them again. Then the daemon reports the
    /// driver as not registered until kubelet prepares `claim` by its open connection.
    #[track_caller]
    pub(super) fn sockets_are_made_again(&mut self, cluster: &ControlPlane, claim: &Value) {
        let registry = self.machine.path("kubelet/plugins_registry");
        let own = self.machine.path("kubelet/plugins").join(self.name);
        let sockets = [registry, own].map(|directory| {
            let mut entries = fs::read_dir(directory).expect("a directory");
            entries.next().expect("a socket").expect("an entry").path()
        });
        for socket in &sockets {
            fs::remove_file(socket).expect("removed");
        }
        for socket in &sockets {
            wait::until("it is made again", || socket.exists());
        }
        is_known(cluster, self.name, false);
        assert_eq!(self.kubelet.prepare(claim).error, "");
        is_known(cluster, self.name, true);
        self.kubelet = ClaimManager::register(&self.machine.path("kubelet"));
    }

    /// Kills the daemon (SIGKILL), starts it again, and registers it with a new kubelet.
    #[track_caller]
    pub(super) fn killed(self, cluster: &ControlPlane) -> Self {
        let Self {
            pods,
            _devices,
            machine,
            name,
            ..
        } = self;
        let (status, _) = self.daemon.end(Signal::SIGKILL);
        assert!(!status.success());
        let daemon = start(cluster, &machine);
        let kubelet = ClaimManager::register(&machine.path("kubelet"));
        Self {
            daemon,
            kubelet,
            pods,
            _devices,
            machine,
            name,
        }
    }

    /// Writes another configuration, in which the resource's field for required devices is `require`.
    pub(super) fn configure(&self, resource: &str, kind: &str, require: Value) {
        configure(&self.machine, (resource, kind, self.name), require);
    }

    /// Waits until the daemon does nothing for 500 ms.
    pub(super) fn is_at_rest(&self) {
        wait::until("the daemon sleeps", || {
            let before = self.daemon.sleeps();
            thread::sleep(Duration::from_millis(500));
            self.daemon.sleeps() == before
        });
    }

    /// Writes the daemon's record of an installation, so that the daemon expects `rdma-cni` in the pods' chain.
    pub(super) fn is_chained(&self) {
        let record = json!({"format": 1, "lists": {"10-a.conflist": {"entries": []}}});
        self.machine
            .write("state/install.json", &record.to_string());
    }

    /// Returns the edits that a runtime finds by the CDI names that the driver returned to kubelet. Returns `None`
    /// while a name has no CDI entry.
    pub(super) fn given(&self, prepared: &NodePrepareResourceResponse) -> Option<Vec<Value>> {
        let files = fs::read_dir(self.machine.path("cdi")).expect("a directory");
        let paths = files.map(|it| it.expect("an entry").path());
        let whole = paths.filter(|it| it.extension().is_some_and(|it| it == "json"));
        // the daemon may remove a file at this moment
        let files = whole.filter_map(|it| fs::read(it).ok());
        let mut all = vec![];
        for file in files {
            let specification: Value = serde_json::from_slice(&file).expect("JSON");
            let kind = specification["kind"].as_str().expect("a kind").to_owned();
            for device in specification["devices"].as_array().expect("a list") {
                let name = device["name"].as_str().expect("a name");
                all.push((format!("{kind}={name}"), device["containerEdits"].clone()));
            }
        }
        let names = prepared.devices.iter().flat_map(|it| &it.cdi_device_ids);
        let find = |name: &String| all.iter().find(|(known, _)| known == name);
        names
            .map(|name| find(name).map(|(_, edits)| edits.clone()))
            .collect()
    }

    pub(super) fn record(&self, claim: &Value) -> std::path::PathBuf {
        let uid = claim["metadata"]["uid"].as_str().expect("a uid");
        self.machine.path(&format!("state/claims/{uid}.json"))
    }
}

/// The names of the character devices in a container's edits.
pub(super) fn nodes(edits: &Value) -> Vec<&str> {
    let nodes = edits["deviceNodes"].as_array().expect("a list").iter();
    let paths = nodes.map(|it| it["path"].as_str().expect("a path"));
    paths
        .map(|it| it.trim_start_matches("/dev/infiniband/"))
        .collect()
}

/// The devices of the node's slices: all names, and the names of tainted devices.
pub(super) fn slices(cluster: &ControlPlane) -> (Vec<String>, Vec<String>) {
    integration::slices::devices(&cluster.get("resourceslices"))
}

/// A pod on the node, with further fields `more` of its specification.
pub(super) fn pod(name: &str, limits: Value, more: Value) -> Value {
    let mut container = json!({"name": "main", "image": "example.org/image"});
    container["resources"] = json!({"limits": limits});
    let mut spec = json!({"nodeSelector": {"kubernetes.io/hostname": NODE}});
    for (field, value) in more.as_object().expect("an object") {
        spec[field] = value.clone();
    }
    if spec["resourceClaims"].is_array() {
        container["resources"]["claims"] = json!([{"name": "nic"}]);
    }
    spec["containers"] = json!([container]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The claim of the pod `owner`. Waits until the claim is allocated and reserved for the pod.
#[track_caller]
pub(super) fn claim(cluster: &mut ControlPlane, owner: &str) -> Value {
    let mut found = Value::Null;
    cluster.until(&format!("{owner} has its claim"), |it| {
        let claims = it.get("resourceclaims -n default");
        let is_its = |it: &&Value| it["status"]["reservedFor"][0]["name"] == owner;
        found = claims.iter().find(is_its).cloned().unwrap_or_default();
        !found.is_null()
    });
    found
}

#[track_caller]
pub(super) fn ends(cluster: &mut ControlPlane, pods: &[&str]) {
    let pods = pods.join(" ");
    cluster.kubectl(&format!(
        "-n default delete pod {pods} --force --grace-period=0"
    ));
}

pub(super) fn template(class: &str) -> String {
    let requests = json!([{"name": "nic", "exactly": {"deviceClassName": class}}]);
    let spec = json!({"spec": {"devices": {"requests": requests}}});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": class}, "spec": spec,
    })
    .to_string()
}
