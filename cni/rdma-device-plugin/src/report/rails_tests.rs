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

/// Returns the lost `devices` with the reasons. `rdma/hca` can use the other NICs.
fn troubles(devices: &[(&str, &str)]) -> Troubles {
    let is_lost = |nic: &&str| devices.iter().any(|(lost, _)| lost == nic);
    let usable = NIC.iter().filter(|nic| !is_lost(nic));
    let losses = devices.iter().map(|(nic, reason)| loss(nic, None, reason));
    Troubles {
        usable: usable
            .map(|nic| ("rdma/hca".to_owned(), address(nic)))
            .collect(),
        losses: losses.collect(),
    }
}

fn loss(nic: &str, resource: Option<&str>, reason: &str) -> Loss {
    Loss {
        address: address(nic),
        resource: resource.map(str::to_owned),
        rdma: Some("mlx5_0".into()),
        reason: reason.to_owned(),
        is_gone: false,
    }
}

/// Makes the reports that are due at `now`, and returns the two sentences of each pod.
fn report(
    reported: &mut Reported,
    pods: &[PodDevices],
    troubles: &Troubles,
    now: Instant,
) -> Vec<(String, Option<String>, Option<String>)> {
    let (due, _) = reported.due(pods, troubles, now);
    due.into_iter()
        .map(|news| {
            let reports = (news.pod.name.name.clone(), news.loss(), news.recovery());
            reported.wrote(now);
            reported.reported(news, now);
            reports
        })
        .collect()
}

#[test]
fn a_pod_gets_one_report_of_its_own_rails() {
    let (mut reported, start) = (Reported::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let pods = [
        pod("a", &[(NIC[0], Some("rdma0")), (NIC[1], Some("rdma1"))]),
        pod("b", &[(NIC[1], None)]),
    ];
    let down = troubles(&[(NIC[0], "no carrier")]);
    let lost = "rails that are unusable: rdma0 (mlx5_0, 0000:3b:00.0): no carrier";
    assert_eq!(
        report(&mut reported, &pods, &down, at(0)),
        [("a".to_owned(), Some(lost.to_owned()), None)]
    );
    assert_eq!(report(&mut reported, &pods, &down, at(100)), []);
    // a reported loss with another reason is not a new loss
    let flapping = troubles(&[(NIC[0], "it flaps")]);
    assert_eq!(report(&mut reported, &pods, &flapping, at(200)), []);
    let back = "rails that are usable again: rdma0 (mlx5_0, 0000:3b:00.0)";
    assert_eq!(
        report(&mut reported, &pods, &troubles(&[]), at(300)),
        [("a".to_owned(), None, Some(back.to_owned()))]
    );
    // after the recovery, the loss is forgotten
    report(&mut reported, &pods, &troubles(&[]), at(400));
    assert!(reported.is_empty());
    let lost = "rails that are unusable: mlx5_0 (0000:5e:00.0): gone";
    let reports = report(
        &mut reported,
        &pods[1..],
        &troubles(&[(NIC[1], "gone")]),
        at(500),
    );
    assert_eq!(reports, [("b".to_owned(), Some(lost.to_owned()), None)]);
}

#[test]
fn the_latest_state_is_reported() {
    let (mut reported, start) = (Reported::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let pods = [pod(
        "a",
        &[(NIC[0], Some("rdma0")), (NIC[1], Some("rdma1"))],
    )];
    let first = troubles(&[(NIC[0], "no carrier")]);
    let second = troubles(&[(NIC[1], "no carrier")]);
    assert_eq!(report(&mut reported, &pods, &first, at(0)).len(), 1);
    // the device recovered and was lost again before the next report was due
    assert_eq!(report(&mut reported, &pods, &troubles(&[]), at(3)), []);
    assert_eq!(report(&mut reported, &pods, &first, at(4)), []);
    let (due, next) = reported.due(&pods, &second, at(6));
    assert_eq!((due, next), (vec![], Some(Duration::from_secs(4))));
    let reports = report(&mut reported, &pods, &second, at(10));
    let [(_, Some(lost), Some(back))] = &reports[..] else {
        panic!("{reports:?}");
    };
    assert!(
        lost.contains("rdma1 ") && back.contains("rdma0 "),
        "{reports:?}"
    );
}

#[test]
fn a_pod_of_the_same_name_hears_anew_and_one_that_is_gone_is_forgotten() {
    let (mut reported, now) = (Reported::default(), Instant::now());
    let down = troubles(&[(NIC[0], "no carrier")]);
    let mut pods = [pod("a", &[(NIC[0], None)])];
    assert_eq!(report(&mut reported, &pods, &down, now).len(), 1);
    pods[0].pod.uid = Some("8".into());
    assert_eq!(report(&mut reported, &pods, &down, now).len(), 1);
    assert_eq!(report(&mut reported, &[], &down, now), []);
    assert!(reported.is_empty());
}

#[test]
fn a_storm_is_reported_later() {
    let (mut reported, now) = (Reported::default(), Instant::now());
    let pods: Vec<PodDevices> = (0..200)
        .map(|number| pod(&format!("{number:03}"), &[(NIC[0], None)]))
        .collect();
    let down = troubles(&[(NIC[0], "gone")]);
    let (due, _) = reported.due(&pods, &down, now);
    let mut count = 0;
    for news in due {
        if !reported.has_room(now) {
            break;
        }
        reported.wrote(now);
        reported.reported(news, now);
        count += 1;
    }
    assert_eq!(count, 120);
    let (due, next) = reported.due(&pods, &down, now);
    assert_eq!((due.len(), next), (0, Some(Duration::from_secs(600))));
    let (due, _) = reported.due(&pods, &down, now + Duration::from_secs(600));
    assert_eq!(due.len(), 80);
}

#[test]
fn a_withdrawn_rail_is_not_reported_as_recovered() {
    let (mut reported, start) = (Reported::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let pods = [pod("a", &[(NIC[0], Some("rdma0"))])];
    let down = troubles(&[(NIC[0], "no carrier")]);
    assert_eq!(report(&mut reported, &pods, &down, at(0)).len(), 1);
    // the device's function is gone, or its resource is no longer in the configuration
    let mut others = troubles(&[]);
    others.usable.retain(|(_, nic)| **nic == *NIC[1]);
    assert_eq!(report(&mut reported, &pods, &others, at(100)), []);
    // the device is offered again: its loss was already reported
    assert_eq!(report(&mut reported, &pods, &down, at(200)), []);
    let reports = report(&mut reported, &pods, &troubles(&[]), at(300));
    assert!(matches!(&reports[..], [(_, None, Some(_))]), "{reports:?}");
}

#[test]
fn a_resources_own_trouble_is_that_of_its_pods() {
    let (mut reported, start) = (Reported::default(), Instant::now());
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
    let own = loss(NIC[0], Some("rdma/a"), "bond0.100 is down");
    down.losses.insert(own);
    let pods = [a, b];
    let lost = "rails that are unusable: rdma0 (mlx5_0, 0000:3b:00.0): bond0.100 is down";
    assert_eq!(
        report(&mut reported, &pods, &down, at(0)),
        [("rdma/a".to_owned(), Some(lost.to_owned()), None)]
    );
    // a second resource can use the device all the time
    let mut removed = down.clone();
    removed.losses.clear();
    assert_eq!(report(&mut reported, &pods, &removed, at(100)), []);
    let reports = report(&mut reported, &pods, &all, at(200));
    let [(name, None, Some(_))] = &reports[..] else {
        panic!("{reports:?}");
    };
    assert_eq!(name, "rdma/a");
}
