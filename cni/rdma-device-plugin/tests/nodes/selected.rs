// SPDX-License-Identifier: Apache-2.0
//! Tests of a resource's devices, which the resource keeps while pods have the devices, and of the remarks about other
//! devices.

use crate::{ids, node};
use daemon_conf::Conf;
use node_state::ipv6_prerequisite::parents;
use offer::{Offer, PreviousOffers, Unhealthy, offers, table};
use rdma_netns::{Inventory, LinkType, RdmaMode};
use rdma_resources::{Published, published};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

fn conf(text: &str) -> Conf {
    let parsed = Conf::parse(text, Path::new("config"));
    parsed.unwrap_or_else(|error| panic!("{error}")).conf
}

fn of(conf: &Conf, inventory: &Inventory, previous: &PreviousOffers) -> (Vec<Offer>, Vec<String>) {
    offers(
        conf,
        inventory,
        &BTreeSet::new(),
        &Unhealthy::new(),
        previous,
    )
}

fn selected(selector: &str, layout: &str) -> Vec<String> {
    let text =
        format!(r#"{{"resources":[{{"name":"rdma/x","kind":"shared","devices":[{selector}]}}]}}"#);
    let (offers, _) = of(&conf(&text), &node(layout), &PreviousOffers::default());
    offers.first().map(addresses).unwrap_or_default()
}

fn addresses(offer: &Offer) -> Vec<String> {
    let addresses = offer.devices.iter().map(|it| it.address.to_string());
    addresses.collect()
}

#[test]
fn all_keys_of_a_selector_and_one_of_each_list() {
    for (selector, layout, expected) in [
        (
            r#"{"netdev":"ens[23]f0*"}"#,
            "mixed-vendors",
            &["5e", "86"][..],
        ),
        (r#"{"rdma":"mlx5_?"}"#, "mixed-vendors", &["3b"]),
        (r#"{"pci":"0000:[35]*"}"#, "mixed-vendors", &["3b", "5e"]),
        (r#"{"pci":"0000:3B:00.0"}"#, "mixed-vendors", &["3b"]),
        (
            r#"{"driver":["ice","mlx*"]}"#,
            "mixed-vendors",
            &["3b", "86"],
        ),
        (
            r#"{"driver":["ice","mlx*"],"vendor":"8086"}"#,
            "mixed-vendors",
            &["86"],
        ),
        (
            r#"{"device":"1750"},{"device":"159b"}"#,
            "mixed-vendors",
            &["5e", "86"],
        ),
        (r#"{"linkType":"infiniband"}"#, "mixed-vendors", &[]),
        (r#"{"linkType":"infiniband"}"#, "infiniband", &["3b", "5e"]),
        (r#"{"netdev":"bond1"}"#, "lacp-bonds", &["5e"]),
        (r#"{"netdev":"ens1f0"}"#, "lacp-bonds", &["3b"]),
        (r#"{"pf":"ens1f0"}"#, "one-hca", &["3b"]),
    ] {
        let expected: Vec<String> = expected
            .iter()
            .map(|bus| format!("0000:{bus}:00.0"))
            .collect();
        assert_eq!(
            selected(selector, layout),
            expected,
            "{selector} on {layout}"
        );
    }
}

#[test]
fn functions_of_a_physical_function_by_their_numbers() {
    for (pf, layout, expected) in [
        (
            "ens1f0#0-1,3",
            "four-vfs",
            &["0000:3b:00.2", "0000:3b:00.3", "0000:3b:00.5"][..],
        ),
        ("0000:3b:00.0#2", "four-vfs", &["0000:3b:00.4"]),
        ("0000:5e:00.0", "four-vfs", &[]),
        ("ens1f0#88", "sub-functions", &["mlx5_core.sf.4"]),
        (
            "ens1f0#0-100",
            "sub-functions",
            &["mlx5_core.sf.4", "mlx5_core.sf.5"],
        ),
        (
            "ens1f0",
            "sub-functions",
            &["0000:3b:00.0", "mlx5_core.sf.4", "mlx5_core.sf.5"],
        ),
    ] {
        let found = selected(&format!(r#"{{"pf":"{pf}"}}"#), layout);
        assert_eq!(found, expected, "{pf} on {layout}");
    }
}

#[test]
fn a_sub_function_has_its_own_driver_and_its_functions() {
    for driver in ["mlx5_core", "mlx5_core.sf"] {
        let selector = format!(r#"{{"driver":"{driver}","rdma":"mlx5_[45]"}}"#);
        let found = selected(&selector, "sub-functions");
        assert_eq!(found, ["mlx5_core.sf.4", "mlx5_core.sf.5"], "{driver}");
    }
}

const BY_NETDEV: &str = r#"{"resources":[{"name":"rdma/vf","kind":"exclusive",
    "devices":[{"netdev":"ens1f0v*","rdma":"mlx5_[1-4]"}]}]}"#;
const VFS: [&str; 4] = [
    "0000:3b:00.2",
    "0000:3b:00.3",
    "0000:3b:00.4",
    "0000:3b:00.5",
];

#[test]
fn a_device_in_a_pod_stays_offered() {
    let conf = conf(BY_NETDEV);
    let (before, _) = of(&conf, &node("four-vfs"), &PreviousOffers::default());
    assert_eq!(addresses(&before[0]), VFS);
    let inside = node("vfs-in-pods");
    let (after, _) = of(&conf, &inside, &PreviousOffers::of(&before));
    assert_eq!(addresses(&after[0]), VFS);
    assert_eq!(ids(&after[0]), ids(&before[0]));
    let macs = |offers: &[Offer]| {
        let macs = offers[0].devices.iter().map(|device| device.mac.clone());
        macs.collect::<Vec<_>>()
    };
    assert_eq!(
        macs(&after),
        macs(&before),
        "netdevs in pods keep their addresses"
    );

    // the result stays the same at later observations
    let (later, _) = of(&conf, &inside, &PreviousOffers::of(&after));
    assert_eq!(later, after);
    // after a restart of the daemon
    let published = Published {
        format: published::FORMAT,
        cdi_dir: None,
        boot_id: None,
        resources: [("rdma/vf".to_owned(), before[0].published())].into(),
        chain_names_resources: false,
        physical_functions: BTreeMap::new(),
    };
    let (restarted, _) = of(&conf, &inside, &PreviousOffers::of_published(&published));
    assert_eq!(addresses(&restarted[0]), VFS);
    // a daemon without earlier observations offers only the devices whose netdevs are on the host
    let (fresh, _) = of(&conf, &inside, &PreviousOffers::default());
    assert_eq!(addresses(&fresh[0]), ["0000:3b:00.2", "0000:3b:00.5"]);
    // a visible device that no longer matches is removed
    let mut renamed = node("four-vfs");
    renamed.functions[1].netdevs[0].name = "eth7".into();
    let (renamed, _) = of(&conf, &renamed, &PreviousOffers::of(&before));
    assert_eq!(addresses(&renamed[0]), VFS[1..]);
}

#[test]
fn a_device_without_its_rdma_device_stays_with_its_reported_health() {
    let conf = conf(BY_NETDEV);
    let (before, _) = of(&conf, &node("four-vfs"), &PreviousOffers::default());
    let mut moving = node("four-vfs");
    moving.functions[1].hcas.clear();
    let healthy = |offers: &[Offer]| {
        let ids = offers[0].ids.iter().filter(|id| id.healthy);
        ids.map(|id| id.id.clone()).collect::<Vec<_>>()
    };
    // the driver makes the RDMA device again at a move, and kubelet gets no report about this
    let (after, _) = of(&conf, &moving, &PreviousOffers::of(&before));
    assert_eq!(healthy(&after), VFS);
    let down = VFS[0].to_owned().try_into().expect("an address");
    let down: Unhealthy = [(down, "it has no RDMA device".to_owned())].into();
    let (down, _) = offers(
        &conf,
        &moving,
        &BTreeSet::new(),
        &down,
        &PreviousOffers::of(&after),
    );
    assert_eq!(healthy(&down), VFS[1..]);
    let (later, _) = of(&conf, &moving, &PreviousOffers::of(&down));
    assert_eq!(later, after);
    let (back, _) = of(&conf, &node("four-vfs"), &PreviousOffers::of(&later));
    assert_eq!(back, before);
    // another NIC's new RDMA device has the name of this device, and pods have ids with this name
    let nics = crate::selected::conf(
        r#"{"resources":[{"name":"rdma/x","kind":"perNic","count":1,
        "devices":[{"netdev":"ens1f0v*","rdma":"mlx5_[1-4]"}]}]}"#,
    );
    let (nics_before, _) = of(&nics, &node("four-vfs"), &PreviousOffers::default());
    let mut renamed = moving;
    renamed.functions[2].hcas[0].name = "mlx5_1".into();
    let (nics, _) = of(&nics, &renamed, &PreviousOffers::of(&nics_before));
    assert_eq!(addresses(&nics[0]), VFS[1..]);
    // the device was unplugged
    let (gone, _) = of(&conf, &node("vf-removed"), &PreviousOffers::of(&before));
    assert_eq!(addresses(&gone[0]), [VFS[0], VFS[1], VFS[3]]);
}

#[test]
fn no_list_is_longer_than_kubelet_takes() {
    let conf = conf(r#"{"resources":[{"name":"rdma/x","kind":"perNic","count":5000}]}"#);
    let mut many = node("erdma");
    let nics = many.functions.clone();
    for number in 0..18 {
        let mut nic = nics[0].clone();
        nic.device.address = format!("0000:01:{number:02x}.0")
            .try_into()
            .expect("an address");
        nic.hcas[0].name = format!("erdma_{}", number + 2);
        many.functions.push(nic);
    }
    let (offers, remarks) = of(&conf, &many, &PreviousOffers::default());
    assert_eq!(offers[0].ids.len(), 20 * 2500);
    let remark = "rdma/x has 2500 ids for each NIC instead of 5000";
    assert!(remarks[0].contains(remark), "{remarks:?}");
    let (offers, remarks) = of(&conf, &node("erdma"), &PreviousOffers::default());
    assert_eq!(offers[0].ids.len(), 2 * 5000);
    assert_eq!(remarks, [] as [&str; 0]);
}

/// A pod gets a whole bonded NIC: its RDMA device, and a child of the bond.
#[test]
fn a_bond_can_be_one_pods_alone_where_its_rdma_device_stays_for_that() {
    let exclusive = r#"{"resources":[{"name":"rdma/hca","kind":"exclusive"}]}"#;
    let offered = |node: &Inventory| {
        let (offers, remarks) = of(&conf(exclusive), node, &PreviousOffers::default());
        let ids = offers.iter().flat_map(|it| &it.ids);
        let ids: Vec<_> = ids
            .map(|it| (it.id.clone(), it.numa_nodes.clone()))
            .collect();
        (ids, remarks)
    };
    let mut bonds = node("lacp-bonds");
    let both = [
        ("0000:3b:00.0".to_owned(), vec![0]),
        ("0000:5e:00.0".to_owned(), vec![1]),
    ];
    for mode in [None, Some(RdmaMode::Shared)] {
        bonds.rdma_mode = mode;
        assert_eq!(offered(&bonds), (both.to_vec(), vec![]));
    }
    bonds.rdma_mode = Some(RdmaMode::Exclusive);
    let (ids, remarks) = offered(&bonds);
    assert_eq!(ids, []);
    let why = "is a port of bond0, which cannot be moved into a pod, and the RDMA subsystem is in exclusive mode";
    assert!(remarks[0].contains(why), "{remarks:?}");

    // a port of one bond has the node's default route, and both ports of the other bond have an RDMA device
    bonds.rdma_mode = None;
    bonds.functions[2].netdevs[0].default_route = true;
    let hca = bonds.functions[0].hcas.clone();
    bonds.functions[1].hcas = hca;
    let (ids, remarks) = offered(&bonds);
    assert_eq!(ids, both[..1]);
    assert_eq!(
        remarks,
        [
            "resources[0]: 0000:3b:00.1 is not in rdma/hca: its bond bond0 is offered with the port 0000:3b:00.0",
            "resources[0]: 0000:5e:00.0 is not in rdma/hca: the node's default route, or its route to the API server, uses the device's netdev ens2f0",
        ]
    );
}

/// Netdevs that cannot have a child, and a bond of another resource, are left out.
#[test]
fn a_bond_is_no_pods_alone_where_it_could_not_be_attached_or_is_anothers() {
    let left_out = |text: &str, node: &Inventory| {
        let (offers, remarks) = of(&conf(text), node, &PreviousOffers::default());
        let ids = offers.iter().flat_map(|it| &it.ids).count();
        (ids, remarks)
    };
    let exclusive = r#"{"resources":[{"name":"rdma/hca","kind":"exclusive"}]}"#;
    let mut ipoib = node("lacp-bonds");
    for netdev in ipoib.functions.iter_mut().flat_map(|it| &mut it.netdevs) {
        netdev.link_type = LinkType::Infiniband;
    }
    let moved = r#"{"resources":[{"name":"rdma/hca","kind":"exclusive"}],
        "chain":{"plugin":{"resources":["rdma/hca"],"mode":"move"}}}"#;
    for (text, node) in [(exclusive, &ipoib), (moved, &node("lacp-bonds"))] {
        let (ids, remarks) = left_out(text, node);
        assert_eq!(ids, 0);
        assert!(
            remarks[0].contains("is a port of bond0; offer the device by a shared"),
            "{remarks:?}"
        );
    }

    let mut two = node("lacp-bonds");
    two.functions[1].hcas = two.functions[0].hcas.clone();
    let each = r#"{"resources":[
        {"name":"rdma/a","kind":"exclusive","devices":[{"pci":"0000:3b:00.0"}]},
        {"name":"rdma/b","kind":"exclusive","devices":[{"pci":"0000:3b:00.1"}]}]}"#;
    let (ids, remarks) = left_out(each, &two);
    assert_eq!(ids, 1);
    assert!(
        remarks[0].contains("0000:3b:00.1 is not in rdma/b, because rdma/a has this device"),
        "{remarks:?}"
    );
}

/// The kernel would leave a VLAN on the host when ADD moves its lower netdev, so ADD refuses the move.
#[test]
fn a_nic_with_a_vlan_is_left_out_if_it_would_be_moved() {
    let mut tagged = node("one-hca");
    tagged.functions[1].netdevs[0].above = Some("the vlan storage".to_owned());
    let resources = r#""resources":[{"name":"rdma/x","kind":"exclusive"}]"#;
    let shared = r#","chain":{"plugin":{"mode":"share"}}"#;
    for (chain, mode, is_offered) in [
        (r#","chain":{}"#, RdmaMode::Exclusive, false),
        (r#","chain":{}"#, RdmaMode::Shared, false),
        (r#","chain":{},"dra":{}"#, RdmaMode::Exclusive, false),
        // a DeviceClass can demand child netdevs
        (r#","chain":{},"dra":{}"#, RdmaMode::Shared, true),
        (shared, RdmaMode::Shared, true),
        ("", RdmaMode::Exclusive, true),
    ] {
        tagged.rdma_mode = Some(mode);
        let conf = conf(&format!("{{{resources}{chain}}}"));
        let (offers, remarks) = of(&conf, &tagged, &PreviousOffers::default());
        assert_eq!(offers.is_empty(), !is_offered, "{remarks:?}");
        let why = "0000:3b:00.0 is not in rdma/x: the vlan storage lies on its netdev ens1f0, which rdma-cni \
                   therefore does not move";
        assert_eq!(remarks.iter().any(|it| it.contains(why)), !is_offered);
    }
}

#[test]
fn selectors_without_a_device_are_reported() {
    let remarks =
        |text: &str, layout: &str| of(&conf(text), &node(layout), &PreviousOffers::default()).1;
    assert_eq!(
        remarks(r#"{"mode":"hca"}"#, "no-rdma"),
        ["this node has no RDMA devices: nothing is offered until there are some"]
    );
    assert_eq!(
        remarks(r#"{"mode":"sriov","pfNetdevices":["ens9"]}"#, "four-vfs"),
        ["mode: no RDMA device of this node is selected, so rdma/vhca is not offered"]
    );
    let exclusive = r#"{"resources":[{"name":"rdma/x","kind":"exclusive"}]}"#;
    let of_vfs = r#"{"resourceList":[{"resourceName":"x","selectors":[{"isRdma":true}]}]}"#;
    let joined = remarks(of_vfs, "lacp-bonds").join("; ");
    assert!(
        joined.contains(
            "its netdev ens1f0 is a port of bond0; offer the device by a shared resource"
        ),
        "{joined}"
    );
    assert_eq!(
        remarks(exclusive, "four-vfs"),
        [
            "resources[0]: 0000:3b:00.0 is not in rdma/x: it has 4 virtual functions, which a move would affect"
        ]
    );
    let mut main = node("one-hca");
    main.functions[1].netdevs[0].default_route = true;
    let (_, main_remarks) = of(&conf(exclusive), &main, &PreviousOffers::default());
    assert_eq!(
        main_remarks[0],
        "resources[0]: 0000:3b:00.0 is not in rdma/x: the node's default route, or its route to the API server, uses the device's netdev ens1f0"
    );
    let three = r#"{"resources":[{"name":"rdma/hca","kind":"shared"},
        {"name":"rdma/x","kind":"exclusive","devices":[{"pf":"ens1f0#0-1"}]},
        {"name":"rdma/y","kind":"exclusive","devices":[{"pf":"ens1f0#1-2"}]}]}"#;
    assert_eq!(
        remarks(three, "four-vfs"),
        [
            "resources[2]: 0000:3b:00.3 is not in rdma/y, because rdma/x has this device or another port of its bond",
            "0000:3b:00.2, 0000:3b:00.3, 0000:3b:00.4 are exclusive in one resource and shared in another one; select them for one resource only",
        ]
    );
}

#[test]
fn the_table_that_people_read() {
    let conf = conf(
        r#"{"resources":[{"name":"rdma/hca","kind":"shared","devices":[{"pci":"*:3b:00.0"}]},
        {"name":"rdma/vf","kind":"exclusive","devices":[{"pf":"ens1f0#0-1"}]}]}"#,
    );
    let inventory = node("vfs-in-pods");
    let unhealthy: Unhealthy = [(
        inventory.functions[0].device.address.clone(),
        "port 1 is down".to_owned(),
    )]
    .into();
    let (offers, _) = offers(
        &conf,
        &inventory,
        &BTreeSet::new(),
        &unhealthy,
        &PreviousOffers::default(),
    );
    let remarks = ["a remark".to_owned()];
    let expected = "\
RESOURCE  KIND         IDS   DEVICE        RDMA    NETDEV            NUMA  HEALTH
rdma/hca  shared, all  1000  0000:3b:00.0  mlx5_0  ens1f0            0     unhealthy: port 1 is down
rdma/vf   exclusive    2     0000:3b:00.2  mlx5_1  ens1f0v0          0     healthy
                             0000:3b:00.3  mlx5_2  in a pod, or none  0     healthy
- a remark
";
    let found = table(&conf.resources, &offers, &inventory, &unhealthy, &remarks);
    let squeezed = |text: &str| {
        let words = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.collect::<Vec<_>>()
    };
    assert_eq!(squeezed(&found), squeezed(expected));
    let columns: Vec<Option<usize>> = found.lines().map(|line| line.find("mlx5_")).collect();
    assert_eq!(columns[1], columns[3], "{found}");
}

#[test]
fn the_table_of_a_node_without_rdma_has_each_resource_and_why_it_is_none() {
    let conf = conf(
        r#"{"resources":[{"name":"rdma/hca","kind":"shared"},{"name":"rdma/vf","kind":"exclusive"}]}"#,
    );
    let lines = |inventory: &Inventory, conf: &Conf| -> Vec<String> {
        let (offers, remarks) = of(conf, inventory, &PreviousOffers::default());
        let table = table(
            &conf.resources,
            &offers,
            inventory,
            &Unhealthy::new(),
            &remarks,
        );
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.lines().skip(1).map(words).collect()
    };
    assert_eq!(
        lines(&node("no-rdma"), &conf),
        [
            "rdma/hca shared, all 0 - - - - not offered: this node has no RDMA devices",
            "rdma/vf exclusive 0 - - - - not offered: this node has no RDMA devices",
            "- this node has no RDMA devices: nothing is offered until there are some",
        ]
    );
    let mut bonds = node("lacp-bonds");
    bonds.rdma_mode = Some(RdmaMode::Exclusive);
    let bonds = lines(&bonds, &conf);
    assert_eq!(
        bonds[2],
        "rdma/vf exclusive 0 - - - - not offered: no RDMA device of this node is selected"
    );
}

/// The daemon checks that these NICs have IPv6 addresses. `rdma-ipam` uses the IPv6 prefixes of the NICs of resources
/// that `rdma-cni` attaches, if the entry's IPAM has `from: parent` and a family with IPv6.
#[test]
fn the_nics_that_pods_ipv6_addresses_come_from() {
    let parents = |format: &str, plugin: &str| -> Vec<String> {
        let conf = conf(&format!("{format}\nchain: {{plugin: {plugin}}}"));
        let inventory = node("lacp-bonds");
        let (offers, _) = of(&conf, &inventory, &PreviousOffers::default());
        let parents = parents(conf.chain.as_ref(), &offers, &inventory);
        let named = parents
            .iter()
            .map(|it| format!("{} {}", it.rdma, it.netdev));
        named.collect()
    };
    let both = ["mlx5_bond_0 ens1f0", "mlx5_bond_1 ens2f0"];
    let from_parent = "{ipam: {type: rdma-ipam, from: parent}}";
    assert_eq!(parents("mode: hca", from_parent), both);
    let own = "resources: [{name: rdma/own, kind: shared, devices: [{rdma: mlx5_bond_1}]}]";
    assert_eq!(parents(own, from_parent), both[1..]);
    let left_out = "{resources: [rdma/hca], ipam: {type: rdma-ipam, from: parent}}";
    assert_eq!(parents(own, left_out), [] as [&str; 0]);
    let attached = "{resources: [rdma/own], ipam: {type: rdma-ipam, from: parent, family: both}}";
    assert_eq!(parents(own, attached), both[1..]);
    for other in [
        "{}",
        "{ipam: {type: rdma-ipam, from: parent, family: ipv4}}",
        "{ipam: {type: rdma-ipam, ranges: [[{subnet: 'fd00::/64'}]]}}",
        "{ipam: {type: whereabouts, from: parent}}",
    ] {
        assert_eq!(parents("mode: hca", other), [] as [&str; 0], "{other}");
    }
}
