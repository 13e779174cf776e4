// SPDX-License-Identifier: Apache-2.0
//! In the lab, limits of containers of a real runtime, by the hook of their CDI entries:
//! `integration/lab/vm --tier full --shared --memory 4096`, one test at a time. A stand-in acts as kubelet on the
//! daemon's real sockets.

use integration::{
    Netns,
    container_runtime::{Pod, PodSpec, SharedNode, shared::HCA},
    daemon,
    kubelet::{Allocation, AllocationRequest},
    nics,
    plugin::rdma_cni,
    wait,
};
use std::{fs, path::Path, process::Command, time::Duration};

/// Two resources with the same devices. Containers with the first resource may lock a gibibyte; containers with the
/// second resource have the runtime's limit.
const MEMLOCK: &str = r#"{"cdi": true, "chain": {"confDir": "/run/no-networks"}, "resources": [
    {"name": "rdma/hca", "kind": "shared", "count": 8, "memlock": 1073741824},
    {"name": "rdma/plain", "kind": "shared", "count": 8}
]}"#;

/// Registers a gibibyte with the RDMA device, and waits for a client that never connects.
const REGISTER: &str = "ibv_rc_pingpong -g 0 -s 1073741824";

/// Time limit for this registration in an emulated machine.
const TO_REGISTER: Duration = Duration::from_secs(240);

/// A pod of user 1000 with one container that requests one `resource` and runs [`REGISTER`]. The container writes the
/// limit of its locked memory and the program's output to files.
#[track_caller]
fn registering(node: &SharedNode, name: &str, resource: &str) -> Result<Pod, tonic::Status> {
    let rdma = nics::rdma(0);
    let line = format!(
        "ulimit -l >/tmp/limit; id -u >/tmp/user; {REGISTER} -d {rdma} >/tmp/said 2>&1; echo ended >>/tmp/said; sleep 600"
    );
    let spec = PodSpec::new(name).program(&line, 1000);
    with_pingpong(
        node,
        spec,
        &AllocationRequest::new(name, "main", resource, 1),
    )
}

/// Runs a pod with one container that has the requested resources and `ibv_rc_pingpong`.
fn with_pingpong(
    node: &SharedNode,
    spec: PodSpec,
    request: &AllocationRequest,
) -> Result<Pod, tonic::Status> {
    let spec = spec.container("main", &[node.node.allocate(request)]);
    let spec = spec.mount(Path::new("/usr/bin/ibv_rc_pingpong"));
    let ask = |it: &Allocation| node.node.kubelet.before_start(&it.resource, &it.ids);
    node.runtime.run_asking(&spec, ask)
}

/// The output of the pod's program, or `None` if the program still runs.
#[track_caller]
fn ended(pod: &Pod) -> Option<String> {
    let ran = pod.main().try_sh("cat /tmp/user /tmp/limit /tmp/said");
    Some(ran.output).filter(|output| output.ends_with("ended\n"))
}

/// Installs the plugins in the runtime's plugin directory. Does not change the runtime's network.
#[track_caller]
fn install(node: &SharedNode) {
    let line = format!(
        "{} install --without-kubelet --init-container --config {} --cni-bin-dir {} --state-dir {} --from {}",
        daemon::rdma_device_plugin().display(),
        node.node.path("config.json").display(),
        node.node.path("bin").display(),
        node.node.path("state").display(),
        rdma_cni().parent().expect("a directory").display(),
    );
    node.nics.host.run(&line);
}

#[test]
fn a_container_without_root_locks_the_memory_that_its_resource_allows() {
    // systemd's default for units, and therefore for the runtime
    let own = format!("--pid={}", std::process::id());
    let limited = Command::new("prlimit")
        .args([&own, "--memlock=8388608:8388608"])
        .status();
    assert!(limited.expect("prlimit runs").success());
    let node = SharedNode::of(MEMLOCK, 8);
    let early = node
        .node
        .allocate(&AllocationRequest::new("early", "main", HCA, 1));
    let started = node.node.kubelet.before_start(HCA, &early.ids);
    let why = started.expect_err("nothing can raise its limit");
    assert!(why.message().contains("is not installed"), "{why}");
    node.node.free("early");
    install(&node);

    let pod = registering(&node, "pod", HCA).expect("it runs");
    let mut regions = String::new();
    let done = wait::within(TO_REGISTER, || {
        regions = pod.main().run("rdma resource show mr");
        regions.contains("mrlen") || ended(&pod).is_some()
    });
    assert!(done, "not within {TO_REGISTER:?}");
    // the shell reports KiB
    let limit = pod.main().sh("cat /tmp/user /tmp/limit");
    println!("{limit}{regions}");
    assert_eq!(limit, "1000\n1048576\n", "{:?}", ended(&pod));
    assert!(regions.contains("mrlen 1073741824"), "{regions}");

    let plain = registering(&node, "plain", "rdma/plain").expect("it runs");
    let mut output = None;
    wait::within(TO_REGISTER, || {
        output = ended(&plain);
        output.is_some()
    });
    println!("{output:?}");
    let expected = "1000\n8192\nCouldn't register MR\nended\n";
    assert_eq!(output.as_deref(), Some(expected));
    for pod in [pod, plain] {
        node.remove(pod);
    }
}

/// Two resources with the same devices. Containers with the first resource may have four objects of a device;
/// containers with the second resource have no limit.
const LIMITED: &str = r#"{"cdi": true, "chain": {"confDir": "/run/no-networks"}, "resources": [
    {"name": "rdma/hca", "kind": "shared", "count": 8, "limits": {"objects": 4}},
    {"name": "rdma/plain", "kind": "shared", "count": 8}
]}"#;

/// The rdma controller's entry for the pod and the first device in `file`.
#[track_caller]
fn controlled(pod: &Pod, file: &str) -> String {
    let path = pod.cgroup.as_ref().expect("its own").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let rdma = nics::rdma(0);
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(&format!("{rdma} ")));
    let line = line.unwrap_or_else(|| panic!("{rdma}: {text}"));
    line.trim_end().to_owned()
}

/// Removes and adds the RDMA devices, which the kernel's controller regards as a reload of their drivers.
#[track_caller]
fn reload_devices(node: &SharedNode) {
    for (number, rdma) in [0, 1].map(nics::rdma).into_iter().enumerate() {
        let host = &node.nics.host;
        host.run(&format!("rdma link delete {rdma}"));
        let bond = nics::netdev(number);
        host.run(&format!("rdma link add {rdma} type rxe netdev {bond}"));
    }
}

#[test]
fn a_pod_has_as_many_objects_as_its_resource_allows() {
    let node = SharedNode::of(LIMITED, 8);
    install(&node);
    // a file in place of the directory prevents the record of a pod's limits, without which no program could remove
    // them
    let records = node.node.path("state/limited");
    fs::write(&records, "").expect("written");
    let unrecorded = with_pingpong(
        &node,
        PodSpec::new("unrecorded"),
        &AllocationRequest::new("unrecorded", "main", HCA, 1),
    );
    let why = unrecorded.expect_err("it has no record").to_string();
    assert!(
        why.contains("cannot limit the use of RDMA devices"),
        "{why}"
    );
    node.node.free("unrecorded");
    fs::remove_file(&records).expect("removed");

    let rdma = nics::rdma(0);
    // uses the first GID that is not zero
    let gid =
        format!("$(cd /sys/class/infiniband/{rdma}/ports/1/gids; grep -ls '[1-9a-f]' * | head -1)");
    let ping = format!("ibv_rc_pingpong -d {rdma} -g {gid}");
    let [limited, plain] = [("limited", HCA), ("plain", "rdma/plain")].map(|(name, resource)| {
        let request = AllocationRequest::new(name, "main", resource, 1);
        with_pingpong(&node, PodSpec::new(name), &request).expect("it runs")
    });
    let max = [&limited, &plain].map(|pod| controlled(pod, "rdma.max"));
    assert_eq!(max[0], "hca_handle=max hca_object=4");
    assert_eq!(max[1], "hca_handle=max hca_object=max");
    // a protection domain, a region, a completion queue and a queue pair
    let server = format!("{ping} </dev/null >/tmp/said 2>&1 &");
    for pod in [&limited, &plain] {
        pod.main().sh(&server);
        let counted = || controlled(pod, "rdma.current");
        let all = wait::within(TO_REGISTER, || counted() == "hca_handle=1 hca_object=4");
        assert!(all, "{}", counted());
    }
    let ran = limited.main().try_sh(&ping);
    assert_eq!((ran.code, ran.output.trim()), (1, "Couldn't allocate PD"));
    let output = plain.main().sh(&format!("{ping} 127.0.0.1"));
    assert!(output.contains("1000 iters in"), "{output}");

    let metric = |name: &str, pod: &str| {
        let labels = [
            ("device", rdma.as_str()),
            ("pod", pod),
            ("namespace", "default"),
        ];
        node.node.metric(name, &labels)
    };
    for name in ["rdma_pod_objects", "rdma_pod_objects_limit"] {
        assert_eq!(metric(name, "limited"), Some(4.0), "{name}");
        assert_eq!(metric(name, "plain"), None, "{name}");
    }

    // the kernel has no limit for the new device
    for pod in [&limited, &plain] {
        pod.main()
            .sh("killall ibv_rc_pingpong; while pidof ibv_rc_pingpong; do sleep 1; done");
    }
    reload_devices(&node);
    let limits = || controlled(&limited, "rdma.max") == "hca_handle=max hca_object=4";
    assert!(
        wait::within(TO_REGISTER, limits),
        "no limit of the new device"
    );
    for pod in [limited, plain] {
        node.remove(pod);
    }
    assert_eq!(metric("rdma_pod_objects", "limited"), None);
}

#[test]
fn the_kernel_outlives_devices_after_limited_pods_have_ended() {
    let node = SharedNode::of(LIMITED, 8);
    install(&node);
    let started = ["chained", "of-host"].map(|name| {
        let spec = match name {
            // this pod has no DEL
            "of-host" => PodSpec::new(name).host_network(),
            _ => PodSpec::new(name),
        };
        with_pingpong(&node, spec, &AllocationRequest::new(name, "main", HCA, 1)).expect("it runs")
    });
    for pod in &started {
        assert_eq!(controlled(pod, "rdma.max"), "hca_handle=max hca_object=4");
    }
    for pod in started {
        node.remove(pod);
    }
    let left = fs::read_dir(node.node.path("state/limited")).expect("a directory");
    assert_eq!(left.count(), 0);
    // the lab reports warnings of the kernel
    reload_devices(&node);
}

/// A configuration in which the daemon chooses the number of ids, because the chain does not state the addresses of
/// pods.
const UNCOUNTED: &str = r#"{"chain": {"confDir": "/run/no-networks"}, "resources": [
    {"name": "rdma/hca", "kind": "shared"}
]}"#;

/// The number of pods for which soft-RoCE's table of 1024 entries has room. Each type of GID gets half of the table. In
/// this half the host has eight entries, and a pod three.
const FIT: usize = 168;

#[test]
fn as_many_pods_fit_as_there_are_ids() {
    let node = SharedNode::of(UNCOUNTED, FIT);
    let used = || [0, 1].map(|rail| nics::gids(&nics::rdma(rail)));
    let before = used();
    assert!(before.iter().all(|it| *it <= 8), "{before:?} of the host");
    let pods = ["first", "second"].map(|name| node.runtime.pod(&node.pod_with_hca(name)));
    // soft-RoCE has only GIDs of RoCE v2
    let expected = before.map(|it| it + 2 * 3);
    assert_eq!(used(), expected, "a pod takes what the daemon counts");
    for pod in pods {
        node.remove(pod);
    }

    // a netdev stands in for the pods of the other ids: it has as many GIDs of RoCE v2 as these pods would have GIDs of
    // both types
    let others = Netns::new("others");
    let bond = nics::netdev(0);
    node.nics.host.ip(&format!(
        "link add link {bond} name others netns {} type macvlan mode bridge",
        others.name()
    ));
    others.ip("link set dev others up");
    let entries = (FIT - 1) * 3 * 2;
    let lines: String = (1..entries)
        .map(|it| format!("address add fd00:f::{it:x}/128 dev others nodad\n"))
        .collect();
    let batch = tempfile::NamedTempFile::new().expect("a file");
    fs::write(batch.path(), lines).expect("a file");
    others.ip(&format!("-batch {}", batch.path().display()));
    wait::until("the others have GIDs", || used()[0] == before[0] + entries);
    let last = node.runtime.pod(&node.pod_with_hca("last"));
    assert_eq!(used()[0], before[0] + entries + 3);
    node.remove(last);
}
