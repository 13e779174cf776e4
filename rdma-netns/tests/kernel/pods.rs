// SPDX-License-Identifier: Apache-2.0
//! Tests that open pods' namespaces, and work inside them.

use crate::world::{Named, with_node};
use nix::libc;
use rdma_netns::{Kernel, Linux, NetnsSide, Op, OpenPodError, Pod, netns::Netns};
use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

#[test]
fn an_rdma_device_that_is_not_there() {
    with_node(|world| {
        let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
        let error = world.refused(Op::MoveRdma {
            device: "none".to_owned(),
            from,
            to,
        });
        let gone = [Some(libc::ENODEV), Some(libc::EPROTONOSUPPORT)];
        assert!(gone.contains(&error.errno()), "{error}");
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
fn namespaces_are_distinguished_by_one_visit() {
    with_node(|world| {
        let others = [Named::new("first"), Named::new("second")];
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        File::create(&file).expect("a file");
        let [first, second] = others.each_ref().map(Named::path);
        let (node, pod) = (world.node_path(), world.pod_path());
        let missing = directory.path().join("missing");
        let paths = [&first, &missing, &node, &pod, &file, &second, &first];
        let ids = world.kernel.netns_ids(&paths.map(PathBuf::as_path));
        let opened = |path: &Path| world.kernel.open_pod(path).expect("a pod").id();
        let [a, Err(b), Err(c), d, Err(e), f, g] = &ids[..] else {
            panic!("{ids:?}");
        };
        assert!(
            matches!(b, OpenPodError::Missing(path) if *path == missing),
            "{b}"
        );
        assert!(
            matches!(c, OpenPodError::HostNamespace(path) if *path == node),
            "{c}"
        );
        assert!(
            matches!(e, OpenPodError::NotNamespace(path) if *path == file),
            "{e}"
        );
        let found = [a, d, f, g].map(|it| *it.as_ref().expect("a namespace"));
        let pods = [&first, &pod, &second, &first].map(|path| opened(path));
        assert_eq!(found, pods);
        assert_ne!(pods[0], pods[2]);
        assert_eq!(
            Netns::current().expect("current").id(),
            world.observe().host.id
        );
        assert!(world.kernel.netns_ids(&[]).is_empty());
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
        // the caller's thread still sees the host
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
