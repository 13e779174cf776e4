// SPDX-License-Identifier: Apache-2.0
//! In the lab, a node on which only `conf/manifests` install the image:
//! `integration/lab/vm --tier full --shared --memory 4096`, one test at a time. The runtime runs the DaemonSet's pod
//! and calls the chain. A stand-in acts as kubelet on the daemon's real sockets. Run `scripts/image` for the image,
//! and `scripts/versions` for the earlier plugin, before the test.

use cri_api::PodSandbox;
use integration::{
    Snapshot,
    container_runtime::{
        ContainerRuntime, DaemonPod, Engine, InstalledNode, PodSpec,
        installed::{
            Files, LEFT, LIST, NotStarted, PLACES, UNINSTALLED, primary, records, root, write_list,
        },
        manifest::Manifest,
        shared::{HCA, IDS, TO_CLEAN_UP, has_all_rails, links, rping_on_all_rails},
    },
    extent,
    lab::{NICS, REPORT_LIMIT},
    nics, wait,
};
use serde_json::json;
use std::{
    fs::{self, File},
    io::Write,
    process::Command,
    thread,
    time::Duration,
};

/// Imports the image with `rdma-cni` of the earlier version, under a name of its own.
#[track_caller]
fn import_earlier(runtime: &ContainerRuntime) -> &'static str {
    const NAME: &str = "rdma-device-plugin:0.0.9";
    let earlier = integration::earlier_rdma_cni();
    let work = tempfile::tempdir_in("/run").expect("a directory");
    let bin = work.path().join("root/usr/bin");
    fs::create_dir_all(&bin).expect("a directory");
    for program in ["rdma-ipam", "rdma-device-plugin"] {
        fs::copy(root().join("dist").join(program), bin.join(program)).expect("a program");
    }
    // with its debug information, `rdma-cni` would exceed the init container's memory limit
    let mut strip = Command::new("strip");
    done(strip.arg("-o").arg(bin.join("rdma-cni")).arg(earlier));
    let config = work.path().join("config");
    let entry = json!({"Entrypoint": ["/usr/bin/rdma-device-plugin"], "User": "0:0"});
    fs::write(&config, entry.to_string()).expect("a configuration");
    let archive = work.path().join("image.tar");
    let mut made = Command::new(root().join("scripts/oci-archive"));
    made.arg(NAME).arg(config).arg(work.path().join("root"));
    done(made.arg(&archive));
    runtime.import(&archive);
    NAME
}

#[track_caller]
fn done(command: &mut Command) {
    let output = command.output().expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

/// Asserts that the daemon has exactly the capabilities of the manifest, and that they suffice here.
#[track_caller]
fn has_the_rights_of_its_manifest(daemon: &DaemonPod) {
    let (status, runtime) = daemon.process();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    // CAP_NET_BROADCAST and CAP_NET_ADMIN, bits 11 and 12
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(field(set), "0000000000001800", "{set} {status}");
    }
    assert_eq!(field("NoNewPrivs:"), "1", "{status}");
    assert_eq!(field("Seccomp:"), "2", "a filter: {status}");
    assert_eq!(field("Uid:"), "0\t0\t0\t0");
    assert_eq!(runtime["root"]["readonly"], true, "{runtime:#}");
    let limit = &runtime["linux"]["resources"]["memory"]["limit"];
    assert_eq!(*limit, 64 << 20, "{runtime:#}");
    let log = daemon.output();
    for words in ["does not exist (or is not mounted)", "cannot be written: "] {
        assert!(!log.contains(words), "{log}");
    }
    // the daemon misses only a right for exclusive mode
    let missing: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("is missing: "))
        .collect();
    assert!(
        matches!(missing.as_slice(), [one] if one.contains("CAP_SYS_ADMIN")),
        "{missing:?}"
    );
}

/// Both NICs lose their carrier, and get it back.
#[track_caller]
fn health_is_reported_at_once(node: &InstalledNode) {
    for (state, healthy) in [("down", 0), ("up", IDS)] {
        for (rail, nic) in NICS.into_iter().enumerate() {
            node.nics.host.ip(&format!("link set dev {nic} {state}"));
            let carrier = format!("/sys/class/net/{}/carrier", nics::netdev(rail));
            wait::until("the bond's carrier follows", || {
                fs::read_to_string(&carrier).is_ok_and(|it| (it.trim() == "1") == (healthy > 0))
            });
        }
        let is_reported = node.kubelet.within(REPORT_LIMIT, HCA, |it| {
            it.is_some_and(|it| it.healthy().len() == healthy)
        });
        assert!(is_reported, "{state}: not reported within {REPORT_LIMIT:?}");
    }
}

/// The manifest: unchanged on containerd, with the changes of docs/node.md on CRI-O.
fn manifest(node: &InstalledNode) -> Manifest {
    let manifest = Manifest::read("conf/manifests/lingjun.yaml");
    match node.runtime.engine() {
        Engine::Crio => manifest.with_chain("runtime", "crio"),
        Engine::Containerd | Engine::Containerd2 => manifest,
    }
}

#[test]
fn a_node_is_installed_by_the_manifest_upgraded_and_left_as_it_was() {
    let node = InstalledNode::new();
    let earlier = import_earlier(&node.runtime);
    if node.runtime.engine() == Engine::Crio {
        // CRI-O calls CHECK. With the earlier rdma-cni the bridge's CHECK fails, because the result contains the
        // rails' addresses
        let list = primary("pods");
        write_list(&list.replacen('{', "{\n  \"disableCheck\": true,", 1));
    }
    let before = Files::below(&PLACES);
    // the first pod creates the bridge, which remains
    node.runtime.pod(&PodSpec::new("first")).remove();
    let network = Snapshot::of(&node.nics.host);
    let manifest = manifest(&node);

    let (daemon, log) = node.daemon(&manifest.with_our_image(earlier), "earlier");
    assert!(
        log.contains("the runtime calls rdma-cni for network pods"),
        "{log}"
    );
    let mut liveness = (false, String::new());
    // like kubelet, the test repeats a failed liveness probe
    wait::within(wait::TIMEOUT, || {
        liveness = daemon.lives();
        liveness.0
    });
    assert!(liveness.0, "{}", liveness.1);
    node.kubelet
        .wait_for(HCA, "its ids", |it| it.healthy().len() == IDS);
    has_the_rights_of_its_manifest(&daemon);

    let server = node.pod("server");
    has_all_rails(&server);
    let (pod, record) = (Snapshot::of(&server.netns()), records());
    assert_eq!(record.len(), 1);

    // this version replaces the earlier version while the pod runs
    daemon.remove();
    let (daemon, log) = node.daemon(&manifest, "later");
    let replaced = "\"/opt/cni/bin/rdma-cni\": replaced by this version";
    assert!(log.contains(replaced), "{log}");
    let installed = fs::read("/opt/cni/bin/rdma-cni").expect("installed");
    let built = fs::read(root().join("dist/rdma-cni")).expect("built");
    assert!(installed == built, "it is another rdma-cni");
    has_the_rights_of_its_manifest(&daemon);
    node.kubelet
        .wait_for(HCA, "its ids", |it| it.healthy().len() == IDS);
    pod.assert_restored(&server.netns());
    assert_eq!(records(), record);
    let client = node.pod("client");
    has_all_rails(&client);
    rping_on_all_rails([&server, &client]);
    health_is_reported_at_once(&node);

    // uninstall waits while pods have devices
    daemon.remove();
    let uninstall = Manifest::read("conf/manifests/uninstall.yaml");
    let (uninstall, _) = node.daemon_pod(&uninstall, "uninstall");
    let waits = uninstall.wait_for_log("trying again every");
    waits.expect("it waits below running pods");
    let why = uninstall.output();
    for pod in ["default/server", "default/client"] {
        assert!(why.contains(pod), "{why}");
    }
    has_all_rails(&server);
    node.remove(server);
    node.remove(client);
    assert!(records().is_empty());
    let done = uninstall.wait_for_log(UNINSTALLED);
    done.expect("no pod has devices any more");
    uninstall.remove();
    Files::below(&PLACES).assert_as(&before, &LEFT);
    network.assert_restored(&node.nics.host);
}

/// Counts for a test in which the network rewrites its list while pods start: the number of writes, the number of
/// bursts of writes, and the smallest number of pods.
struct Rewriting {
    rewrites: usize,
    bursts: usize,
    pods: usize,
}

const USUAL: Rewriting = Rewriting {
    rewrites: 20,
    bursts: 4,
    pods: 5,
};

const FULL: Rewriting = Rewriting {
    rewrites: 200,
    bursts: 10,
    pods: 10,
};

/// The time between two writes of a burst, and the time after a burst. A network's program writes several times when
/// it restarts.
const AT_ONCE: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_secs(4);

/// Rewrites the list in one of the ways of network programs. Half of the writes rename a new file, which no reader
/// sees partly written.
#[track_caller]
fn write_anew(round: usize) {
    let text = primary("pods");
    let in_pieces = |truncate: bool| {
        let mut options = File::options();
        options.write(true).create(true).truncate(truncate);
        let mut file = options.open(LIST).expect("the list");
        let (first, second) = text.as_bytes().split_at(text.len() / 2);
        file.write_all(first).expect("the list");
        thread::sleep(Duration::from_millis(5));
        file.write_all(second).expect("the list");
        file.set_len(text.len() as u64).expect("the list");
    };
    match round % 4 {
        0 | 1 => write_list(&text),
        2 => in_pieces(true),
        _ => in_pieces(false),
    }
}

#[test]
fn no_pod_starts_without_its_rails_while_its_network_writes_its_list_anew() {
    let node = InstalledNode::new();
    let manifest = manifest(&node);
    let (daemon, _) = node.daemon(&manifest, "daemon");
    node.kubelet
        .wait_for(HCA, "its ids", |it| it.healthy().len() == IDS);
    // the first pod creates the bridge, which remains
    node.remove(node.pod("first"));
    let network = Snapshot::of(&node.nics.host);

    let Rewriting {
        rewrites,
        bursts,
        pods,
    } = extent::of(USUAL, FULL);
    let (mut started, mut refused, mut failed) = (vec![], vec![], vec![]);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..rewrites {
                write_anew(round);
                let is_last = (round + 1) % (rewrites / bursts) == 0;
                thread::sleep(if is_last { QUIET } else { AT_ONCE });
            }
        });
        for number in 0.. {
            if number >= pods && writer.is_finished() {
                break;
            }
            match node.run(&format!("pod-{number}")) {
                Ok(pod) => started.push(pod),
                Err(NotStarted::Refused(why)) => refused.push(why),
                Err(NotStarted::Failed(why)) => failed.push(why),
            }
        }
    });
    println!(
        "{} started, {} refused, {} failed: {failed:?}",
        started.len(),
        refused.len(),
        failed.len()
    );
    let without: Vec<&str> = started
        .iter()
        .filter(|pod| links(&pod.netns()) != ["lo", "eth0", "rdma0", "rdma1"])
        .map(|pod| pod.name.as_str())
        .collect();
    assert!(
        without.is_empty(),
        "{without:?} started without rails and without a report, of {} pods",
        started.len()
    );
    // most pods start between two writes; a program that refuses all pods must not pass
    assert!(started.len() >= pods / 3, "{refused:?} {failed:?}");

    // afterwards pods start as before
    wait::until("the runtime calls rdma-cni", || daemon.ready().0);
    let last = node.pod("last");
    has_all_rails(&last);
    node.remove(last);
    started.into_iter().for_each(|pod| node.remove(pod));
    // while a list was partly written, the runtime could not end a refused pod: kubelet tries again
    let of_ours = |it: &PodSandbox| {
        let metadata = it.metadata.as_ref();
        metadata.is_some_and(|it| it.name.starts_with("pod-"))
    };
    let ended = wait::within(TO_CLEAN_UP, || node.runtime.cri().remove_all(of_ours));
    assert!(ended, "pods that were refused are there yet");
    assert!(records().is_empty(), "{:?}", records());
    network.assert_restored(&node.nics.host);
}
