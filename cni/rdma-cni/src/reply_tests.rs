// SPDX-License-Identifier: Apache-2.0
//! Tests of the NICs that an ADD selects on a node, and of the codes of refusals.
//!
//! The node's netdevs:
//!
//! - eth0 has the default route
//! - eth2's RDMA device mlx5_2 is used by storage
//! - eth3 has a VLAN
//! - eth4 accelerates the netdev hv0, as on Azure
//! - eth5, eth6 and bond0 are rails, and bond0 has the VLAN bond0.100
//! - bond1 has the route to the API server

use super::{own, select as code};
use crate::error::Error;
use attachments::{Id, store::StoreError};
use network_conf::{Conf, Devices};
use nix::errno::Errno;
use plan::{
    allocation::{Meaning, Named},
    select::{Choice, rails},
};
use rdma_netns::{DeviceAddress, Observed};
use rdma_resources::{Sharing, grant::GrantedDevice};
use serde_json::{Map, Value, json};
use std::path::Path;

fn node() -> Observed {
    let link = |index: u32, name: &str, more: Value| {
        let mut link = json!({
            "index": index, "name": name, "mac": "", "mtu": 1500, "up": true,
            "parent": format!("0000:0{index}:00.0"),
        });
        let more = more.as_object().cloned().unwrap_or_default();
        link.as_object_mut().expect("an object").extend(more);
        link
    };
    let plain = |index: u32, name: &str, more: Value| {
        let mut link = link(index, name, more);
        link.as_object_mut().expect("an object").remove("parent");
        link
    };
    let rdma = |number: u32, netdev: u32, users: &[&str]| {
        json!({
            "name": format!("mlx5_{number}"), "index": number, "node_guid": "",
            "parent": format!("0000:0{netdev}:00.0"), "kernel_users": users,
            "ports": [{"number": 1, "netdev": netdev, "state": 4}],
        })
    };
    let device = |number: u32| json!({"address": format!("0000:0{number}:00.0"), "driver": "mlx5_core", "vendor": "15b3"});
    let default = json!({"destination": "0.0.0.0", "prefix": 0, "gateway": "10.0.0.1"});
    let observed = json!({
        "boot_id": "", "rdma_mode": "shared",
        "api_servers": ["192.0.2.1"],
        "devices": (1..=8).map(device).collect::<Vec<_>>(),
        "host": {
            "id": {"device": 4, "inode": 1, "cookie": 1},
            "links": [
                link(1, "eth0", json!({"routes": [default]})),
                link(2, "eth2", json!({})),
                link(3, "eth3", json!({})),
                plain(13, "eth3.7", json!({"kind": "vlan", "lower": 3})),
                link(4, "eth4", json!({"master": 14})),
                plain(14, "hv0", json!({})),
                link(5, "eth5", json!({})),
                link(6, "eth6", json!({})),
                link(7, "ens7", json!({"master": 17})),
                plain(17, "bond0", json!({"kind": "bond"})),
                plain(27, "bond0.100", json!({"kind": "vlan", "lower": 17})),
                link(8, "ens8", json!({"master": 18})),
                plain(18, "bond1", json!({
                    "kind": "bond",
                    "routes": [{"destination": "192.0.2.0", "prefix": 24}],
                })),
            ],
            "rdma": [
                rdma(1, 1, &[]), rdma(2, 2, &["nvme_rdma", "rpcrdma"]), rdma(3, 3, &[]),
                rdma(4, 4, &[]), rdma(5, 5, &[]), rdma(6, 6, &[]), rdma(7, 7, &[]), rdma(8, 8, &[]),
            ],
        },
        "pod": {"id": {"device": 4, "inode": 2, "cookie": 2}, "links": []},
    });
    serde_json::from_value(observed).expect("a state")
}

fn conf(fields: Value) -> Conf {
    let mut whole = json!({"cniVersion": "1.1.0", "name": "rails", "type": "rdma-cni"});
    let fields: Map<String, Value> = fields.as_object().cloned().unwrap_or_default();
    whole.as_object_mut().expect("an object").extend(fields);
    Conf::parse(whole.as_object().cloned().expect("an object")).expect("a configuration")
}

/// Returns the netdevs that the ADD selects, or its error.
fn taken(conf: &Conf, choice: &Choice<'_>) -> String {
    match rails(conf, choice, &node(), &[]) {
        Ok(selected) => {
            let names: Vec<&str> = selected.rails.iter().map(|rail| &**rail.name()).collect();
            names.join(" ")
        }
        Err(error) => format!("{} {error}", code(&error)),
    }
}

#[track_caller]
fn takes(fields: Value, expected: &str) {
    let conf = conf(fields);
    let choice = match conf.required_devices().expect("devices") {
        Devices::Address(address) => Choice::Address(address),
        Devices::Selectors(selectors) => Choice::Selectors(selectors),
        Devices::Resources(_) => panic!("kubelet is not asked here"),
    };
    assert_eq!(taken(&conf, &choice), expected, "{:?}", conf.raw);
}

#[test]
fn a_pattern_skips_netdevs_that_the_host_needs() {
    // bonds are shared, but a selector by kind does not select bond1, because it is an uplink
    takes(
        json!({"devices": [{"driver": "mlx5_core"}]}),
        "bond0 eth5 eth6",
    );
    takes(json!({"devices": [{"netdev": "eth*"}]}), "eth5 eth6");
    takes(json!({"devices": [{"rdma": "mlx5_[1-6]"}]}), "eth5 eth6");
    takes(
        json!({"devices": [{"netdev": "eth*"}], "mode": "move"}),
        "eth5 eth6",
    );
    takes(
        json!({"devices": [{"pci": "0000:0[1-7]*"}], "mode": "move"}),
        "eth5 eth6",
    );
    takes(
        json!({"devices": [{"netdev": "eth[0234]"}], "mode": "move"}),
        "100 no device on this node matches {\"netdev\":\"eth[0234]\"} and is free to move: eth0: the node's default \
         route uses it, eth2: the host uses mlx5_2 itself (nvme_rdma, rpcrdma), eth3: the vlan eth3.7 lies on \
         it, eth4: it accelerates hv0, the node's own netdev; name the device literally, with mode \"move\", to move \
         it nevertheless",
    );
}

#[test]
fn a_named_device_is_moved_only_by_mode_move() {
    for (netdev, why) in [
        ("eth0", "the node's default route uses it"),
        ("eth2", "the host uses mlx5_2 itself (nvme_rdma, rpcrdma)"),
        ("eth3", "the vlan eth3.7 lies on it"),
    ] {
        let refused = format!(
            "102 {netdev} is not moved into a pod: {why}; set mode to \"move\" to move it nevertheless"
        );
        takes(json!({"devices": [{"netdev": netdev}]}), &refused);
        takes(
            json!({"devices": [{"netdev": netdev}], "mode": "move"}),
            netdev,
        );
    }
    takes(json!({"deviceID": "0000:01:00.0", "mode": "move"}), "eth0");
    takes(
        json!({"deviceID": "0000:01:00.0"}),
        "102 eth0 is not moved into a pod: the node's default route uses it; set mode to \"move\" to move it \
         nevertheless",
    );
    // a restore could not make eth4 a port of hv0 again
    takes(
        json!({"devices": [{"netdev": "eth4"}], "mode": "move"}),
        "102 eth4 cannot be moved into a pod: it is a port of another netdev (a bond, a bridge, or a netdev that it \
         accelerates), which would lose this port",
    );
}

#[test]
fn share_mode_accepts_a_name_pattern() {
    takes(
        json!({"devices": [{"netdev": "eth0"}], "mode": "share"}),
        "eth0",
    );
    takes(
        json!({"devices": [{"netdev": "eth*"}], "mode": "share"}),
        "eth0 eth2 eth3 eth5 eth6",
    );
    takes(
        json!({"devices": [{"driver": "mlx5_core"}], "mode": "share"}),
        "bond0 eth2 eth3 eth5 eth6",
    );
    // a pattern for bonds selects a VLAN only if the pattern matches the VLAN and not its bond
    takes(json!({"devices": [{"netdev": "bond*"}]}), "bond0 bond1");
    for netdev in ["bond0.100", "bond*.*"] {
        takes(json!({"devices": [{"netdev": netdev}]}), "bond0.100");
    }
    takes(
        json!({"devices": [{"netdev": "eth3.*"}], "mode": "move"}),
        "102 eth3.7 cannot be moved into a pod: it is a VLAN, and uses the RDMA device of its lower netdev; use mode \
         \"share\"",
    );
}

#[test]
fn an_allocated_device_is_shared_or_refused() {
    let of = |sharing, mode: &str| {
        let conf = conf(json!({"mode": mode}));
        let address = DeviceAddress::try_from("0000:01:00.0".to_owned()).expect("an address");
        let device = GrantedDevice {
            address,
            rdma: "mlx5_0".into(),
            parent: None,
            char_devices: vec![],
        };
        let meaning = Meaning {
            claim: None,
            id: Id {
                resource: "rdma/vf".into(),
                id: "0000:01:00.0".into(),
            },
            sharing,
            devices: Named::Devices(vec![device]),
            cdi: false,
        };
        taken(&conf, &Choice::Allocated(vec![meaning]))
    };
    assert_eq!(of(Sharing::Shared, "auto"), "eth0");
    for mode in ["auto", "move"] {
        assert_eq!(
            of(Sharing::Exclusive, mode),
            "102 eth0 is not moved into a pod: the node's default route uses it; remove the device from the resource \
             from which kubelet allocated it"
        );
    }
}

/// An error of the state directory has code 105, but during a restore code 107.
#[test]
fn a_restoration_that_has_begun_is_incomplete() {
    let full = || StoreError::new("lock", Path::new("/state/lock"), Errno::ENOSPC.into());
    for (error, expected) in [
        (Error::State(full()), own::STATE),
        (Error::Unfinished(full()), own::INCOMPLETE),
    ] {
        assert_eq!(super::code(&error), expected, "{error}");
    }
}

/// `type: rdma` moves only the RDMA device. Its netdev is already in the pod, or does not exist.
#[test]
fn a_drop_ins_rdma_device_that_the_host_uses_stays() {
    let taken = |users: &[&str], bare: bool, mode: &str| {
        let mut state = serde_json::to_value(node()).expect("a state");
        state["rdma_mode"] = "exclusive".into();
        state["host"]["rdma"][4]["kernel_users"] = json!(users);
        let links = state["host"]["links"].as_array_mut().expect("netdevs");
        let index = links.iter().position(|it| it["name"] == "eth5");
        let mut netdev = links.remove(index.expect("eth5"));
        match bare {
            true => state["devices"][4]["has_netdev"] = false.into(),
            false => {
                netdev["name"] = "net1".into();
                state["pod"]["links"] = json!([netdev]);
            }
        }
        let observed: Observed = serde_json::from_value(state).expect("a state");
        let conf = conf(json!({"type": "rdma", "deviceID": "0000:05:00.0", "mode": mode}));
        let conf = conf.of_attachment("net1".try_into().ok().as_ref());
        let Some(Devices::Address(address)) = &conf.devices else {
            panic!("no device");
        };
        match rails(&conf, &Choice::Address(address), &observed, &[]) {
            Ok(selected) => selected.rails[0]
                .rdma
                .as_ref()
                .expect("an RDMA device")
                .name
                .clone(),
            Err(error) => format!("{} {error}", code(&error)),
        }
    };
    for bare in [false, true] {
        assert_eq!(taken(&[], bare, "auto"), "mlx5_5");
        assert_eq!(
            taken(&["nvme_rdma"], bare, "auto"),
            "102 mlx5_5 is not moved into a pod: the host uses mlx5_5 itself (nvme_rdma); set mode to \"move\" to \
             move it nevertheless"
        );
        assert_eq!(taken(&["nvme_rdma"], bare, "move"), "mlx5_5");
    }
}
