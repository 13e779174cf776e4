// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::{Environment, OfferedDevice, ids};
use daemon_conf::{Allocate, Ids, ResourceName};
use rdma_netns::{Accelerator, DeviceAddress, Hca, Inventory, PciPath};
use rdma_resources::Sharing;

fn address(text: &str) -> DeviceAddress {
    text.to_owned().try_into().expect("an address")
}

/// Returns the path of a device: below the root port 00.0 of the host bridge `bus`, and below the port `switch` of a
/// switch.
fn path(bus: u8, switch: u8) -> PciPath {
    PciPath {
        host_bridge: format!("pci0000:{bus:02x}"),
        bridges: vec![
            address(&format!("0000:{bus:02x}:00.0")),
            address(&format!("0000:{:02x}:00.0", bus + 1)),
            address(&format!("0000:{:02x}:{switch:02x}.0", bus + 2)),
        ],
    }
}

/// Returns an offer with four host bridges, two on each NUMA node. Below each host bridge are two NICs.
fn offer(kind: Ids) -> Offer {
    let mut devices = Vec::new();
    for (index, bus) in [0x10_u8, 0x30, 0x90, 0xb0].into_iter().enumerate() {
        for nic in 0..2_u8 {
            devices.push(OfferedDevice {
                address: address(&format!("0000:{:02x}:00.0", bus + 3 + nic)),
                hca: Hca {
                    name: format!("mlx5_{}", index * 2 + usize::from(nic)),
                    ports: Vec::new(),
                    char_devices: Vec::new(),
                    sub_devices: Vec::new(),
                    firmware: None,
                    soft: false,
                    node_guid: None,
                    is_erdma: false,
                    kernel_users: Vec::new(),
                },
                numa_node: Some(u32::from(bus >= 0x80)),
                path: path(bus, nic),
                data_direct: None,
                mac: None,
                parent: None,
                fault: None,
            });
        }
    }
    Offer {
        name: ResourceName::new("rdma/hca").expect("a name"),
        kind,
        sharing: match kind {
            Ids::Exclusive => Sharing::Exclusive,
            _ => Sharing::Shared,
        },
        ids: ids::ids(kind, &devices, &|_| true),
        devices,
        keeps_count: false,
        has_parents: false,
        cdi: false,
        umad: false,
        limits: Default::default(),
        environment: Environment::default(),
        expected: 8,
        short: None,
    }
}

/// Returns a GPU below the third host bridge's switch, on NUMA node 1.
fn gpu() -> Accelerator {
    Accelerator {
        address: address("0000:9f:00.0"),
        vendor: "10de".into(),
        numa_node: Some(1),
        path: path(0x90, 9),
    }
}

fn all(offer: &Offer) -> Vec<String> {
    offer.ids.iter().map(|id| id.id.clone()).collect()
}

fn with(gpus: &[Accelerator]) -> Inventory {
    Inventory {
        accelerators: gpus.to_vec(),
        ..Inventory::default()
    }
}

/// Returns the preferred ids of `available` for a container whose own GPUs are unknown. `gpus` are the node's GPUs.
fn prefer(
    offer: &Offer,
    (available, must): (&[String], &[String]),
    size: usize,
    gpus: &[Accelerator],
) -> Preference {
    let node = with(gpus);
    offer.prefer(available, must, size, &Accelerators::of_node(&node))
}

#[track_caller]
fn preferred(offer: &Offer, must: &[&str], size: usize, gpus: &[Accelerator]) -> Vec<String> {
    let must: Vec<String> = must.iter().map(|id| (*id).to_owned()).collect();
    let preference = prefer(offer, (&all(offer), &must), size, gpus);
    assert_eq!(preference.ids.len(), preference.reasons.len());
    preference.ids
}

const SHARED: Ids = Ids::Shared {
    count: 1000,
    allocate: Allocate::Numa,
};

#[test]
fn devices_of_one_node_and_nearest_to_an_accelerator_first() {
    let offer = offer(Ids::Exclusive);
    let ids = preferred(&offer, &[], 3, &[gpu()]);
    assert_eq!(ids, ["0000:93:00.0", "0000:94:00.0", "0000:b3:00.0"]);
    let ids = preferred(&offer, &[], 3, &[]);
    assert_eq!(ids, ["0000:13:00.0", "0000:14:00.0", "0000:33:00.0"]);
}

#[test]
fn the_node_of_what_must_be_included_wins() {
    let offer = offer(Ids::Exclusive);
    let ids = preferred(&offer, &["0000:34:00.0"], 3, &[gpu()]);
    assert_eq!(ids, ["0000:34:00.0", "0000:13:00.0", "0000:14:00.0"]);
}

#[test]
fn every_accelerator_gets_a_nic_of_its_own_first() {
    let offer = offer(Ids::Exclusive);
    let gpus = [0x90, 0xb0].map(|bus| Accelerator {
        address: address(&format!("0000:{:02x}:00.0", bus + 15)),
        path: path(bus, 9),
        ..gpu()
    });
    let ids = preferred(&offer, &[], 2, &gpus);
    assert_eq!(ids, ["0000:93:00.0", "0000:b3:00.0"]);
}

#[test]
fn shared_ids_are_spread_over_the_nics_of_a_node() {
    let offer = offer(SHARED);
    let ids = preferred(&offer, &[], 4, &[gpu()]);
    let mut nics: Vec<usize> = ids
        .iter()
        .map(|id| offer.ids[id.parse::<usize>().expect("a number")].devices[0])
        .collect();
    nics.sort_unstable();
    assert_eq!(nics, [4, 5, 6, 7], "each NIC of node 1 once");
}

fn nic(offer: &Offer, id: &str) -> usize {
    let found = offer.ids.iter().find(|it| it.id == id);
    found.expect("an id of the resource").devices[0]
}

/// Allocates `size` ids to each of `pods` pods, one pod after the other. Returns the NICs of each pod.
#[track_caller]
fn one_after_another(
    offer: &Offer,
    pods: usize,
    size: usize,
    gpus: &[Accelerator],
) -> Vec<Vec<usize>> {
    let mut free = all(offer);
    let next = |_| {
        let ids = prefer(offer, (&free, &[]), size, gpus).ids;
        assert_eq!(ids.len(), size);
        free.retain(|id| !ids.contains(id));
        ids.iter().map(|id| nic(offer, id)).collect()
    };
    (0..pods).map(next).collect()
}

const PER_NIC: Ids = Ids::PerNic {
    count: 50,
    allocate: Allocate::Numa,
};

#[test]
fn pods_of_one_shared_id_each_are_spread_over_all_nics() {
    for kind in [SHARED, PER_NIC] {
        let offer = offer(kind);
        for gpus in [vec![], vec![gpu()]] {
            let pods = one_after_another(&offer, 100, 1, &gpus);
            let mut used = [0_usize; 8];
            for nic in pods.concat() {
                used[nic] += 1;
                let (most, least) = (used.iter().max(), used.iter().min());
                assert!(most.map(|it| it - 1) <= least.copied(), "{used:?}");
            }
        }
    }
}

#[test]
fn the_nearest_of_equally_used_nics_comes_first() {
    let offer = offer(PER_NIC);
    let pods = one_after_another(&offer, 8, 1, &[gpu()]);
    let order = pods.concat();
    assert_eq!(order[..2], [4, 5], "below the accelerator's switch");
    assert_eq!(order[2..4], [6, 7], "on its NUMA node");
    assert_eq!(order[4..], [0, 1, 2, 3], "far from it");
}

#[test]
fn the_next_pod_goes_where_another_accelerator_has_no_nic_yet() {
    let gpus = [0x10, 0x30, 0x90, 0xb0].map(|bus| Accelerator {
        address: address(&format!("0000:{:02x}:00.0", bus + 15)),
        path: path(bus, 9),
        numa_node: Some(u32::from(bus >= 0x80)),
        ..gpu()
    });
    let pods = one_after_another(&offer(PER_NIC), 8, 1, &gpus);
    let mut first: Vec<usize> = pods[..4].iter().map(|nics| nics[0] / 2).collect();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2, 3], "{pods:?}");
}

#[test]
fn shared_ids_of_one_pod_are_of_one_node_though_others_are_used_less() {
    let offer = offer(PER_NIC);
    for gpus in [vec![], vec![gpu()]] {
        let pods = one_after_another(&offer, 60, 3, &gpus);
        let mut used = [0_usize; 8];
        for nics in pods {
            let nodes: BTreeSet<usize> = nics.iter().map(|nic| nic / 4).collect();
            assert_eq!(nodes.len(), 1, "{nics:?}");
            let nics: BTreeSet<usize> = nics.into_iter().collect();
            assert_eq!(nics.len(), 3, "as many NICs as there can be");
            nics.iter().for_each(|nic| used[*nic] += 1);
        }
        let (most, least) = (used.iter().max(), used.iter().min());
        assert!(most.map(|it| it - 1) <= least.copied(), "{used:?}");
    }
}

#[test]
fn ids_that_the_topology_manager_holds_back_are_not_in_use() {
    let mut offer = offer(PER_NIC);
    let of = |nics: &[&str]| -> Vec<String> {
        let ids = all(&offer).into_iter();
        ids.filter(|id| nics.iter().any(|nic| id.starts_with(nic)))
            .collect()
    };
    // a pod has one id of mlx5_4, and kubelet does not offer the ids of NUMA node 0
    let mut node_1 = of(&["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]);
    node_1.retain(|id| id != "mlx5_4/0");
    let preference = prefer(&offer, (&node_1, &[]), 1, &[]);
    assert_eq!(preference.ids, ["mlx5_5/0"]);
    assert_eq!(
        preference.reasons,
        [
            "mlx5_5/0: NUMA node 1, which has enough ids (1 still to choose) and the NICs with \
             the fewest users; 0000:94:00.0 has 0 in use, chosen 0 times before; near no accelerator"
        ]
    );
    // an id of an earlier container of the pod, which is required again, counts once
    let again = [node_1.clone(), vec!["mlx5_4/0".into()]].concat();
    let must = ["mlx5_4/0".to_owned()];
    let preference = prefer(&offer, (&again, &must), 2, &[]);
    assert_eq!(preference.ids, ["mlx5_4/0", "mlx5_5/0"]);
    // an unhealthy id does not count as used, because no container has it
    for id in &mut offer.ids {
        id.healthy = id.id == "mlx5_5/0" || id.devices[0] != 5;
    }
    node_1.retain(|id| !id.starts_with("mlx5_5/") || id == "mlx5_5/0");
    let preference = prefer(&offer, (&node_1, &[]), 1, &[]);
    assert_eq!(preference.ids, ["mlx5_5/0"]);
}

/// Returns four GPUs: one below each host bridge, at the switch of the NICs.
fn gpus() -> [Accelerator; 4] {
    [0x10, 0x30, 0x90, 0xb0].map(|bus| Accelerator {
        address: address(&format!("0000:{:02x}:00.0", bus + 15)),
        path: path(bus, 9),
        numa_node: Some(u32::from(bus >= 0x80)),
        ..gpu()
    })
}

/// Returns the NICs for a container whose own GPUs are at the indices `own` of [`gpus`].
#[track_caller]
fn beside(offer: &Offer, available: &[String], own: &[usize], size: usize) -> Vec<usize> {
    let node = with(&gpus());
    let own = own.iter().map(|place| gpus()[*place].address.clone());
    let accelerators = Accelerators::of_container(&node, &own.collect());
    let preference = offer.prefer(available, &[], size, &accelerators);
    assert_eq!(preference.ids.len(), preference.reasons.len());
    preference.ids.iter().map(|id| nic(offer, id)).collect()
}

#[test]
fn the_containers_own_accelerators_have_a_nic_each_before_one_has_two() {
    let offer = offer(Ids::Exclusive);
    let all = all(&offer);
    for (own, size, expected) in [
        (&[2, 3][..], 2, &[4, 6][..]),
        (&[3], 2, &[6, 7]),
        // two GPUs, one on each NUMA node
        (&[1, 2], 2, &[2, 4]),
        (&[1, 2], 4, &[2, 4, 3, 5]),
        // the switch has only two NICs: the third NIC is from the same NUMA node
        (&[0], 3, &[0, 1, 2]),
        // the NUMA node has only four NICs: the fifth NIC is from the other NUMA node
        (&[0], 5, &[0, 1, 2, 3, 4]),
        // the container's GPUs are unknown: all GPUs of the node count
        (&[], 2, &[0, 2]),
    ] {
        assert_eq!(beside(&offer, &all, own, size), expected, "{own:?}, {size}");
    }
}

#[test]
fn nearness_to_own_accelerators_comes_before_use() {
    let offer = offer(PER_NIC);
    let mut free = all(&offer);
    let take = |free: &mut Vec<String>, expected: usize| {
        let found = free.iter().position(|id| nic(&offer, id) == expected);
        free.remove(found.expect("a free one"));
    };
    for _ in 0..10 {
        take(&mut free, 4);
        take(&mut free, 5);
    }
    assert_eq!(beside(&offer, &free, &[2], 2), [4, 5]);
    // of two NICs at the same distance, the NIC with fewer users is preferred
    take(&mut free, 4);
    assert_eq!(beside(&offer, &free, &[2], 1), [5]);
}

#[test]
fn own_accelerators_that_are_near_to_nothing_do_not_count() {
    let mut offer = offer(Ids::Exclusive);
    for device in &mut offer.devices {
        device.path = PciPath::default();
        device.numa_node = None;
    }
    let all = all(&offer);
    assert_eq!(beside(&offer, &all, &[3], 2), [0, 1]);
}

#[test]
fn a_smaller_node_that_suffices_leaves_the_larger_one_whole() {
    let offer = offer(Ids::Exclusive);
    let available: Vec<String> = all(&offer).into_iter().skip(2).collect();
    let preference = prefer(&offer, (&available, &[]), 2, &[]);
    assert_eq!(preference.ids, ["0000:33:00.0", "0000:34:00.0"]);
    let preference = prefer(&offer, (&available, &[]), 3, &[]);
    assert_eq!(preference.ids[..2], ["0000:93:00.0", "0000:94:00.0"]);
}

#[test]
fn every_choice_is_explained() {
    let offer = offer(Ids::Exclusive);
    let must = ["0000:94:00.0".to_owned()];
    let preference = prefer(&offer, (&all(&offer), &must), 2, &[gpu()]);
    assert_eq!(
        preference.reasons,
        [
            "0000:94:00.0: kubelet requires it",
            "0000:93:00.0: NUMA node 1, as the previous ids; 0000:93:00.0 chosen 0 times before; \
             below the same switch as 0000:9f:00.0",
        ]
    );
}

#[test]
fn unknown_ids_are_harmless() {
    let offer = offer(Ids::Exclusive);
    let text = |ids: &[&str]| -> Vec<String> { ids.iter().map(|id| (*id).to_owned()).collect() };
    let preference = prefer(
        &offer,
        (&text(&["x", "0000:13:00.0"]), &text(&["y"])),
        9,
        &[gpu()],
    );
    assert_eq!(preference.ids, text(&["y", "x", "0000:13:00.0"]));
    assert_eq!(prefer(&offer, (&[], &[]), 3, &[]), Preference::default());
}

/// Checks random requests. The result is deterministic, has each id once, and has only available ids and all required
/// ids. It has as many ids as requested, if so many are available.
#[test]
fn any_request_is_answered_with_offered_ids() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let offers = [
        offer(Ids::Exclusive),
        offer(Ids::Shared {
            count: 40,
            allocate: Allocate::Numa,
        }),
        offer(Ids::PerNic {
            count: 5,
            allocate: Allocate::All,
        }),
    ];
    for _ in 0..2000 {
        let offer = &offers[random(offers.len())];
        let mut pick = |most: usize| -> Vec<String> {
            (0..random(most))
                .map(|_| match random(offer.ids.len() + 1) {
                    place if place < offer.ids.len() => offer.ids[place].id.clone(),
                    _ => "unknown".to_owned(),
                })
                .collect()
        };
        let (available, must) = (pick(20), pick(4));
        let size = random(12);
        let gpus = if random(2) == 0 { vec![] } else { vec![gpu()] };
        let preference = prefer(offer, (&available, &must), size, &gpus);
        let requested: BTreeSet<&String> = available.iter().chain(&must).collect();
        let preferred_ids: BTreeSet<&String> = preference.ids.iter().collect();
        assert_eq!(preferred_ids.len(), preference.ids.len(), "an id twice");
        assert_eq!(
            preferred_ids.len(),
            size.min(requested.len()),
            "{preference:?}"
        );
        assert!(preferred_ids.is_subset(&requested), "{preference:?}");
        let must: BTreeSet<&String> = must.iter().collect();
        assert!(
            must.len() > size || must.is_subset(&preferred_ids),
            "{preference:?}"
        );
        assert_eq!(preference.reasons.len(), preference.ids.len());
        let must: Vec<String> = must.into_iter().cloned().collect();
        let again = prefer(offer, (&available, &must), size, &gpus);
        let again: BTreeSet<&String> = again.ids.iter().collect();
        assert!(
            must.len() > size || again == preferred_ids,
            "{preference:?}"
        );
    }
}
