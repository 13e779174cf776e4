//! The primary interface's address as the other end of a rail's own changes nothing but that: both
//! are on one link here, where it could.

use integration::{Netns, wait};
use nix::sched::{CloneFlags, setns};
use std::{
    fs::{self, File},
    net::{Ipv4Addr, UdpSocket},
    thread,
    time::Duration,
};

/// The pod's primary interface, and the address that is lent.
const PRIMARY: &str = "10.244.1.5";

/// As `rdma-cni plan` shows it.
const LENT: &str = "10.9.0.5 peer 10.244.1.5/32 noprefixroute dev rdma0";

/// The same address, as the rail's own.
const OWN: &str = "10.244.1.5/32 noprefixroute dev rdma0";

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// A pod with a primary interface and a rail, and its neighbour, all on one bridge.
struct Scene {
    pod: Netns,
    neighbour: Netns,
}

impl Scene {
    fn new() -> Self {
        let [pod, neighbour] = ["pod", "neighbour"].map(Netns::new);
        neighbour.ip("link add br0 type bridge");
        for (link, address) in [("eth0", PRIMARY), ("rdma0", "10.9.0.5")] {
            let to = pod.name();
            neighbour.ip(&format!(
                "link add port-{link} type veth peer name {link} netns {to}"
            ));
            neighbour.ip(&format!("link set dev port-{link} master br0 up"));
            pod.ip(&format!("link set dev {link} up"));
            pod.ip(&format!("address add {address}/24 dev {link}"));
            // as of several rails
            pod.set_sysctl(&format!("ipv4/conf/{link}/arp_ignore"), "1");
        }
        pod.ip("link set dev lo up");
        pod.ip("route add default via 10.244.1.1");
        neighbour.ip("link set dev br0 up");
        neighbour.ip("address add 10.244.1.1/24 dev br0");
        neighbour.ip("address add 10.9.0.1/24 dev br0");
        let scene = Self { pod, neighbour };
        let hears = || scene.hears(PRIMARY) && scene.hears("10.9.0.5");
        assert!(wait::within(Duration::from_secs(10), hears));
        scene
    }

    fn hears(&self, address: &str) -> bool {
        let mut ping = self.neighbour.command("ping");
        let output = ping.args(["-n", "-c", "1", "-W", "1", address]).output();
        output.expect("ping is installed").status.success()
    }

    /// All of the pod's routes and rules, and the ways that packets from `PRIMARY` take.
    fn ways(&self) -> Vec<String> {
        let mut ways: Vec<String> = ["route show table all", "rule show"]
            .map(|line| self.pod.ip(&format!("-4 {line}")))
            .into();
        for to in ["10.244.1.1", "10.9.0.1", "192.0.2.1"] {
            let way = self.pod.ip(&format!("route get {to} from {PRIMARY}"));
            ways.push(way.replace("cache", "").trim().to_owned());
        }
        ways
    }

    /// Whether the rail answers the neighbour who asks for `PRIMARY`: nobody else is there to.
    fn rail_answers(&self) -> bool {
        self.neighbour.ip("link set dev port-eth0 down");
        self.neighbour.ip("neighbour flush dev br0");
        self.hears(PRIMARY);
        let known = self
            .neighbour
            .show(&format!("neighbour show {PRIMARY} dev br0"));
        let answered = known.iter().any(|it| it.get("lladdr").is_some());
        self.neighbour.ip("link set dev port-eth0 up");
        let hears = || self.hears(PRIMARY);
        assert!(wait::within(Duration::from_secs(10), hears));
        answered
    }

    /// On which netdev a program joins a multicast group by the address `PRIMARY`.
    fn joined_on(&self) -> String {
        let path = self.pod.path().to_owned();
        let join = move || {
            let netns = File::open(path).expect("the pod's namespace");
            setns(netns, CloneFlags::CLONE_NEWNET).expect("root may enter it");
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            let primary = PRIMARY.parse().expect("an address");
            socket
                .join_multicast_v4(&GROUP, &primary)
                .expect("it joins");
            fs::read_to_string("/proc/thread-self/net/igmp").expect("procfs")
        };
        let groups = thread::spawn(join).join().expect("no panic");
        let mut netdev = "";
        for line in groups.lines() {
            let mut words = line.split_whitespace();
            if line.starts_with(|it: char| it.is_ascii_digit()) {
                netdev = words.nth(1).expect("a name");
            } else if words.next() == Some("030201EF") {
                return netdev.to_owned();
            }
        }
        panic!("it is nowhere: {groups}");
    }
}

#[test]
fn a_lent_address_is_nobody_elses() {
    let scene = Scene::new();
    let before = scene.ways();
    scene.pod.ip(&format!("address replace {LENT}"));
    assert_eq!(scene.ways(), before);
    assert!(!scene.rail_answers());
    assert_eq!(scene.joined_on(), "eth0");
    assert!(scene.hears("10.9.0.5"));

    let before = scene.ways();
    scene.pod.ip(&format!("address del {LENT}"));
    assert_eq!(scene.ways(), before);
    // and with the rail's way home
    scene.pod.ip(&format!("address replace {LENT}"));
    let to = scene.neighbour.name();
    scene.pod.ip(&format!("link set dev rdma0 netns {to}"));
    assert_eq!(scene.neighbour.addresses("rdma0"), [""; 0]);
    assert_eq!(scene.pod.addresses("eth0"), [format!("{PRIMARY}/24")]);
    let routes = scene.pod.ip("-4 route show");
    assert!(
        routes.contains("default via") && routes.contains("10.244.1.0/24"),
        "{routes}"
    );
    assert!(scene.hears(PRIMARY));
}

/// Why it is not lent like that: these are the same looks.
#[test]
fn an_address_of_the_rails_own_would_be_two_netdevs() {
    let scene = Scene::new();
    let before = scene.ways();
    scene.pod.ip(&format!("address replace {OWN}"));
    assert_ne!(scene.ways(), before);
    assert!(scene.rail_answers());
    assert_eq!(scene.joined_on(), "rdma0");
}
