// SPDX-License-Identifier: Apache-2.0
//! Tests of names that are not UTF-8: the kernel accepts any bytes as the name of an RDMA device.

use super::*;
use rdma_netns::rdma::name;

#[test]
fn an_rdma_device_is_seen_and_moved_under_any_name() {
    let world = World::new("rdma-names");
    let pod = world.pod();
    let execute = |op: Op| {
        let done = world.kernel.execute(&op, Some(&pod));
        done.unwrap_or_else(|error| panic!("{error}"));
    };
    let observe = || world.kernel.observe(Some(&pod)).expect("a state");
    let before = observe();
    let device = rdma(&before, NetnsSide::Host, "rxe0")
        .expect("rxe0")
        .clone();
    let (host, inside) = (NetnsSide::Host, NetnsSide::Pod);
    for bytes in [
        &b"\xff\xfe"[..],
        b"\\xff",
        b"a\n",
        b" a ",
        b"a/b",
        b"..",
        b"rdma",
    ] {
        let odd = name::text(bytes);
        println!("{odd:?}");
        let rename = |at, device: &str, name: &str| Op::RenameRdma {
            at,
            device: device.to_owned(),
            name: name.to_owned(),
        };
        let move_to = |from, to| Op::MoveRdma {
            device: odd.clone(),
            from,
            to,
        };
        execute(rename(host, "rxe0", &odd));
        let observed = observe();
        let renamed = rdma(&observed, host, &odd).unwrap_or_else(|| panic!("{odd:?}"));
        is_whole(renamed);
        let expected = RdmaDevice {
            name: odd.clone(),
            ..device.clone()
        };
        assert_eq!(*renamed, expected);
        if !matches!(bytes, b"a/b" | b"..") {
            let table = world.kernel.gids(None, &odd, 1).expect("a table");
            assert!(table.size > 0, "{odd:?}");
        }
        // rxe on a veth is no hardware, but the inventory must return no error
        world.kernel.inventory().expect("the hardware");
        execute(move_to(host, inside));
        let observed = observe();
        assert_eq!(rdma(&observed, host, &odd), None);
        assert_eq!(
            rdma(&observed, inside, &odd).map(|it| it.index),
            Some(device.index)
        );
        execute(move_to(inside, host));
        execute(rename(host, &odd, "rxe0"));
        let observed = observe();
        assert_eq!(rdma(&observed, host, "rxe0"), Some(&device));
    }
    let taken = Op::RenameRdma {
        at: host,
        device: "rxe0".to_owned(),
        name: "rxe1".to_owned(),
    };
    let error = world
        .kernel
        .execute(&taken, Some(&pod))
        .expect_err("it is taken");
    assert_eq!(error.errno(), Some(nix::libc::EEXIST), "{error}");
}
