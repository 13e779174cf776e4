// SPDX-License-Identifier: Apache-2.0
//! In the lab, a node with the kernels of Debian's releases:
//! `integration/lab/vm --kernel 5.10 --tier full --shared --memory 4096`, one test at a time. The rdma_rxe of these
//! kernels is Debian's own: its devices cannot be moved, and pods have no traffic with each other. The kernels also
//! differ in their reports of netdevs and devices.

use integration::{
    Attachment, Conflist, Snapshot,
    container_runtime::{
        SharedNode,
        shared::{address, has_all_rails},
    },
    daemon::doctor,
    lab::{Lab, NICS, ipv4},
    pinged::{is_silent_rdma, pinged},
    wait,
};
use serde_json::{Value, json};

#[test]
fn one_request_gives_a_pod_every_rail_and_the_doctor_finds_nothing_amiss() {
    let node = SharedNode::new();
    node.remove(node.plain("first"));
    let before = Snapshot::of(&node.nics.host);
    let pods = ["one", "two"].map(|name| node.runtime.pod(&node.pod_with_hca(name)));
    let netns = pods.each_ref().map(|pod| pod.netns());
    pods.iter().for_each(has_all_rails);
    for rail in 0..2 {
        for ipv6 in [true, false] {
            let [from, to] = [0, 1].map(|pod: usize| address(&netns[pod], rail, ipv6));
            netns[0].run(&format!("ping -c 1 -W 10 -I {from} {to}"));
        }
    }
    let chain = node.list().plugins.pop().expect("the chain");
    let (code, findings) = doctor(&node.nics.host, &[chain], &[]);
    assert_eq!(code, 0, "{findings}");
    assert!(
        findings.contains("2 attachments with 4 rails"),
        "{findings}"
    );
    pods.into_iter().for_each(|pod| node.remove(pod));
    before.assert_restored(&node.nics.host);
    assert_eq!(node.records(), 0);
}

#[test]
fn virtual_functions_are_moved_by_device_id_and_by_driver() {
    let lab = Lab::without_rdma(1);
    lab.give_addresses();
    let pod = lab.pod("pod");
    let before = Snapshot::of(&lab.host);
    let [first, _] = lab.rails(0);
    let by_id = json!({"deviceID": first.pci});
    let by_driver = json!({"devices": [{"driver": "igbvf"}]});
    let moved = |settings: &Value, count: usize| {
        let mut plugin = json!({"type": "rdma-cni", "stateDir": lab.state(), "requireRdma": false});
        let fields = plugin.as_object_mut().expect("an object");
        fields.extend(settings.as_object().expect("an object").clone());
        let list = Conflist::new("1.0.0", vec![plugin]);
        let attachment = Attachment::new("a", pod.path(), "eth0");
        let runtime = lab.runtime();
        let added = runtime.add(&list, &attachment);
        let result = added.unwrap_or_else(|outcome| panic!("{outcome}"));
        assert_eq!(
            result["interfaces"].as_array().expect("a list").len(),
            count
        );
        let checked = runtime.check(&list, &attachment);
        checked.unwrap_or_else(|outcome| panic!("{outcome}"));
        (list, attachment)
    };
    let del = |(list, attachment): &(Conflist, Attachment)| {
        let deleted = lab.runtime().del(list, attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        before.assert_restored(&lab.host);
    };
    del(&moved(&by_id, 1));
    del(&moved(&by_driver, 2));
    // a pod ends without DEL: the kernel returns the netdevs without their addresses
    let attached = moved(&by_driver, 2);
    pod.die();
    wait::until("the kernel gave the netdevs back", || {
        ["rdma0", "rdma1"].iter().all(|it| lab.host.has_link(it))
    });
    del(&attached);
}

/// Both NICs of the machine in one network. Packets between them pass the wire, although both addresses are the
/// machine's own.
struct Wire(Lab);

impl Wire {
    #[track_caller]
    fn new() -> Self {
        let lab = Lab::without_rdma(0);
        let host = &lab.host;
        for (nic, name) in NICS.into_iter().enumerate() {
            lab.physical_function(name);
            host.set_sysctl(&format!("ipv4/conf/{name}/accept_local"), "1");
            let [own, other] = [nic, 1 - nic].map(|it| ipv4(0, it));
            let table = 101 + nic;
            for line in [
                format!("address add {own}/24 dev {name}"),
                format!("route add {other} dev {name} src {own} table {table}"),
                format!("rule add pref {table} iif lo to {other} lookup {table}"),
            ] {
                host.ip(&line);
            }
        }
        host.ip("rule add pref 110 lookup local");
        host.ip("rule del pref 0");
        Self(lab)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let host = &self.0.host;
        host.ip("rule add pref 0 lookup local");
        for (nic, name) in NICS.into_iter().enumerate() {
            host.ip(&format!("rule del pref {}", 101 + nic));
            host.ip(&format!("address flush dev {name}"));
        }
        host.ip("rule del pref 110");
    }
}

/// The machine's own connection manager answers on the other NIC. Later this NIC drops UDP port 4791.
#[test]
fn a_rail_pings_another_one_and_reports_that_rdma_alone_is_dropped() {
    let Wire(lab) = &Wire::new();
    let to = ipv4(0, 1);
    let mut result = (1, Value::Null);
    wait::until("the rail answers", || {
        result = pinged(&lab.host, &to, "3");
        result.0 == 0
    });
    assert_eq!(result.1["answered"], 2, "{}", result.1);
    assert_eq!(result.1["from"]["device"], format!("r_{}", NICS[0]));

    let dropped = format!("pref 100 ipproto udp dport 4791 iif {} blackhole", NICS[1]);
    lab.host.ip(&format!("rule add {dropped}"));
    let (code, pair) = pinged(&lab.host, &to, "3");
    lab.host.ip(&format!("rule del {dropped}"));
    assert_eq!(code, 1, "{pair}");
    is_silent_rdma(&pair);
}
