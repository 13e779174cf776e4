// SPDX-License-Identifier: Apache-2.0
//! Tests of the choice on constructed hosts.

use super::{Missing, choose};
use fake_kernel::{Nic, World};
use rdma_netns::{Link, Observed, RdmaMode, link::Route};

/// Returns a host with two physical functions. `virtual_functions` are their numbers of virtual
/// functions. All functions are up.
fn host(virtual_functions: [u8; 2]) -> Observed {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    for (bus, count) in ["3b", "5e"].into_iter().zip(virtual_functions) {
        let port = format!("0000:{bus}:00.0");
        world.plug(Nic::physical(
            &port,
            &format!("e{bus}"),
            &format!("mlx5_{bus}"),
        ));
        for number in 1..=count {
            let (address, netdev) = (
                format!("0000:{bus}:00.{number}"),
                format!("e{bus}v{number}"),
            );
            let rdma = format!("mlx5_{bus}_{number}");
            world.plug(Nic::virtual_function(&address, &port, &netdev, &rdma));
        }
    }
    let mut observed = world.observe(None);
    for link in &mut observed.host.links {
        (link.up, link.carrier) = (true, true);
    }
    observed
}

fn link<'a>(observed: &'a mut Observed, name: &str) -> &'a mut Link {
    let mut links = observed.host.links.iter_mut();
    links.find(|link| link.has_name(name)).expect("a netdev")
}

fn chosen(observed: &Observed) -> Vec<String> {
    let chosen = choose(observed).expect("four functions");
    chosen.iter().map(|it| it.pci.to_string()).collect()
}

fn refused(observed: &Observed) -> String {
    choose(observed).expect_err("not four").to_string()
}

#[test]
fn a_rail_is_two_functions_of_one_port() {
    assert_eq!(
        chosen(&host([3, 2])),
        [
            "0000:3b:00.1",
            "0000:5e:00.1",
            "0000:3b:00.2",
            "0000:5e:00.2"
        ]
    );
}

#[test]
fn one_port_has_both_rails_where_there_is_no_other() {
    assert_eq!(
        chosen(&host([5, 0])),
        [
            "0000:3b:00.1",
            "0000:3b:00.3",
            "0000:3b:00.2",
            "0000:3b:00.4"
        ]
    );
}

#[test]
fn functions_without_a_partner_at_their_port_come_last() {
    assert_eq!(
        chosen(&host([3, 1])),
        [
            "0000:3b:00.1",
            "0000:3b:00.3",
            "0000:3b:00.2",
            "0000:5e:00.1"
        ]
    );
}

#[test]
fn functions_that_the_host_uses_are_skipped_and_reported() {
    let mut observed = host([3, 2]);
    link(&mut observed, "e3bv1")
        .routes
        .push(Route::new([0, 0, 0, 0].into(), 0));
    link(&mut observed, "e3bv2").up = false;
    let mut devices = observed.host.rdma.iter_mut();
    let rdma = devices.find(|it| it.name == "mlx5_5e_1").expect("it");
    rdma.kernel_users.push("nvme_rdma".to_owned());
    assert_eq!(
        refused(&observed),
        "four free PCI functions are needed, each with an RDMA device and an Ethernet netdev that is up, and this host \
         has 2 (0000:3b:00.0: it has virtual functions; 0000:3b:00.1: the node's default route uses it; \
         0000:3b:00.2: e3bv2 is down; 0000:5e:00.0: it has virtual functions; 0000:5e:00.1: the host uses mlx5_5e_1 \
         itself (nvme_rdma)); make virtual functions of an RDMA NIC (sriov_numvfs) and set their netdevs up, or name \
         four functions, or run scripts/demo without --host"
    );
}

#[test]
fn a_host_without_rdma_nics_gets_an_error() {
    let world = World::new(Some(RdmaMode::Exclusive));
    let error = choose(&world.observe(None)).expect_err("there is nothing");
    assert_eq!(
        error,
        Missing::Functions {
            found: 0,
            not_free: vec![]
        }
    );
}

#[test]
fn devices_that_cannot_move_are_not_chosen() {
    let mut observed = host([2, 2]);
    observed.rdma_mode = Some(RdmaMode::Shared);
    assert_eq!(
        refused(&observed),
        "the RDMA subsystem is in shared mode, in which no RDMA device can be moved; set exclusive mode at boot (`rdma \
         system set netns exclusive`, or the option netns_mode=0 of ib_core), and try again, or run scripts/demo \
         without --host"
    );
    observed.rdma_mode = None;
    assert!(refused(&observed).starts_with("this kernel has no RDMA subsystem"));
}
