// SPDX-License-Identifier: Apache-2.0
//! Tests of SMC's settings: the pnet tables and the user EIDs.

use super::*;
use rdma_netns::smc::{self, PnetEntry, PnetId, PnetTable, SmcState, UserEids};

/// Guard that removes all pnet entries of the host and all user EIDs, because they outlive a test.
pub(crate) struct Clean;

impl Drop for Clean {
    fn drop(&mut self) {
        let _ = PnetTable::open().and_then(|mut table| table.flush());
        let Ok(mut ueids) = UserEids::open() else {
            return;
        };
        for ueid in ueids.list().unwrap_or_default() {
            let _ = ueids.remove(&ueid);
        }
    }
}

fn id(text: &str) -> PnetId {
    PnetId::try_from(text).expect("a pnet id")
}

fn entry(name: &str, netdev: Option<&str>, rdma: Option<&str>) -> PnetEntry {
    PnetEntry {
        name: id(name),
        netdev: netdev.map(str::to_owned),
        rdma: rdma.map(|device| (device.to_owned(), 1)),
    }
}

fn add(at: NetnsSide, entry: PnetEntry) -> Op {
    Op::AddPnet { at, entry }
}

fn add_ueid(ueid: &str) -> Op {
    let ueid = ueid.to_owned();
    Op::AddUeid { ueid }
}

/// Reads and changes SMC's settings as the set-up of a pod does.
struct Pod<'a>(&'a World, Space);

impl Pod<'_> {
    #[track_caller]
    fn make(&self, op: Op) {
        let made = self.0.kernel.execute(&op, Some(&self.1));
        made.unwrap_or_else(|error| panic!("{error}"));
    }

    #[track_caller]
    fn refused(&self, op: Op) -> String {
        let refused = self.0.kernel.execute(&op, Some(&self.1));
        refused.expect_err("it is refused").to_string()
    }

    fn state(&self) -> SmcState {
        let state = self.0.kernel.smc(Some(&self.1)).expect("a state");
        state.expect("a kernel with SMC")
    }
}

#[test]
fn the_pnet_table() {
    let world = World::new("rdma-pnet");
    let _clean = Clean;
    let pod = world.pod();
    let mut host = PnetTable::open().expect("the host's table");
    let mut inside = pod
        .netns()
        .run(PnetTable::open)
        .expect("to enter")
        .expect("the pod's table");
    host.add(&entry("HOST1", Some("nic0"), Some("rxe0")))
        .expect("both");
    host.add(&entry("HOST2", Some("nic1"), None))
        .expect("a netdev");
    inside
        .add(&entry("POD1", Some("lo"), None))
        .expect("a netdev of the pod");
    let mut entries = host.entries().expect("entries");
    entries.sort_by(|a, b| (&a.name, &a.netdev).cmp(&(&b.name, &b.netdev)));
    assert_eq!(
        entries,
        [
            entry("HOST1", None, Some("rxe0")),
            entry("HOST1", Some("nic0"), None),
            entry("HOST2", Some("nic1"), None),
        ]
    );
    let entries = inside.entries().expect("entries");
    assert_eq!(entries, [entry("POD1", Some("lo"), None)]);
    host.remove(&id("HOST1")).expect("removed");
    assert_eq!(
        host.entries().expect("entries"),
        [entry("HOST2", Some("nic1"), None)]
    );
    let error = host.remove(&id("NONE")).expect_err("not there");
    assert_eq!(error.errno(), Some(nix::libc::ENOENT), "{error}");
    host.flush().expect("flushed");
    assert_eq!(host.entries().expect("entries"), []);
}

/// Tests the kernel's own answers on which the operations rely.
#[test]
fn the_kernel_returns_eexist_for_three_things_and_does_half_of_two() {
    let world = World::new("rdma-pnet-raw");
    let _clean = Clean;
    let pod = world.pod();
    let mut host = PnetTable::open().expect("the host's table");
    let mut refused = |entry: &PnetEntry| host.add(entry).expect_err("refused").errno();
    let second_port = |device: &str| PnetEntry {
        rdma: Some((device.to_owned(), 2)),
        ..entry("B2", None, None)
    };
    let eexist = Some(nix::libc::EEXIST);
    // an entry with neither a netdev nor an RDMA port
    assert_eq!(refused(&entry("A1", None, None)), eexist);
    let mut host = PnetTable::open().expect("the host's table");
    host.add(&entry("A1", Some("nic0"), Some("rxe0")))
        .expect("both");
    // the netdev already has an entry, so the kernel adds only the port
    host.add(&entry("B2", Some("nic0"), Some("rxe1")))
        .expect("half");
    assert!(
        host.entries()
            .expect("entries")
            .contains(&entry("B2", None, Some("rxe1")))
    );
    // a device has one entry for all its ports
    host.add(&entry("B2", None, Some("later"))).expect("a name");
    let error = host.add(&second_port("later")).expect_err("another port");
    assert_eq!(error.errno(), eexist);
    let error = host.add(&PnetEntry {
        rdma: Some(("rxe9".to_owned(), 3)),
        ..entry("B2", None, None)
    });
    assert_eq!(
        error.expect_err("no port 3").errno(),
        Some(nix::libc::EINVAL)
    );
    // inside a pod, the kernel refuses an entry with only a port; of an entry that also has a netdev, it ignores the
    // port
    let inside = || -> Vec<PnetEntry> {
        let mut table = PnetTable::open().expect("a table");
        let error = table
            .add(&entry("C3", None, Some("rxe0")))
            .expect_err("a port");
        assert_eq!(error.errno(), eexist);
        table
            .add(&entry("C3", Some("lo"), Some("rxe0")))
            .expect("half");
        table.entries().expect("entries")
    };
    let entries = pod.netns().run(inside).expect("to enter");
    assert_eq!(entries, [entry("C3", Some("lo"), None)]);
}

#[test]
fn entries_are_added_once_and_a_conflict_is_reported() {
    let world = World::new("rdma-pnet-ops");
    let _clean = Clean;
    let pod = Pod(&world, world.pod());
    // by default the kernel makes two links for each group, and SMC uses RoCE devices
    let bare = SmcState {
        max_links: Some(2),
        devices: Some(["rxe0", "rxe1"].map(str::to_owned).to_vec()),
        ..SmcState::default()
    };
    assert_eq!(pod.state(), bare);
    let both = || add(NetnsSide::Host, entry("A1", Some("nic0"), Some("rxe0")));
    pod.make(add(NetnsSide::Host, entry("A1", Some("nic0"), None)));
    pod.make(both());
    pod.make(both());
    pod.make(add(NetnsSide::Pod, entry("B2", Some("eth0"), None)));
    let state = pod.state();
    assert_eq!(
        state.host,
        [
            entry("A1", Some("nic0"), None),
            entry("A1", None, Some("rxe0"))
        ]
    );
    assert_eq!(state.pod, [entry("B2", Some("eth0"), None)]);
    for (op, words) in [
        (
            add(NetnsSide::Host, entry("C3", Some("nic0"), Some("rxe1"))),
            "(the pnet id of nic0 is A1 already)",
        ),
        (
            add(NetnsSide::Host, entry("C3", Some("nic1"), Some("rxe0"))),
            "(the pnet id of rxe0, port 1, is A1 already)",
        ),
        (
            add(NetnsSide::Pod, entry("C3", None, Some("rxe1"))),
            "RDMA ports in its initial network namespace only)",
        ),
    ] {
        let refused = pod.refused(op);
        assert!(refused.ends_with(words), "{refused}");
    }
    // the kernel added neither half of the entry
    assert_eq!(pod.state(), state);
    for at in [NetnsSide::Host, NetnsSide::Pod, NetnsSide::Host] {
        pod.make(Op::RemovePnet { at, id: id("A1") });
    }
    let left = SmcState {
        host: vec![],
        ..state
    };
    assert_eq!(pod.state(), left);
}

/// `smc_ib_add_dev()` searches the initial namespace's table for the device's name each time that the device
/// appears, whichever namespace it is in. A move removes the device from SMC and adds it again.
#[test]
fn a_ports_entry_is_by_name_and_outlives_moves_and_the_device() {
    let world = World::new("rdma-pnet-moves");
    let _clean = Clean;
    let pod = Pod(&world, world.pod());
    let port_of = |device: &str| -> Option<String> {
        let ports = smc::ports().expect("ports").into_iter();
        let mut own = ports.filter(|port| port.device == device);
        own.next()?.pnet_id
    };
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let device = || "rxe0".to_owned();
    assert_eq!(port_of("rxe0"), None);
    pod.make(add(NetnsSide::Host, entry("A1", None, Some("rxe0"))));
    assert_eq!(port_of("rxe0").as_deref(), Some("A1"));
    pod.make(Op::MoveRdma {
        device: device(),
        from,
        to,
    });
    assert_eq!(port_of("rxe0").as_deref(), Some("A1"));
    pod.make(Op::MoveRdma {
        device: device(),
        from: to,
        to: from,
    });
    assert_eq!(port_of("rxe0").as_deref(), Some("A1"));
    run("rdma link del rxe0");
    assert_eq!(pod.state().host, [entry("A1", None, Some("rxe0"))]);
    run("rdma link add rxe0 type rxe netdev nic0");
    assert_eq!(port_of("rxe0").as_deref(), Some("A1"));
    // removing the entry also removes the pnet id of a port that is in a pod
    pod.make(Op::MoveRdma {
        device: device(),
        from,
        to,
    });
    let id = id("A1");
    let at = NetnsSide::Host;
    pod.make(Op::RemovePnet { at, id });
    assert_eq!(port_of("rxe0"), None);
    // the entry is added while the device is in a pod
    pod.make(add(NetnsSide::Host, entry("B2", None, Some("rxe0"))));
    assert_eq!(port_of("rxe0").as_deref(), Some("B2"));
}

/// The kernel's table has room for 4 user EIDs (`SMC_MAX_UEID`) of at most 32 characters.
#[test]
fn user_eids_are_the_nodes_and_a_full_table_is_reported() {
    let world = World::new("rdma-ueids");
    let _clean = Clean;
    let pod = Pod(&world, world.pod());
    for number in 0..4 {
        pod.make(add_ueid(&format!("EID.{number}-A")));
    }
    pod.make(add_ueid("EID.0-A"));
    let refused = pod.refused(add_ueid("EID.4-A"));
    assert!(
        refused.ends_with("(the kernel's table of user EIDs is full)"),
        "{refused}"
    );
    let ueids = pod.state().ueids;
    assert_eq!((ueids.len(), ueids[0].as_str()), (4, "EID.0-A"));
    for _ in 0..2 {
        pod.make(Op::RemoveUeid {
            ueid: "EID.0-A".to_owned(),
        });
    }
    for wrong in ["", "eid", "-EID", "E ID"] {
        let refused = pod.refused(add_ueid(wrong));
        assert!(refused.contains("a user EID consists of A-Z"), "{refused}");
    }
    let refused = pod.refused(add_ueid(&"E".repeat(33)));
    assert!(refused.contains("at most 32"), "{refused}");
    pod.make(add_ueid(&"E".repeat(32)));
    assert_eq!(pod.state().ueids.len(), 4);
}

#[test]
fn this_kernel_has_no_tcp2smc() {
    let world = World::new("rdma-tcp2smc");
    let pod = Pod(&world, world.pod());
    assert_eq!(pod.state().tcp2smc, None);
    let refused = pod.refused(Op::SetTcp2Smc { on: true });
    assert!(
        refused.ends_with("(this kernel has no net.smc.tcp2smc)"),
        "{refused}"
    );
}
