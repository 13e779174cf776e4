// SPDX-License-Identifier: Apache-2.0
//! Tests that run the manifests' containers from the image on a made-up node, with exactly their mounts and
//! capabilities. bubblewrap stands in for the runtime, without a runtime's cgroups and seccomp.

use crate::{
    chain::{UNINSTALL, installer, uninstall},
    cluster::{Cluster, cluster},
    paths::{OF_POD, mounts},
    root,
};
use integration::{Daemon, Netns, oci::Archive, wait};
use k8s_openapi::api::core::v1::Container;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::PathBuf,
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

const LIST: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    { "type": "ptp", "ipam": { "type": "host-local", "subnet": "10.9.0.0/16" } }
  ]
}
"#;

const BIN_DIR: &str = "/opt/cni/bin";

const RECORD: &str = "/var/lib/cni/rdma-cni/attachments/pods/c1@eth0.json";

/// A node's directories and network namespace, with the image.
struct Node {
    directory: TempDir,
    netns: Netns,
    /// Namespaces of pods, each with its path on the node.
    pods: Vec<(PathBuf, PathBuf)>,
}

impl Node {
    fn new(label: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let node = Self {
            directory,
            netns: Netns::new(label),
            pods: vec![],
        };
        node.netns.ip("link set lo up");
        node.unpack_image();
        fs::create_dir_all(node.list().parent().expect("a directory")).expect("made");
        fs::write(node.list(), LIST).expect("written");
        fs::create_dir_all(node.path(BIN_DIR)).expect("made");
        for program in ["ptp", "host-local"] {
            let path = node.path(BIN_DIR).join(program);
            fs::write(&path, "the network's").expect("written");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        let socket = node.path("/var/lib/kubelet/pod-resources/kubelet.sock");
        fs::create_dir_all(socket.parent().expect("a directory")).expect("made");
        UnixListener::bind(socket).expect("a socket");
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory
            .path()
            .join("node")
            .join(path.trim_start_matches('/'))
    }

    fn list(&self) -> PathBuf {
        self.path("/etc/cni/net.d/10-pods.conflist")
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn unpack_image(&self) {
        let archive = self.directory.path().join("image.oci.tar");
        let dist = root().join("dist");
        let built = dist.join("rdma-device-plugin").exists();
        assert!(
            built,
            "there is nothing in {dist:?}: run scripts/build first"
        );
        let dist = dist.canonicalize().expect("a path");
        let mut image = Command::new(root().join("scripts/image"));
        image.args(["--arch", "amd64", "--binaries"]).arg(dist);
        done(image.arg("--output").arg(&archive));
        let archive = Archive::open(&archive);
        let image = archive.image("amd64");
        assert_eq!(image.layers().len(), 1);
        image.unpack(&self.image());
    }

    /// Returns the command that a runtime would run for `container`.
    fn command(&self, cluster: &Cluster, container: &Container) -> Command {
        let mut command = self.netns.command("bwrap");
        command.args(["--die-with-parent", "--clearenv", "--tmpfs", "/"]);
        command
            .arg("--ro-bind")
            .arg(self.image().join("usr"))
            .arg("/usr");
        command.args([
            "--proc",
            "/proc",
            "--ro-bind",
            "/sys",
            "/sys",
            "--dev",
            "/dev",
        ]);
        for (at, (from, read_only)) in mounts(cluster, container) {
            let from = match from.strip_prefix("configMap ") {
                None if from == OF_POD => self.directory.path().join("of-pod"),
                Some(name) => {
                    let file = self.path(name).join("config.json");
                    fs::create_dir_all(self.path(name)).expect("made");
                    fs::write(file, cluster.config()).expect("written");
                    self.path(name)
                }
                None => self.path(&from),
            };
            fs::create_dir_all(&from).expect("made");
            command.arg(if read_only { "--ro-bind" } else { "--bind" });
            command.arg(from).arg(at);
        }
        for (from, at) in &self.pods {
            command.arg("--bind").arg(from).arg(at);
        }
        command.args(["--remount-ro", "/", "--cap-drop", "ALL"]);
        let context = container
            .security_context
            .as_ref()
            .expect("a security context");
        let capabilities = context.capabilities.as_ref().expect("capabilities");
        for name in capabilities.add.iter().flatten() {
            command.args(["--cap-add", &format!("CAP_{name}")]);
        }
        command.args(["--", "/usr/bin/rdma-device-plugin"]);
        command.args(container.args.iter().flatten());
        command
    }

    /// Starts a pod that has a device by `rdma-cni`. Its namespace has the path that containerd and CRI-O use.
    fn start_pod(&mut self, pod: &Netns, rdma_mode: &str) {
        let file = "/run/netns/cni-1";
        fs::create_dir_all(self.path("/run/netns")).expect("made");
        fs::write(self.path(file), "").expect("a place");
        self.pods = vec![(pod.path().to_owned(), file.into())];
        let id = rdma_netns::netns::Netns::open(pod.path())
            .expect("a namespace")
            .id();
        let record = serde_json::json!({
            "format": 8, "phase": "attached", "pod": "team/train-0", "bootId": boot_id(),
            "key": {"network": "pods", "container": "c1", "interface": "eth0"},
            "netns": "/var/run/netns/cni-1", "netnsId": id, "rdmaMode": rdma_mode,
            "dad": "off", "acceptRa": false, "config": {},
            "rails": [{"podName": "rdma0", "home": {
                "name": "eth1", "index": 2, "mac": "02:00:00:00:00:02", "mtu": 1500, "up": true,
                "parent": "0000:3b:00.2",
            }}],
        });
        let records = self.path("/var/lib/cni/rdma-cni/attachments/pods");
        fs::create_dir_all(&records).expect("made");
        fs::write(records.join("c1@eth0.json"), record.to_string()).expect("written");
    }

    /// Writes the record of a pod that ended without `rdma-cni`.
    fn pod_ended_with(&self, name: &str) {
        let case = root().join("cni/rdma-cni/tests/plans/cases/detach-from-pod.json");
        let mut record = cases::read(&case)["record"].take();
        record["bootId"] = boot_id().into();
        record["key"] =
            serde_json::json!({"network": "pods", "container": "c1", "interface": "eth0"});
        record["pod"] = name.into();
        record["netns"] = "/var/run/netns/cni-1".into();
        let path = self.path(RECORD);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, record.to_string()).expect("written");
    }

    /// Checks that the container does its work, and does not end by itself.
    fn stays(&self, cluster: &Cluster) {
        let mut command = self.command(cluster, cluster.daemon());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut lines = output.lines().map_while(Result::ok);
        let done = lines.any(|line| line.contains("waiting for SIGTERM"));
        assert!(done, "it ended: {:?}", child.wait());
        assert_eq!(child.try_wait().expect("a status"), None);
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    fn run(&self, cluster: &Cluster, container: &Container) -> String {
        done(&mut self.command(cluster, container))
    }

    fn get(&self, path: &str) -> String {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/9102 && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let output = self.netns.command("bash").args(["-c", &script]).output();
        String::from_utf8(output.expect("bash").stdout).expect("UTF-8")
    }
}

/// Returns `container` with the command of its readiness probe.
fn probe(container: &Container) -> Container {
    let probe = container.readiness_probe.as_ref();
    let command = probe.and_then(|it| it.exec.as_ref()?.command.clone());
    let mut command = command.expect("a command").into_iter();
    assert_eq!(
        command.next().as_deref(),
        Some("/usr/bin/rdma-device-plugin")
    );
    Container {
        args: Some(command.collect()),
        ..container.clone()
    }
}

fn boot_id() -> String {
    rdma_netns::Kernel::boot_id(&rdma_netns::Linux::new()).expect("a boot")
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("run");
    let [output, error] = [&stdout, &stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(status.success(), "{command:?}: {output}{error}");
    output
}

/// Returns the number of reports of the daemon about a missing capability or mount.
fn missing(daemon: &Daemon) -> usize {
    let words = [
        "is missing: ",
        "does not exist (or is not mounted)",
        "cannot be written: ",
    ];
    words.iter().map(|words| daemon.count(words)).sum()
}

#[test]
fn a_node_is_installed_kept_and_left_as_it_was() {
    let node = Node::new("manifest-vf");
    let vf = cluster("conf/manifests/vf.yaml");
    let printed = node.run(&vf, installer(&vf).expect("an installer").0);
    assert!(
        printed.contains("the runtime calls rdma-cni for network pods"),
        "{printed}"
    );
    let chained = fs::read_to_string(node.list()).expect("the list");
    assert!(chained.contains("\"rdma-cni\""), "{chained}");
    assert!(node.path(BIN_DIR).join("rdma-ipam").exists());

    let daemon = Daemon::start(&mut node.command(&vf, vf.daemon()));
    daemon.wait_for_log("the daemon keeps rdma-cni in the CNI list");
    daemon.wait_for_log("the runtime calls rdma-cni for network pods");
    // this capability is opt-in, for counters of devices inside pods
    daemon.wait_for_log("CAP_SYS_ADMIN is missing");
    assert_eq!(missing(&daemon), 1);
    for path in ["/healthz", "/readyz"] {
        wait::until(path, || node.get(path).starts_with("HTTP/1.0 200"));
    }
    // the network program writes its list when it starts
    fs::write(node.list(), LIST).expect("written");
    let again = || fs::read_to_string(node.list()).is_ok_and(|list| list == chained);
    assert!(wait::within(wait::TIMEOUT, again), "it is not put in again");
    drop(daemon);

    node.pod_ended_with("team/train-0");
    let uninstall = uninstall(UNINSTALL[0]);
    let check = |is_done: bool| {
        let mut check = node.command(&uninstall, &probe(uninstall.daemon()));
        let output = check.output().expect("run");
        assert_eq!(output.status.success(), is_done, "{output:?}");
    };
    check(false);
    let mut command = node.command(&uninstall, uninstall.daemon());
    let mut waiting = command.stderr(Stdio::piped()).spawn().expect("started");
    let errors = BufReader::new(waiting.stderr.take().expect("its errors"));
    let mut errors = errors.lines().map_while(Result::ok);
    let error = errors.next().expect("a sentence");
    assert_eq!(waiting.try_wait().expect("a status"), None);
    waiting.kill().expect("killed");
    waiting.wait().expect("ended");
    // the ended pod does not count as alive
    assert!(
        error.contains("these pods ended without a DEL of rdma-cni"),
        "{error}"
    );
    assert!(
        error.contains("team/train-0: the devices can only be restored on the node itself"),
        "{error}"
    );
    // the ADD of a later pod has restored the devices, and removed the record
    fs::remove_file(node.path(RECORD)).expect("removed");
    node.stays(&uninstall);
    assert_eq!(fs::read_to_string(node.list()).expect("the list"), LIST);
    let left = fs::read_dir(node.path(BIN_DIR)).expect("binaries");
    assert_eq!(left.count(), 2, "the network's");
    check(true);
}

#[test]
fn a_node_whose_pods_share_needs_less() {
    let node = Node::new("manifest-hca");
    let hca = cluster("conf/manifests/hca.yaml");
    let daemon = Daemon::start(&mut node.command(&hca, hca.daemon()));
    daemon.wait_for_log("nothing is advertised on this node; waiting for RDMA devices");
    // only the capability for exclusive mode is missing
    daemon.wait_for_log("CAP_SYS_ADMIN is missing");
    assert_eq!(missing(&daemon), 1);
    wait::until("it is ready", || {
        node.get("/readyz")
            .contains("its configuration has no chain")
    });
    assert_eq!(fs::read_to_string(node.list()).expect("the list"), LIST);
}

/// The image has no `/var/run`. With CDI, `/var/run` in the container is not the node's.
#[test]
fn the_daemon_finds_pods_where_the_runtime_puts_them() {
    let mut node = Node::new("manifest-pods");
    for (file, rdma_mode) in [
        ("conf/manifests/vf.yaml", "exclusive"),
        ("conf/manifests/lingjun.yaml", "shared"),
    ] {
        node.netns = Netns::new("manifest-pods");
        let pod = Netns::new("manifest-pod");
        node.start_pod(&pod, rdma_mode);
        let manifest = cluster(file);
        let daemon = Daemon::start(&mut node.command(&manifest, manifest.daemon()));
        // the daemon makes the kernel number the namespaces whose events it receives
        let listens = || !node.netns.ip("netns list-id").is_empty();
        assert!(
            wait::within(wait::TIMEOUT, listens),
            "{file}: the pod is not found"
        );
        daemon.wait_for_log("waiting for RDMA devices");
        assert_eq!(
            daemon.count("the last health of the devices in pod"),
            0,
            "{file}"
        );
    }
}
