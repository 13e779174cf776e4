// SPDX-License-Identifier: Apache-2.0
//! Tests of equivalent commands.

use super::*;
use crate::{Guid, IpoibMode, MacvlanMode, Pkey};
use std::net::{Ipv4Addr, Ipv6Addr};

#[test]
fn the_index_replaces_a_name_in_the_pod() {
    let name = |text: &str| InterfaceName::try_from(text).expect("a name");
    let link = |name: &str, index: u32| {
        serde_json::json!({"index": index, "name": name, "mac": "02:00:00:00:00:01", "mtu": 1500, "up": true,
            "carrier": true, "tx_queue_len": 1000})
    };
    let namespace = |links: &[serde_json::Value]| serde_json::json!({"id": {"device": 4, "inode": 1, "cookie": 1}, "links": links});
    let observed: Observed = serde_json::from_value(serde_json::json!({
        "boot_id": "", "rdma_mode": null,
        "host": namespace(&[link("eth2", 3)]),
        "pod": namespace(&[link("eth2", 7), link("rdma0", 9)]),
    }))
    .expect("a state");
    let change = |at, link: &str, change| Op::link(at, &name(link), change);
    let (host, pod) = (NetnsSide::Host, NetnsSide::Pod);
    let moved = |link: InterfaceName| Op::MoveLink {
        link,
        from: pod,
        to: host,
        name: name("eth2"),
    };
    assert_eq!(
        moved(name("rdma0")).by_index(&observed),
        moved(InterfaceName::of_index(9))
    );
    let remove = |link: InterfaceName| Op::link(pod, &link, LinkChange::Remove);
    assert_eq!(
        remove(name("eth2")).by_index(&observed),
        remove(InterfaceName::of_index(7))
    );
    let sysctl = LinkChange::Sysctl {
        key: "ipv4/rp_filter".to_owned(),
        value: 0,
    };
    for same in [
        change(host, "eth2", LinkChange::Remove),
        change(pod, "eth5", LinkChange::Remove),
        change(pod, "rdma0", sysctl),
    ] {
        assert_eq!(same.by_index(&observed), same);
    }
}

#[test]
fn operations_print_as_commands() {
    let name = |text: &str| InterfaceName::try_from(text).expect("a name");
    let rule = |from: &str, prefix| Rule {
        from: from.parse().expect("an address"),
        prefix,
        to: None,
        table: 1000,
        priority: 100,
    };
    let function = DeviceAddress::try_from("0000:5e:00.2".to_owned()).expect("an address");
    let at = NetnsSide::Pod;
    for (op, command) in [
        (
            Op::AddChild {
                at: NetnsSide::Pod,
                parent: name("bond0"),
                child: Child::Macvlan {
                    mode: MacvlanMode::Bridge,
                },
                name: name("rdma0"),
                mtu: 4200,
            },
            "ip link add link bond0 name rdma0 netns pod mtu 4200 type macvlan mode bridge",
        ),
        (
            Op::AddChild {
                at: NetnsSide::Host,
                parent: name("ib0"),
                child: Child::Ipoib {
                    pkey: Pkey(0x8001),
                    mode: IpoibMode::Connected,
                },
                name: name("rdma-0123456789"),
                mtu: 65520,
            },
            "ip link add link ib0 name rdma-0123456789 type ipoib pkey 0x8001",
        ),
        (
            Op::Link {
                at,
                link: name("rdma0"),
                change: LinkChange::IpoibMode(IpoibMode::Connected),
            },
            "ip -n pod link set dev rdma0 type ipoib mode connected",
        ),
        (
            Op::Link {
                at: NetnsSide::Host,
                link: name("ib0"),
                change: LinkChange::Umcast(true),
            },
            "ip link set dev ib0 type ipoib umcast 1",
        ),
        (
            Op::Link {
                at,
                link: name("rdma0"),
                change: LinkChange::Remove,
            },
            "ip -n pod link del dev rdma0",
        ),
        (Op::RemoveGroup { group: 7 }, "ip -n pod link del group 7"),
        (
            Op::AddRule {
                at,
                rule: rule("10.0.0.5", 32),
            },
            "ip -n pod rule add from 10.0.0.5/32 lookup 1000 priority 100",
        ),
        (
            Op::RemoveRule {
                at,
                rule: rule("fd00::5", 128),
            },
            "ip -n pod -6 rule del from fd00::5/128 lookup 1000 priority 100",
        ),
        (
            Op::Link {
                at,
                link: name("rdma0"),
                change: LinkChange::Announce(Ipv4Addr::new(10, 0, 0, 5).into()),
            },
            "ip netns exec pod arping -c 1 -U -I rdma0 10.0.0.5",
        ),
        (
            Op::Link {
                at: NetnsSide::Host,
                link: name("eth1"),
                change: LinkChange::Announce(Ipv6Addr::LOCALHOST.into()),
            },
            "ndsend ::1 eth1",
        ),
        (
            Op::SetVf {
                pf: name("ib0"),
                number: 3,
                setting: VfSetting::PortGuid(Guid(0x02c9_0300_216e_7001)),
            },
            "ip link set dev ib0 vf 3 port_guid 02:c9:03:00:21:6e:70:01",
        ),
        (
            Op::RebindDriver {
                device: function.clone(),
                driver: "mlx5_core".to_owned(),
            },
            "echo 0000:5e:00.2 > /sys/bus/pci/drivers/mlx5_core/unbind; \
             echo 0000:5e:00.2 > /sys/bus/pci/drivers/mlx5_core/bind",
        ),
        (
            Op::BindDriver {
                device: function,
                driver: "mlx5_core".to_owned(),
            },
            "echo 0000:5e:00.2 > /sys/bus/pci/drivers/mlx5_core/bind",
        ),
    ] {
        assert_eq!(op.to_string(), command);
    }
}
