// SPDX-License-Identifier: Apache-2.0
//! Tests of events of this program's namespace and of pods' namespaces. Watching a pod's namespace does not keep it
//! alive.

use crate::world::{World, ip, to_pod, with_node};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma_netns::{
    Kernel, Pod,
    linux::{
        inside,
        monitor::{Event, Monitor, Nsid, WatchError},
    },
};
use std::{
    io,
    os::fd::AsFd,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Time limit for the report of an event on a slow machine. The daemon's own limit is one second, plus the delays of
/// the machine (`cni/node-state/tests/health`).
const SOON: Duration = Duration::from_secs(30);

fn open() -> Monitor {
    Monitor::open("/sys").expect("a monitor")
}

fn watch(world: &World, monitor: &mut Monitor) -> Nsid {
    let pod = &world.pod;
    monitor.watch(pod.path(), pod.id()).expect("a number")
}

/// Waits for a `wanted` event. Fails if the event comes too late.
#[track_caller]
fn expect(monitor: &mut Monitor, what: &str, wanted: impl Fn(&Event) -> bool) {
    let begin = Instant::now();
    while let Some(rest) = SOON.checked_sub(begin.elapsed()) {
        let rest = PollTimeout::try_from(rest).expect("a time-out");
        poll(&mut [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)], rest).expect("polled");
        if monitor.events().expect("events").iter().any(&wanted) {
            return;
        }
    }
    panic!("{what} was not reported within {SOON:?}");
}

fn carrier(namespace: Option<Nsid>, name: &str, on: bool) -> impl Fn(&Event) -> bool {
    move |event| {
        matches!(event, Event::Link { namespace: at, link }
            if *at == namespace && *link.name == *name && link.carrier == on)
    }
}

/// The monitor reports only addresses of global scope in this namespace. Link-local addresses appear with every pod's
/// veth, and addresses of pods are not the node's.
#[test]
fn an_address_of_the_whole_network_is_reported_here() {
    with_node(|world| {
        let mut monitor = open();
        watch(world, &mut monitor);
        let is_address = |event: &Event| *event == Event::Address;
        for (address, options) in [
            ("10.7.0.5/24", "dev nic0"),
            ("fd00:7::5/64", "dev nic0 nodad"),
        ] {
            world.ip(&format!("address add {address} {options}"));
            expect(&mut monitor, address, is_address);
            world.ip(&format!("address del {address} dev nic0"));
            expect(&mut monitor, address, is_address);
        }
        world.execute(to_pod("nic0", "rdma0"));
        world.pod_ip("link set rdma0 up");
        world.pod_ip("address add 10.7.0.5/24 dev rdma0");
        world.pod_ip("address add fd00:7::5/64 dev rdma0 nodad");
        world.ip("address add 169.254.7.7/16 dev wire0 scope link");
        world.ip("address add fe80::77/64 dev wire0 nodad");
        world.ip("link set wire0 down");
        let mut events = vec![];
        let begin = Instant::now();
        while !events.iter().any(carrier(None, "wire0", false)) && begin.elapsed() < SOON {
            events.extend(monitor.events().expect("events"));
        }
        assert!(
            events.iter().any(carrier(None, "wire0", false)),
            "{events:?}"
        );
        assert!(!events.iter().any(is_address), "{events:?}");
    });
}

#[test]
fn a_carrier_is_reported_on_the_host_and_in_a_pod() {
    with_node(|world| {
        let mut monitor = open();
        let pod = watch(world, &mut monitor);
        world.ip("link set wire0 down");
        expect(&mut monitor, "nic0's end", carrier(None, "nic0", false));

        world.execute(to_pod("nic0", "rdma0"));
        expect(
            &mut monitor,
            "the leave",
            |event| matches!(event, Event::LinkGone { namespace: None, link } if *link.name == *"nic0"),
        );
        world.pod_ip("link set rdma0 up");
        world.ip("link set wire0 up");
        expect(&mut monitor, "up", carrier(Some(pod), "rdma0", true));
        world.ip("link set wire0 down");
        expect(&mut monitor, "down", carrier(Some(pod), "rdma0", false));

        let links = monitor.links(Some(pod), |link| *link.name == *"rdma0");
        let links = links.expect("links");
        assert_eq!(links.len(), 1, "{links:?}");
        assert!(links[0].up && !links[0].carrier);
        let own = monitor.links(None, |_| true).expect("links");
        assert!(own.iter().any(|link| *link.name == *"wire0"));
        assert!(!own.iter().any(|link| *link.name == *"rdma0"));
        assert!(monitor.losses().is_empty(), "{:?}", monitor.losses());
    });
}

#[test]
fn a_pod_that_is_not_watched_is_not_reported() {
    with_node(|world| {
        let mut monitor = open();
        let pod = watch(world, &mut monitor);
        // a second query returns the same number
        assert_eq!(watch(world, &mut monitor), pod);
        monitor.forget(pod);
        world.pod_ip("link add other0 type bridge");
        world.ip("link add mark0 type bridge");
        let begin = Instant::now();
        let mut marked = false;
        while !marked && begin.elapsed() < SOON {
            for event in monitor.events().expect("events") {
                if let Event::Link { namespace, link } = event {
                    assert_eq!(namespace, None, "{link:?}");
                    marked |= *link.name == *"mark0";
                }
            }
        }
        assert!(marked, "this namespace's own netdev was not reported");
    });
}

#[test]
fn a_watched_namespace_dies_with_its_last_user() {
    with_node(|world| {
        let mut monitor = open();
        let name = format!("rdma-netns-{}-dying", std::process::id());
        let path = Path::new("/run/netns").join(&name);
        ip(&["netns", "add", &name]);
        let id = rdma_netns::netns::Netns::open(&path).expect("open").id();
        let nsid = monitor.watch(&path, id).expect("a number");
        world.ip(&format!(
            "link add eth0 netns {name} type veth peer name veth0"
        ));
        assert!(monitor.links(Some(nsid), |_| true).expect("links").len() >= 2);
        // a read inside the namespace does not keep the namespace alive either
        inside::ports(&path, id).expect("read");
        ip(&["netns", "del", &name]);
        // the other end of the pair disappears when the namespace really ends; the two events can arrive at the same
        // time
        let (mut number, mut end) = (false, false);
        let begin = Instant::now();
        while !(number && end) {
            assert!(begin.elapsed() < SOON, "reported: {number}, ended: {end}");
            for event in monitor.events().expect("events") {
                number |= event == Event::NamespaceGone(nsid);
                end |= matches!(event, Event::LinkGone { namespace: None, link } if *link.name == *"veth0");
            }
        }
        assert!(monitor.links(Some(nsid), |_| true).is_err());
        let gone = monitor.watch(&path, id).expect_err("it is gone");
        assert!(
            matches!(&gone, WatchError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound),
            "{gone}"
        );
    });
}

#[test]
fn another_namespace_at_the_path_is_not_taken_for_it() {
    with_node(|world| {
        let mut monitor = open();
        let other = rdma_netns::netns::Netns::current().expect("own").id();
        let refused = monitor.watch(world.pod.path(), other).expect_err("another");
        assert!(matches!(refused, WatchError::Other(_)), "{refused}");
        let refused = inside::ports(world.pod.path(), other).expect_err("another");
        assert!(
            matches!(refused, inside::InsideError::Other(_)),
            "{refused}"
        );
    });
}

#[test]
fn a_new_device_is_reported_by_a_uevent() {
    with_node(|world| {
        let mut monitor = open();
        for (command, action) in [("add", "add"), ("delete", "remove")] {
            let kind = if command == "add" { " type bridge" } else { "" };
            world.ip(&format!("link {command} plugged0{kind}"));
            expect(&mut monitor, action, |event| {
                matches!(event, Event::Device(uevent)
                    if uevent.action == action && uevent.subsystem == "net"
                        && uevent.path.ends_with("/plugged0"))
            });
        }
    });
}

#[test]
fn lost_events_are_reported() {
    with_node(|world| {
        let mut monitor = open();
        let batch = tempfile::NamedTempFile::new().expect("a file");
        let lines: String = (0..3000)
            .map(|i| format!("link set nic0 mtu {}\n", 1400 + i % 2))
            .collect();
        std::fs::write(batch.path(), lines).expect("written");
        world.ip(&format!("-batch {}", batch.path().display()));
        expect(&mut monitor, "the loss", |event| *event == Event::Lost);
        // the monitor continues to receive events
        while !monitor.events().expect("events").is_empty() {}
        world.ip("link set wire0 down");
        expect(
            &mut monitor,
            "what came later",
            carrier(None, "nic0", false),
        );
    });
}

/// A pod chooses the number of its netdev's names. The kernel's message about the netdev is longer than the buffer.
#[test]
fn a_message_that_is_too_long_concerns_only_its_namespace() {
    with_node(|world| {
        let mut monitor = open();
        let pod = watch(world, &mut monitor);
        for is_watched in [true, false] {
            if !is_watched {
                monitor.forget(pod);
            }
            let netdev = format!("long{}", u8::from(is_watched));
            world.pod_ip(&format!("link add {netdev} type bridge"));
            // more names do not fit into one request of `ip`
            for numbers in (0..300_u32).collect::<Vec<_>>().chunks(6) {
                let name = |number: &u32| {
                    let name = format!("{netdev}-{number}-");
                    format!(" altname {name:x<127}")
                };
                let names: String = numbers.iter().map(name).collect();
                world.pod_ip(&format!("link property add dev {netdev}{names}"));
            }
            world.pod_ip(&format!("link set {netdev} up"));
            let mark = format!("mark{}", u8::from(is_watched));
            world.ip(&format!("link add {mark} type bridge"));
            let is_mark = |event: &Event| matches!(event, Event::Link { namespace: None, link } if *link.name == *mark);
            let mut events = vec![];
            let begin = Instant::now();
            while !events.iter().any(is_mark) && begin.elapsed() < SOON {
                events.extend(monitor.events().expect("events"));
            }
            assert!(events.iter().any(is_mark), "{events:?}");
            assert!(!events.contains(&Event::Lost));
            assert_eq!(events.contains(&Event::Unread(pod)), is_watched);
        }
    });
}

/// Drops all capabilities of the calling thread and of the threads that it starts.
fn give_up_capabilities() {
    // struct __user_cap_header_struct of _LINUX_CAPABILITY_VERSION_3, and its two data blocks
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    // SAFETY: both pointers are to memory of the sizes that this version requires.
    let outcome = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
}

#[test]
fn without_capabilities_less_is_reported() {
    with_node(|world| {
        let (path, id) = (world.pod.path(), world.pod.id());
        let without = || {
            give_up_capabilities();
            let mut monitor = open();
            let losses = monitor.losses().to_vec();
            assert_eq!(losses.len(), 1, "{losses:?}");
            assert!(losses[0].contains("CAP_NET_BROADCAST"), "{losses:?}");
            let refused = monitor.watch(path, id).expect_err("no number");
            assert!(refused.to_string().contains("CAP_NET_ADMIN"), "{refused}");
            let refused = inside::ports(path, id).expect_err("no way in");
            assert!(refused.to_string().contains("not permitted"), "{refused}");
            assert!(refused.lacks_capability(), "{refused:?}");
            assert!(!monitor.links(None, |_| true).expect("own links").is_empty());
            world.ip("link set wire0 down");
            expect(&mut monitor, "nic0's end", carrier(None, "nic0", false));
        };
        std::thread::scope(|scope| scope.spawn(without).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// [`Kernel::is_watched`] detects `ip monitor link address route`, which joins the multicast groups of netdevs,
/// addresses and routes, like a network manager. It does not detect a program that joins only the group of netdevs.
#[test]
fn a_network_manager_is_detected() {
    with_node(|world| {
        let detects = |objects: &[&str], limit: Duration| {
            let monitor = Command::new("ip").arg("monitor").args(objects).spawn();
            let mut monitor = monitor.expect("iproute2 is installed");
            let begin = Instant::now();
            let mut seen = world.kernel.is_watched();
            while !seen && begin.elapsed() < limit {
                thread::sleep(Duration::from_millis(20));
                seen = world.kernel.is_watched();
            }
            monitor.kill().expect("it runs");
            monitor.wait().expect("our own child");
            seen
        };
        assert!(!world.kernel.is_watched());
        assert!(detects(&["link", "address", "route"], SOON));
        assert!(!world.kernel.is_watched());
        assert!(!detects(&["link"], Duration::from_secs(1)));
    });
}
