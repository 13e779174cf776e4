// SPDX-License-Identifier: Apache-2.0
//! Tests of the devices that a container gets, and of the check whether it would still get the same devices.

use crate::node;
use daemon_conf::Conf;
use offer::{
    Offer, PreviousOffers, Unhealthy, cdi_entries, connection_manager, offers, still_as_granted,
};
use rdma_device_plugin::device_info::files;
use rdma_netns::{CharDevice, Inventory};
use rdma_resources::Grant;
use serde_json::{Value, json};
use std::{collections::BTreeSet, path::Path};

fn offer_with(resource: &str, cdi: bool, inventory: &Inventory, unhealthy: &Unhealthy) -> Offer {
    let text = format!(r#"{{"resources":[{{"name":"rdma/x",{resource}}}],"cdi":{cdi}}}"#);
    let parsed = Conf::parse(&text, Path::new("config")).unwrap_or_else(|error| panic!("{error}"));
    let (mut offers, remarks) = offers(
        &parsed.conf,
        inventory,
        &BTreeSet::new(),
        unhealthy,
        &PreviousOffers::default(),
    );
    assert_eq!(offers.len(), 1, "{remarks:?}");
    offers.remove(0)
}

fn offer(resource: &str, inventory: &Inventory) -> Offer {
    offer_with(resource, false, inventory, &Unhealthy::new())
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

const ALL: &str = r#""kind":"shared""#;
const ALONE: &str = r#""kind":"exclusive""#;

/// Returns the allocated device files for `request`, by their names in `/dev/infiniband`, or the reason of the refusal.
fn given(offer: &Offer, request: &[&str], inventory: &Inventory) -> Result<Vec<String>, String> {
    let answer = offer.answer(&ids(request), inventory);
    let (response, _) = answer.map_err(|error| error.to_string())?;
    let paths = response.devices.into_iter().map(|spec| spec.host_path);
    let names = paths.map(|path| path.replace("/dev/infiniband/", ""));
    Ok(names.collect())
}

#[test]
fn every_node_once_and_umad_only_if_requested() {
    let node = node("infiniband");
    let two = offer(ALL, &node);
    let expected = ["uverbs0", "uverbs1", "rdma_cm"].map(str::to_owned);
    assert_eq!(
        given(&two, &["3", "999", "3"], &node).expect("given"),
        expected
    );
    let umad = offer(r#""kind":"exclusive","umad":true"#, &node);
    let expected = ["uverbs1", "issm1", "umad1", "rdma_cm"].map(str::to_owned);
    assert_eq!(
        given(&umad, &["0000:5e:00.0"], &node).expect("given"),
        expected
    );
    assert_eq!(
        given(&two, &[], &node).expect("nothing"),
        ["rdma_cm".to_owned()]
    );
}

/// The container of the fabric watch may open `rdma_cm`, and gets no NIC. The files for `rdma-cni` and for claims do
/// not contain this resource.
#[test]
fn the_watch_gets_the_connection_manager_alone() {
    let mut node = node("infiniband");
    let conf = |text: &str| Conf::parse(text, Path::new("f")).map(|it| it.conf);
    let with =
        conf(r#"{"mode":"hca","cdi":true,"dra":{},"fabric":true}"#).expect("a configuration");
    let offer = connection_manager(&with, &node).expect("offered");
    assert!(offer.list().iter().all(|it| it.health == "Healthy"));
    assert_eq!(given(&offer, &["0"], &node), Ok(vec!["rdma_cm".to_owned()]));
    let (response, grants) = offer.answer(&ids(&["1"]), &node).expect("given");
    assert_eq!(response.envs.len() + response.cdi_devices.len(), 0);
    assert_eq!(grants[0].devices, []);
    let grants: Vec<&Grant> = grants.iter().collect();
    assert_eq!(still_as_granted(&grants, &node), Ok(()));
    assert!(with.by_claims(&with.resources[0].name) && !with.by_claims(&offer.name));
    // the file's device number while the module is loaded; `None`: the module is not loaded
    let files = [
        (
            Some(None),
            "there is no character device /dev/infiniband/rdma_cm, although the module rdma_ucm is loaded: remove any file of \
             this name, and reload the module rdma_ucm",
        ),
        (
            Some(Some((10, 9))),
            "/dev/infiniband/rdma_cm has the device number 10:9 instead of 10:58: remove this file, and reload the \
             module rdma_ucm",
        ),
        (
            None,
            "there is no /dev/infiniband/rdma_cm on this node: load the module rdma_ucm",
        ),
    ];
    let manager = node.connection_manager.clone().expect("loaded");
    for (file, why) in files {
        let changed = |node| CharDevice {
            node,
            ..manager.clone()
        };
        node.connection_manager = file.map(changed);
        let offer = connection_manager(&with, &node).expect("offered");
        assert!(offer.list().iter().all(|it| it.health == "Unhealthy"));
        let refused = given(&offer, &["0"], &node).expect_err("no container can get it");
        assert!(refused.ends_with(&format!(": {why}")), "{refused}");
    }
    let without = conf(r#"{"mode":"hca"}"#).expect("a configuration");
    assert_eq!(connection_manager(&without, &node), None);
}

#[test]
fn an_absent_device_is_not_allocated() {
    let whole = node("infiniband");
    let mut node = node("infiniband");
    node.connection_manager = None;
    node.functions[0].hcas[0].char_devices[0].node = None;
    let umad = offer(r#""kind":"shared","umad":true"#, &whole);
    node.functions[1].hcas[0].char_devices[2].node = Some((231, 9));
    let expected = ["uverbs1", "issm1"].map(str::to_owned);
    assert_eq!(given(&umad, &["0"], &node).expect("given"), expected);
    let grants = umad.answer(&ids(&["0"]), &node).expect("given").1;
    assert_eq!(grants[0].devices.len(), 1);
    assert_eq!(&*grants[0].devices[0].address, "0000:5e:00.0");
}

#[test]
fn ids_that_cannot_be_allocated() {
    let whole = node("infiniband");
    let alone = offer(ALONE, &whole);
    let refused =
        |offer: &Offer, id: &str, node: &Inventory| given(offer, &[id], node).expect_err("refused");
    assert_eq!(
        refused(&alone, "0000:99:00.0", &whole),
        "rdma/x has no id \"0000:99:00.0\""
    );
    let all = offer(ALL, &whole);
    assert_eq!(refused(&all, "1000", &whole), "rdma/x has no id \"1000\"");

    let down: Unhealthy = [(alone.devices[0].address.clone(), "port down".to_owned())].into();
    let unhealthy = offer_with(ALONE, false, &whole, &down);
    assert_eq!(
        refused(&unhealthy, "0000:3b:00.0", &whole),
        "\"0000:3b:00.0\" of rdma/x cannot be allocated: no usable device among 0000:3b:00.0"
    );
    assert!(given(&unhealthy, &["0000:5e:00.0"], &whole).is_ok());

    type Change = fn(&mut Inventory);
    let cases: [(Change, &str); 5] = [
        (
            |node| node.functions.clear(),
            "0000:3b:00.0 is no longer on this node",
        ),
        (
            |node| node.functions[0].hcas.clear(),
            "0000:3b:00.0 has no RDMA device now",
        ),
        (
            |node| node.functions[0].hcas[0].char_devices.clear(),
            "mlx5_0 of 0000:3b:00.0 has no uverbs device (is ib_uverbs loaded?)",
        ),
        (
            |node| node.functions[0].hcas[0].char_devices[0].node = None,
            "/dev/infiniband/uverbs0 of 0000:3b:00.0 does not exist",
        ),
        (
            |node| node.functions[0].hcas[0].char_devices[0].minor = 200,
            "/dev/infiniband/uverbs0 has another device number than uverbs0 of 0000:3b:00.0",
        ),
    ];
    for (change, why) in cases {
        let mut node = node("infiniband");
        change(&mut node);
        assert_eq!(
            refused(&alone, "0000:3b:00.0", &node),
            format!("\"0000:3b:00.0\" of rdma/x cannot be allocated: {why}")
        );
    }
}

#[test]
fn an_unhealthy_device_of_several_is_left_out() {
    let node = node("infiniband");
    let addresses = ["0000:3b:00.0", "0000:5e:00.0"];
    let down = |addresses: &[&str]| -> Unhealthy {
        let down = addresses.iter().map(|address| {
            let address = (*address).to_owned().try_into().expect("an address");
            (address, "port 1 is down".to_owned())
        });
        down.collect()
    };
    for kind in [ALL, r#""kind":"perNic","allocate":"all""#] {
        let offer = offer_with(kind, false, &node, &down(&addresses[..1]));
        assert!(offer.ids.iter().all(|id| id.healthy), "one is enough");
        let id = offer.ids[0].id.as_str();
        let expected = ["uverbs1", "rdma_cm"].map(str::to_owned);
        assert_eq!(given(&offer, &[id], &node).expect("given"), expected);
        let grants = offer.answer(&ids(&[id]), &node).expect("given").1;
        let granted: Vec<&str> = grants[0].devices.iter().map(|it| &*it.address).collect();
        assert_eq!(granted, addresses[1..], "the chain attaches what was given");
        let by_name = offer_with(kind, true, &node, &down(&addresses[..1]));
        let (response, _) = by_name.answer(&ids(&[id]), &node).expect("given");
        assert_eq!(response.cdi_devices.len(), 2, "{response:?}");
        let none = offer_with(kind, false, &node, &down(&addresses));
        assert!(none.ids.iter().all(|id| !id.healthy));
        assert!(given(&none, &[id], &node).is_err());
    }
}

#[test]
fn cdi_names_instead_of_paths() {
    let node = node("infiniband");
    let offer = offer_with(ALL, true, &node, &Unhealthy::new());
    let (response, grants) = offer.answer(&ids(&["1", "2"]), &node).expect("given");
    assert_eq!(response.devices, []);
    let names: Vec<String> = response.cdi_devices.into_iter().map(|it| it.name).collect();
    assert_eq!(
        names,
        [
            "rdma-device-plugin/rdma=0000:3b:00.0",
            "rdma-device-plugin/rdma=0000:5e:00.0",
            "rdma-device-plugin/rdma=rdma_cm",
        ]
    );
    assert_eq!(grants.len(), 2);
    assert!(
        grants
            .iter()
            .all(|grant| grant.cdi && grant.devices.len() == 2)
    );

    let entries = |offers: &[Offer], node: &Inventory| -> Vec<(String, Vec<String>)> {
        let entries = cdi_entries(offers, node).into_iter();
        let names = entries.map(|entry| {
            let nodes = entry.nodes.into_iter().map(|node| node.name);
            (entry.name, nodes.collect())
        });
        names.collect()
    };
    let entry = |name: &str, node: &str| (name.to_owned(), vec![node.to_owned()]);
    let expected = [
        entry("0000:3b:00.0", "uverbs0"),
        entry("0000:5e:00.0", "uverbs1"),
        entry("rdma_cm", "rdma_cm"),
    ];
    assert_eq!(entries(&[offer.clone(), offer.clone()], &node), expected);
    let mut less = crate::node("infiniband");
    less.connection_manager = None;
    less.functions[0].hcas.clear();
    assert_eq!(entries(&[offer], &less), expected[1..2]);
    // the runtime starts containers again by the CDI names that they got before `cdi` was switched off
    let by_path = offer_with(ALL, false, &node, &Unhealthy::new());
    assert_eq!(entries(&[by_path], &node), expected);
}

#[test]
fn a_renumbered_device_is_noticed_before_the_container_starts() {
    let node = node("four-vfs");
    let vfs = offer(
        r#""kind":"exclusive","devices":[{"pf":"ens1f0#0-3"}]"#,
        &node,
    );
    let grants = vfs.answer(&ids(&["0000:3b:00.2"]), &node).expect("given").1;
    let [grant] = grants.as_slice() else {
        panic!("{grants:?}");
    };
    assert_eq!(still_as_granted(&[grant], &node), Ok(()));
    let message = |grant: &Grant, node: &Inventory| {
        still_as_granted(&[grant], node)
            .expect_err("stale")
            .to_string()
    };

    // two simultaneous moves swapped the numbers
    let mut swapped = crate::node("four-vfs");
    let (left, right) = swapped.functions.split_at_mut(2);
    std::mem::swap(
        &mut left[1].hcas[0].char_devices,
        &mut right[0].hcas[0].char_devices,
    );
    assert_eq!(
        message(grant, &swapped),
        "0000:3b:00.2 (\"0000:3b:00.2\" of rdma/x) was granted as /dev/infiniband/uverbs1 (231:193), \
         and is /dev/infiniband/uverbs2 (231:194) now; delete the pod to get a new allocation"
    );
    // after a reboot the driver's major number can differ, but the path is the allocated one
    let mut booted = crate::node("four-vfs");
    let device = &mut booted.functions[1].hcas[0].char_devices[0];
    device.major = 511;
    device.node = Some((511, device.minor));
    assert_eq!(still_as_granted(&[grant], &booted), Ok(()));
    let mut missing = crate::node("four-vfs");
    missing.functions[1].hcas[0].char_devices[0].node = None;
    assert_eq!(
        message(grant, &missing),
        "/dev/infiniband/uverbs1 of 0000:3b:00.2 (\"0000:3b:00.2\" of rdma/x) is not in place: the file does not \
         exist; the container cannot start before it is in place"
    );
    let mut gone = crate::node("four-vfs");
    gone.functions.remove(1);
    let expected = "0000:3b:00.2, granted for id \"0000:3b:00.2\" of rdma/x, has no RDMA device on this node now; \
                    wait for the device, or delete the pod to get another one";
    assert_eq!(message(grant, &gone), expected);

    let by_name = Grant {
        format: rdma_resources::grant::FORMAT,
        cdi: true,
        chained: false,
        promises_rails: false,
        limits: Default::default(),
        ..grant.clone()
    };
    assert_eq!(still_as_granted(&[&by_name], &swapped), Ok(()));
    assert_eq!(message(&by_name, &gone), expected);
}

/// After a reboot or after moves, two devices can have each other's numbers.
#[test]
fn a_container_with_all_devices_has_them_whichever_has_which_number() {
    let node = node("four-vfs");
    let two = ["0000:3b:00.2", "0000:3b:00.3"];
    let mut swapped = crate::node("four-vfs");
    let (left, right) = swapped.functions.split_at_mut(2);
    std::mem::swap(
        &mut left[1].hcas[0].char_devices,
        &mut right[0].hcas[0].char_devices,
    );
    // test two ids with one device each, and one id with both devices
    let vfs = offer(
        r#""kind":"exclusive","devices":[{"pf":"ens1f0#0-3"}]"#,
        &node,
    );
    let alone = vfs.answer(&ids(&two), &node).expect("given").1;
    let shared = offer(r#""kind":"shared","devices":[{"pf":"ens1f0#0-1"}]"#, &node);
    let shared = shared.answer(&ids(&["7"]), &node).expect("given").1;
    assert_eq!((alone.len(), shared.len()), (2, 1));
    for grants in [&alone, &shared] {
        let grants: Vec<&Grant> = grants.iter().collect();
        assert_eq!(still_as_granted(&grants, &swapped), Ok(()));
        // one device has a number that the container did not get
        let mut other = swapped.clone();
        let device = &mut other.functions[2].hcas[0].char_devices[0];
        device.name = "uverbs9".into();
        let error = still_as_granted(&grants, &other).expect_err("stale");
        assert!(error.to_string().contains("and is "), "{error}");
        // both paths exist, but both belong to the first device
        let mut first = swapped.clone();
        let taken = first.functions[2].hcas[0].char_devices[0].clone();
        first.functions[1].hcas[0].char_devices.push(taken);
        first.functions[2].hcas[0].char_devices[0].name = "uverbs9".into();
        let error = still_as_granted(&grants, &first).expect_err("stale");
        assert!(
            error.to_string().contains("is /dev/infiniband/uverbs9"),
            "{error}"
        );
    }
}

#[test]
fn the_chain_gets_the_devices_of_the_ids() {
    let node = node("erdma");
    let published = |resource: &str| {
        let offer = offer(resource, &node);
        serde_json::to_value(offer.published()).expect("JSON")
    };
    assert_eq!(
        published(r#""kind":"shared""#),
        serde_json::json!({"sharing": "shared", "every": ["0000:00:05.0", "0000:00:06.0"]})
    );
    assert_eq!(
        published(r#""kind":"perNic","count":1"#),
        serde_json::json!({"sharing": "shared",
            "byId": {"erdma_0/0": ["0000:00:05.0"], "erdma_1/0": ["0000:00:06.0"]}})
    );
    assert_eq!(
        published(ALONE),
        serde_json::json!({"sharing": "exclusive", "byId": {
            "0000:00:05.0": ["0000:00:05.0"], "0000:00:06.0": ["0000:00:06.0"]}})
    );
}

#[test]
fn a_variable_names_the_first_nic_for_smc() {
    let node = node("erdma");
    let nics = offer(r#""kind":"perNic""#, &node);
    let pnet = |request: &[&str]| {
        let (response, _) = nics.answer(&ids(request), &node).expect("given");
        response.envs.get("SMCR_PNET").cloned()
    };
    assert_eq!(
        pnet(&["erdma_1/0", "erdma_0/9"]).as_deref(),
        Some("00163E0A0B02")
    );
    assert_eq!(pnet(&["erdma_0/9"]).as_deref(), Some("00163E0A0B01"));
    let mut inside = crate::node("erdma");
    inside.functions[0].netdevs.clear();
    let unknown = offer(r#""kind":"perNic""#, &inside);
    let (response, _) = unknown
        .answer(&ids(&["erdma_0/0"]), &inside)
        .expect("given");
    assert!(response.envs.is_empty());
}

/// A device with a CDI name can get another path later, so its information has no path.
#[test]
fn an_exclusive_devices_information_promises_no_path_that_can_change() {
    let node = node("four-vfs");
    let id = "0000:3b:00.3";
    let answered = |cdi| {
        let offer = offer_with(ALONE, cdi, &node, &Unhealthy::new());
        let mut response = offer.answer(&ids(&[id]), &node).expect("given").0;
        let information = response.envs.remove("PCIDEVICE_RDMA_X_INFO");
        let devices = response.devices.into_iter().map(|it| it.container_path);
        let information = information.expect("the information");
        let information: Value = serde_json::from_str(&information).expect("JSON");
        (information, devices.collect::<Vec<_>>())
    };
    let (information, paths) = answered(false);
    let [uverbs, rdma_cm] = paths.as_slice() else {
        panic!("{paths:?}")
    };
    let rdma = json!({"rdma_cm": rdma_cm, "rdma_dev": "mlx5_2", "uverbs": uverbs});
    assert_eq!(
        information,
        json!({id: {"generic": {"deviceID": id}, "rdma": rdma}})
    );
    let (information, paths) = answered(true);
    assert_eq!(paths, [] as [&str; 0]);
    let rdma = json!({"rdma_dev": "mlx5_2"});
    assert_eq!(
        information,
        json!({id: {"generic": {"deviceID": id}, "rdma": rdma}})
    );
    let shared = offer(ALL, &node).answer(&ids(&["0"]), &node);
    assert!(shared.expect("given").0.envs.is_empty());
}

/// Information for Multus about a virtual function names its physical function. A device for which the specification
/// has no type gets no file.
#[test]
fn device_information_is_of_exclusive_pci_functions() {
    let files = |resource: &str, layout: &str| {
        let node = node(layout);
        let offers = [offer(resource, &node)];
        let files = files(&offers, &node).into_iter();
        let values = files.map(|(name, it)| (name, serde_json::to_value(it).expect("JSON")));
        values.collect::<Vec<_>>()
    };
    let vf = format!(r#"{ALONE},"devices":[{{"pci":"0000:3b:00.3"}}]"#);
    let pci = json!({
        "pci-address": "0000:3b:00.3", "rdma-device": "mlx5_2", "pf-pci-address": "0000:3b:00.0",
    });
    assert_eq!(
        files(&vf, "four-vfs"),
        [(
            "rdma-x-0000:3b:00.3-device.json".to_owned(),
            json!({"type": "pci", "version": "1.1.0", "pci": pci}),
        )]
    );
    assert_eq!(files(ALL, "four-vfs"), []);
    let sub_functions = format!(r#"{ALONE},"devices":[{{"pci":"mlx5_core.sf.*"}}]"#);
    assert_eq!(files(&sub_functions, "sub-functions"), []);
}
