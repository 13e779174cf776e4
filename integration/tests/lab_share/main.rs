// SPDX-License-Identifier: Apache-2.0
//! In the lab, pods share bonded NICs: `integration/lab/vm --tier fast --shared`, one test at a time.

mod crash;
mod ipvlan;
mod replies;
mod verify;
mod vlans;

use integration::{
    Attachment, Bonded, BondedPod, Conflist, Netns, Snapshot, bonded,
    killed::{Around, Restorer, Sweep},
    plugin::rdma_cni,
    rails::{BONDS, Bond, Side},
    traffic::{End, Write},
    wait,
};
use serde_json::{Value, json};
use std::fs;

/// A configuration of side A with one rail for each pod. For kills, one rail tests the same as two, and is faster.
fn of_one_rail(bonded: &Bonded) -> Value {
    let mut configuration = bonded.configuration(Side::A);
    configuration["devices"] = json!([{ "netdev": "bond0" }]);
    configuration["cniVersion"] = "1.1.0".into();
    configuration["name"] = "net".into();
    configuration
}

/// Waits until the numbers of GIDs of all bonds are as in `before`.
#[track_caller]
fn gids_are(bonded: &Bonded, before: [usize; 4]) {
    wait::until("the pods' GIDs are gone", || {
        BONDS.map(|bond| bonded.gids(bond)) == before
    });
}

/// Asserts that no lease, record or `rails.json` of any pod remains on `side`.
#[track_caller]
fn nothing_is_left(bonded: &Bonded, side: Side) {
    assert_eq!(bonded.held(side), Vec::<String>::new(), "leases");
    for folder in ["attachments/net", "rails/net"] {
        let left: Vec<_> = fs::read_dir(bonded.state(side).join(folder))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn pods_on_two_sides_talk_rdma_on_every_rail() {
    let bonded = Bonded::new();
    let host = &bonded.rails.host;
    let before = Snapshot::of(host);
    let gids = BONDS.map(|bond| bonded.gids(bond));
    for (child, dies) in [("macvlan", false), ("ipvlan", true)] {
        let pods = [Side::A, Side::B].map(|side| {
            let mut configuration = bonded.configuration(side);
            configuration["child"] = json!({ "type": child });
            bonded.pod(side, &format!("pod-{side:?}").to_lowercase(), configuration)
        });
        for pod in &pods {
            is_as_promised(&bonded, pod);
        }
        for rail in 0..2 {
            for ipv6 in [true, false] {
                let before = BONDS.map(|bond| bonded.rails.sent(bond));
                bonded::traffic(&pods[0], &pods[1], rail, ipv6);
                left_by(&bonded, before, 100 * 4096, &[Bond::new(Side::B, rail)]);
            }
        }
        both_rails_at_once(&bonded, &pods);
        a_reply_leaves_by_the_rail_of_its_address(&bonded, &pods);
        for pod in &pods {
            let checked = bonded.runtime().check(&pod.list, &pod.attachment);
            checked.unwrap_or_else(|outcome| panic!("{outcome}"));
        }
        if dies {
            pods[0].netns.die();
        }
        for pod in &pods {
            bonded.delete(pod);
            nothing_is_left(&bonded, pod.side);
        }
        gids_are(&bonded, gids);
        before.assert_restored(host);
        if !dies {
            let rules = pods[0].netns.run("ip rule list") + &pods[0].netns.run("ip -6 rule list");
            assert!(!rules.contains("lookup 100"), "{rules}");
        }
    }
}

/// Asserts that the pod has an IPv6 address of each rail's own prefix, that the result contains the GID index of this
/// address, and that `rails.json` contains the result's rails.
#[track_caller]
fn is_as_promised(bonded: &Bonded, pod: &BondedPod) {
    for rail in 0..2 {
        let bond = pod.bond(rail);
        let reported = pod.rail(rail);
        assert_eq!(reported["rdmaDevice"], bond.rdma());
        assert_eq!(reported["netdev"], bond.netdev());
        assert_eq!(reported["port"], 1);
        let (ipv6, index) = pod.address(rail, true);
        let prefix = bond.ipv6_prefix();
        let start = prefix.strip_suffix("::/64").expect("a /64");
        assert!(ipv6.starts_with(start), "{ipv6} is not of {prefix}");
        let path = format!("/sys/class/infiniband/{}/ports/1/gids/{index}", bond.rdma());
        let gid: std::net::Ipv6Addr = fs::read_to_string(path)
            .expect("the GID")
            .trim()
            .parse()
            .expect("a GID");
        assert_eq!(gid.to_string(), ipv6);
    }
    let name = format!("default_pod-{:?}", pod.side).to_lowercase();
    let file = bonded.state(pod.side).join("rails/net").join(name);
    let text = fs::read_to_string(file.join("rails.json")).expect("rails.json");
    let content: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(content["rails"], pod.result["rails"]);
}

#[track_caller]
fn both_rails_at_once(bonded: &Bonded, pods: &[BondedPod; 2]) {
    let before = BONDS.map(|bond| bonded.rails.sent(bond));
    let runs = [0, 1].map(|rail| {
        let devices = [0, 1].map(|pod: usize| pods[pod].bond(rail).rdma());
        let addresses = [0, 1].map(|pod: usize| pods[pod].address(rail, true));
        let end = |index: usize| End {
            pod: &pods[index].netns,
            rdma: &devices[index],
            address: &addresses[index].0,
        };
        Write::new(end(0), end(1), &pods[0].address(rail, false).0)
            .port(18600 + rail as u16)
            .gids(addresses[0].1, addresses[1].1)
            .count(200)
            .start()
    });
    for run in runs {
        run.bandwidth();
    }
    left_by(
        bonded,
        before,
        200 * 4096,
        &[0, 1].map(|rail| Bond::new(Side::B, rail)),
    );
}

/// Asserts that at least `bytes` were sent by each of `senders`, and fewer by each other bond.
#[track_caller]
fn left_by(bonded: &Bonded, before: [u64; 4], bytes: u64, senders: &[Bond]) {
    for (bond, before) in BONDS.into_iter().zip(before) {
        let sent = bonded.rails.sent(bond) - before;
        let is_sender = senders.contains(&bond);
        assert_eq!(sent >= bytes, is_sender, "{bond:?} sent {sent} bytes");
    }
}

/// The client does not bind to a netdev. The server answers from the address to which the request was sent.
#[track_caller]
fn a_reply_leaves_by_the_rail_of_its_address(bonded: &Bonded, pods: &[BondedPod; 2]) {
    for rail in 0..2 {
        for ipv6 in [true, false] {
            let (to, _) = pods[0].address(rail, ipv6);
            let (from, _) = pods[1].address(rail, ipv6);
            let before = [0, 1].map(|rail| bonded.rails.sent(Bond::new(Side::A, rail)));
            let line = format!("ping -c 5 -i 0.05 -W 20 -s 1400 -I {from} {to}");
            pods[1].netns.run(&line);
            let sent = [0, 1].map(|it| bonded.rails.sent(Bond::new(Side::A, it)) - before[it]);
            assert!(sent[rail] >= 5 * 1400, "rail {rail} sent {sent:?}");
            assert!(sent[1 - rail] < 1400, "rail {rail} sent {sent:?}");
        }
    }
}

#[test]
fn eight_pods_share_a_bond() {
    pods_share_a_bond(8);
}

#[test]
#[ignore = "scripts/test --full: the same, with twenty pods"]
fn twenty_pods_share_a_bond() {
    pods_share_a_bond(20);
}

#[track_caller]
fn pods_share_a_bond(count: usize) {
    let bonded = Bonded::new();
    let before = Snapshot::of(&bonded.rails.host);
    let gids = BONDS.map(|bond| bonded.gids(bond));
    let configuration = || {
        let mut configuration = bonded.configuration(Side::A);
        configuration["devices"] = json!([{ "rdma": "mlx5_bond_0" }]);
        configuration
    };
    let pods: Vec<BondedPod> = (0..count)
        .map(|number| bonded.pod(Side::A, &format!("pod{number}"), configuration()))
        .collect();
    let mut addresses: Vec<String> = pods.iter().map(|pod| pod.address(0, true).0).collect();
    let mut indices: Vec<usize> = pods.iter().map(|pod| pod.address(0, true).1).collect();
    addresses.sort();
    addresses.dedup();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!((addresses.len(), indices.len()), (count, count));
    assert_eq!(bonded.held(Side::A).len(), 2 * count);
    // pods with the same parent reach each other
    bonded::traffic(&pods[0], &pods[count - 1], 0, true);
    bonded::traffic(&pods[count - 1], &pods[6], 0, false);
    a_pod_can_use_anothers_gid(&pods);
    for pod in &pods {
        bonded.delete(pod);
    }
    nothing_is_left(&bonded, Side::A);
    gids_are(&bonded, gids);
    before.assert_restored(&bonded.rails.host);
}

/// A pod can send with another pod's GID; `docs/security.md` warns of this.
#[track_caller]
fn a_pod_can_use_anothers_gid(pods: &[BondedPod]) {
    let [server, thief, owner] = [&pods[0], &pods[1], &pods[2]];
    let device = server.bond(0).rdma();
    let (address, index) = server.address(0, true);
    let (stolen, of_owner) = owner.address(0, true);
    let server_end = End {
        pod: &server.netns,
        rdma: &device,
        address: &address,
    };
    let thief_end = End {
        pod: &thief.netns,
        rdma: &device,
        address: &stolen,
    };
    let run = Write::new(server_end, thief_end, &server.address(0, false).0)
        .gids(index, of_owner)
        .start();
    // the run succeeds: the receiver accepts packets with this GID
    run.bandwidth();
}

#[test]
fn a_full_gid_table_fails_add_and_leaves_nothing() {
    let bonded = Bonded::new();
    let bond = Bond::new(Side::A, 1);
    let hog = Netns::new("hog");
    bonded.rails.host.ip(&format!(
        "link add link {} name hog netns {} type macvlan mode bridge",
        bond.netdev(),
        hog.name()
    ));
    hog.ip("link set dev hog up");
    let size = fs::read_dir(format!(
        "/sys/class/infiniband/{}/ports/1/gids",
        bond.rdma()
    ))
    .expect("the device's GIDs")
    .count();
    let lines: String = (0..size)
        .map(|number| format!("address add fd00:f::{number:x}/128 dev hog nodad\n"))
        .collect();
    let batch = tempfile::NamedTempFile::new().expect("a file");
    fs::write(batch.path(), lines).expect("a file");
    hog.ip(&format!("-batch {}", batch.path().display()));
    wait::until("the table is full", || bonded.gids(bond) == size);
    let before = Snapshot::of(&bonded.rails.host);
    let netns = Netns::new("pod");
    let list = Conflist::new("1.1.0", vec![bonded.configuration(Side::A)]);
    let attachment = Attachment::new("sandbox", netns.path(), "eth0").of_pod("default", "pod");
    let outcome = bonded.runtime().add(&list, &attachment);
    let message = outcome.expect_err("the table is full").error(106);
    let words = format!("{size} of {size} GIDs are used");
    assert!(message.contains(&words), "{message}");
    assert!(message.contains("mlx5_bond_1"), "{message}");
    assert!(!netns.has_link("rdma0") && !netns.has_link("rdma1"));
    nothing_is_left(&bonded, Side::A);
    assert_eq!(bonded.gids(bond), size);
    before.assert_restored(&bonded.rails.host);
    // with free space again the verb succeeds
    hog.die();
    wait::until("there is room", || bonded.gids(bond) < size / 2);
    bonded
        .runtime()
        .add(&list, &attachment)
        .unwrap_or_else(|outcome| panic!("{outcome}"));
    let deleted = bonded.runtime().del(&list, &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    nothing_is_left(&bonded, Side::A);
}

#[test]
fn addresses_are_stable_and_conflicts_are_avoided() {
    let bonded = Bonded::new();
    let configuration = || bonded.configuration(Side::A);
    let address = |name: &str| {
        let pod = bonded.pod(Side::A, name, configuration());
        let addresses = [0, 1].map(|rail| pod.address(rail, true).0);
        bonded.delete(&pod);
        addresses
    };
    let first = address("trainer-0");
    assert_eq!(address("trainer-0"), first, "the same pod, created again");
    let second = address("trainer-1");
    assert_ne!(second, first, "another pod");
    // another machine has the address: ADD finds it by duplicate address detection, and avoids it
    let (router, bond) = (&bonded.rails.routers[0], Bond::new(Side::A, 0));
    let partner = bond.partner();
    router.ip(&format!("address add {}/64 dev {partner} nodad", first[0]));
    let careful = || {
        let mut configuration = configuration();
        configuration["ipv6"] = json!({ "dad": "wait" });
        configuration["probe"] = json!("off");
        Conflist::new("1.1.0", vec![configuration])
    };
    let netns = Netns::new("again");
    let attachment =
        |id: &str| Attachment::new(id, netns.path(), "eth0").of_pod("default", "trainer-0");
    let outcome = bonded.runtime().add(&careful(), &attachment("x"));
    let message = outcome.expect_err("the address is in use").error(106);
    assert!(message.contains(&first[0]), "{message}");
    nothing_is_left(&bonded, Side::A);
    let added = bonded.runtime().add(&careful(), &attachment("y"));
    let result = added.unwrap_or_else(|outcome| panic!("{outcome}"));
    let given = result["rails"][0]["gids"].to_string();
    assert!(!given.contains(&first[0]), "{given}");
    let deleted = bonded.runtime().del(&careful(), &attachment("y"));
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    // with a probe, ADD finds the used address before it sets the address, and assigns another one
    router.ip(&format!("address add {}/64 dev {partner} nodad", second[0]));
    let [assigned, _] = address("trainer-1");
    assert_ne!(assigned, second[0]);
}

#[test]
fn a_parent_without_a_prefix_is_named() {
    let bonded = Bonded::new();
    let bond = Bond::new(Side::A, 1);
    let address = format!("{}/64", bond.ipv6(integration::rails::HOST));
    bonded
        .rails
        .host
        .ip(&format!("address del {address} dev {}", bond.netdev()));
    let list = Conflist::new("1.1.0", vec![bonded.configuration(Side::A)]);
    let statuses = bonded.runtime().status(&list);
    let message = statuses.into_iter().next().expect("one plugin").error(50);
    assert!(message.contains("bond1"), "{message}");
    let netns = Netns::new("pod");
    let attachment = Attachment::new("sandbox", netns.path(), "eth0");
    let outcome = bonded.runtime().add(&list, &attachment);
    let message = outcome.expect_err("there is no prefix").error(104);
    assert!(message.contains("bond1"), "{message}");
    nothing_is_left(&bonded, Side::A);
}

#[test]
fn killed_after_any_operation_nothing_is_left() {
    let bonded = Bonded::new();
    let gids = BONDS.map(|bond| bonded.gids(bond));
    let configuration = of_one_rail(&bonded);
    let sweep = Sweep {
        host: &bonded.rails.host,
        plugin: rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around: Around::All,
        cni_path: bonded.cni_path(),
        configuration,
        before: Snapshot::of(&bonded.rails.host),
    };
    // no pod owns a shared device: another pod's ADD is never refused
    let restorers = [Restorer::Del, Restorer::Gc];
    let added = sweep.run("ADD", &restorers);
    assert!(added >= 4, "ADD has {added} operations");
    nothing_is_left(&bonded, Side::A);
    let deleted = sweep.run("DEL", &restorers);
    assert!(deleted >= 1, "DEL has {deleted} operations");
    nothing_is_left(&bonded, Side::A);
    gids_are(&bonded, gids);
}
