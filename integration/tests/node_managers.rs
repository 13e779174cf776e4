// SPDX-License-Identifier: Apache-2.0
//! NICs that NetworkManager or systemd-networkd manages. The manager's settings move into the pod and return to the
//! host, whether or not the manager runs.

use integration::{Manager, Netns, Node, Snapshot, ipam, wait};
use serde_json::{Value, json};

/// A configuration for the rail. The host's only default route leaves by the rail.
fn of_the_rail(node: &Node) -> Value {
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mode"] = json!("move");
    configuration
}

/// A node with the far end of the rail, which has the addresses of the gateways.
fn with_router() -> Node {
    let node = Node::with_rails(1);
    for address in ["10.9.0.254/24", "fd00:9::254/64 nodad"] {
        node.switch.ip(&format!("address add {address} dev br0"));
    }
    node
}

/// A NetworkManager profile, as an administrator writes it for a rail.
const STATIC: &str = "\
[connection]
id=rail
type=ethernet
interface-name=eth1
[ipv4]
method=manual
address1=10.9.0.5/24,10.9.0.254
route1=10.20.0.0/16,10.9.0.254
route2=10.30.0.0/16
[ipv6]
method=manual
addr-gen-mode=eui64
address1=fd00:9::5/64,fd00:9::254
route1=fd00:20::/48,fd00:9::254
";

const BY_DHCP: &str = "\
[connection]
id=rail
type=ethernet
interface-name=eth1
[ipv4]
method=auto
[ipv6]
method=auto
addr-gen-mode=eui64
";

/// The configuration of a router that leases addresses, and advertises a prefix.
const ROUTER: &str = "\
[Match]
Name=br0
[Network]
DHCPServer=yes
IPv6SendRA=yes
ConfigureWithoutCarrier=yes
[DHCPServer]
PoolOffset=100
PoolSize=20
DefaultLeaseTimeSec=600
EmitDNS=no
[IPv6SendRA]
RouterLifetimeSec=1800
EmitDNS=no
[IPv6Prefix]
Prefix=fd00:9::/64
PreferredLifetimeSec=1200
ValidLifetimeSec=1800
";

/// The configuration of the rail for systemd-networkd.
const NETWORKD: &str = "\
[Match]
Name=eth1
[Network]
DHCP=ipv4
IPv6AcceptRA=yes
[Address]
Address=10.8.0.5/24
[Route]
Destination=10.20.0.0/16
Gateway=10.8.0.1
";

fn gives_leases(node: &Node) -> Manager {
    let addresses = "[Address]\nAddress=10.9.0.254/24\n[Address]\nAddress=fd00:9::254/64\n";
    let text = format!("{ROUTER}{addresses}");
    Manager::networkd(&node.switch, &[("br0.network", &text)])
}

/// Returns the routes of `netns` through `link`: `destination`, with ` via gateway` if there is a gateway, or with
/// ` by advertisement` if the gateway's address is link-local. Leaves out link-local and multicast destinations.
fn routes(netns: &Netns, link: &str) -> Vec<String> {
    let mut found = vec![];
    for family in ["4", "6"] {
        for route in netns.show(&format!("-{family} route show table main dev {link}")) {
            let destination = route["dst"].as_str().unwrap_or_default();
            if destination.starts_with("fe80:") || route["type"] == "multicast" {
                continue;
            }
            let by = match &route["gateway"] {
                Value::String(gateway) if gateway.starts_with("fe80:") => {
                    " by advertisement".into()
                }
                Value::String(gateway) => format!(" via {gateway}"),
                _ => String::new(),
            };
            found.push(format!("{destination}{by}"));
        }
    }
    found.sort();
    found
}

const STATIC_ROUTES: [&str; 7] = [
    "10.20.0.0/16 via 10.9.0.254",
    "10.30.0.0/16",
    "10.9.0.0/24",
    "default via 10.9.0.254",
    "default via fd00:9::254",
    "fd00:20::/48 via fd00:9::254",
    "fd00:9::/64",
];

/// Returns true if NetworkManager has finished the configuration of the rail.
fn is_connected(manager: &Manager) -> bool {
    let devices = manager.run("nmcli -t -f DEVICE,STATE device");
    devices.contains("eth1:connected")
}

/// A node whose rail NetworkManager has configured by `profile`, with the `expected` routes.
fn managed(profile: &str, expected: &[&str]) -> (Node, Manager, Option<Manager>) {
    let is_static = profile == STATIC;
    let node = if is_static {
        with_router()
    } else {
        Node::with_rails(1)
    };
    // otherwise the kernel configures the rail before NetworkManager sees it, and NetworkManager leaves it unchanged
    node.host.set_sysctl("ipv6/conf/eth1/accept_ra", "0");
    let router = (!is_static).then(|| gives_leases(&node));
    let manager = Manager::network_manager(&node.host, &[("rail", profile)]);
    manager.until("NetworkManager has set the rail up", || {
        // the route of the link-local network appears last
        routes(&node.host, "eth1") == expected
            && is_connected(&manager)
            && !node
                .host
                .show("-6 route show fe80::/64 dev eth1")
                .is_empty()
    });
    (node, manager, router)
}

/// One packet of each family reaches the router.
fn reaches_the_router(pod: &Netns) {
    pod.run("ping -n -c 1 -W 5 10.9.0.254");
    pod.run("ping -n -c 1 -W 5 fd00:9::254");
}

#[test]
fn settings_of_network_manager_move_and_return() {
    let (node, manager, _) = managed(STATIC, &STATIC_ROUTES);
    // an administrator stops NetworkManager: no further settings appear
    manager.stop();
    let before = Snapshot::of(&node.host);
    let configuration = of_the_rail(&node);
    let pod = node.pod("pod");
    let result = node.add(&configuration, "a", &pod);
    assert_eq!(routes(&pod, "rdma0"), STATIC_ROUTES);
    reaches_the_router(&pod);
    let mut check = configuration.clone();
    check["prevResult"] = result;
    node.invoke("CHECK", "a", pod.path())
        .input(&check)
        .run()
        .silent();
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);

    let mut with_ipam = configuration;
    with_ipam["ipam"] = json!({"type": ipam::NAME});
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.9.0.7/24"}]}));
    node.add(&with_ipam, "b", &pod);
    assert_eq!(routes(&pod, "rdma0"), ["10.9.0.0/24"]);
    node.del(&with_ipam, "b", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn pods_come_and_go_beside_network_manager() {
    let (node, manager, _) = managed(STATIC, &STATIC_ROUTES);
    let before = Snapshot::of(&node.host);
    for container in ["a", "b", "c"] {
        let pod = node.pod(container);
        let configuration = of_the_rail(&node);
        node.add(&configuration, container, &pod);
        assert_eq!(routes(&pod, "rdma0"), STATIC_ROUTES);
        reaches_the_router(&pod);
        node.del(&configuration, container, &pod);
        before.assert_restored(&node.host);
    }
    assert!(is_connected(&manager), "{}", manager.log());
    before.assert_restored(&node.host);
}

#[test]
fn a_lease_of_network_manager_goes_along_and_comes_back() {
    let expected = [
        "10.9.0.0/24",
        "default by advertisement",
        "default via 10.9.0.254",
        "fd00:9::/64",
    ];
    let (node, manager, _router) = managed(BY_DHCP, &expected);
    manager.stop();
    let before = Snapshot::of(&node.host);
    let configuration = of_the_rail(&node);
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    assert_eq!(routes(&pod, "rdma0"), expected);
    reaches_the_router(&pod);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

const NETWORKD_ROUTES: [&str; 7] = [
    "10.20.0.0/16 via 10.8.0.1",
    "10.8.0.0/24",
    "10.9.0.0/24",
    "10.9.0.254",
    "default by advertisement",
    "default via 10.9.0.254",
    "fd00:9::/64",
];

fn with_networkd() -> (Node, Manager, Manager) {
    let node = Node::with_rails(1);
    let router = gives_leases(&node);
    let manager = Manager::networkd(&node.host, &[("eth1.network", NETWORKD)]);
    manager.until("systemd-networkd has set the rail up", || {
        routes(&node.host, "eth1") == NETWORKD_ROUTES
    });
    (node, manager, router)
}

#[test]
fn settings_of_networkd_move_and_return() {
    let (node, manager, _router) = with_networkd();
    manager.stop();
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    let configuration = of_the_rail(&node);
    node.add(&configuration, "a", &pod);
    assert_eq!(routes(&pod, "rdma0"), NETWORKD_ROUTES);
    reaches_the_router(&pod);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn pods_come_and_go_beside_networkd() {
    let (node, manager, _router) = with_networkd();
    for container in ["a", "b", "c"] {
        let pod = node.pod(container);
        let configuration = of_the_rail(&node);
        node.add(&configuration, container, &pod);
        assert_eq!(routes(&pod, "rdma0"), NETWORKD_ROUTES);
        node.del(&configuration, container, &pod);
        manager.until("the rail has its routes again", || {
            node.host.has_link("eth1") && routes(&node.host, "eth1") == NETWORKD_ROUTES
        });
    }
    assert!(node.records().is_empty(), "{:?}", node.records());
}

/// No program manages the rail. The host's kernel makes an address from a router's advertisement; the pod's kernel
/// ignores advertisements.
#[test]
fn an_address_that_the_kernel_has_made_goes_along() {
    let node = Node::with_rails(1);
    let _router = gives_leases(&node);
    let made = || node.host.addresses("eth1");
    wait::until("the kernel has an address for the rail", || {
        made().iter().any(|it| it.starts_with("fd00:9:"))
    });
    let before = made();
    let pod = node.pod("pod");
    let configuration = of_the_rail(&node);
    node.add(&configuration, "a", &pod);
    assert_eq!(pod.addresses("rdma0"), before);
    assert_eq!(pod.sysctl("ipv6/conf/rdma0/accept_ra"), "0");
    pod.run("ping -c 1 -w 5 fd00:9::254");
    node.del(&configuration, "a", &pod);
    wait::until("the kernel has made it again", || made() == before);
}

/// The remaining lifetime of `address` in seconds. Returns `None` if `netns` does not have the address.
fn valid(netns: &Netns, address: &str) -> Option<u64> {
    let link = netns.link("eth1").expect("the rail");
    let addresses = link["addr_info"].as_array().expect("addresses").iter();
    let mut found = addresses.filter(|it| it["local"] == address);
    found.next().and_then(|it| it["valid_life_time"].as_u64())
}

#[test]
fn lifetimes_run_on_while_the_netdev_is_away() {
    let node = with_router();
    for line in [
        "address add 10.9.0.5/24 dev eth1 valid_lft 2 preferred_lft 1",
        "address add 10.8.0.5/24 dev eth1 valid_lft 3600 preferred_lft 2",
        "-6 address add fd00:9::5/64 dev eth1 nodad noprefixroute valid_lft 2 preferred_lft 1",
        "-6 address add fd00:8::5/64 dev eth1 nodad noprefixroute valid_lft 3600 preferred_lft 2",
        "-6 route add fd00:9::/64 dev eth1 proto ra metric 1024 expires 2",
        "-6 route add fd00:8::/64 dev eth1 proto ra metric 1024 expires 3600",
        "route add 10.20.0.0/16 via 10.9.0.254 dev eth1 proto dhcp src 10.9.0.5",
        "route add 10.21.0.0/16 via 10.8.0.1 dev eth1 proto dhcp src 10.8.0.5",
    ] {
        node.host.ip(line);
    }
    node.host.set_sysctl("ipv6/conf/eth1/accept_ra", "0");
    let pod = node.pod("pod");
    let configuration = of_the_rail(&node);
    node.add(&configuration, "a", &pod);
    // in the pod no program renews the addresses, and the pod keeps them as long as it lives
    assert_eq!(
        routes(&pod, "rdma0"),
        [
            "10.20.0.0/16 via 10.9.0.254",
            "10.21.0.0/16 via 10.8.0.1",
            "10.8.0.0/24",
            "10.9.0.0/24",
            "fd00:8::/64",
            "fd00:9::/64",
        ]
    );
    std::thread::sleep(std::time::Duration::from_secs(3));
    node.del(&configuration, "a", &pod);
    let left = ["10.8.0.5", "fd00:8::5"].map(|it| valid(&node.host, it));
    assert!(
        left.iter()
            .all(|left| left.is_some_and(|it| (3500..=3597).contains(&it))),
        "{left:?}"
    );
    let gone = ["10.9.0.5", "fd00:9::5"].map(|it| valid(&node.host, it));
    assert_eq!(gone, [None, None]);
    assert_eq!(
        routes(&node.host, "eth1"),
        ["10.21.0.0/16 via 10.8.0.1", "10.8.0.0/24", "fd00:8::/64"]
    );
    let expires = node.host.show("-6 route show fd00:8::/64");
    let expires = expires[0]["expires"].as_u64();
    assert!(
        expires.is_some_and(|it| (3500..=3597).contains(&it)),
        "{expires:?}"
    );
    assert!(node.records().is_empty(), "{:?}", node.records());
    wait::until("the pod has lost the rail", || !pod.has_link("rdma0"));
}
