// SPDX-License-Identifier: Apache-2.0
//! Moving links and RDMA devices, and opening pods.

use crate::world::{interface, to_host, to_pod, with_node};
use nix::libc;
use rdma_netns::{Kernel, Linux, NetnsSide, Op, OpenPodError, Pod, netns::Netns};
use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

#[test]
fn a_link_is_moved_renamed_and_comes_back() {
    with_node(|world| {
        let before = world.host_link("nic0");
        world.execute(to_pod("nic0", "rdma0"));
        let observed = world.observe();
        assert!(observed.host.link("nic0").is_none());
        let moved = world.pod_link("rdma0");
        assert_eq!((&moved.mac, moved.index), (&before.mac, before.index));
        assert!(!moved.up, "a move takes a link down");
        world.execute(to_host("rdma0", "nic0"));
        assert_eq!(world.host_link("nic0").mac, before.mac);
        assert!(
            world
                .observe()
                .pod
                .expect("the pod")
                .link("rdma0")
                .is_none()
        );
    });
}

#[test]
fn the_old_name_may_be_taken_where_it_goes() {
    with_node(|world| {
        let mac = world.host_link("nic0").mac;
        world.pod_ip("link add nic0 type veth peer name other");
        world.execute(to_pod("nic0", "rdma0"));
        assert_eq!(world.pod_link("rdma0").mac, mac);
    });
}

#[test]
fn a_new_name_that_is_taken_moves_nothing() {
    with_node(|world| {
        world.pod_ip("link add rdma0 type veth peer name other");
        world.pod_ip("link property add dev other altname rail");
        for name in ["rdma0", "rail"] {
            let error = world.refused(to_pod("nic0", name));
            assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
        }
        assert!(world.host_link("nic0").up);
    });
}

#[test]
fn what_cannot_be_moved() {
    with_node(|world| {
        assert_eq!(
            world.refused(to_pod("none", "rdma0")).errno(),
            Some(libc::ENODEV)
        );
        let error = world.refused(to_pod("lo", "rdma0"));
        assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
        let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
        let error = world.refused(Op::MoveRdma {
            device: "none".to_owned(),
            from,
            to,
        });
        let gone = [Some(libc::ENODEV), Some(libc::EPROTONOSUPPORT)];
        assert!(gone.contains(&error.errno()), "{error}");
        let without_pod = world.kernel.execute(&to_pod("nic0", "rdma0"), None);
        assert!(
            without_pod
                .expect_err("no pod")
                .to_string()
                .contains("was not given")
        );
    });
}

#[test]
fn pods_that_cannot_be_opened() {
    with_node(|world| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("netns");
        let open = |path: &Path| world.kernel.open_pod(path);
        assert!(matches!(open(&path), Err(OpenPodError::Missing(_))));
        File::create(&path).expect("a file");
        assert!(matches!(open(&path), Err(OpenPodError::NotNamespace(_))));
        assert!(matches!(
            open(Path::new("/proc/thread-self/ns/net")),
            Err(OpenPodError::HostNamespace(_))
        ));
        assert_ne!(world.pod.id(), world.observe().host.id);
        assert_eq!(Some(world.pod.id()), world.observe().pod.map(|pod| pod.id));
    });
}

#[test]
fn a_panic_inside_leaves_the_caller_where_it_was() {
    with_node(|world| {
        let before = Netns::current().expect("current").id();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            world.pod.netns().run(|| {
                assert_ne!(Netns::current().expect("current").id(), before);
                panic!("inside");
            })
        }));
        let panic = panic.expect_err("the panic goes on");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
        assert_eq!(Netns::current().expect("current").id(), before);
        // Nor is anything of the host lost for the kernel's user.
        assert!(world.observe().host.link("nic0").is_some());
    });
}

#[test]
fn the_host_is_where_the_kernel_is_first_used() {
    with_node(|world| {
        let inside = world
            .pod
            .netns()
            .run(|| Linux::new().observe(None).expect("a state"));
        assert_eq!(inside.expect("to enter").host.id, world.pod.id());
    });
}

#[test]
fn a_link_is_renamed() {
    with_node(|world| {
        let rename = Op::RenameLink {
            at: NetnsSide::Host,
            link: interface("nic0"),
            name: interface("eth7"),
        };
        world.execute(Op::SetUp {
            at: NetnsSide::Host,
            link: interface("nic0"),
            up: false,
        });
        world.execute(rename);
        assert!(!world.host_link("eth7").up);
    });
}
