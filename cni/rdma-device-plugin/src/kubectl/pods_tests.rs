// SPDX-License-Identifier: Apache-2.0

use super::*;
use serde_json::json;

/// Observations of a node with a record of one pod with two rails.
fn facts(lives: bool) -> Facts {
    let given = json!({"addresses": [{"ip": "fd00::7", "prefix": 64}], "routes": [], "rules": []});
    let gid = json!({"address": "fd00::7", "gid": "fd00::7", "port": 1, "index": 5});
    let rdma = json!({"name": "mlx5_bond_0", "index": 1, "node_guid": ""});
    let attachment = json!({
        "format": 8, "phase": "attached", "bootId": "this", "pod": "team/trainer-0",
        "key": {"network": "pods", "container": "c1", "interface": "eth0"},
        "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
        "rdmaMode": "shared", "dad": "off", "acceptRa": false, "config": {},
        "rails": [
            {"podName": "rdma0", "rdma": rdma, "given": given, "gids": [gid]},
            {"podName": "rdma1"},
        ],
    });
    let record = json!({"good": {"attachment": attachment, "lives": lives}});
    Facts {
        records: vec![serde_json::from_value(record).expect("a record")],
        ..Facts::default()
    }
}

#[test]
fn a_pods_rails_have_a_line_for_each_address() {
    let listed = ["team/trainer-0".to_owned()].into();
    let rows = rows("node-1", &facts(true), &listed);
    assert_eq!(
        table(&rows),
        "NAMESPACE  NAME       NODE    RAIL   DEVICE       ADDRESS  GID\n\
         team       trainer-0  node-1  rdma0  mlx5_bond_0  fd00::7  5\n\
         team       trainer-0  node-1  rdma1  -            -        -\n"
    );
    assert_eq!(
        json!(rows)[0]["addresses"],
        json!([{"address": "fd00::7", "gidIndex": 5}])
    );
}

#[test]
fn pods_that_are_gone_or_not_listed_have_no_line() {
    let listed = ["team/trainer-0".to_owned()].into();
    assert_eq!(rows("node-1", &facts(false), &listed), []);
    let listed = ["other/trainer-0".to_owned()].into();
    assert_eq!(rows("node-1", &facts(true), &listed), []);
}
