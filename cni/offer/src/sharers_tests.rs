// SPDX-License-Identifier: Apache-2.0
use super::*;
use serde_json::json;

#[test]
fn as_many_pods_fit_as_the_table_has_entries_for_their_addresses() {
    // mlx5's table; a pod's two addresses (link-local and one more) have four entries, and the host has 16 entries
    assert_eq!(fit(128, 2), 28);
    assert_eq!(fit(256, 2), 60);
    assert_eq!(fit(256, 3), 40);
    // rxe's table
    assert_eq!(fit(1024, 2), 252);
    assert_eq!(fit(16, 2), 1);
}

#[test]
fn a_table_without_addresses_has_no_length() {
    let of = |ports: &[(&str, u32)]| {
        let ports = ports.iter().map(|(link_type, gids)| {
            json!({"number": 1, "state": 4, "link_type": link_type, "gids": gids})
        });
        let hca = json!({"name": "mlx5_0", "ports": ports.collect::<Vec<_>>()});
        length(&serde_json::from_value(hca).expect("an RDMA device"))
    };
    assert_eq!(of(&[("ether", 256), ("ether", 128)]), Some(128));
    assert_eq!(of(&[("infiniband", 8), ("ether", 128)]), Some(128));
    for none in [
        &[][..],
        &[("infiniband", 8)],
        &[("ether", 1)],
        &[("ether", 0)],
    ] {
        assert_eq!(of(none), None, "{none:?}");
    }
}
