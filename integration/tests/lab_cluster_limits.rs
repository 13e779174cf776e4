// SPDX-License-Identifier: Apache-2.0
//! In the lab, limits of pods on a real cluster of one node: `scripts/test --full lab cluster-limits`, and
//! `cluster-limits-systemd`, where systemd makes the cgroups of kubelet and runtime. Control plane, kubelet, container
//! runtime, the daemon's image, the kernel's controller and systemd are real. The RDMA devices are those of rxe.

use integration::{
    Cluster,
    cluster::claims::{DAEMONS, PODS, end, kill_daemon},
    container_runtime::{
        Pod, TOOLS,
        installed::{STATE, root},
        shared::HCA,
    },
    control_plane::nodes::NODE,
    kubelet::node::metric,
    lab::has_systemd,
    nics,
    real_kubelet::{get, registrations},
    wait,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const MANIFEST: &str = "integration/manifests/rendered/limits.yaml";
const PINGPONG: &str = "/usr/bin/ibv_rc_pingpong";
const CGROUPS: &str = "/sys/fs/cgroup";

/// The limits of a pod in the manifest.
const LIMITED: &str = "hca_handle=max hca_object=11";

/// Limit for a program in an emulated machine.
const TO_RUN: Duration = Duration::from_secs(240);

/// A pod whose container runs a line of shell as this user. The container has the requested resources and
/// `ibv_rc_pingpong`.
fn pod(name: &str, line: &str, user: u32, limits: &Value) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sh", "-c", line], "resources": {"limits": limits},
        "volumeMounts": [{"name": "pingpong", "mountPath": PINGPONG, "readOnly": true}],
    });
    let volume = json!({"name": "pingpong", "hostPath": {"path": PINGPONG, "type": "File"}});
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [volume],
        "securityContext": {"runAsUser": user},
    });
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Returns the pod's cgroup. Asserts that the cgroup drivers of kubelet and runtime chose the names in its path.
#[track_caller]
fn cgroup_of(cluster: &Cluster, pod: &Pod) -> PathBuf {
    let id = &pod.main().id;
    let status = cluster.runtime.cri().container(id).expect("it is known");
    let path = format!("/proc/{}/cgroup", status["pid"]);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let cgroup = text.trim().strip_prefix("0::/").expect("version 2");
    let pod_object = cluster.get(&format!("{PODS}/{}", pod.name));
    let uid = pod_object["metadata"]["uid"].as_str().expect("an id");
    let (above, container) = if has_systemd() {
        let slice = format!("kubepods-besteffort-pod{}.slice", uid.replace('-', "_"));
        let above = format!("kubepods.slice/kubepods-besteffort.slice/{slice}");
        (above, format!("cri-containerd-{id}.scope"))
    } else {
        (format!("kubepods/besteffort/pod{uid}"), id.clone())
    };
    assert_eq!(cgroup, format!("{above}/{container}"));
    Path::new(CGROUPS).join(above)
}

/// The controller's entry for a rail's device in `file` of the cgroup. Returns `None` if the file or the device does
/// not exist.
fn controlled(cgroup: &Path, file: &str, rail: usize) -> Option<String> {
    let text = fs::read_to_string(cgroup.join(file)).ok()?;
    let start = format!("{} ", nics::rdma(rail));
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.trim_end().to_owned())
}

#[track_caller]
fn is_limited(cgroup: &Path, when: &str) {
    for rail in [0, 1] {
        let limits = controlled(cgroup, "rdma.max", rail);
        assert_eq!(limits.as_deref(), Some(LIMITED), "{when}: {cgroup:?}");
    }
}

/// The command `ibv_rc_pingpong` on a rail, with a TCP port and the first GID that is not zero.
fn pingpong(rail: usize, port: u16) -> String {
    let rdma = nics::rdma(rail);
    format!(
        "ibv_rc_pingpong -d {rdma} -p {port} \
         -g $(cd /sys/class/infiniband/{rdma}/ports/1/gids; grep -ls '[1-9a-f]' * | head -1)"
    )
}

/// Starts a server in the pod, and waits until the controller counts `objects` objects in the cgroup. A server has a
/// protection domain, a region, a completion queue and a queue pair.
#[track_caller]
fn serve(pod: &Pod, cgroup: &Path, rail: usize, port: u16, objects: usize) {
    pod.main().sh(&format!(
        "{} </dev/null >/tmp/said.{port} 2>&1 &",
        pingpong(rail, port)
    ));
    let now = || controlled(cgroup, "rdma.current", rail).unwrap_or_default();
    let counted = wait::within(TO_RUN, || now().ends_with(&format!("hca_object={objects}")));
    assert!(counted, "{objects} on rail {rail}: {}", now());
}

/// Asserts that the kernel refuses the next queue pair of the limited pod.
#[track_caller]
fn is_refused_a_queue_pair(pod: &Pod) {
    let ran = pod.main().try_sh(&pingpong(0, 4));
    assert_eq!((ran.code, ran.output.trim()), (1, "Couldn't create QP"));
}

/// The daemon's metric for the pod and the device of the first rail.
fn metric_of(name: &str, pod: &str) -> Option<f64> {
    let page = get("127.0.0.1:9102", "/metrics").unwrap_or_default();
    let device = nics::rdma(0);
    let labels = [
        ("device", device.as_str()),
        ("pod", pod),
        ("namespace", "default"),
    ];
    metric(&page, name, &labels)
}

/// A pod of user 1000 registers a gibibyte.
fn locks_memory_without_root(cluster: &mut Cluster) {
    let register = format!(
        "ulimit -l >/tmp/limit; id -u >>/tmp/limit; ibv_rc_pingpong -d {} -g 0 -s 1073741824 >/tmp/said 2>&1; sleep 1000",
        nics::rdma(0)
    );
    cluster.make(PODS, &pod("locks", &register, 1000, &json!({HCA: 1})));
    let unlimited = "ulimit -l >/tmp/limit; sleep 1000";
    cluster.make(PODS, &pod("plain", unlimited, 1000, &json!({})));
    let [locks, plain] = ["locks", "plain"].map(|name| cluster.pod(name));
    let limit = locks.main().sh("cat /tmp/limit");
    assert_eq!(limit, "unlimited\n1000\n");
    // systemd's default limit of 8 MiB, in KiB
    assert_eq!(plain.main().sh("cat /tmp/limit"), "8192\n");
    let mut regions = String::new();
    let done = wait::within(TO_RUN, || {
        regions = locks.main().run("rdma resource show mr");
        regions.contains("mrlen 1073741824")
    });
    assert!(done, "{regions}: {}", locks.main().sh("cat /tmp/said"));
    cluster.report("a pod without root has registered a gibibyte");
    end(cluster, &["locks", "plain"]);
}

/// Kubelet restarts, and another pod's cgroup is created.
fn outlives_kubelet(cluster: &mut Cluster, limited: &Path) {
    cluster.kubelet.go(Signal::SIGTERM);
    cluster.kubelet.come();
    cluster.until("the daemon has registered", |_| registrations(HCA) > 0);
    comes(cluster, "after-kubelet", limited);
}

/// The daemon is killed, and kubelet restarts it.
fn outlives_the_daemon(cluster: &mut Cluster, limited: &Path) {
    kill_daemon(cluster);
    cluster.until("it counts the pod's objects", |_| {
        metric_of("rdma_pod_objects", "full") == Some(8.0)
    });
    comes(cluster, "after-the-daemon", limited);
}

/// A pod starts, gets its limits and ends; the first pod keeps its own limits.
#[track_caller]
fn comes(cluster: &mut Cluster, name: &str, limited: &Path) {
    cluster.make(PODS, &pod(name, "sleep 1000", 0, &json!({HCA: 1})));
    let next = cluster.pod(name);
    is_limited(&cgroup_of(cluster, &next), name);
    is_limited(limited, name);
    end(cluster, &[name]);
    cluster.report(&format!("{name}: the limits are there"));
}

/// systemd reloads its units, executes itself again, and enables other controllers for a unit in a slice of the pods.
/// systemd does not disable the rdma controller, which it does not support (observed with systemd 252).
fn outlives_systemd(cluster: &mut Cluster, limited: &Path) {
    let version = cluster.types("systemctl --version | head -1");
    let unit =
        "systemd-run --unit=beside -p DefaultDependencies=no -p AllowedCPUs=0 -p MemoryMax=64M";
    for line in [
        "systemctl daemon-reload",
        "systemctl daemon-reexec",
        &format!("{unit} --slice=kubepods-besteffort.slice sleep 1000"),
        "systemctl set-property --runtime kubepods.slice CPUWeight=200",
        "systemctl stop beside",
        "systemctl daemon-reload",
    ] {
        cluster.types(line);
        is_limited(limited, line);
    }
    comes(cluster, "after-systemd", limited);
    cluster.report(&format!("{} took no limit away", version.trim()));
}

/// Disables the rdma controller for all cgroups below `cgroup`.
#[track_caller]
fn take_the_controller(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).expect("a cgroup").flatten() {
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            take_the_controller(&entry.path());
        }
    }
    let path = cgroup.join("cgroup.subtree_control");
    let has = fs::read_to_string(&path).expect("a cgroup's");
    if has.split_whitespace().any(|it| it == "rdma") {
        fs::write(&path, "-rdma").unwrap_or_else(|error| panic!("{path:?}: {error}"));
    }
}

/// Disables the controller for the pod. The daemon enables it again and restores the limits of both devices. The pod
/// uses both devices meanwhile: limits of an unused device would outlast the controller, and could crash the kernel
/// when the test removes the device (`cni/rdma-resources/src/limited.rs`).
fn gets_the_controller_again(cluster: &mut Cluster, limited: &Path) {
    take_the_controller(limited.parent().expect("the pods'"));
    let at = Instant::now();
    let is_back = || controlled(limited, "rdma.max", 1).as_deref() == Some(LIMITED);
    assert!(wait::within(TO_RUN, is_back), "no limit");
    let took = at.elapsed();
    is_limited(limited, "taken");
    // the new controller's counter starts at zero
    let current = controlled(limited, "rdma.current", 0);
    assert_eq!(current.as_deref(), Some("hca_handle=0 hca_object=0"));
    let log = cluster.types(
        "kubectl -n kube-system logs --tail=-1 -l app.kubernetes.io/name=rdma-device-plugin",
    );
    assert!(
        log.contains("disabled the controller rdma for the pod"),
        "{log}"
    );
    cluster.report(&format!(
        "the controller was taken, and back after {took:?}"
    ));
}

/// Asserts that neither the cgroup nor a cgroup below it has a limit.
fn none_is_limited(cgroup: &Path) {
    let text = fs::read_to_string(cgroup.join("rdma.max")).unwrap_or_default();
    let lines = || text.lines().flat_map(str::split_whitespace);
    let mut values = lines().filter_map(|it| it.split_once('='));
    assert!(values.all(|(_, it)| it == "max"), "{cgroup:?}: {text}");
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            none_is_limited(&entry.path());
        }
    }
}

#[test]
fn limits_of_pods_outlast_the_nodes_programs_and_end_with_the_pods() {
    // systemd's default for units, and therefore for the runtime
    let own = format!("--pid={}", std::process::id());
    let lowered = Command::new("prlimit")
        .args([&own, "--memlock=8388608:8388608"])
        .status();
    assert!(lowered.expect("prlimit runs").success());
    let mut cluster = Cluster::new();
    cluster.types(&format!(
        "kubectl label node {NODE} aliyun.accelerator/rdma=true"
    ));
    let manifest = root().join(MANIFEST);
    cluster.types(&format!("kubectl apply -f {}", manifest.display()));
    cluster.until("the node has ids", Cluster::has_ids);
    locks_memory_without_root(&mut cluster);

    for name in ["full", "beside"] {
        cluster.make(PODS, &pod(name, "sleep 1000000", 0, &json!({HCA: 1})));
    }
    let [full, beside] = ["full", "beside"].map(|name| cluster.pod(name));
    let [limited, other] = [&full, &beside].map(|pod| cgroup_of(&cluster, pod));
    for cgroup in [&limited, &other] {
        is_limited(cgroup, "at its start");
    }
    serve(&full, &limited, 0, 1, 4);
    serve(&full, &limited, 0, 2, 8);
    serve(&full, &limited, 1, 3, 4);
    is_refused_a_queue_pair(&full);
    serve(&beside, &other, 0, 1, 4);
    let output = beside.main().sh(&format!("{} 127.0.0.1", pingpong(0, 1)));
    assert!(output.contains("1000 iters in"), "{output}");
    assert_eq!(metric_of("rdma_pod_objects", "full"), Some(8.0));
    assert_eq!(metric_of("rdma_pod_objects_limit", "full"), Some(11.0));
    cluster.report("a pod is at its limit, and another one goes on");
    end(&mut cluster, &["beside"]);

    outlives_kubelet(&mut cluster, &limited);
    outlives_the_daemon(&mut cluster, &limited);
    if has_systemd() {
        outlives_systemd(&mut cluster, &limited);
    }
    is_refused_a_queue_pair(&full);
    gets_the_controller_again(&mut cluster, &limited);

    end(&mut cluster, &["full"]);
    cluster.until("its cgroup is gone", |_| !limited.exists());
    let records = fs::read_dir(Path::new(STATE).join("limited"));
    assert_eq!(records.expect("a directory").count(), 0);
    none_is_limited(Path::new(CGROUPS));
    let page = get("127.0.0.1:9102", "/metrics").expect("the daemon answers");
    for name in ["rdma_pod_objects", "rdma_pod_limits_left"] {
        assert_eq!(metric(&page, name, &[]), None, "{name}");
    }
    cluster.types(&format!("kubectl delete -f {}", manifest.display()));
    cluster.until("the daemon is gone", |it| it.list(DAEMONS).is_empty());
    // removes the RDMA devices; the lab then reports warnings of the kernel
    drop(cluster);
}
