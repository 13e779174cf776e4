// SPDX-License-Identifier: Apache-2.0
//! In the lab, RDMA devices that are visible in all namespaces:
//! `integration/lab/vm --tier full --shared`, one test at a time.

use integration::{
    Attachment, Conflist, Snapshot,
    daemon::doctor,
    lab::{self, Lab, ipv4, ipv6},
    traffic,
    traffic::End,
    wait,
};
use serde_json::json;

#[test]
fn two_pods_talk_rdma_on_every_rail_and_the_host_is_as_before() {
    let lab = Lab::new(2);
    lab.give_addresses();
    let before = Snapshot::of(&lab.host);
    let all = lab::verbs_devices(&lab.host);
    assert_eq!(all.len(), 4);
    let pods = ["one", "two"].map(|name| lab.pod(name));
    let list = |pod: usize| Conflist::new("1.1.0", vec![lab.configuration(pod)]);
    let attachment =
        |pod: usize| Attachment::new(&format!("container-{pod}"), pods[pod].path(), "eth0");
    let runtime = lab.runtime();
    for dies in [false, true] {
        for pod in 0..2 {
            let added = runtime.add(&list(pod), &attachment(pod));
            added.unwrap_or_else(|outcome| panic!("{outcome}"));
            runtime
                .check(&list(pod), &attachment(pod))
                .unwrap_or_else(|outcome| panic!("{outcome}"));
        }
        assert_eq!(
            lab::verbs_devices(&lab.host),
            all,
            "devices stay where they are"
        );
        for rail in 0..2 {
            let [server, client] = [0, 1].map(|pod| &*lab.rails(pod)[rail].rdma);
            for address in [ipv4, ipv6] {
                let (to, from) = (address(rail, 0), address(rail, 1));
                let server = End {
                    pod: &pods[0],
                    rdma: server,
                    address: &to,
                };
                let client = End {
                    pod: &pods[1],
                    rdma: client,
                    address: &from,
                };
                traffic::rping(server, client);
                traffic::write_bandwidth(server, client, &ipv4(rail, 0));
            }
        }
        if dies {
            for pod in &pods {
                pod.die();
            }
            wait::until("the kernel gave the netdevs back", || {
                lab.host
                    .show("link show")
                    .iter()
                    .filter(|link| link["parentdev"].is_string())
                    .count()
                    == 6
            });
        }
        for pod in 0..2 {
            let deleted = runtime.del(&list(pod), &attachment(pod));
            deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        }
        before.assert_restored(&lab.host);
    }
}

/// In shared mode, a pod with `NET_ADMIN` can rename any RDMA device of the node.
#[test]
fn rdma_devices_that_a_pod_renamed_have_their_names_after_del_and_for_the_next_pod() {
    let lab = Lab::new(2);
    let before = Snapshot::of(&lab.host);
    let all = lab::verbs_devices(&lab.host);
    let pods = ["one", "two"].map(|name| lab.pod(name));
    let function = lab.rails(0)[0];
    let list = |selector| {
        let plugin = json!({"type": "rdma-cni", "stateDir": lab.state(), "devices": [selector], "mode": "share"});
        Conflist::new("1.1.0", vec![plugin])
    };
    let selectors = [json!({"pci": function.pci}), json!({"rdma": function.rdma})];
    let lists = selectors.map(list);
    let attachment =
        |pod: usize| Attachment::new(&format!("container-{pod}"), pods[pod].path(), "eth0");
    let runtime = lab.runtime();
    for name in [&b"roce"[..], b"\xff\xfe", b"a/b"] {
        let add = |pod: usize| {
            let added = runtime.add(&lists[pod], &attachment(pod));
            added.unwrap_or_else(|outcome| panic!("{name:?}: {outcome}"));
        };
        add(0);
        lab::rename_rdma(&pods[0], &function.rdma, name);
        // doctor cannot read the GIDs of a device whose name has a slash, because no path of sysfs contains this name
        if !name.contains(&b'/') {
            let (_, output) = doctor(&lab.host, &[lab.configuration(1)], &[]);
            let words = format!("RDMA device {} is called", function.rdma);
            assert!(output.contains(&words), "{output}");
        }
        add(1);
        assert_eq!(lab::verbs_devices(&lab.host), all, "{name:?}, after ADD");
        lab::rename_rdma(&pods[0], &function.rdma, name);
        for (pod, list) in lists.iter().enumerate() {
            let deleted = runtime.del(list, &attachment(pod));
            deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        }
        assert_eq!(lab::verbs_devices(&lab.host), all, "{name:?}, after DEL");
        before.assert_restored(&lab.host);
    }
}

#[test]
fn the_drop_in_needs_exclusive_mode_and_reports_how_to_get_it() {
    let lab = Lab::new(1);
    let function = lab.rails(0)[0];
    let pod = lab.pod("pod");
    let before = Snapshot::of(&lab.host);
    let plugin = json!({"type": "rdma", "deviceID": function.pci, "stateDir": lab.state()});
    // the entry follows another plugin
    let list = Conflist::new("1.0.0", vec![json!({"type": "loopback"}), plugin]);
    let attachment = Attachment::new("a", pod.path(), "net1");
    let text = lab
        .runtime()
        .add(&list, &attachment)
        .expect_err("it cannot work")
        .error(102);
    for words in ["shared", "rdma system set netns exclusive", "netns_mode=0"] {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
    before.assert_restored(&lab.host);
}
