// SPDX-License-Identifier: Apache-2.0
//! Debian's `host-device`, which has no `master`.

use crate::lan::{Lan, gateway_routes, ips, refused};
use integration::Conflist;
use serde_json::{Value, json};

fn host_device(lan: &Lan, ipam: &Value) -> Conflist {
    let plugin = json!({"type": "host-device", "device": "eth1", "ipam": lan.ipam(ipam)});
    Conflist::new("1.0.0", vec![plugin])
}

#[test]
fn ranges_of_both_families() {
    for strategy in ["sequential", "stable"] {
        let lan = Lan::bare();
        let (runtime, pod) = (lan.node.runtime(), lan.node.pod("pod"));
        let ipam = json!({
            "strategy": strategy,
            "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        });
        let list = host_device(&lan, &ipam);
        let attachment = lan.node.attachment("a", &pod).of_pod("team", "one");
        let result = runtime.add(&list, &attachment).expect("ADD");
        let reported = ips(&result);
        assert!(reported[0].starts_with("10.7.0.") && reported[1].starts_with("fd07::"));
        assert_eq!(pod.addresses("eth0"), reported);
        assert_eq!(result["ips"][0]["gateway"], "10.7.0.1");
        let route = ("default".to_owned(), "10.7.0.1".to_owned());
        assert_eq!(gateway_routes(&pod), [route]);
        assert!(!lan.node.host.has_link("eth1"));
        assert_eq!(lan.leases().len(), 2);
        runtime.check(&list, &attachment).expect("CHECK");
        let (ip, _) = lan.leases().pop_first().expect("two");
        let lease = lan.leases_dir().join(ip.to_string());
        let text = std::fs::read_to_string(&lease).expect("the lease");
        std::fs::write(&lease, text.replacen('a', "b", 1)).expect("another's");
        let message = refused(runtime.check(&list, &attachment), 999);
        assert!(message.contains(&format!("{ip} is held by ")), "{message}");
        std::fs::write(&lease, text).expect("its own");
        runtime.check(&list, &attachment).expect("CHECK");
        runtime.del(&list, &attachment).expect("DEL");
        lan.assert_nothing_is_held();
        assert!(lan.node.host.has_link("eth1"));
    }
}

#[test]
fn the_parents_prefix_needs_a_master() {
    let lan = Lan::new();
    let (runtime, pod) = (lan.node.runtime(), lan.node.pod("pod"));
    let list = host_device(&lan, &json!({"from": "parent"}));
    let attachment = lan.node.attachment("a", &pod);
    let text = refused(runtime.add(&list, &attachment), 7);
    let sentence = "ipam.from \"parent\" needs the netdev whose prefixes are used";
    assert!(text.contains("master") && text.contains(sentence), "{text}");
    lan.assert_nothing_is_held();
    // Debian's host-device leaves the netdev in the pod until DEL
    runtime.del(&list, &attachment).expect("DEL");
    assert!(lan.node.host.has_link("eth1"));
}
