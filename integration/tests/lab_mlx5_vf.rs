// SPDX-License-Identifier: Apache-2.0
//! In the lab, two virtual functions (PCI 15b3:101e) under Debian's own `mlx5_core` and `mlx5_ib`, as a cloud hands
//! them to a machine, which has no physical function: `integration/lab/vm --tier mlx5 --virtual`, one test at a time.
//! Driver and kernel are real, the functions are a model.

use integration::{
    Snapshot,
    mlx5_card::{
        ADDRESSES, MACS, Mlx5Card, RDMA, VIRTUAL_NETDEVS, are_healthy, configuration, directory,
        functions, gids, links, offered, pods_with_children, read, shared_configuration,
    },
    traffic::{self, End},
    wait,
};

#[test]
fn a_virtual_function_is_offered_and_moves_into_a_pod() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    for (function, rdma) in RDMA.into_iter().enumerate() {
        let at = directory(function);
        assert_eq!(read(at.join("device")), "0x101e");
        assert!(!at.join("physfn").exists() && !at.join("sriov_totalvfs").exists());
        let rdma = at.join("infiniband").join(rdma);
        assert_eq!(read(rdma.join("hca_type")), "MT4126");
    }
    let table = offered(&node, "exclusive");
    are_healthy(&table, VIRTUAL_NETDEVS);
    assert!(table.contains("rdma/hca  exclusive"), "{table}");

    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    for function in 0..2 {
        let mut configuration = node.configuration(&[]);
        configuration["requireRdma"] = true.into();
        configuration["devices"] = [serde_json::json!({"pci": functions()[function]})].into();
        node.add(&configuration, &format!("c{function}"), &pods[function]);
        let shown = links(&pods[function]);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(shown[0]["ifname"], RDMA[function]);
        assert_eq!(shown[0]["netdev"], "rdma0");
        card.has_state(&pods[function], RDMA[function], "ACTIVE");
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: RDMA[it],
        address: ADDRESSES[it],
    });
    traffic::rping(server, client);
    traffic::by_connection_manager("ib_read_bw -q 30", server, client);
    // the driver of a virtual function does not switch the port
    assert_eq!(card.order(&format!("link {} down", MACS[0])), "ok");
    card.has_state(&pods[0], RDMA[0], "DOWN");
    assert_eq!(card.order("link all up"), "ok");
    card.has_state(&pods[0], RDMA[0], "ACTIVE");

    node.del(&configuration(&node, VIRTUAL_NETDEVS[0]), "c0", &pods[0]);
    pods[1].die();
    wait::until("the kernel gave the RDMA device back", || {
        links(&node.host).len() == 2
    });
    node.del(&configuration(&node, VIRTUAL_NETDEVS[1]), "c1", &pods[1]);
    node.assert_restored(&before);
}

#[test]
fn pods_share_virtual_functions() {
    let card = Mlx5Card::new("shared");
    let node = card.node();
    let table = offered(&node, "shared");
    are_healthy(&table, VIRTUAL_NETDEVS);
    assert!(table.contains("rdma/hca  shared, all"), "{table}");
    let before = Snapshot::of(&node.host);
    let configurations = VIRTUAL_NETDEVS.map(|netdev| shared_configuration(&node, netdev));
    let (pods, addresses) = pods_with_children(&node, &configurations);
    for it in 0..2 {
        let kinds = gids(&pods[it], RDMA[it]);
        assert!(kinds.iter().any(|(_, kind)| kind == "RoCE v2"), "{kinds:?}");
    }
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: RDMA[it],
        address: &addresses[it],
    });
    traffic::rping(server, client);
    for it in 0..2 {
        node.del(&configurations[it], &format!("c{it}"), &pods[it]);
    }
    node.assert_restored(&before);
}
