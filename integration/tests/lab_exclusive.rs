// SPDX-License-Identifier: Apache-2.0
//! In the lab, RDMA devices that belong to one namespace:
//! `integration/lab/vm --tier full --exclusive`, one test at a time.

use integration::{
    Attachment, Conflist, Netns, Snapshot,
    daemon::doctor,
    killed::{Around, Restorer, Sweep},
    lab::{self, Function, Lab, ipv4, ipv6},
    plugin, traffic,
    traffic::End,
};
use serde_json::json;
use std::{sync::Barrier, thread};

/// Two pods with two rails each, on NICs of different NUMA nodes.
struct TwoPods {
    lab: Lab,
    pods: [Netns; 2],
    before: Snapshot,
}

impl TwoPods {
    fn new() -> Self {
        let lab = Lab::new(2);
        lab.give_addresses();
        let before = Snapshot::of(&lab.host);
        let pods = ["one", "two"].map(|name| lab.pod(name));
        Self { lab, pods, before }
    }

    fn list(&self, pod: usize) -> Conflist {
        Conflist::new("1.1.0", vec![self.lab.configuration(pod)])
    }

    fn attachment(&self, pod: usize) -> Attachment {
        Attachment::new(&format!("container-{pod}"), self.pods[pod].path(), "eth0")
    }

    #[track_caller]
    fn add(&self) {
        for pod in 0..2 {
            let result = self
                .lab
                .runtime()
                .add(&self.list(pod), &self.attachment(pod));
            let result = result.unwrap_or_else(|outcome| panic!("{outcome}"));
            let pci = self.lab.rails(pod).map(|function| function.pci.as_str());
            for (rail, pci) in pci.into_iter().enumerate() {
                let interface = &result["interfaces"][rail];
                assert_eq!(interface["name"], format!("rdma{rail}"));
                assert_eq!(interface["pciID"], pci);
            }
        }
    }

    #[track_caller]
    fn del(&self) {
        for pod in 0..2 {
            let deleted = self
                .lab
                .runtime()
                .del(&self.list(pod), &self.attachment(pod));
            deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        }
    }
}

#[test]
fn two_pods_talk_rdma_on_every_rail_and_the_host_is_as_before() {
    let scene = TwoPods::new();
    scene.add();
    assert_eq!(
        lab::verbs_devices(&scene.lab.host),
        Vec::<String>::new(),
        "left on the host"
    );
    for pod in 0..2 {
        let own = scene.lab.rails(pod).map(|function| function.rdma.clone());
        assert_eq!(lab::verbs_devices(&scene.pods[pod]), own, "pod {pod}");
        scene
            .lab
            .runtime()
            .check(&scene.list(pod), &scene.attachment(pod))
            .expect("CHECK");
    }
    for rail in 0..2 {
        let [server, client] = [0, 1].map(|pod| &*scene.lab.rails(pod)[rail].rdma);
        for address in [ipv4, ipv6] {
            let (to, from) = (address(rail, 0), address(rail, 1));
            let server = End {
                pod: &scene.pods[0],
                rdma: server,
                address: &to,
            };
            let client = End {
                pod: &scene.pods[1],
                rdma: client,
                address: &from,
            };
            traffic::rping(server, client);
            traffic::write_bandwidth(server, client, &ipv4(rail, 0));
        }
    }
    scene.del();
    scene.before.assert_restored(&scene.lab.host);
}

#[test]
fn devices_of_pods_that_died_return_to_the_host_by_their_pci_address() {
    let scene = TwoPods::new();
    scene.add();
    // one pod's netdevs return as rdma0 and rdma1, and the kernel then names the other pod's netdevs dev<N>
    for pod in &scene.pods {
        pod.die();
    }
    integration::wait::until("the kernel gave the netdevs back", || {
        scene
            .lab
            .host
            .show("link show")
            .iter()
            .filter(|link| link["parentdev"].is_string())
            .count()
            == 6
    });
    scene.del();
    scene.before.assert_restored(&scene.lab.host);
}

#[test]
fn an_rdma_device_that_its_pod_renamed_comes_home_under_its_name() {
    let scene = TwoPods::new();
    let (runtime, all) = (scene.lab.runtime(), lab::verbs_devices(&scene.lab.host));
    let is_back = || {
        assert_eq!(lab::verbs_devices(&scene.lab.host), all);
        scene.before.assert_restored(&scene.lab.host);
    };
    let [first, second] = scene.lab.rails(0);
    // rdma-netns' tests move a device under more names
    for name in [&b"a/b"[..], b".."] {
        scene.add();
        lab::rename_rdma(&scene.pods[0], &first.rdma, name);
        scene.del();
        is_back();
    }
    scene.add();
    for (from, to) in [
        (&*first.rdma, "x"),
        (&*second.rdma, &*first.rdma),
        ("x", &*second.rdma),
    ] {
        lab::rename_rdma(&scene.pods[0], from, to.as_bytes());
    }
    scene.del();
    is_back();
    // the next pod gets the devices of a pod that has ended
    scene.add();
    lab::rename_rdma(&scene.pods[0], &first.rdma, b"\xff\xfe");
    scene.pods[0].die();
    let pod = scene.lab.pod("three");
    let attachment = Attachment::new("container-3", pod.path(), "eth0");
    let added = runtime.add(&scene.list(0), &attachment);
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    assert_eq!(lab::verbs_devices(&pod), [&*first.rdma, &*second.rdma]);
    let deleted = runtime.del(&scene.list(0), &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    scene.del();
    is_back();
}

#[test]
fn the_doctor_reports_pods_devices_and_what_a_dead_pod_left() {
    let scene = TwoPods::new();
    let report = |options: &[&str], code: i32, expected: &[&str]| {
        let (ended, lines) = doctor(&scene.lab.host, &[scene.lab.configuration(0)], options);
        assert_eq!(ended, code, "{lines}");
        for expected in expected {
            assert!(
                lines.contains(expected),
                "{expected:?} is missing:\n{lines}"
            );
        }
        lines
    };
    let rails = scene.lab.rails(0).map(|function| function.netdev.as_str());
    let moves = format!("ADD moves {}, {}", rails[0], rails[1]);
    let mode = "the RDMA subsystem is in exclusive mode";
    report(&[], 0, &[&moves, mode, "4 active"]);
    scene.add();
    let lines = report(&[], 0, &["2 attachments with 4 rails"]);
    assert!(!lines.contains("ADD moves"), "they are in use: {lines}");
    assert!(!lines.contains("no RDMA device"), "pods have them: {lines}");
    scene.pods[0].die();
    integration::wait::until("the kernel gave the netdevs back", || {
        scene.lab.host.has_link("rdma0") && scene.lab.host.has_link("rdma1")
    });
    let left = format!(
        "its pod is gone without a DEL; {} is called rdma0",
        rails[0]
    );
    report(&["--strict"], 1, &[&left, "1 attachment with 2 rails"]);
    scene.del();
    let lines = report(&[], 0, &[&moves]);
    assert!(!lines.contains("attachment"), "{lines}");
    scene.before.assert_restored(&scene.lab.host);
}

#[test]
fn a_del_that_comes_while_the_namespace_is_dying_waits_for_the_devices() {
    let scene = TwoPods::new();
    scene.add();
    for pod in &scene.pods {
        pod.die();
    }
    scene.del();
    scene.before.assert_restored(&scene.lab.host);
}

#[test]
fn a_device_is_found_by_device_id_and_the_runtimes_one_wins() {
    let scene = TwoPods::new();
    let [first, second] = scene.lab.rails(0);
    let mut plugin = scene.lab.configuration(0);
    plugin.as_object_mut().expect("an object").remove("devices");
    plugin["deviceID"] = first.pci.as_str().into();
    plugin["capabilities"] = json!({"deviceID": true});
    let list = Conflist::new("1.0.0", vec![plugin]);
    let runtime = scene.lab.runtime();
    let plain = scene.attachment(0);
    let with_capability = plain
        .clone()
        .with_capability("deviceID", second.pci.as_str().into());
    for (attachment, function) in [(plain, first), (with_capability, second)] {
        runtime
            .add(&list, &attachment)
            .unwrap_or_else(|outcome| panic!("{outcome}"));
        assert_eq!(lab::verbs_devices(&scene.pods[0]), [function.rdma.as_str()]);
        lab::open_verbs(&scene.pods[0], &function.rdma);
        runtime
            .del(&list, &attachment)
            .unwrap_or_else(|outcome| panic!("{outcome}"));
        scene.before.assert_restored(&scene.lab.host);
    }
}

#[test]
fn a_physical_function_is_moved_like_a_virtual_one() {
    let lab = Lab::new(0);
    let function = lab.physical_function(lab::NICS[1]);
    let pod = lab.pod("pod");
    let before = Snapshot::of(&lab.host);
    let plugin = json!({"type": "rdma-cni", "stateDir": lab.state(), "deviceID": function.pci});
    let list = Conflist::new("0.4.0", vec![plugin]);
    let attachment = Attachment::new("a", pod.path(), "eth0");
    let runtime = lab.runtime();
    runtime
        .add(&list, &attachment)
        .unwrap_or_else(|outcome| panic!("{outcome}"));
    lab::open_verbs(&pod, &function.rdma);
    assert!(pod.has_link("eth0") && !lab.host.has_link(&function.netdev));
    runtime
        .del(&list, &attachment)
        .unwrap_or_else(|outcome| panic!("{outcome}"));
    before.assert_restored(&lab.host);
}

#[test]
fn eight_pods_at_once_each_open_their_own_character_device() {
    pods_at_once_each_open_their_own_character_device(8);
}

#[test]
#[ignore = "scripts/test --full: the same, with sixteen pods"]
fn sixteen_pods_at_once_each_open_their_own_character_device() {
    pods_at_once_each_open_their_own_character_device(16);
}

#[track_caller]
fn pods_at_once_each_open_their_own_character_device(count: usize) {
    let lab = Lab::new(count / 2 - 1);
    let switch = lab.pod("switch");
    let mut functions = lab.functions.concat();
    functions.extend([0, 1].map(|number| lab.add_soft_function(number, &switch)));
    let before = Snapshot::of(&lab.host);
    let pods: Vec<Netns> = functions
        .iter()
        .map(|function| lab.pod(&function.netdev))
        .collect();
    assert_eq!(pods.len(), count);
    let runtime = lab.runtime();
    let list = |function: &Function| {
        let devices = json!([{"netdev": function.netdev}]);
        let plugin = json!({"type": "rdma-cni", "stateDir": lab.state(), "devices": devices});
        Conflist::new("1.1.0", vec![plugin])
    };
    let for_all_at_once = |work: &(dyn Fn(&Netns, &Function, &Attachment) + Sync)| {
        let start = Barrier::new(pods.len());
        thread::scope(|scope| {
            for (pod, function) in pods.iter().zip(&functions) {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let attachment = Attachment::new(&function.netdev, pod.path(), "eth0");
                    work(pod, function, &attachment);
                });
            }
        });
    };
    for_all_at_once(&|pod, function, attachment| {
        runtime
            .add(&list(function), attachment)
            .unwrap_or_else(|outcome| panic!("{outcome}"));
        // while devices of other pods move, this pod's device is in its final state after ADD
        lab::open_verbs(pod, &function.rdma);
    });
    for_all_at_once(&|pod, function, _| {
        assert_eq!(lab::verbs_devices(pod), [function.rdma.as_str()]);
        lab::open_verbs(pod, &function.rdma);
    });
    for_all_at_once(&|_, function, attachment| {
        runtime
            .del(&list(function), attachment)
            .unwrap_or_else(|outcome| panic!("{outcome}"));
    });
    before.assert_restored(&lab.host);
}

#[test]
fn drop_in_moves_only_the_rdma_device() {
    let lab = Lab::new(1);
    let function = lab.rails(0)[0];
    // host-device returns a netdev to the host down, without addresses, and with its name as the
    // alias: the test begins with this state.
    let netdev = &function.netdev;
    lab.host
        .ip(&format!("link set dev {netdev} down alias {netdev}"));
    let before = Snapshot::of(&lab.host);
    let host_device = json!({"type": "host-device", "pciBusID": function.pci});
    let drop_in = json!({"type": "rdma", "deviceID": function.pci, "stateDir": lab.state()});
    let chain = Conflist::new("1.0.0", vec![host_device.clone(), drop_in.clone()]);
    let only = |plugin| Conflist::new("1.0.0", vec![plugin]);
    let runtime = lab.runtime();
    plugin::debian("host-device");

    for reversed in [false, true] {
        let pod = lab.pod("pod");
        let attachment = Attachment::new("a", pod.path(), "net1");
        let result = runtime
            .add(&chain, &attachment)
            .unwrap_or_else(|outcome| panic!("{outcome}"));
        assert_eq!(
            result["interfaces"].as_array().map(Vec::len),
            Some(1),
            "{result}"
        );
        assert!(pod.has_link("net1"));
        lab::open_verbs(&pod, &function.rdma);
        runtime
            .check(&chain, &attachment)
            .unwrap_or_else(|outcome| panic!("{outcome}"));
        if reversed {
            for plugin in [&host_device, &drop_in] {
                let deleted = runtime.del(&only(plugin.clone()), &attachment);
                deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
            }
        } else {
            runtime
                .del(&chain, &attachment)
                .unwrap_or_else(|outcome| panic!("{outcome}"));
        }
        before.assert_restored(&lab.host);
    }

    // Without the namespace, host-device itself cannot restore anything.
    let pod = lab.pod("pod");
    let attachment = Attachment::new("a", pod.path(), "net1");
    runtime
        .add(&chain, &attachment)
        .unwrap_or_else(|outcome| panic!("{outcome}"));
    pod.die();
    runtime
        .del(&only(drop_in), &attachment)
        .unwrap_or_else(|outcome| panic!("{outcome}"));
    assert!(lab::verbs_devices(&lab.host).contains(&function.rdma));
    integration::wait::until("its RDMA device is as before", || {
        Snapshot::of(&lab.host).part("rdma device") == before.part("rdma device")
    });
}

#[test]
fn devices_return_to_the_host_after_sigkill_around_every_move() {
    // tests in namespaces and on the fake kernel kill at all operations, with each restorer
    sweep(Around::Moves);
}

#[test]
#[ignore = "scripts/test --full: every operation, on devices that move"]
fn devices_return_to_the_host_after_sigkill_at_every_operation() {
    sweep(Around::All);
}

#[track_caller]
fn sweep(around: Around) {
    let lab = Lab::new(1);
    lab.give_addresses();
    let mut configuration = lab.configuration(0);
    configuration["name"] = "net".into();
    configuration["cniVersion"] = "1.1.0".into();
    if around == Around::Moves {
        // only `--full` tests both rails
        configuration["devices"] = json!([configuration["devices"][0]]);
    }
    let sweep = Sweep {
        host: &lab.host,
        plugin: plugin::rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around,
        cni_path: plugin::DEBIAN_PLUGINS.into(),
        configuration,
        before: Snapshot::of(&lab.host),
    };
    for (command, restorers) in [
        ("ADD", [Restorer::Del, Restorer::Add, Restorer::Gc]),
        ("DEL", [Restorer::Gc, Restorer::Del, Restorer::Add]),
    ] {
        let points = sweep.run(command, &restorers);
        println!("{command}: {points} points {around:?}");
        let least = if around == Around::All { 9 } else { 3 };
        assert!(points >= least, "{command} had only {points} points");
    }
}
