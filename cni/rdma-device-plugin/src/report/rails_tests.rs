// SPDX-License-Identifier: Apache-2.0

use super::*;
use serde_json::json;

const NIC: [&str; 2] = ["0000:3b:00.0", "0000:5e:00.0"];

fn address(text: &str) -> DeviceAddress {
    serde_json::from_value(json!(text)).expect("an address")
}

fn pod(name: &str, devices: &[(&str, Option<&str>)]) -> PodDevices {
    let devices = devices.iter();
    let devices = devices.map(|(nic, interface)| {
        let device = PodDevice {
            interface: interface.map(str::to_owned),
            resources: ["rdma/hca".to_owned()].into(),
        };
        (address(nic), device)
    });
    PodDevices {
        pod: PodKey {
            name: PodName {
                namespace: "default".into(),
                name: name.into(),
            },
            uid: Some("7".into()),
        },
        devices: devices.collect(),
    }
}

/// Of both NICs, as `rdma/hca` offers them.
fn troubles(devices: &[(&str, &str)]) -> Troubles {
    let of = |(nic, reason): &(&str, &str)| (address(nic), trouble(reason));
    let devices: BTreeMap<_, _> = devices.iter().map(of).collect();
    let usable = NIC.iter().map(|nic| address(nic));
    let usable = usable.filter(|it| !devices.contains_key(it));
    Troubles {
        usable: usable.map(|it| ("rdma/hca".to_owned(), it)).collect(),
        devices,
        ..Troubles::default()
    }
}

fn trouble(reason: &str) -> Trouble {
    Trouble {
        rdma: Some("mlx5_0".into()),
        reason: reason.to_owned(),
    }
}

/// Says what is due at that second: each pod's two sentences.
fn tell(
    told: &mut Told,
    pods: &[PodDevices],
    troubles: &Troubles,
    now: Instant,
) -> Vec<(String, Option<String>, Option<String>)> {
    let (due, _) = told.due(pods, troubles, now);
    due.into_iter()
        .map(|news| {
            let said = (news.pod.name.name.clone(), news.loss(), news.recovery());
            told.wrote(now);
            told.told(news, now);
            said
        })
        .collect()
}

#[test]
fn a_pod_hears_of_its_own_rails_once() {
    let (mut told, start) = (Told::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let pods = [
        pod("a", &[(NIC[0], Some("rdma0")), (NIC[1], Some("rdma1"))]),
        pod("b", &[(NIC[1], None)]),
    ];
    let down = troubles(&[(NIC[0], "no carrier")]);
    let lost = "rails that cannot be used: rdma0 (mlx5_0, 0000:3b:00.0): no carrier";
    assert_eq!(
        tell(&mut told, &pods, &down, at(0)),
        [("a".to_owned(), Some(lost.to_owned()), None)]
    );
    assert_eq!(tell(&mut told, &pods, &down, at(100)), []);
    // the same loss in other words is no other one
    let flapping = troubles(&[(NIC[0], "it flaps")]);
    assert_eq!(tell(&mut told, &pods, &flapping, at(200)), []);
    let back = "rails that can be used again: rdma0 (mlx5_0, 0000:3b:00.0)";
    assert_eq!(
        tell(&mut told, &pods, &troubles(&[]), at(300)),
        [("a".to_owned(), None, Some(back.to_owned()))]
    );
    // nothing is remembered then
    tell(&mut told, &pods, &troubles(&[]), at(400));
    assert!(told.is_empty());
    let lost = "rails that cannot be used: mlx5_0 (0000:5e:00.0): gone";
    let said = tell(
        &mut told,
        &pods[1..],
        &troubles(&[(NIC[1], "gone")]),
        at(500),
    );
    assert_eq!(said, [("b".to_owned(), Some(lost.to_owned()), None)]);
}

#[test]
fn what_changes_in_between_is_told_as_it_is_then() {
    let (mut told, start) = (Told::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let pods = [pod(
        "a",
        &[(NIC[0], Some("rdma0")), (NIC[1], Some("rdma1"))],
    )];
    let first = troubles(&[(NIC[0], "no carrier")]);
    let second = troubles(&[(NIC[1], "no carrier")]);
    assert_eq!(tell(&mut told, &pods, &first, at(0)).len(), 1);
    // it is back and away again: nothing is to be told
    assert_eq!(tell(&mut told, &pods, &troubles(&[]), at(3)), []);
    assert_eq!(tell(&mut told, &pods, &first, at(4)), []);
    let (due, next) = told.due(&pods, &second, at(6));
    assert_eq!((due, next), (vec![], Some(Duration::from_secs(4))));
    let said = tell(&mut told, &pods, &second, at(10));
    let [(_, Some(lost), Some(back))] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(
        lost.contains("rdma1 ") && back.contains("rdma0 "),
        "{said:?}"
    );
}

#[test]
fn a_pod_of_the_same_name_hears_anew_and_one_that_is_gone_is_forgotten() {
    let (mut told, now) = (Told::default(), Instant::now());
    let down = troubles(&[(NIC[0], "no carrier")]);
    let mut pods = [pod("a", &[(NIC[0], None)])];
    assert_eq!(tell(&mut told, &pods, &down, now).len(), 1);
    pods[0].pod.uid = Some("8".into());
    assert_eq!(tell(&mut told, &pods, &down, now).len(), 1);
    assert_eq!(tell(&mut told, &[], &down, now), []);
    assert!(told.is_empty());
}

#[test]
fn a_storm_is_told_later() {
    let (mut told, now) = (Told::default(), Instant::now());
    let pods: Vec<PodDevices> = (0..200)
        .map(|number| pod(&format!("{number:03}"), &[(NIC[0], None)]))
        .collect();
    let down = troubles(&[(NIC[0], "gone")]);
    let (due, _) = told.due(&pods, &down, now);
    let mut count = 0;
    for news in due {
        if !told.has_room(now) {
            break;
        }
        told.wrote(now);
        told.told(news, now);
        count += 1;
    }
    assert_eq!(count, 120);
    let (due, next) = told.due(&pods, &down, now);
    assert_eq!((due.len(), next), (0, Some(Duration::from_secs(600))));
    let (due, _) = told.due(&pods, &down, now + Duration::from_secs(600));
    assert_eq!(due.len(), 80);
}

#[test]
fn what_is_not_offered_any_more_has_not_come_back() {
    let (mut told, start) = (Told::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let pods = [pod("a", &[(NIC[0], Some("rdma0"))])];
    let down = troubles(&[(NIC[0], "no carrier")]);
    assert_eq!(tell(&mut told, &pods, &down, at(0)).len(), 1);
    // its function was taken away, or its resource out of the configuration
    let mut others = troubles(&[]);
    others.usable.retain(|(_, nic)| **nic == *NIC[1]);
    assert_eq!(tell(&mut told, &pods, &others, at(100)), []);
    // and is the same loss still
    assert_eq!(tell(&mut told, &pods, &down, at(200)), []);
    let said = tell(&mut told, &pods, &troubles(&[]), at(300));
    assert!(matches!(&said[..], [(_, None, Some(_))]), "{said:?}");
}

#[test]
fn a_resources_own_trouble_is_that_of_its_pods() {
    let (mut told, start) = (Told::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let [a, b] = ["rdma/a", "rdma/b"].map(|resource| {
        let mut pod = pod(resource, &[(NIC[0], Some("rdma0"))]);
        let devices = pod.devices.values_mut();
        devices.for_each(|it| it.resources = [resource.to_owned()].into());
        pod
    });
    let place = |resource: &str| (resource.to_owned(), address(NIC[0]));
    let all = Troubles {
        usable: ["rdma/a", "rdma/b"].map(place).into(),
        ..Troubles::default()
    };
    let mut down = all.clone();
    down.usable.remove(&place("rdma/a"));
    down.own
        .insert(place("rdma/a"), trouble("bond0.100 is down"));
    let pods = [a, b];
    let lost = "rails that cannot be used: rdma0 (mlx5_0, 0000:3b:00.0): bond0.100 is down";
    assert_eq!(
        tell(&mut told, &pods, &down, at(0)),
        [("rdma/a".to_owned(), Some(lost.to_owned()), None)]
    );
    // another resource can use it all the time
    let mut removed = down.clone();
    removed.own.clear();
    assert_eq!(tell(&mut told, &pods, &removed, at(100)), []);
    let said = tell(&mut told, &pods, &all, at(200));
    let [(name, None, Some(_))] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(name, "rdma/a");
}
