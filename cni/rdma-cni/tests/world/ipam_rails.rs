// SPDX-License-Identifier: Apache-2.0
//! Tests of IPAM's input about the rails: netdevs of the host, addresses in use, attachments of running pods.

use crate::{
    leases::{Leases, bonds, run_named},
    node::{Node, host_change, route},
};
use rdma_netns::{LinkChange, RdmaMode};
use serde_json::{Value, json};

/// Returns `field` of the configuration in each call that begins with `what`, such as `ADD a`.
fn fields_of(leases: &Leases, what: &str, field: &str) -> Vec<Value> {
    let calls = leases.calls().into_iter();
    let calls = calls.filter(|call| call.what.starts_with(what));
    calls.map(|call| call.config[field].clone()).collect()
}

/// Returns a node whose `bond0` also has a route through a router.
fn with_router() -> Leases {
    let leases = Leases::new(2);
    leases.node.change(
        None,
        &host_change(
            "bond0",
            LinkChange::AddRoute(route("172.16.0.0/12", "10.0.0.254")),
        ),
    );
    leases
}

#[test]
fn the_netdev_its_addresses_and_routes() {
    let leases = with_router();
    let node = &leases.node;
    let pod = node.pod("a");
    node.add(&pod, &leases.config(json!({}))).must_succeed();
    let calls = leases.calls();
    let field = |rail: usize, field: &str| calls[rail].config[field].clone();
    assert_eq!(calls[0].what, "ADD a rdma0");
    assert_eq!(
        (field(0, "master"), field(1, "master")),
        (json!("bond0"), json!("bond1"))
    );
    assert_eq!(
        field(0, "masterAddresses"),
        json!(["10.0.0.1/16", "fd00::1/64"])
    );
    assert_eq!(
        field(1, "masterAddresses"),
        json!(["10.1.0.1/16", "fd00:1::1/64"])
    );
    let routes = json!([{ "dst": "172.16.0.0/12", "gw": "10.0.0.254" }]);
    assert_eq!(
        (field(0, "masterRoutes"), field(1, "masterRoutes")),
        (routes, json!([]))
    );
}

/// When ADD calls IPAM, a moved netdev has left the host and lost its addresses.
#[test]
fn a_moved_netdev_is_reported_with_its_host_state() {
    let leases = Leases::on(Node::new(RdmaMode::Exclusive));
    let node = &leases.node;
    let pod = node.pod("a");
    let mut config = node.two_rails();
    config["ipam"] = json!({ "type": "books" });
    node.add(&pod, &config).must_succeed();
    let calls = leases.calls();
    assert_eq!(calls[0].config["master"], "eth2");
    assert_eq!(
        calls[0].config["masterAddresses"],
        json!(["10.0.2.5/24", "fd00:2::5/64"])
    );
    let routes = calls[0].config["masterRoutes"].as_array().unwrap();
    assert!(
        routes.contains(&json!({ "dst": "10.2.0.0/16", "gw": "10.0.2.1" })),
        "{routes:?}"
    );
    assert_eq!(
        calls[1].config["masterAddresses"],
        json!(["10.0.3.5/24", "fd00:3::5/64"])
    );
}

#[test]
fn requested_addresses_go_to_the_rail_whose_network_they_are_in() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let ips = json!([
        "10.1.0.50",
        "10.0.0.50/16",
        "fd00::50",
        "fd00:1::50/64",
        "192.0.2.50"
    ]);
    let own = [
        json!(["10.0.0.50/16", "fd00::50", "192.0.2.50"]),
        json!(["10.1.0.50", "fd00:1::50/64", "192.0.2.50"]),
    ];
    let wishes = json!({ "ips": ips });
    let config = leases.config(json!({ "runtimeConfig": wishes, "args": { "cni": wishes } }));
    node.add(&pod, &config).must_succeed();
    for (call, own) in leases.calls().iter().zip(own) {
        assert_eq!(call.config["runtimeConfig"]["ips"], own);
        assert_eq!(call.config["args"]["cni"]["ips"], own);
    }
}

#[test]
fn an_address_that_another_machine_has_is_given_back_as_such() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    node.kernel
        .with(|world| world.duplicates.push("fd00:1::7".parse().unwrap()));
    let config = leases.config(json!({ "ipv6": { "dad": "wait" }, "probe": "off" }));
    let message = node.add(&pod, &config).must_fail(106);
    assert!(
        message.contains("fd00:1::7 is in use by another machine"),
        "{message}"
    );
    leases.must_be(&before, "undone");
    let conflicts = fields_of(&leases, "DEL", "conflicts");
    assert_eq!(conflicts, [json!(null), json!(["fd00:1::7"])]);
    node.kernel.with(|world| world.duplicates.clear());
    let result = node.add(&pod, &config).must_succeed();
    leases.check(&pod, &config, &result).must_succeed();
    node.del(&pod, &config).must_succeed();
    assert_eq!(
        fields_of(&leases, "DEL", "conflicts"),
        [json!(null), json!(null)]
    );
    leases.must_be(&before, "after DEL");
}

#[test]
fn gc_hands_on_the_names_of_the_rails() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let (living, dead) = (node.pod("a"), node.pod("b"));
    let config = leases.config(json!({}));
    run_named(node, "ADD", &living, "trainer-0", &config);
    for rail in [0, 1] {
        leases.gives(&format!("b.rdma{rail}"), &crate::leases::answer(rail, 8));
    }
    run_named(node, "ADD", &dead, "trainer-1", &config);
    leases.calls();
    node.gc(&[&living], &config).must_succeed();
    let calls = leases.calls();
    let what: Vec<&str> = calls.iter().map(|call| call.what.as_str()).collect();
    assert_eq!(what, ["DEL b rdma0", "DEL b rdma1", "GC"]);
    let valid = calls[2].config["cni.dev/valid-attachments"]
        .as_array()
        .unwrap();
    for (container, interface, is_valid) in [
        ("a", "rdma0", true),
        ("a", "rdma1", true),
        ("b", "rdma0", false),
        ("b", "rdma1", false),
    ] {
        let it = json!({ "containerID": container, "ifname": interface });
        assert_eq!(valid.contains(&it), is_valid, "{it} in {valid:?}");
    }
    assert_eq!(leases.rails_files(), ["ns_trainer-0"]);
}

/// Attachments that GC could not restore keep their leases.
#[test]
fn gc_keeps_the_leases_of_what_is_not_restored() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({}));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    leases.calls();
    node.kernel.begin();
    node.script(|_| fake_kernel::Verdict::Refuse(nix::errno::Errno::EBUSY));
    node.gc(&[], &config).must_fail(107);
    node.kernel.begin();
    let calls = leases.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    let valid = &calls[0].config["cni.dev/valid-attachments"];
    assert_eq!(valid, &json!([{ "containerID": "a", "ifname": "rdma0" }]));
    node.gc(&[], &config).must_succeed();
    assert_eq!(leases.held(), [""; 0]);
}

/// The records can be read when GC begins, but not when GC calls the IPAM plugin.
#[test]
fn gc_that_cannot_read_the_records_any_more_reports_all_that_failed() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({}));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    leases.calls();
    node.kernel.begin();
    let records = node.record_of(&pod).parent().unwrap().to_owned();
    node.script(move |number| {
        if number == 1 {
            std::fs::remove_dir_all(&records).unwrap();
            std::os::unix::fs::symlink(&records, &records).unwrap();
        }
        fake_kernel::Verdict::Proceed
    });
    let message = node.gc(&[], &config).must_fail(105);
    for word in [
        "everything is back on the host, but",
        "therefore GC did not call the IPAM plugin",
    ] {
        assert!(message.contains(word), "{message}");
    }
    assert!(!message.contains("nothing was changed"), "{message}");
}

#[test]
fn status_calls_ipam_for_every_rail() {
    let leases = with_router();
    let node = &leases.node;
    node.run("STATUS", None, &leases.config(json!({})))
        .must_succeed();
    let calls = leases.calls();
    let fields: Vec<_> = calls
        .iter()
        .map(|call| {
            (
                call.what.as_str(),
                &call.config["master"],
                &call.config["masterAddresses"],
            )
        })
        .collect();
    assert_eq!(
        fields,
        [
            (
                "STATUS",
                &json!("bond0"),
                &json!(["10.0.0.1/16", "fd00::1/64"])
            ),
            (
                "STATUS",
                &json!("bond1"),
                &json!(["10.1.0.1/16", "fd00:1::1/64"])
            ),
        ]
    );
    // STATUS reports only once an error that both rails have
    leases.refuses("STATUS", true);
    let message = node
        .run("STATUS", None, &leases.config(json!({})))
        .must_fail(50);
    assert_eq!(message.matches("the store is away").count(), 1, "{message}");
}

/// A pod shares the netdev, and further pods can share it too.
#[test]
fn status_minds_no_pod_that_shares() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({}));
    node.add(&node.pod("a"), &config).must_succeed();
    node.run("STATUS", None, &config).must_succeed();
    node.change(None, &host_change("bond0", LinkChange::Up(false)));
    let message = node.run("STATUS", None, &config).must_fail(50);
    assert!(message.contains("bond0 is down"), "{message}");
}

/// The DEL of a bond's pod passes the same `master` to IPAM as its ADD.
#[test]
fn del_names_the_master_of_add() {
    let leases = Leases::on(Node::with(bonds(2)));
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({}));
    node.add(&pod, &config).must_succeed();
    leases.calls();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.del(&pod, &config).must_succeed();
    assert_eq!(
        fields_of(&leases, "DEL", "master"),
        [json!("bond0"), json!("bond1")]
    );
}
