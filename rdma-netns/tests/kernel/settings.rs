// SPDX-License-Identifier: Apache-2.0
//! Tests of a netdev's settings by their files, and of errors for wrong settings.

use crate::world::{interface, to_pod, with_node};
use nix::libc;
use rdma_netns::{
    HardwareAddress, IpoibMode, LinkChange, NetnsSide, Op,
    link::{SYSCTLS, Sysctls},
};
use std::{fs, io};

/// Returns the settings that `/proc/sys` shows in the calling thread's namespace.
fn from_proc(link: &str) -> Sysctls {
    let read = |key: &&'static str| {
        let (family, name) = key.split_once('/').expect("a key");
        let path = format!("/proc/sys/net/{family}/conf/{link}/{name}");
        match fs::read_to_string(&path) {
            Ok(text) => Some(((*key).into(), text.trim_end().parse().expect("a number"))),
            // this kernel is older than the setting
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{path}: {error}"),
        }
    };
    SYSCTLS.iter().filter_map(read).collect()
}

/// Compares the index of each setting in `IFLA_AF_SPEC` with the setting's file. The test changes one setting at a
/// time, so it knows which index belongs to the file.
#[test]
fn settings_are_those_of_proc() {
    with_node(|world| {
        let (at, link) = (NetnsSide::Host, interface("nic0"));
        let known = from_proc("nic0");
        for (number, (key, _)) in known.iter().enumerate() {
            let before = world.host_link("nic0").sysctls;
            assert_eq!(before, from_proc("nic0"));
            let value = match (key, *before.get(key).expect("a setting")) {
                // the kernel refuses 0
                ("ipv6/hop_limit" | "ipv6/ra_defrtr_metric", now) => now + 1,
                // the kernel stores this time in ticks
                (_, now) if key.ends_with("_report_interval") => now + 1000,
                (_, now) => i32::from(now == 0),
            };
            world.execute(Op::Link {
                at,
                link: link.clone(),
                change: LinkChange::Sysctl {
                    key: key.to_owned(),
                    value,
                },
            });
            let after = world.host_link("nic0").sysctls;
            assert_eq!(after.get(key), Some(&value), "{key}, number {number}");
            assert_eq!(after, from_proc("nic0"), "after {key}");
        }
    });
}

#[test]
fn a_setting_is_the_pods_own() {
    with_node(|world| {
        world.execute(to_pod("nic0", "wire0"));
        let key = "ipv6/accept_ra".to_owned();
        let before = world.host_link("wire0").sysctls;
        world.execute(Op::Link {
            at: NetnsSide::Pod,
            link: interface("wire0"),
            change: LinkChange::Sysctl { key, value: 2 },
        });
        let link = world.pod_link("wire0");
        assert_eq!(link.sysctls.get("ipv6/accept_ra"), Some(&2));
        assert_eq!(world.host_link("wire0").sysctls, before);
        let inside = world
            .pod
            .netns()
            .run(|| from_proc("wire0"))
            .expect("to enter");
        assert_eq!(inside.get("ipv6/accept_ra"), Some(&2));
    });
}

#[test]
fn refusals_name_what_was_wrong() {
    with_node(|world| {
        let (at, link) = (NetnsSide::Host, interface("nic0"));
        let error = world.refused(Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Mtu(1),
        });
        assert_eq!(error.errno(), Some(libc::EINVAL));
        assert_eq!(
            error.message.as_deref(),
            Some("mtu less than device minimum")
        );
        let mac = HardwareAddress(vec![1, 0, 0, 0, 0, 1]); // a multicast address
        let error = world.refused(Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Mac(mac),
        });
        assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL), "{error}");
        let name = "wire0".to_owned();
        let error = world.refused(Op::Link {
            at,
            link,
            change: LinkChange::AltName {
                name,
                present: true,
            },
        });
        assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
        let key = "ipv6/accept_ra".to_owned();
        let error = world.refused(Op::Link {
            at,
            link: interface("none"),
            change: LinkChange::Sysctl { key, value: 1 },
        });
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    });
}

/// Sysfs has no file for the mode, neither on the host nor in the pod's namespace. So the crate sets the mode by
/// netlink. The kernel refuses a netdev that is no IPoIB netdev. Afterwards the crate's own mount of sysfs is gone.
#[test]
fn an_ipoib_mode_without_a_file_is_the_kernels_to_refuse() {
    with_node(|world| {
        // ignores the namespaces of parallel tests
        let mounts = || -> Vec<String> {
            let all = fs::read_to_string("/proc/thread-self/mounts").expect("the mounts");
            let others = all.lines().filter(|it| !it.starts_with("nsfs "));
            others.map(str::to_owned).collect()
        };
        let before = mounts();
        world.execute(to_pod("nic0", "rdma0"));
        let mode = |at, link: &str| Op::Link {
            at,
            link: interface(link),
            change: LinkChange::IpoibMode(IpoibMode::Connected),
        };
        for op in [
            mode(NetnsSide::Pod, "rdma0"),
            mode(NetnsSide::Host, "wire0"),
            Op::Link {
                at: NetnsSide::Pod,
                link: interface("rdma0"),
                change: LinkChange::Umcast(true),
            },
        ] {
            let refused = world.refused(op);
            assert_eq!(refused.errno(), Some(libc::EOPNOTSUPP), "{refused}");
        }
        let gone = world.refused(mode(NetnsSide::Pod, "nic0"));
        assert_eq!(gone.errno(), Some(libc::ENODEV), "{gone}");
        assert_eq!(mounts(), before);
    });
}
