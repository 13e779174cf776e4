// SPDX-License-Identifier: Apache-2.0
//! Addresses. ADD calls the IPAM plugin once for each rail, and a pod can use its IPv6 addresses at once.

use integration::{
    Netns, Node, Snapshot, ipam,
    plugin::{cni_path, rdma_cni},
    wait,
};
use serde_json::{Value, json};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

/// Returns the route to `destination` in `table` of `netns`.
fn route(netns: &Netns, family: u8, table: &str, destination: &str) -> Option<Value> {
    let routes = netns.show(&format!("-{family} route show table {table}"));
    routes.into_iter().find(|route| route["dst"] == destination)
}

#[test]
fn debians_static_gives_addresses_that_are_usable_at_once() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.switch.ip("address add 192.0.2.1/24 dev br0");
    node.switch.ip("address add 2001:db8:1::1/64 dev br0 nodad");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["cniVersion"] = "1.0.0".into();
    configuration["ipam"] = json!({
        "type": "static",
        "addresses": [
            {"address": "192.0.2.10/24", "gateway": "192.0.2.1"},
            {"address": "2001:db8:1::10/64", "gateway": "2001:db8:1::1"},
        ],
        "routes": [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:99::/48"}],
    });
    node.add(&configuration, "a", &pod);
    assert_eq!(
        pod.show("-6 address show dev rdma0 tentative"),
        Vec::<Value>::new()
    );
    assert_eq!(
        pod.addresses("rdma0"),
        ["192.0.2.10/24", "2001:db8:1::10/64"]
    );
    let gateway = |family, destination| {
        let route = route(&pod, family, "main", destination);
        route.unwrap_or_else(|| panic!("no route to {destination}"))["gateway"].clone()
    };
    assert_eq!(gateway(4, "198.51.100.0/24"), "192.0.2.1");
    assert_eq!(gateway(6, "2001:db8:99::/48"), "2001:db8:1::1");
    // One packet per address, directly after ADD: a second attempt would hide an address that is not usable at once.
    pod.run("ping -n -c 1 -W 5 -I 192.0.2.10 192.0.2.1");
    pod.run("ping -n -c 1 -W 5 -I 2001:db8:1::10 2001:db8:1::1");
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn debians_host_local_leases_for_every_rail_and_gets_them_back() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let leases = node.directory().join("leases");
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["cniVersion"] = "1.0.0".into();
    configuration["ipam"] = json!({
        "type": "host-local",
        "dataDir": leases,
        "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd00:7::/64"}]],
    });
    let result = node.add(&configuration, "a", &pod);
    assert_eq!(result["ips"].as_array().expect("ips").len(), 4, "{result}");
    let mut seen = vec![];
    for rail in ["rdma0", "rdma1"] {
        let addresses = pod.addresses(rail);
        assert_eq!(addresses.len(), 2, "{rail}: {addresses:?}");
        assert!(addresses[0].starts_with("10.7.0."), "{addresses:?}");
        assert!(addresses[1].starts_with("fd00:7::"), "{addresses:?}");
        seen.extend(addresses);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4, "the rails share an address: {seen:?}");
    let leased = || -> Vec<String> {
        let files = fs::read_dir(leases.join("net")).expect("host-local's directory");
        let names = files.map(|file| file.expect("a file").file_name().into_string());
        let names = names.map(|name| name.expect("UTF-8"));
        names
            .filter(|name| name.starts_with("10.7.") || name.starts_with("fd00:"))
            .collect()
    };
    assert_eq!(leased().len(), 4);
    node.del(&configuration, "a", &pod);
    assert_eq!(leased(), Vec::<String>::new(), "leases were left");
    before.assert_restored(&node.host);
}

#[test]
fn ipam_is_called_once_a_rail_with_its_pod_side_name_and_its_host_netdev() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    node.ipam
        .answer("ADD.rdma0", &json!({"ips": [{"address": "10.0.0.1/24"}]}));
    node.ipam
        .answer("ADD.rdma1", &json!({"ips": [{"address": "10.0.1.1/24"}]}));
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["ipam"] = json!({"type": ipam::NAME, "own": {"setting": 1}});
    node.add(&configuration, "a", &pod);
    assert_eq!(pod.addresses("rdma0"), ["10.0.0.1/24"]);
    assert_eq!(pod.addresses("rdma1"), ["10.0.1.1/24"]);
    let calls = node.ipam.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    for (call, (name, master)) in calls.iter().zip([("rdma0", "eth1"), ("rdma1", "eth2")]) {
        assert_eq!((call.command.as_str(), call.ifname.as_str()), ("ADD", name));
        assert_eq!(call.container, "a");
        assert_eq!(call.netns, pod.path().to_str().expect("UTF-8"));
        assert_eq!(call.input["master"], master);
        assert_eq!(call.input["ipam"]["own"], json!({"setting": 1}));
        assert_eq!(call.input["name"], "net");
    }
    node.del(&configuration, "a", &pod);
    let mut given_back = node.ipam.interfaces("DEL");
    given_back.sort();
    assert_eq!(given_back, ["rdma0", "rdma1"]);
}

#[test]
fn duplicate_address_detection_is_done_when_it_is_requested() {
    let node = Node::with_rails(1);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "2001:db8::7/64"}]}));
    for (dad, settled) in [("off", true), ("optimistic", false), ("wait", true)] {
        let pod = node.pod("pod");
        configuration["ipv6"] = json!({"dad": dad});
        node.add(&configuration, "a", &pod);
        let address = || {
            let link = pod.link("rdma0").expect("in the pod");
            let addresses = link["addr_info"].as_array().expect("addresses").clone();
            addresses
                .into_iter()
                .find(|a| a["local"] == "2001:db8::7")
                .expect("the address")
        };
        if settled {
            assert_ne!(address()["tentative"], true, "dad {dad}: {}", address());
        }
        assert_eq!(
            address()["nodad"] == true,
            dad == "off",
            "dad {dad}: {}",
            address()
        );
        // The address is optimistic: the pod can use it during duplicate address detection.
        wait::until("detection ends", || address()["tentative"] != true);
        node.del(&configuration, "a", &pod);
    }
}

#[test]
fn router_advertisements_are_refused_unless_requested() {
    let node = Node::with_rails(1);
    for (accept, value) in [(None, "0"), (Some(false), "0"), (Some(true), "1")] {
        let pod = node.pod("pod");
        let mut configuration = node.configuration(&["eth1"]);
        if let Some(accept) = accept {
            configuration["ipv6"] = json!({"acceptRA": accept});
        }
        node.add(&configuration, "a", &pod);
        let found = pod.sysctl("ipv6/conf/rdma0/accept_ra");
        assert_eq!(
            found == "0",
            value == "0",
            "acceptRA {accept:?} gave {found}"
        );
        node.del(&configuration, "a", &pod);
    }
}

/// `rdma-cni` calls `rdma-ipam` of the same build in its own process. It starts any other program of this name in
/// `CNI_PATH`.
#[test]
fn an_ipam_plugin_in_cni_path_assigns_addresses() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    node.host.ip("address add 2001:db8:1::1/64 dev eth1 nodad");
    node.host.ip("address add 2001:db8:2::1/64 dev eth2 nodad");
    let leases = node.directory().join("leases");
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["mode"] = "share".into();
    configuration["ipam"] = json!({"type": "rdma-ipam", "from": "parent", "dataDir": leases});
    let own = rdma_cni().with_file_name("rdma-ipam");
    let place = node.directory().join("in-front");
    let there = place.join("rdma-ipam");
    fs::create_dir(&place).expect("a directory");
    let started = node.directory().join("started");
    let wrapper = format!(
        "#!/bin/sh\necho $CNI_COMMAND $CNI_IFNAME >>{}\nexec {} \"$@\"\n",
        started.display(),
        own.display()
    );
    let mut of_another_build = fs::read(&own).expect("the plugin");
    of_another_build.extend_from_slice(b"\nrdma-build 0\n");
    let given = |content: Option<&[u8]>| {
        if let Some(content) = content {
            fs::write(&there, content).expect("a program");
            fs::set_permissions(&there, Permissions::from_mode(0o755)).expect("it can be run");
        }
        let path = cni_path(&there, &[own.parent().expect("a directory")]);
        let call = |command: &str| {
            let invocation = node.invoke(command, "a", pod.path()).env("CNI_PATH", &path);
            invocation.input(&configuration).run()
        };
        let added = call("ADD");
        assert!(added.status.success(), "{added}");
        for (rail, prefix) in [("rdma0", "2001:db8:1:"), ("rdma1", "2001:db8:2:")] {
            let addresses = pod.addresses(rail);
            assert!(addresses[0].starts_with(prefix), "{rail}: {addresses:?}");
        }
        call("DEL").silent();
        let left = fs::read_dir(leases.join("net")).expect("the leases");
        let left = left.filter_map(|it| it.ok()?.file_name().into_string().ok());
        let left: Vec<String> = left.filter(|it| it.contains(':')).collect();
        assert_eq!(left, [] as [&str; 0]);
        // each log line names the program that wrote it
        added.stderr.matches("rdma-ipam[").count()
    };
    assert_eq!(given(None), 0);
    assert!(given(Some(&of_another_build)) >= 2);
    assert!(given(Some(wrapper.as_bytes())) >= 2);
    let started = fs::read_to_string(&started).expect("it was started");
    assert_eq!(started, "ADD rdma0\nADD rdma1\nDEL rdma0\nDEL rdma1\n");
}
