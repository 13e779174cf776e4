// SPDX-License-Identifier: Apache-2.0
//! Tests of a node whose RDMA NICs have no IPv6 addresses, from which `rdma-ipam` derives pods' addresses. `install`
//! and the daemon report this, and do not add `rdma-cni` to the network's list.

use crate::{FLANNEL, NIC, Node, keeping::count_of_ours, text_of};
use integration::{Daemon, Netns, stopwatch::Stopwatch, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const LIST: &str = "etc/cni/net.d/10-flannel.conflist";
const WITHHELD: &str = "rdma-cni is not added to the chain: no RDMA NIC of this node has a global IPv6 address, from \
                        which chain.plugin.ipam derives pods' addresses (ens1 (mlx5_0)): the network's list was not changed";

/// A node with one NIC, whose netdev is in the namespace `netns`.
struct Hindered {
    node: Node,
    netns: Netns,
}

impl Hindered {
    fn new(family: &str) -> Self {
        let node = Node::with_list(FLANNEL);
        node.machine.configure(&format!(
            r#"{{"mode": "hca", "chain": {{"confDir": {:?}, "plugin": {{"ipam":
                {{"type": "rdma-ipam", "from": "parent", "family": {family:?}}}}}}}}}"#,
            node.path("etc/cni/net.d")
        ));
        let netns = Netns::new("hindered");
        for command in [
            "link set lo up",
            "link add ens1 type veth peer name other",
            "link set ens1 up",
            "link set other up",
            "address add 10.1.0.1/24 dev ens1",
        ] {
            netns.ip(command);
        }
        Self { node, netns }
    }

    fn inside(&self, own: &Command) -> Command {
        let mut command = self.netns.command(own.get_program());
        command.args(own.get_args());
        command
    }

    /// Returns the command of `install` without capabilities, as in the init container.
    fn installer(&self, own: &Command) -> Command {
        let mut command = self.netns.command("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
        command.arg(own.get_program()).args(own.get_args());
        command
    }

    #[track_caller]
    fn install(&self) -> String {
        text_of(&self.installing("0").output().expect("it runs"))
    }

    /// Returns the command of `install`, which waits at most `wait` seconds for addresses of NICs.
    fn installing(&self, wait: &str) -> Command {
        let mut own = self.node.command("install", &["--wait", wait]);
        own.arg("--from").arg(self.node.path("new"));
        own.arg("--config").arg(self.node.path("etc/config.json"));
        own.arg("--sysfs").arg(self.node.path("sys"));
        self.installer(&own)
    }

    fn daemon(&self, arguments: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_rdma-device-plugin");
        let own = self.node.machine.command(program.as_ref());
        let mut command = self.inside(&own);
        command.args(arguments);
        command
    }

    fn get(&self, path: &str) -> String {
        let ask = format!(
            "exec 3<>/dev/tcp/127.0.0.1/9102 && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let output = self.netns.command("bash").args(["-c", &ask]).output();
        String::from_utf8(output.expect("bash").stdout).expect("UTF-8")
    }

    fn is_in(&self) -> bool {
        count_of_ours(&self.node, "10-flannel.conflist") == 1
    }
}

#[test]
fn an_address_that_comes_a_little_later_is_waited_for() {
    let hindered = Hindered::new("ipv6");
    thread::scope(|scope| {
        let installed = scope.spawn(|| hindered.installing("60").output().expect("it runs"));
        wait::until("the binaries are there", || {
            hindered.node.path("opt/cni/bin/rdma-ipam").exists()
        });
        thread::sleep(Duration::from_secs(1));
        assert!(!hindered.is_in() && !installed.is_finished());
        hindered
            .netns
            .ip("address add 2001:db8::1/64 dev ens1 nodad");
        let text = text_of(&installed.join().expect("it ended"));
        assert!(text.contains("the runtime calls rdma-cni"), "{text}");
    });
    assert!(hindered.is_in());
}

#[test]
fn the_list_stays_as_it_is_until_there_is_an_address() {
    let hindered = Hindered::new("ipv6");
    let before = hindered.node.seen();
    let list = hindered.node.path(LIST);
    for _ in 0..2 {
        let text = hindered.install();
        assert!(text.contains(WITHHELD), "{text}");
        assert_eq!(hindered.node.seen()[&list], before[&list]);
    }
    // the binaries must be ready when the NIC gets an address
    assert!(hindered.node.path("opt/cni/bin/rdma-cni").exists());

    let checked = hindered.daemon(&["--check-config"]).output();
    let checked = text_of(&checked.expect("it runs"));
    assert!(checked.contains(WITHHELD), "{checked}");
    // the reason appears only once
    let count = checked.matches("global IPv6 address").count();
    assert_eq!(count, 1, "{checked}");

    let daemon = Daemon::start(&mut hindered.daemon(&[]));
    daemon.wait_for_log(WITHHELD);
    let mut ready = String::new();
    wait::until("it is ready", || {
        ready = hindered.get("/readyz");
        ready.starts_with("HTTP/1.0 200")
    });
    assert!(ready.contains(WITHHELD), "{ready}");
    assert!(
        hindered
            .get("/metrics")
            .contains("rdma_device_plugin_chained 0\n")
    );
    // the network program writes its list again
    hindered.node.net("10-flannel.conflist", FLANNEL);
    thread::sleep(Duration::from_secs(3));
    assert_eq!(hindered.node.read(LIST), FLANNEL);
    assert_eq!(daemon.count(WITHHELD), 1, "the message is logged once");

    hindered
        .netns
        .ip("address add 2001:db8::1/64 dev ens1 nodad");
    wait::until("it is in the list", || hindered.is_in());
    daemon.wait_for_log("the runtime calls rdma-cni for network cbr0");
    wait::until("it is ready by that", || {
        hindered.get("/readyz").contains("the runtime calls")
    });

    // the daemon adds the entry to a rewritten list even after the NIC has lost its address, because DEL of pods with
    // devices needs the entry
    hindered.netns.ip("address del 2001:db8::1/64 dev ens1");
    hindered.node.net("10-flannel.conflist", FLANNEL);
    wait::until("it is in the list again", || hindered.is_in());
    let text = hindered.install();
    assert!(text.contains("the runtime calls rdma-cni"), "{text}");
    drop(daemon);
    hindered.node.uninstall();
    assert_eq!(hindered.node.read(LIST), FLANNEL);
}

#[test]
fn nothing_hinders_where_addresses_are_not_to_be_of_that_family() {
    assert_eq!(NIC.netdev, "ens1");
    let hindered = Hindered::new("ipv4");
    let text = hindered.install();
    assert!(text.contains("the runtime calls rdma-cni"), "{text}");
    // the family `both` also requires an IPv6 address
    let hindered = Hindered::new("both");
    assert!(hindered.install().contains(WITHHELD));
    hindered
        .netns
        .ip("address add 2001:db8::1/64 dev ens1 nodad");
    assert!(hindered.install().contains("the runtime calls rdma-cni"));
}

/// `install` is process 1 of a PID namespace, as in a container. The kernel ignores signals for which it has no
/// handler.
#[test]
fn install_stops_waiting_for_an_address_after_a_signal() {
    let hindered = Hindered::new("ipv6");
    let own = hindered.installing("60");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]);
    command.arg(own.get_program()).args(own.get_args());
    let mut outer = command.stderr(Stdio::piped()).spawn().expect("started");
    wait::until("the binaries are there", || {
        hindered.node.path("opt/cni/bin/rdma-ipam").exists()
    });
    thread::sleep(Duration::from_millis(300));
    let children = format!("/proc/{0}/task/{0}/children", outer.id());
    let child = fs::read_to_string(children).expect("its child");
    let pid: i32 = child.trim().parse().expect("one child");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a signal sent");
    let at = Stopwatch::start();
    let status = outer.wait().expect("ended");
    assert!(at.elapsed() < Duration::from_secs(5), "{:?}", at.elapsed());
    assert_eq!(status.code(), Some(1));
    let mut error = String::new();
    let mut errors = outer.stderr.take().expect("its errors");
    errors.read_to_string(&mut error).expect("text");
    assert!(error.contains("ended by a signal before"), "{error}");
    assert!(!hindered.is_in());
}
