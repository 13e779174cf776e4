// SPDX-License-Identifier: Apache-2.0
//! The node on which a rule is tested.

use crate::ops;
use nix::errno::Errno;
use rdma_netns::{Kernel, Link, Observed, Op};
use std::time::Duration;

/// A host with two Ethernet netdevs, `nic0` and `nic1`, and an empty pod. The netdevs are down, have a cable and an MTU
/// of 1500, and no other settings. For RDMA rules the subsystem is in exclusive mode, and the netdevs are up and have
/// the devices `rxe0` and `rxe1`.
pub struct Node<'a, K: Kernel> {
    /// The kernel under test.
    pub kernel: &'a K,
    /// The pod's namespace.
    pub pod: &'a K::Pod,
    /// Makes a VLAN on the host: `ip link add link NIC name NIC.ID type vlan id ID`. There is no [`Op`] for this.
    pub add_vlan: &'a dyn Fn(&str, u16),
}

impl<K: Kernel> Node<'_, K> {
    /// Returns the state of host and pod.
    #[track_caller]
    pub fn observe(&self) -> Observed {
        self.kernel.observe(Some(self.pod)).expect("a state")
    }

    /// Returns the host's netdev `name`, which must exist.
    #[track_caller]
    pub fn host(&self, name: &str) -> Link {
        let host = self.observe().host;
        let link = host.link(name);
        link.unwrap_or_else(|| panic!("no {name} on the host: {:?}", host.links))
            .clone()
    }

    /// Returns the pod's netdev `name`, if it exists.
    #[track_caller]
    pub fn pod_has(&self, name: &str) -> Option<Link> {
        let pod = self.observe().pod.expect("the pod");
        pod.link(name).cloned()
    }

    /// Returns the pod's netdev `name`, which must exist.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Link {
        self.pod_has(name)
            .unwrap_or_else(|| panic!("no {name} in the pod"))
    }

    /// Makes the change, which the kernel must not refuse.
    #[track_caller]
    pub fn make(&self, op: Op) {
        let done = self.kernel.execute(&op, Some(self.pod));
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns the kernel's error number for the change, which it must refuse.
    #[track_caller]
    pub fn refused(&self, op: Op) -> Errno {
        let outcome = self.kernel.execute(&op, Some(self.pod));
        let error = outcome.expect_err(&format!("{op} was not refused"));
        let errno = error.errno();
        Errno::from_raw(errno.unwrap_or_else(|| panic!("not by the kernel: {error}")))
    }

    /// Returns true if the kernel or `rdma_netns` refuses the change. Rules use this function if the errors of the real
    /// and the fake kernel differ.
    pub fn is_refused(&self, op: Op) -> bool {
        self.kernel.execute(&op, Some(self.pod)).is_err()
    }

    /// Waits until `until` returns true for the host's netdev `name`, and returns the netdev. Panics after 500 tries.
    #[track_caller]
    pub fn wait(&self, name: &str, until: impl Fn(&Link) -> bool) -> Link {
        for _ in 0..500 {
            let link = self.host(name);
            if until(&link) {
                return link;
            }
            self.kernel.pause(Duration::from_millis(20));
        }
        panic!("the awaited state does not occur: {:?}", self.host(name));
    }

    /// Waits until duplicate address detection has ended on the host's netdev `name`.
    #[track_caller]
    pub fn settle(&self, name: &str) -> Link {
        self.wait(name, |link| link.addresses.iter().all(|it| !it.tentative))
    }

    /// Sets the host's `nic0` up, with a usable address of each family and without link-local addresses.
    #[track_caller]
    pub fn addressed(&self) {
        self.make(ops::sysctl("nic0", "ipv6/addr_gen_mode", 1));
        self.make(ops::sysctl("nic0", "ipv6/accept_dad", 0));
        self.make(ops::up("nic0", true));
        self.make(ops::add("nic0", ops::address("10.0.0.5/24")));
        self.make(ops::add("nic0", ops::address("fd00::5/64")));
        self.settle("nic0");
    }

    /// Sets the host's netdev `name` up, and waits for the link-local address that the kernel adds some time later.
    #[track_caller]
    pub fn up(&self, name: &str) {
        self.make(ops::up(name, true));
        self.wait(name, |link| {
            link.addresses.iter().any(|it| it.is_link_local())
        });
        self.settle(name);
    }
}
