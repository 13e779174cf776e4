// SPDX-License-Identifier: Apache-2.0
//! Tests of netdevs that cannot be shared, and of the netdevs that are shared instead.

use crate::{
    leases::{bonds, has_link, link_of},
    node::{Node, configure, host_change, name, settle},
};
use fake_kernel::{Nic, World};
use rdma_netns::{Child, IpvlanMode, LinkChange, MacvlanMode, NetnsSide, Op};
use serde_json::json;

const MACVLAN: Child = Child::Macvlan {
    mode: MacvlanMode::Bridge,
};

/// Returns a node on which the administrator made a child of `eth8` on the host.
fn with_child_on_host(child: Child) -> Node {
    let node = Node::with(bonds(0));
    let maker = node.pod("maker");
    let (parent, link) = (name("eth8"), name("lies0"));
    let ops = [
        Op::AddChild {
            at: NetnsSide::Pod,
            parent,
            child,
            name: link.clone(),
            mtu: 1500,
        },
        Op::MoveLink {
            link: link.clone(),
            from: NetnsSide::Pod,
            to: NetnsSide::Host,
            name: link.clone(),
        },
    ];
    ops.iter().for_each(|op| node.change(Some(&maker), op));
    let (at, up) = (NetnsSide::Host, true);
    node.change(
        None,
        &Op::Link {
            at,
            link,
            change: LinkChange::Up(up),
        },
    );
    node.kernel.with(settle);
    node
}

#[test]
fn a_stacked_netdev_is_no_parent() {
    for child in [
        MACVLAN,
        Child::Ipvlan {
            mode: IpvlanMode::L2,
        },
    ] {
        let node = with_child_on_host(child);
        let pod = node.pod("a");
        let before = node.snapshot();
        for kind in ["macvlan", "ipvlan"] {
            node.kernel.begin();
            let config = node.config(json!({
                "devices": [{ "netdev": "lies0" }], "mode": "share", "requireRdma": false,
                "child": { "type": kind },
            }));
            let message = node.add(&pod, &config).must_fail(102);
            for word in ["lies0", "macvlan or ipvlan itself"] {
                assert!(message.contains(word), "{message}");
            }
            assert_eq!(node.kernel.journal(), [] as [Op; 0]);
            node.must_be(&before, "refused");
            let message = node.run("STATUS", None, &config).must_fail(50);
            assert!(message.contains("lies0"), "{message}");
        }
    }
}

#[test]
fn children_of_one_netdev_are_of_one_type() {
    for (first, second) in [("macvlan", "ipvlan"), ("ipvlan", "macvlan")] {
        let node = Node::with(bonds(0));
        let (pod, other) = (node.pod("a"), node.pod("b"));
        let config = |kind: &str| {
            let child = json!({ "type": kind });
            node.config(json!({ "deviceID": "0000:3b:00.0", "mode": "share", "child": child }))
        };
        node.add(&pod, &config(first)).must_succeed();
        let before = node.snapshot();
        node.kernel.begin();
        let message = node.add(&other, &config(second)).must_fail(102);
        for word in ["eth8", "container a", first] {
            assert!(message.contains(word), "{message}");
        }
        assert_eq!(node.kernel.journal(), [] as [Op; 0]);
        assert_eq!(before.differences(&node.snapshot()), [""; 0]);
        node.add(&other, &config(first)).must_succeed();
    }
}

/// Returns a world with `team0` over the NICs `eth8` and `eth9`.
fn team() -> World {
    let mut world = bonds(0);
    world.plug(Nic::physical("0000:3b:00.1", "eth9", "").without_rdma());
    world.plug(Nic::virtual_link("team0", "team"));
    for port in ["eth8", "eth9"] {
        world.enslave(port, "team0");
    }
    for link in ["team0", "eth9"] {
        let done = world.execute(&host_change(link, LinkChange::Up(true)), None);
        done.unwrap_or_else(|refusal| panic!("{refusal}"));
    }
    configure(&mut world, "team0", 6);
    settle(&mut world);
    world
}

#[test]
fn a_team_is_shared_like_a_bond() {
    let node = Node::with(team());
    let pods = [node.pod("a"), node.pod("b")];
    let before = node.snapshot();
    for devices in [
        json!([{ "netdev": "team0" }]),
        json!([{ "netdev": "eth9" }]),
        json!([{ "pci": "0000:3b:00.0" }]),
        json!([{ "rdma": "mlx5_8" }]),
    ] {
        let config = node.config(json!({ "devices": devices }));
        for pod in &pods {
            let result = node.add(pod, &config).must_succeed();
            assert_eq!(link_of(&node, pod, "rdma0").child, Some(MACVLAN));
            assert_eq!(result["rails"][0]["netdev"], "team0", "{devices}");
            assert_eq!(result["rails"][0]["rdmaDevice"], "mlx5_8", "{devices}");
        }
        for pod in &pods {
            node.del(pod, &config).must_succeed();
        }
        node.must_be(&before, &devices.to_string());
    }
    for netdev in ["team0", "eth8"] {
        let config = node.config(json!({ "devices": [{ "netdev": netdev }], "mode": "move" }));
        let message = node.add(&pods[0], &config).must_fail(102);
        assert!(message.contains("bond"), "{message}");
        assert!(!has_link(&node, &pods[0], "rdma0"));
    }
}
