// SPDX-License-Identifier: Apache-2.0
//! Tests the check of character devices' numbers while a claim is prepared.

use super::{UID, injected, moved, record, replace_record, uverbs};
use dra::{Claims, Record};
use rdma_netns::Inventory;
use rdma_resources::{CharNode, FileError, grant::GrantedDevice};
use serde_json::{Value, json};
use std::fs;

/// Returns an inventory with `nics`, each given by its number and the number of its uverbs device.
pub(super) fn inventory(nics: &[(u32, u32)]) -> Inventory {
    let function = |(number, uverbs): &(u32, u32)| {
        let node = json!({"name": format!("uverbs{uverbs}"), "major": 231, "minor": 192 + uverbs});
        json!({
            "address": format!("0000:3b:00.{number}"),
            "hcas": [{"name": format!("mlx5_{number}"), "char_devices": [node]}],
        })
    };
    let functions: Vec<Value> = nics.iter().map(function).collect();
    serde_json::from_value(json!({"functions": functions})).expect("an inventory")
}

/// A container that restarts gets the devices' present numbers, or the runtime does not create it.
#[test]
fn numbers_are_checked_while_a_claim_is_prepared() {
    let directory = tempfile::tempdir().expect("a directory");
    let claims = Claims::new(directory.path());
    let check = |boot: &str, nics: &[(u32, u32)]| -> Vec<Vec<String>> {
        let observe = || Ok::<_, FileError>(inventory(nics));
        let check = claims.check(boot, observe).expect("an observation");
        assert!(check.failed.is_empty());
        let lost = |record: &Record| record.lost().map(|nic| nic.rdma.clone()).collect();
        check.changed.iter().map(lost).collect()
    };
    let nodes = || injected(directory.path()).map(|it| it[format!("{UID}-two")]["nodes"].clone());
    let nothing = Vec::<Vec<String>>::new();

    // without a claim, `check` does not observe the hardware
    let no_observation = || -> Result<Inventory, FileError> { panic!("there is no claim") };
    assert!(
        claims
            .check("boot-1", no_observation)
            .expect("nothing")
            .changed
            .is_empty()
    );
    replace_record(&claims, record(directory.path(), true));
    assert_eq!(check("boot-1", &[]), nothing, "its ADD is to come");
    claims
        .joined(
            UID,
            "boot-1",
            ("sandbox-1", vec![], Default::default()),
            moved(0),
        )
        .expect("joined");
    assert_eq!(check("boot-1", &[(1, 1), (2, 2), (3, 3)]), nothing);
    assert_eq!(check("boot-2", &[]), nothing, "kubelet prepares it again");

    // a reloaded driver: at first no devices, then other numbers
    let none: [&[&str]; 1] = [&["mlx5_1", "mlx5_2", "mlx5_3"]];
    assert_eq!(check("boot-1", &[]), none);
    assert_eq!(nodes(), None);
    assert_eq!(check("boot-1", &[]), nothing, "reported already");
    assert_eq!(check("boot-1", &[(1, 9), (2, 7)]), [["mlx5_3"]]);
    assert_eq!(nodes(), None);
    claims.again(UID, "boot-1", |_| None).expect("again");
    assert_eq!(nodes(), None, "kubelet started");
    assert_eq!(check("boot-1", &[(1, 9), (2, 7), (3, 2)]), [[""; 0]]);
    let expected = json!(["uverbs7 231:199", "uverbs2 231:194", "rdma_cm 10:120"]);
    assert_eq!(nodes(), Some(expected));

    // a new sandbox gets the present numbers
    check("boot-1", &[(1, 9), (2, 7)]);
    claims.left("sandbox-1").expect("left");
    claims
        .joined(
            UID,
            "boot-1",
            ("sandbox-2", vec![], Default::default()),
            moved(0),
        )
        .expect("joined");
    let expected = json!(["uverbs2 231:194", "uverbs3 231:195", "rdma_cm 10:120"]);
    assert_eq!(nodes(), Some(expected));

    // the uverbs device of a NIC appears before its umad device
    let umad = CharNode {
        name: "umad0".into(),
        major: 231,
        minor: 0,
    };
    let mut both = record(directory.path(), false);
    both.devices[0].nics[0].char_devices.push(umad);
    replace_record(&claims, both.clone());
    assert_eq!(check("boot-1", &[(1, 1), (2, 2), (3, 3)]), [["mlx5_1"]]);
    assert_eq!(injected(directory.path()), None);
    let again = claims.again(UID, "boot-1", moved(0)).expect("again");
    let again = again.expect("prepared");
    assert!(again.is_final());
    assert_eq!(again.devices[0].nics[0].char_devices.len(), 2);

    // a NIC that disappears before its pod has its network
    replace_record(&claims, record(directory.path(), true));
    claims
        .joined(
            UID,
            "boot-1",
            ("sandbox-1", vec![], Default::default()),
            |_| None,
        )
        .expect("joined");
    assert_eq!(injected(directory.path()), None);
    assert_eq!(check("boot-1", &[(1, 1), (2, 2), (3, 3)]), [[""; 0]]);
    assert!(injected(directory.path()).is_some());
    assert_eq!(check("boot-1", &[]), none);
    claims.left("sandbox-1").expect("left");
    let left = claims.read(UID).expect("read").expect("a record");
    assert_eq!(left.lost().count(), 0, "no container has it");

    // an unreadable record does not prevent the check of others
    claims
        .joined(
            UID,
            "boot-1",
            ("sandbox-1", vec![], Default::default()),
            moved(0),
        )
        .expect("joined");
    fs::write(directory.path().join("claims/other.json"), "{").expect("written");
    let observe = || Ok::<_, FileError>(inventory(&[]));
    let found = claims.check("boot-1", observe).expect("an observation");
    assert_eq!((found.changed.len(), found.failed.len()), (1, 1));
    let (own, failed) = claims.of_pod("p-1");
    assert_eq!((own.len(), failed.len()), (0, 1));
}

#[test]
fn after_a_reboot_numbers_that_no_network_corrects_are_read_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let late = |nic: &GrantedDevice| match nic.rdma.as_str() {
        "mlx5_2" => None,
        "mlx5_3" => Some(vec![]),
        _ => Some(vec![uverbs(0)]),
    };
    for (awaits_network, boot, missing) in [
        (false, "boot-1", None),
        (false, "boot-2", Some("mlx5_2")),
        (true, "boot-2", None),
    ] {
        let record = record(directory.path(), awaits_network);
        let found = record.missing(boot, late).map(|nic| nic.rdma.as_str());
        assert_eq!(found, missing, "{awaits_network}, {boot}");
        assert!(record.missing(boot, moved(1)).is_none());
    }
}
