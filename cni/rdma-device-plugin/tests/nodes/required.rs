// SPDX-License-Identifier: Apache-2.0
//! Tests of resources that require all devices, a number of devices or the rdma controller, and of devices that
//! disappeared from their bus.

use crate::node;
use daemon_conf::Conf;
use offer::{Gone, Offer, PreviousOffers, Unhealthy, offers, physical_functions};
use rdma_netns::{Inventory, RdmaCgroup};
use rdma_resources::{Published, published};
use std::{collections::BTreeSet, path::Path};

fn conf(require: &str, kind: &str) -> Conf {
    let text =
        format!(r#"{{"resources":[{{"name":"rdma/hca","kind":"{kind}","require":{require}}}]}}"#);
    let parsed = Conf::parse(&text, Path::new("config"));
    parsed.unwrap_or_else(|error| panic!("{error}")).conf
}

fn of(
    conf: &Conf,
    inventory: &Inventory,
    unhealthy: &Unhealthy,
    previous: &PreviousOffers,
) -> (Offer, Vec<String>) {
    let (mut offers, remarks) = offers(conf, inventory, &BTreeSet::new(), unhealthy, previous);
    (offers.remove(0), remarks)
}

fn fit(offer: &Offer) -> usize {
    offer.ids.iter().filter(|id| id.healthy).count()
}

/// Returns a node with seven of its eight HCAs, and the address of the missing HCA.
fn seven() -> (Inventory, String) {
    let mut inventory = node("eight-hcas");
    let last = inventory
        .functions
        .iter()
        .rposition(|it| !it.hcas.is_empty());
    let gone = inventory.functions.remove(last.expect("an HCA"));
    (inventory, gone.device.address.to_string())
}

#[test]
fn without_the_controller_no_id_with_limits_is_healthy() {
    let well = Unhealthy::new();
    let previous = PreviousOffers::default();
    let of_limits = |field: &str| {
        let text = format!(
            r#"{{"cdi":true,"chain":{{}},"resources":[{{"name":"rdma/hca","kind":"shared"{field}}}]}}"#
        );
        let parsed = Conf::parse(&text, Path::new("config"));
        parsed.unwrap_or_else(|error| panic!("{error}")).conf
    };
    let limited = of_limits(r#","limits":{"objects":3},"memlock":"unlimited""#);
    let mut hcas = node("eight-hcas");
    let (offer, _) = of(&limited, &hcas, &well, &previous);
    assert_eq!((fit(&offer), offer.published().limited), (1000, true));
    for (lack, why) in [
        (RdmaCgroup::NoVersion2, "this node has no cgroup version 2"),
        (RdmaCgroup::NoController, "a kernel with CONFIG_CGROUP_RDMA"),
    ] {
        hcas.rdma_cgroup = lack;
        let (offer, remarks) = of(&limited, &hcas, &well, &previous);
        assert_eq!((fit(&offer), offer.ids.len()), (0, 1000));
        let matching: Vec<&String> = remarks.iter().filter(|it| it.contains(why)).collect();
        let [remark] = matching[..] else {
            panic!("{remarks:?}");
        };
        assert!(
            remark.starts_with("resources[0].limits: "),
            "names the field: {remark}"
        );
        let refused = offer.answer(&["0".to_owned()], &hcas).expect_err("refused");
        assert!(refused.to_string().contains(&**remark), "{refused}");
        // a limit of locked memory needs no rdma controller
        let (offer, _) = of(&of_limits(r#","memlock":1"#), &hcas, &well, &previous);
        assert_eq!((fit(&offer), offer.published().limited), (1000, false));
    }
}

#[test]
fn with_fewer_devices_than_required_no_id_is_healthy() {
    let (seven, gone) = seven();
    let well = Unhealthy::new();
    for (require, kind, ids) in [
        ("\"all\"", "shared", 1000),
        ("8", "shared", 1000),
        ("8", "exclusive", 7),
    ] {
        let conf = conf(require, kind);
        let (all, remarks) = of(
            &conf,
            &node("eight-hcas"),
            &well,
            &PreviousOffers::default(),
        );
        assert_eq!(all.expected, 8);
        assert!(
            fit(&all) == all.ids.len() && remarks.is_empty(),
            "{remarks:?}"
        );
        let (offer, remarks) = of(&conf, &seven, &well, &PreviousOffers::of(&[all]));
        assert_eq!((offer.expected, offer.ids.len(), fit(&offer)), (8, ids, 0));
        let expected = format!(
            "resources[0]: rdma/hca has 7 usable devices, and require: {} requires 8: all its ids are unhealthy, and \
             pods that request it wait ({gone} (mlx5_7) is no longer on this node)",
            require.trim_matches('"')
        );
        assert_eq!(remarks, [expected]);
        // kubelet may have chosen the id before the id became unhealthy
        let error = offer.answer(&[offer.ids[0].id.clone()], &seven);
        let error = error.expect_err("not given").to_string();
        assert!(error.contains("requires 8"), "{error}");
    }
    let (offer, _) = of(
        &conf("7", "shared"),
        &seven,
        &well,
        &PreviousOffers::default(),
    );
    assert_eq!(fit(&offer), 1000);
    // the daemon has never seen the missing device
    let (offer, _) = of(
        &conf("\"all\"", "shared"),
        &seven,
        &well,
        &PreviousOffers::default(),
    );
    assert_eq!(fit(&offer), 1000);
}

#[test]
fn a_device_that_is_not_well_is_missing_too() {
    let inventory = node("eight-hcas");
    let (all, _) = of(
        &conf("8", "shared"),
        &inventory,
        &Unhealthy::new(),
        &PreviousOffers::default(),
    );
    let faulty = all.devices[3].address.clone();
    let unhealthy: Unhealthy = [(faulty.clone(), "port 1 is down".to_owned())].into();
    let (offer, remarks) = of(
        &conf("8", "shared"),
        &inventory,
        &unhealthy,
        &PreviousOffers::default(),
    );
    assert_eq!(fit(&offer), 0);
    let named = format!("({faulty} (mlx5_3): port 1 is down)");
    assert!(remarks[0].ends_with(&named), "{remarks:?}");
}

#[test]
fn a_device_that_fell_off_its_bus_is_remembered_until_it_is_back() {
    let conf = conf("1", "shared");
    let well = Unhealthy::new();
    let (seven, gone) = seven();
    let mut previous = PreviousOffers::default();
    for inventory in [node("eight-hcas"), seven.clone(), seven.clone()] {
        let (offer, _) = of(&conf, &inventory, &well, &previous);
        previous.remember(&[offer], &inventory);
    }
    let expected = Gone {
        address: gone.try_into().expect("an address"),
        rdma: Some("mlx5_7".into()),
    };
    assert_eq!(previous.gone("rdma/hca", &seven), [expected]);
    assert_eq!(previous.gone("rdma/hca", &node("eight-hcas")), []);
}

#[test]
fn a_virtual_function_that_was_taken_away_is_not_missed() {
    let vfs =
        r#"{"resources":[{"name":"rdma/vf","kind":"exclusive","devices":[{"pf":"ens1f0#0-3"}]}]}"#;
    let conf = Conf::parse(vfs, Path::new("config"))
        .expect("a configuration")
        .conf;
    let before = node("four-vfs");
    let well = Unhealthy::new();
    let (offer, _) = of(&conf, &before, &well, &PreviousOffers::default());
    let mut previous = PreviousOffers::default();
    previous.remember(std::slice::from_ref(&offer), &before);
    let mut fewer = before.clone();
    let taken = offer.devices[3].address.clone();
    fewer.functions.retain(|it| it.device.address != taken);
    assert_eq!(previous.gone("rdma/vf", &fewer), []);
    // the device is also known after a restart of the daemon, from the published file
    let restarted = PreviousOffers::of_published(&Published {
        format: published::FORMAT,
        cdi_dir: None,
        boot_id: None,
        resources: [("rdma/vf".to_owned(), offer.published())].into(),
        chain_names_resources: false,
        physical_functions: physical_functions(std::slice::from_ref(&offer), &before),
    });
    assert_eq!(restarted.gone("rdma/vf", &fewer), []);
    // the device disappeared together with its physical function
    let physical = before
        .function(&taken)
        .and_then(|it| it.device.physical_function.clone());
    fewer
        .functions
        .retain(|it| Some(&it.device.address) != physical.as_ref());
    assert_eq!(previous.gone("rdma/vf", &fewer).len(), 1);
    assert_eq!(restarted.gone("rdma/vf", &fewer).len(), 1);
}

#[test]
fn require_is_all_or_a_number() {
    for bad in ["0", "-1", "\"some\"", "true", "1.5", "\"8\""] {
        let text =
            format!(r#"{{"resources":[{{"name":"rdma/x","kind":"shared","require":{bad}}}]}}"#);
        let error = Conf::parse(&text, Path::new("config")).expect_err(bad);
        assert!(
            error.to_string().contains("resources[0].require"),
            "{error}"
        );
    }
}
