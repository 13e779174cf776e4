// SPDX-License-Identifier: Apache-2.0
//! Tests of eRDMA: the configuration file, the discovered NICs, and the devices that containers
//! get.

use ::erdma::conf::DriverMode;
use daemon_conf::{Allocate, Conf, Erdma, Ids, Origin, Parsed};
use integration::{Machine, machine::Erdma as Nic};
use node_state::{erdma::discover, hardware::Hardware};
use offer::{Offer, PreviousOffers, Unhealthy, offers};
use rdma_netns::Inventory;
use std::{fs, path::Path};

pub(crate) const FIRST: Nic<'_> = Nic {
    address: "0000:00:07.0",
    netdev_address: "0000:00:05.0",
    rdma: "erdma_0",
    netdev: "eth1",
    mac: "00:16:3e:0a:0b:01",
    numa_node: 0,
    number: 0,
};
pub(crate) const SECOND: Nic<'_> = Nic {
    address: "0000:00:08.0",
    netdev_address: "0000:00:06.0",
    rdma: "erdma_1",
    netdev: "eth2",
    mac: "00:16:3e:0a:0b:02",
    numa_node: 1,
    number: 1,
};

pub(crate) fn node() -> Machine {
    let machine = Machine::with(&[]);
    machine.erdma_module(Some(Some(false)));
    machine.plug_erdma(&FIRST);
    machine.plug_erdma(&SECOND);
    machine
}

pub(crate) fn inventory_of(machine: &Machine) -> Inventory {
    let hardware = Hardware::new(&machine.path("sys"), &machine.path("dev"));
    hardware.observe().expect("an inventory")
}

#[track_caller]
pub(crate) fn own(text: &str) -> Parsed {
    Conf::parse(text, Path::new("f")).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn offered(parsed: &Parsed, inventory: &Inventory) -> (Vec<Offer>, Vec<String>) {
    let found = discover(&parsed.conf.erdma, inventory, None);
    let hidden = found.hidden_addresses();
    let healthy = Unhealthy::new();
    let (offers, remarks) = offers(
        &parsed.conf,
        inventory,
        &hidden,
        &healthy,
        &PreviousOffers::default(),
    );
    (offers, [remarks, found.remarks].concat())
}

#[test]
fn all_of_it_can_be_configured() {
    let parsed = own(
        "erdma:\n  preferDriver: ofed\n  reloadDriver: false\n  exposedLocalERIs:\n  - i-bp1 \
         erdma_0/erdma_1\n  - i-* erdma_*\n  configureNICs: true\n  jumboFrameMTU: 4200\n  \
         metadata: http://127.0.0.1:8080/\n  addresses:\n  - mac: 00:16:3E:01:02:03\n    address: \
         192.168.3.4/24\n    gateway: 192.168.3.253\n  - {mac: '00:16:3e:01:02:04', address: \
         10.0.0.9/30}\n  devices:\n  - driver: igb\ncdi: true\n",
    );
    assert_eq!(parsed.remarks, [] as [&str; 0]);
    let Erdma {
        origin,
        devices,
        prefer_driver,
        reload_driver,
        exposed,
        metadata,
        bring_up,
    } = parsed.conf.erdma;
    assert_eq!(origin, Origin::User);
    assert_eq!(devices.len(), 1);
    assert_eq!(prefer_driver, Some(DriverMode::Ofed));
    assert!(!reload_driver && parsed.conf.cdi);
    let exposed: Vec<String> = exposed.iter().map(ToString::to_string).collect();
    assert_eq!(exposed, ["i-bp1 erdma_0/erdma_1", "i-* erdma_*"]);
    assert_eq!(metadata, "http://127.0.0.1:8080");
    let bring_up = bring_up.expect("NICs are brought up");
    assert_eq!((bring_up.mtu, bring_up.metadata), (4200, metadata));
    assert_eq!(bring_up.addresses[0].mac.to_string(), "00:16:3e:01:02:03");
    assert_eq!(bring_up.addresses[0].address.to_string(), "192.168.3.4/24");
    assert_eq!(bring_up.addresses[1].gateway, None);
    // the resource exists although the file does not name it
    assert_eq!(parsed.conf.resources.len(), 1);
    let resource = &parsed.conf.resources[0];
    assert_eq!(resource.name.as_str(), "aliyun/erdma");
    let ids = Ids::PerNic {
        count: 200,
        allocate: Allocate::Numa,
    };
    assert_eq!(resource.ids, ids);
}

#[test]
fn absent_fields_have_their_defaults() {
    for (text, origin, brings_up) in [
        ("erdma: {}", Origin::User, true),
        ("erdma: {configureNICs: false}", Origin::User, false),
        (
            "resources: [{name: rdma/hca, kind: shared}]",
            Origin::Defaults,
            true,
        ),
        ("mode: hca", Origin::Foreign, false),
        (
            "configList: [{resourceName: a, rdmaHcaMax: 1, selectors: {drivers: [erdma]}}]",
            Origin::Foreign,
            false,
        ),
        (
            "resourceList: [{resourceName: a, selectors: {isRdma: true}}]",
            Origin::Foreign,
            false,
        ),
    ] {
        let erdma = own(text).conf.erdma;
        assert_eq!(erdma.origin, origin, "{text}");
        assert_eq!(erdma.bring_up.is_some(), brings_up, "{text}");
        assert_eq!(erdma.prefer_driver, None, "{text}");
        assert_eq!(erdma.exposed, [], "{text}");
    }
}

#[test]
fn another_formats_mark_wins_over_erdma() {
    for file in [
        "mode: hca",
        "configList: [{resourceName: a, rdmaHcaMax: 1, selectors: {drivers: [erdma]}}]",
        "resourceList: [{resourceName: a, selectors: {isRdma: true}}]",
    ] {
        let parsed = own(&format!("{file}\nerdma: {{preferDriver: compat}}"));
        assert_eq!(parsed.conf.erdma.origin, Origin::Foreign, "{file}");
        assert_eq!(parsed.conf.erdma.prefer_driver, None, "{file}");
        assert_eq!(parsed.remarks, ["erdma: unknown, ignored"], "{file}");
    }
    let both = Conf::parse("mode: hca\nresources: []\nerdma: {}", Path::new("f"));
    let refused = both.expect_err("two formats").to_string();
    assert!(
        refused.contains("resources and mode belong to different formats"),
        "{refused}"
    );
}

#[test]
fn invalid_configurations() {
    for (erdma, expected) in [
        ("[]", "erdma: must be an object, and is []"),
        (
            "{preferDriver: roce}",
            r#"erdma.preferDriver: must be one of default, compat, ofed, and is "roce""#,
        ),
        (
            "{exposedLocalERIs: [i-1]}",
            r#"erdma.exposedLocalERIs: "i-1" does not have two words; write an instance and its RDMA devices, as i-* erdma_0/erdma_1"#,
        ),
        (
            "{jumboFrameMTU: 1000}",
            "erdma.jumboFrameMTU: must be a whole number from 1280 to 65535, and is 1000",
        ),
        (
            "{configureNICs: 1}",
            "erdma.configureNICs: must be true or false, and is 1",
        ),
        (
            "{metadata: 'https://100.100.100.200'}",
            r#"erdma.metadata: must be http:// and a host, with an optional port, as http://100.100.100.200, and is "https://100.100.100.200""#,
        ),
        (
            "{addresses: [{address: 10.0.0.1/24}]}",
            "erdma.addresses[0].mac: must be a NIC's hardware address, as 00:16:3e:01:02:03, and is missing",
        ),
        (
            "{addresses: [{mac: '00:16:3e:01:02:03', address: 10.0.0.1}]}",
            r#"erdma.addresses[0].address: must be an IPv4 address with a prefix length, as 192.168.3.4/24, and is "10.0.0.1""#,
        ),
        (
            "{addresses: [{mac: '00:16:3e:01:02:03', address: 10.0.0.9/24, gateway: 10.0.1.1}]}",
            "erdma.addresses[0]: the gateway is 10.0.1.1, which is not in 10.0.0.0/24; write the address and gateway that the NIC has in its VPC",
        ),
        (
            "{addresses: [{mac: '00:16:3e:01:02:03', address: 10.0.0.9/24}, {mac: '00:16:3E:01:02:03', address: 10.0.0.8/24}]}",
            r#"erdma.addresses[1].mac: must appear only once in addresses, and is "00:16:3E:01:02:03""#,
        ),
        (
            "{preferdriver: compat}",
            "erdma.preferdriver: not known: did you mean preferDriver?",
        ),
    ] {
        let refused = Conf::parse(&format!("erdma: {erdma}"), Path::new("f"));
        let refused = refused.expect_err(erdma).to_string();
        assert_eq!(refused, format!("\"f\": {expected}"));
    }
    let refused = Conf::parse("erdma: {}\nresources: null", Path::new("f"));
    let refused = refused.expect_err("null").to_string();
    let expected = "resources: must have at least one resource, and is null; remove this field to \
                    offer only aliyun/erdma";
    assert_eq!(refused, format!("\"f\": {expected}"));
    let parsed = own("erdma: {configureNICs: false, jumboFrameMTU: 8500}");
    let remark = "erdma.jumboFrameMTU: has no effect with configureNICs: false";
    assert_eq!(parsed.remarks, [remark]);
}

#[test]
fn a_nic_is_its_two_functions() {
    let machine = node();
    let inventory = inventory_of(&machine);
    let parsed = own("erdma: {}");
    let found = discover(&parsed.conf.erdma, &inventory, None);
    assert_eq!((found.hidden.len(), found.needs_instance), (0, false));
    let described: Vec<_> = found
        .nics
        .iter()
        .map(|nic| format!("{} {} {:?}", nic.rdma, nic.address, nic.netdev))
        .collect();
    let wanted = [
        r#"erdma_0 0000:00:07.0 Some("eth1")"#,
        r#"erdma_1 0000:00:08.0 Some("eth2")"#,
    ];
    assert_eq!(described, wanted);
    let mac = found.nics[0].mac.as_ref().map(ToString::to_string);
    assert_eq!(mac.as_deref(), Some(FIRST.mac));

    let (offers, remarks) = offered(&parsed, &inventory);
    assert_eq!(remarks, [] as [&str; 0]);
    assert_eq!((offers.len(), offers[0].ids.len()), (1, 400));
    let (response, _) = offers[0]
        .answer(&["erdma_1/7".to_owned()], &inventory)
        .expect("an answer");
    assert_eq!(response.envs["SMCR_PNET"], "00163E0A0B02");
    let paths: Vec<&str> = response.devices.iter().map(|it| &*it.host_path).collect();
    assert_eq!(
        paths,
        ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]
    );
}

#[test]
fn one_that_cannot_be_understood_hides_no_other() {
    let machine = node();
    machine.write("sys/class/infiniband/erdma_0/node_guid", "what?\n");
    let inventory = inventory_of(&machine);
    let parsed = own("erdma: {}");
    let found = discover(&parsed.conf.erdma, &inventory, None);
    let netdevs: Vec<_> = found.nics.iter().map(|nic| nic.netdev.as_deref()).collect();
    assert_eq!(netdevs, [None, Some("eth2")]);
    let (offers, _) = offered(&parsed, &inventory);
    assert_eq!(offers[0].ids.len(), 400);
}

#[test]
fn an_unexposed_device_has_no_resource() {
    let machine = node();
    let inventory = inventory_of(&machine);
    let names = |pattern: &str, instance: Option<&str>| -> (Vec<String>, bool) {
        let parsed = own(&format!("erdma: {{exposedLocalERIs: [{pattern}]}}"));
        let found = discover(&parsed.conf.erdma, &inventory, instance);
        assert_eq!(found.nics.len() + found.hidden.len(), 2);
        let nics = found.nics.into_iter().map(|nic| nic.rdma);
        (nics.collect(), found.needs_instance)
    };
    let is = |pattern: &str, instance: Option<&str>, wanted: &[&str], needs: bool| {
        let wanted: Vec<String> = wanted.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(
            names(pattern, instance),
            (wanted, needs),
            "{pattern} {instance:?}"
        );
    };
    is("i-* erdma_*", None, &["erdma_0", "erdma_1"], false);
    is("i-* erdma_1", None, &["erdma_1"], false);
    is(
        "i-bp1 erdma_0/erdma_1",
        Some("i-bp1"),
        &["erdma_0", "erdma_1"],
        false,
    );
    is("i-bp1 erdma_0/erdma_1", Some("i-bp2"), &[], false);
    // i-* applies to instances that no other pattern names
    let both = "i-bp1 erdma_0, i-* erdma_1";
    is(both, Some("i-bp1"), &["erdma_0"], false);
    is(both, Some("i-bp2"), &["erdma_1"], false);
    is("i-bp1 mlx5_0, i-* erdma_*", Some("i-bp1"), &[], false);
    is(
        "i-bp1 erdma_0, i-bp* erdma_1, i-* erdma_*",
        Some("i-bp1"),
        &["erdma_0", "erdma_1"],
        false,
    );
    // without the instance's id, no NIC is selected
    is(both, None, &[], true);
    is("i-bp1 mlx5_0, i-* erdma_1", None, &[], true);
    is("i-bp1 erdma_1", None, &[], true);
    // the id is not requested if the result does not depend on it
    is("i-bp1 erdma_1, i-* erdma_1", None, &["erdma_1"], false);
    is("i-bp1 mlx5_0", None, &[], false);

    for text in [
        "erdma: {exposedLocalERIs: [i-* erdma_0, i-* erdma_9]}",
        "erdma: {exposedLocalERIs: [i-* erdma_0, i-* erdma_9]}\nresources: [{name: rdma/hca, kind: shared}]",
    ] {
        let (offers, remarks) = offered(&own(text), &inventory);
        let devices: Vec<&str> = offers[0].devices.iter().map(|it| &*it.address).collect();
        assert_eq!(devices, ["0000:00:07.0"], "{text}");
        assert!(
            remarks[0].contains("0000:00:08.0 (erdma_1) is not in"),
            "{remarks:?}"
        );
        assert!(
            remarks[1].contains("\"i-* erdma_9\" names no eRDMA NIC"),
            "{remarks:?}"
        );
    }
}

#[test]
fn users_are_warned() {
    let inventory = inventory_of(&node());
    let remarks = |text: &str| {
        let found = discover(&own(text).conf.erdma, &inventory, None);
        found.remarks.join("\n")
    };
    let defaults = remarks("resources: [{name: rdma/hca, kind: shared}]");
    assert!(defaults.contains("configureNICs: false"), "{defaults}");
    let foreign = remarks("mode: hca");
    assert!(
        foreign.contains("the daemon does not bring up eRDMA NICs"),
        "{foreign}"
    );
    assert_eq!(remarks("erdma: {}"), "");
    // there is no warning for a node without eRDMA NICs
    let bare = inventory_of(&Machine::bare());
    let conf = own("resources: [{name: rdma/hca, kind: shared}]").conf;
    assert_eq!(discover(&conf.erdma, &bare, None).remarks, [] as [&str; 0]);
}

#[test]
fn capabilities_follow_the_drivers_mode() {
    for (compat, ofed, whole) in [
        (Some(false), false, true),
        (Some(false), true, true),
        (None, false, true),
        (Some(true), false, false),
        (Some(true), true, false),
    ] {
        let machine = node();
        machine.erdma_module(Some(compat));
        if ofed {
            fs::create_dir_all(machine.path("sys/module/mlx_compat")).expect("made");
        }
        let inventory = inventory_of(&machine);
        for cdi in [false, true] {
            let parsed = own(&format!("erdma: {{}}\ncdi: {cdi}"));
            let (offers, _) = offered(&parsed, &inventory);
            let answer = offers[0].answer(&["erdma_0/0".to_owned()], &inventory);
            let (response, _) = answer.expect("an answer");
            assert_eq!(response.envs.contains_key("SMCR_PNET"), whole, "{compat:?}");
            let paths = response.devices.iter().map(|it| it.host_path.as_str());
            let names = response.cdi_devices.iter().map(|it| it.name.as_str());
            let manager = paths.chain(names).any(|it| it.contains("rdma_cm"));
            assert_eq!(manager, whole, "{compat:?}, cdi {cdi}");
        }
    }
}

/// A container gets `rdma_cm` if one of its devices can use it.
#[test]
fn another_drivers_device_is_not_limited() {
    let machine = node();
    machine.erdma_module(Some(Some(true)));
    machine.plug(&integration::machine::Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 7,
    });
    let inventory = inventory_of(&machine);
    let parsed = own("resources: [{name: rdma/hca, kind: shared, count: 1}]");
    let (offers, _) = offered(&parsed, &inventory);
    let (response, _) = offers[0]
        .answer(&["0".to_owned()], &inventory)
        .expect("an answer");
    assert_eq!(response.devices.len(), 4, "{:?}", response.devices);
}
