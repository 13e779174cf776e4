// SPDX-License-Identifier: Apache-2.0
//! Tests of a network manager that changes a netdev when the netdev returns to the host.

use crate::addresses::{add_address, add_route};
use crate::managed::{network_manager, networkd, node, one_rail};
use crate::node::{address, name};
use crate::smc::{ask, one_rail_with_smc, seen};
use fake_kernel::{Verdict, World, world::HOST};
use nix::errno::Errno;
use rdma_netns::{Kernel, LinkChange, NetnsSide, Op, Route};
use serde_json::{Value, json};
use std::{fs::File, time::Duration};

const AT: NetnsSide = NetnsSide::Host;

/// Changes by which a network manager sets the netdev up.
type Meddling = fn(&mut World);

/// A manager changes the netdev between the changes of `rdma-cni`: it sets the netdev down, removes addresses, or sets
/// its own MTU or profile. DEL nevertheless restores the recorded state.
#[test]
fn a_manager_in_between_is_a_reason_to_observe_again() {
    let meddling: [(&str, Meddling); 5] = [
        ("takes it down and up", |world| {
            let _ = world.execute(&up(false), None);
            let _ = world.execute(&up(true), None);
        }),
        ("takes it down", |world| {
            let _ = world.execute(&up(false), None);
        }),
        ("takes its addresses", take_addresses),
        ("sets its own MTU", |world| {
            let link = name("eth2");
            let _ = world.execute(
                &Op::Link {
                    at: AT,
                    link,
                    change: LinkChange::Mtu(1500),
                },
                None,
            );
        }),
        ("sets it up as before", |world| configure_if_there(world)),
    ];
    for (what, meddle) in meddling {
        for until in [1, 4, 9, 30] {
            let node = node(network_manager());
            let before = node.snapshot();
            let pod = node.pod("a");
            // without tables there are no rules in the pod, so all counted changes concern the rail's devices
            let mut config = one_rail(&node);
            config["routing"] = json!({ "tableBase": 0 });
            node.add(&pod, &config).must_succeed();
            node.kernel.begin();
            node.kernel.intercept(move |world, step| {
                if step.number <= until && step.number % 3 == 1 {
                    meddle(world);
                }
                Verdict::Proceed
            });
            node.del(&pod, &one_rail(&node)).must_succeed();
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.kernel.begin();
            node.must_be(&before, &format!("{what}, until change {until}"));
        }
    }
}

fn up(up: bool) -> Op {
    Op::Link {
        at: AT,
        link: name("eth2"),
        change: LinkChange::Up(up),
    }
}

fn configure_if_there(world: &mut World) {
    if world.link(HOST, "eth2").is_some_and(|link| !link.up) {
        let first = [
            up(true),
            add_address(address("10.0.2.5/24")),
            add_address(address("fd00:2::5/64")),
        ];
        for op in first.into_iter().chain(network_manager()) {
            // ignores a step that is not possible yet
            let _ = world.execute(&op, None);
        }
    }
}

/// The manager takes some time, for example for a DHCP query. DEL waits a short time.
#[test]
fn a_change_that_is_refused_for_a_while_is_tried_again() {
    let node = node(network_manager());
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.kernel.begin();
    let mut refused = 0;
    node.kernel.intercept(move |_, step| {
        let is_address = matches!(
            step.op,
            Op::Link {
                change: LinkChange::AddAddress(_),
                ..
            }
        );
        if is_address && refused < 9 {
            refused += 1;
            return Verdict::Refuse(Errno::EBUSY);
        }
        Verdict::Proceed
    });
    node.del(&pod, &one_rail(&node)).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.must_be(&before, "tried again");
}

/// The manager begins only when the netdev is on the host. The duration of the move does not reduce the time for the
/// manager.
#[test]
fn a_manager_has_as_long_after_a_move_that_takes_its_time() {
    let node = node(network_manager());
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.kernel.begin();
    node.kernel.intercept(|world, step| {
        if matches!(step.op, Op::MoveLink { .. }) {
            world.pass_seconds(3);
        }
        Verdict::Proceed
    });
    // the manager makes more changes than a restore without a manager has rounds
    node.kernel.blind(|world, observation| {
        if observation <= 8 {
            take_addresses(world);
        }
        None
    });
    node.del(&pod, &one_rail(&node)).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.kernel.begin();
    node.must_be(&before, "after a slow move");
}

/// Removes the netdev's addresses that the kernel did not make. The kernel then removes the routes.
fn take_addresses(world: &mut World) {
    let Some(link) = world.link(HOST, "eth2").cloned() else {
        return;
    };
    for address in link.addresses.into_iter().filter(|it| !it.automatic) {
        let link = link.name.clone();
        let remove = Op::Link {
            at: AT,
            link,
            change: LinkChange::RemoveAddress(address),
        };
        let _ = world.execute(&remove, None);
    }
}

/// NetworkManager saw the netdev before it had an address, and removes the addresses that `rdma-cni` set meanwhile.
/// Then it finds an address that was just set, and stops managing the netdev.
#[test]
fn an_address_that_a_manager_removes_is_restored_again() {
    for fails in [false, true] {
        let node = node(network_manager());
        let before = node.snapshot();
        let pod = node.pod("a");
        let mut looks = 0;
        node.kernel.manage(move |world| {
            looks += 1;
            if looks == 3 || looks == 9 {
                take_addresses(world);
            }
        });
        if fails {
            node.kernel.intercept(|_, step| match step.op {
                Op::Link {
                    at,
                    change: LinkChange::AddRoute(_),
                    ..
                } if *at == NetnsSide::Pod => Verdict::Refuse(Errno::EINVAL),
                _ => Verdict::Proceed,
            });
            let answer = node.add(&pod, &one_rail(&node));
            assert_eq!(answer.code(), 106, "{}", answer.value);
        } else {
            node.add(&pod, &one_rail(&node)).must_succeed();
            node.del(&pod, &one_rail(&node)).must_succeed();
        }
        // if the verb had not waited, the manager would remove addresses only now
        (0..10).for_each(|_| node.kernel.pause(Duration::from_millis(50)));
        node.kernel.with(|world| world.unmount(&pod.netns));
        node.must_be(&before, &format!("ADD fails: {fails}"));
    }
}

/// The manager removes the addresses whenever `rdma-cni` has set them. DEL fails, and a later DEL restores them.
#[test]
fn a_manager_that_keeps_removing_addresses_is_reported() {
    let node = node(network_manager());
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    let mut pauses = 0;
    node.kernel.manage(move |world| {
        pauses += 1;
        if pauses < 200 {
            take_addresses(world);
        }
    });
    let message = node.del(&pod, &one_rail(&node)).must_fail(107);
    assert!(message.contains("keeps removing"), "{message}");
    (0..200).for_each(|_| node.kernel.pause(Duration::from_millis(50)));
    node.del(&pod, &one_rail(&node)).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.must_be(&before, "after the manager stopped");
}

/// One netdev cannot return. Another netdev, on the host, becomes free for another pod only after the wait for
/// managers.
#[test]
fn a_manager_is_outlasted_although_another_netdev_cannot_return() {
    let node = node(network_manager());
    let pod = node.pod("a");
    let mut config = node.two_rails();
    config["mode"] = "move".into();
    let addresses = || {
        node.kernel.with(|world| {
            let link = world.link(HOST, "eth2").expect("it is there");
            let set = link.addresses.iter().filter(|it| !it.automatic);
            set.map(|it| it.ip).collect::<Vec<_>>()
        })
    };
    let before = addresses();
    node.add(&pod, &config).must_succeed();
    node.change(
        None,
        &Op::Link {
            at: AT,
            link: name("ens1np0"),
            change: LinkChange::Rename(name("eth3")),
        },
    );
    let mut looks = 0;
    node.kernel.manage(move |world| {
        looks += 1;
        if looks == 3 || looks == 9 {
            take_addresses(world);
        }
    });
    node.del(&pod, &config).must_fail(107);
    // if the verb had not waited, the manager would remove addresses only now
    (0..10).for_each(|_| node.kernel.pause(Duration::from_millis(50)));
    assert_eq!(addresses(), before);
    // the netdev belongs to its next owner now, which may remove the addresses
    node.kernel.with(take_addresses);
    node.del(&pod, &config).must_fail(107);
    assert!(addresses().is_empty());
}

/// The manager's profile has another address now, and the netdev keeps this address.
#[test]
fn a_manager_that_sets_another_address_is_left_alone() {
    let node = node(network_manager());
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    let mut looks = 0;
    node.kernel.manage(move |world| {
        looks += 1;
        if looks == 3 {
            take_addresses(world);
            let done = world.execute(&add_address(address("10.9.0.77/24")), None);
            done.expect("an address");
        }
    });
    node.del(&pod, &one_rail(&node)).must_succeed();
    let addresses = node.kernel.with(|world| {
        let link = world.link(HOST, "eth2").expect("it is back");
        let given = link.addresses.iter().filter(|it| !it.automatic);
        given.map(|it| it.ip.to_string()).collect::<Vec<_>>()
    });
    assert_eq!(addresses, ["10.9.0.77"]);
}

/// The manager has set up the netdev as before, but with another metric.
#[test]
fn attributes_that_a_manager_owns_are_left() {
    let metrics = |world: &World| -> Vec<Option<u32>> {
        let link = world.link(HOST, "eth2").expect("it is back");
        let connected = |it: &&Route| it.destination.to_string() == "10.9.0.0";
        link.routes
            .iter()
            .filter(connected)
            .map(|it| it.metric)
            .collect()
    };
    let node = node(network_manager());
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    let mut looks = 0;
    node.kernel.manage(move |world| {
        looks += 1;
        if looks == 3 {
            let link = world.link(HOST, "eth2").expect("it is back").clone();
            for route in link.routes.into_iter().filter(|it| it.metric == Some(100)) {
                let other = Route {
                    metric: Some(101),
                    ..route.clone()
                };
                let at = AT;
                let (link, remove) = (link.name.clone(), route);
                let ops = [
                    add_route(other),
                    Op::Link {
                        at,
                        link,
                        change: LinkChange::RemoveRoute(remove),
                    },
                ];
                for op in ops {
                    world.execute(&op, None).expect("a route");
                }
            }
        }
    });
    node.del(&pod, &one_rail(&node)).must_succeed();
    assert_eq!(node.kernel.with(|world| metrics(world)), [Some(101)]);
}

#[test]
fn a_lease_is_not_held_against_a_manager() {
    let node = node(networkd(3600));
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.kernel.manage(take_addresses);
    node.kernel.begin();
    node.del(&pod, &one_rail(&node)).must_succeed();
    let looks = node.kernel.observations();
    assert!(looks < 20, "{looks} looks: it was waited for");
}

/// Two pods share SMC-R settings, and each relies on the other to remove them. The DEL of one pod ends while the DEL
/// of the other waits.
#[test]
fn smc_is_taken_away_by_the_last_of_two_that_wait() {
    let node = node(network_manager());
    let pod = node.pod("a");
    let mut config = one_rail_with_smc(&node);
    config["mode"] = "move".into();
    node.add(&pod, &config).must_succeed();
    assert_eq!(seen(&node, None).ueids, ["RACK-1"]);
    let record = node.record_of(&pod);
    let text = std::fs::read_to_string(&record).unwrap();
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["key"]["container"] = "b".into();
    let name = record.file_name().unwrap().to_str().unwrap();
    let others = record.with_file_name(name.replacen('a', "b", 1));
    std::fs::write(&others, other.to_string()).unwrap();
    node.kernel
        .manage(move |_| drop(std::fs::remove_file(&others)));
    node.del(&pod, &config).must_succeed();
    assert!(seen(&node, None).ueids.is_empty());
}

/// The attachment has no node-wide settings. While DEL waits for managers, another process takes the node's lock and
/// keeps it.
#[test]
fn a_pod_without_smc_does_not_take_the_lock_again() {
    let node = node(network_manager());
    node.kernel.with(|world| world.smc = None);
    let pod = node.pod("a");
    let mut config = one_rail(&node);
    ask(&mut config);
    node.add(&pod, &config).must_succeed();
    let lock = node.state.path().join("state/lock");
    let lock = File::options().write(true).open(lock).unwrap();
    // `try_lock` fails while the verb has the lock, and later takes the lock
    node.kernel.manage(move |_| drop(lock.try_lock()));
    let verb = rdma_cni::verb::del::del;
    let ended = node.within(Duration::ZERO, "DEL", Some(&pod), &config, verb);
    ended.unwrap_or_else(|error| panic!("{error}"));
    assert!(!node.record_of(&pod).exists());
}

/// DEL does not wait if there is no manager.
#[test]
fn without_a_manager_del_does_not_observe_again() {
    let node = node(network_manager());
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.kernel.begin();
    node.del(&pod, &one_rail(&node)).must_succeed();
    let alone = node.kernel.observations();
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.kernel.manage(|_| {});
    node.kernel.begin();
    node.del(&pod, &one_rail(&node)).must_succeed();
    // DEL observes twenty times in a second
    assert_eq!(node.kernel.observations(), alone + 20);
}
