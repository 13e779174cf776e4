// SPDX-License-Identifier: Apache-2.0
use super::*;

struct Case {
    /// Netdevs, and their addresses.
    netdevs: Vec<(Netdev<'static>, Vec<Address>)>,
    gids: Vec<Gid>,
    alone: bool,
    has_ueid: bool,
}

fn address(text: &str) -> Address {
    let (ip, prefix) = text.split_once('/').expect("a prefix");
    Address::new(
        ip.parse().expect("an address"),
        prefix.parse().expect("bits"),
    )
}

fn netdev(
    name: &'static str,
    addresses: &[&str],
    is_pods: bool,
) -> (Netdev<'static>, Vec<Address>) {
    let owner = match is_pods {
        true => Owner::Pod,
        false => Owner::Host,
    };
    let netdev = Netdev {
        name,
        addresses: &[],
        vlan: false,
        owner,
        is_on_port: false,
    };
    (netdev, addresses.iter().map(|text| address(text)).collect())
}

fn gid(index: u32, ip: &str, kind: GidKind, netdev: &str) -> Gid {
    let ip = match ip.parse().expect("an address") {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Gid {
        index,
        ip,
        kind,
        netdev: Some(netdev.to_owned()),
    }
}

fn v1(index: u32, ip: &str, netdev: &str) -> Gid {
    gid(index, ip, GidKind::InfinibandOrRoceV1, netdev)
}

fn v2(index: u32, ip: &str, netdev: &str) -> Gid {
    gid(index, ip, GidKind::RoceV2, netdev)
}

impl Case {
    fn of(&self, source: &str) -> Result<Fit, SkipReason> {
        let Address { ip, prefix, .. } = address(source);
        let IpAddr::V4(ip) = ip else {
            panic!("{source} is no IPv4 address")
        };
        let vlan = false;
        self.verdict(Source { ip, prefix, vlan })
    }

    fn verdict(&self, source: Source) -> Result<Fit, SkipReason> {
        let netdevs = self.netdevs.iter();
        let netdevs = netdevs.map(|(netdev, addresses)| Netdev {
            addresses,
            ..*netdev
        });
        let gids = GidTable {
            size: 128,
            gids: self.gids.clone(),
        };
        let view = View {
            gids: &gids,
            netdevs: &netdevs.collect::<Vec<_>>(),
            alone: self.alone,
            has_ueid: self.has_ueid,
        };
        verdict(view, source)
    }
}

/// Returns a case with a moved rail: the pod has the netdev and its RDMA device.
fn moved() -> Case {
    Case {
        netdevs: vec![
            netdev("eth0", &["10.244.1.5/24"], true),
            netdev("rdma0", &["10.9.0.5/24", "fe80::5/64"], true),
        ],
        gids: vec![v2(0, "fe80::5", "rdma0"), v2(1, "10.9.0.5", "rdma0")],
        alone: true,
        has_ueid: true,
    }
}

/// Returns a case with a child netdev in the pod. The parent's address is first in the GID table.
fn shared(parent: &str, pod: &str) -> Case {
    Case {
        netdevs: vec![
            netdev("rdma0", &[pod], true),
            netdev("ens1", &[parent, "fe80::1/64"], false),
        ],
        gids: vec![
            v1(0, "fe80::1", "ens1"),
            v2(1, "fe80::1", "ens1"),
            v2(2, parent.split('/').next().expect("an address"), "ens1"),
            v1(3, pod.split('/').next().expect("an address"), "rdma0"),
            v2(4, pod.split('/').next().expect("an address"), "rdma0"),
        ],
        alone: false,
        has_ueid: true,
    }
}

#[test]
fn a_rails_own_address_is_carried() {
    assert_eq!(moved().of("10.9.0.5/24"), Ok(Fit::V2));
}

#[test]
fn a_primary_of_another_subnet_has_no_gid() {
    let error = SkipReason::NoGid {
        ip: Ipv4Addr::new(10, 244, 1, 5),
        prefix: 24,
    };
    assert_eq!(moved().of("10.244.1.5/24"), Err(error));
}

#[test]
fn any_address_of_the_netdev_lends_its_first_gid() {
    let mut case = moved();
    case.netdevs[1].1.push(address("10.244.1.200/24"));
    case.gids.push(v2(2, "10.244.1.200", "rdma0"));
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V2));
    // the source address itself need not be in the GID table
    case.gids.pop();
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V2));
}

#[test]
fn without_a_user_eid_there_is_only_v1() {
    let mut case = moved();
    case.has_ueid = false;
    assert_eq!(case.of("10.9.0.5/24"), Err(SkipReason::NoUeid));
    case.gids.insert(0, v1(5, "fe80::5", "rdma0"));
    assert_eq!(case.of("10.9.0.5/24"), Ok(Fit::V1));
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V1));
}

#[test]
fn a_gid_that_the_driver_made_is_the_pods_where_the_port_is() {
    let mut case = moved();
    case.gids = vec![v1(0, "fe80::77", "rdma0")];
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V1));
    // a netdev of the host has the same name as the rail
    case.netdevs.push(netdev("rdma0", &[], false));
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V1));
    case.netdevs.pop();
    case.alone = false;
    assert_eq!(
        case.of("10.244.1.5/24"),
        Err(by_v1("fe80::77", "an unknown owner"))
    );
}

fn strange(address: &str, owner: &str, by: Fit) -> SkipReason {
    SkipReason::Strange {
        address: address.parse().expect("an address"),
        owner: owner.to_owned(),
        by,
    }
}

fn by_v1(address: &str, owner: &str) -> SkipReason {
    strange(address, owner, Fit::V1)
}

fn by_v2(address: &str, owner: &str) -> SkipReason {
    strange(address, owner, Fit::V2)
}

#[test]
fn a_parent_of_the_same_subnet_is_in_the_way() {
    let case = shared("10.9.0.1/24", "10.9.0.5/24");
    let error = by_v2("10.9.0.1", "ens1 on the host");
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
}

#[test]
fn a_netdev_of_the_port_counts_before_it_has_its_gid() {
    let mut case = shared("10.9.0.1/24", "10.9.0.5/24");
    case.gids.remove(2);
    assert_eq!(case.of("10.9.0.5/24"), Ok(Fit::V2));
    case.netdevs[1].0.is_on_port = true;
    let error = by_v2("10.9.0.1", "ens1 on the host");
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
    // only connections by a VLAN use a VLAN's GIDs
    case.netdevs[1].0.vlan = true;
    assert_eq!(case.of("10.9.0.5/24"), Ok(Fit::V2));
}

#[test]
fn a_parent_of_another_subnet_is_passed_over() {
    assert_eq!(
        shared("10.8.0.1/24", "10.9.0.5/24").of("10.9.0.5/24"),
        Ok(Fit::V2)
    );
    // the GID is refused if the prefix of any address of the foreign netdev contains the source
    let mut case = shared("10.8.0.1/24", "10.9.0.5/24");
    case.netdevs[1].1.push(address("10.9.0.2/16"));
    let error = by_v2("10.8.0.1", "ens1 on the host");
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
}

#[test]
fn v1_by_the_parents_gid_is_refused() {
    let mut case = shared("10.8.0.1/24", "10.9.0.5/24");
    case.has_ueid = false;
    let error = by_v1("fe80::1", "ens1 on the host");
    assert_eq!(case.of("10.9.0.5/24"), Err(error.clone()));
    // the host has no IPv6 addresses, and a netdev of the pod has the parent's name
    case.netdevs[1].1.pop();
    case.netdevs.insert(0, netdev("ens1", &[], true));
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
    // the GID table of the shared RDMA device has another pod's RoCE v1 GID instead of the parent's
    case.gids.remove(0);
    case.gids.insert(0, v1(0, "10.9.0.4", "rdma0"));
    let error = by_v1("10.9.0.4", "an unknown owner");
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
    case.gids.remove(0);
    assert_eq!(case.of("10.9.0.5/24"), Ok(Fit::V1));
}

#[test]
fn another_pods_gid_counts_by_its_record_or_by_itself() {
    let mut case = shared("10.8.0.1/24", "10.9.0.5/24");
    // the GID's netdev has the rail's name, like rails of other pods
    case.gids.insert(0, v2(0, "10.9.0.4", "rdma0"));
    let error = by_v2("10.9.0.4", "an unknown owner");
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
    // according to its record, the other pod's prefix does not contain the source
    case.netdevs.push(netdev("rdma0", &["10.9.0.4/32"], false));
    assert_eq!(case.of("10.9.0.5/24"), Ok(Fit::V2));
    case.netdevs.push(netdev("rdma7", &["10.9.0.4/24"], false));
    assert_eq!(case.of("10.9.0.5/24"), Ok(Fit::V2));
}

/// Pods on a NIC and on its VLANs can have one address, and their rails one name.
#[test]
fn another_pods_gid_with_the_pods_address_and_name_is_refused() {
    for has_ueid in [true, false] {
        let mut case = shared("10.8.0.1/24", "10.9.0.5/24");
        case.has_ueid = has_ueid;
        case.gids.remove(0);
        let fit = if has_ueid { Fit::V2 } else { Fit::V1 };
        assert_eq!(case.of("10.9.0.5/24"), Ok(fit));
        case.gids.push(v1(5, "10.9.0.5", "rdma0"));
        case.gids.push(v2(6, "10.9.0.5", "rdma0"));
        let error = strange("10.9.0.5", "an unknown owner", fit);
        assert_eq!(case.of("10.9.0.5/24"), Err(error.clone()));
        // the names differ
        for gid in &mut case.gids[4..] {
            gid.netdev = Some("rdma7".to_owned());
        }
        assert_eq!(case.of("10.9.0.5/24"), Err(error));
    }
}

/// The kernel reuses free indexes, and can change the order of GIDs.
#[test]
fn order_is_not_counted_on() {
    for index in [2, 9] {
        let mut case = shared("10.9.0.1/24", "10.9.0.5/24");
        case.gids[2].index = index;
        let error = by_v2("10.9.0.1", "ens1 on the host");
        assert_eq!(case.of("10.9.0.5/24"), Err(error));
    }
}

#[test]
fn a_vlan_is_not_predicted() {
    let source = Source {
        ip: Ipv4Addr::new(10, 9, 0, 5),
        prefix: 24,
        vlan: true,
    };
    assert_eq!(moved().verdict(source), Err(SkipReason::Vlan));
}

#[test]
fn a_vlans_gids_are_for_vlans() {
    let mut case = moved();
    case.netdevs[1].0.vlan = true;
    assert!(matches!(
        case.of("10.9.0.5/24"),
        Err(SkipReason::NoGid { .. })
    ));
}

#[test]
fn the_other_end_of_a_link_makes_the_subnet() {
    let mut case = moved();
    let peer = "10.1.0.1".parse().ok();
    case.netdevs[1].1[0].peer = peer;
    case.gids[1] = v2(1, "10.1.0.1", "rdma0");
    assert!(matches!(
        case.of("10.9.0.5/24"),
        Err(SkipReason::NoGid { .. })
    ));
    let fits = case.of("10.1.0.9/24");
    assert!(matches!(fits, Err(SkipReason::OtherEnd { .. })), "{fits:?}");
}

/// The kernel makes a GID of the other end of a point-to-point address, and no GID of the address itself.
#[test]
fn the_other_end_of_an_address_is_no_gid_for_peers() {
    let mut case = moved();
    let mut lent = address("10.9.0.5/32");
    lent.peer = "10.244.1.5".parse().ok();
    case.netdevs[1].1.push(lent);
    case.gids.push(v2(2, "10.244.1.5", "rdma0"));
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V2));
    // the GID belongs to the pod even if other pods use the port
    case.alone = false;
    case.netdevs.push(netdev("rdma0", &["10.8.0.1/24"], false));
    assert_eq!(case.of("10.244.1.5/24"), Ok(Fit::V2));
    case.gids[2].index = 0;
    case.gids[1].index = 2;
    let error = SkipReason::OtherEnd {
        address: IpAddr::from([10, 244, 1, 5]),
        netdev: "rdma0".to_owned(),
    };
    assert_eq!(case.of("10.244.1.5/24"), Err(error.clone()));
    // the rail's own connections would use this GID, too
    assert_eq!(case.of("10.9.0.5/24"), Err(error));
}

#[test]
fn a_table_of_one_gid_is_not_judged() {
    let gids = GidTable {
        size: 1,
        gids: vec![v1(0, "fe80::1", "eth1")],
    };
    let view = View {
        gids: &gids,
        netdevs: &[],
        alone: false,
        has_ueid: false,
    };
    let source = Source {
        ip: Ipv4Addr::new(10, 0, 0, 1),
        prefix: 24,
        vlan: false,
    };
    assert_eq!(verdict(view, source), Ok(Fit::Device));
}
