// SPDX-License-Identifier: Apache-2.0
//! Compares the plugin with Debian's host-local: the results are equal, and both plugins share one directory.

use super::node::{Node, call};
use serde_json::{Value, json};
use std::fs;

/// Returns the results of one plugin for these calls, without the version. A failed call has the result "refused".
fn answers(node: &Node, ipam: &Value, calls: &[(&str, &str, &str)], ours: bool) -> Vec<Value> {
    let conf = node.conf(ipam.clone());
    let run = |(command, container, args): &(&str, &str, &str)| {
        let mut call = call(command, container, &conf).env("CNI_ARGS", args);
        if !ours {
            call = call.host_local();
        }
        let outcome = call.run();
        match (
            outcome.success,
            serde_json::from_str::<Value>(&outcome.stdout),
        ) {
            (false, _) => "refused".into(),
            (true, Err(_)) => Value::Null,
            (true, Ok(mut answer)) => {
                answer
                    .as_object_mut()
                    .expect("an object")
                    .remove("cniVersion");
                answer
            }
        }
    };
    calls.iter().map(run).collect()
}

#[test]
fn the_same_calls_have_the_same_answers() {
    let resolv_conf = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        resolv_conf.path(),
        "domain a.b\nsearch a b\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions x y:2\n",
    )
    .unwrap();
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.1.1/8", "gw": "10.77.0.3"}]);
    let many = [
        ("ADD", "a", ""),
        ("ADD", "b", ""),
        ("DEL", "a", ""),
        ("ADD", "a", ""),
    ];
    let cases = [
        (json!({"subnet": "10.77.0.0/24"}), &many[..]),
        (json!({"subnet": "fd77::/64", "routes": routes}), &many),
        (json!({"subnet": "fd77::/64", "gateway": "fd77::5"}), &many),
        (json!({"subnet": "2001:0:2:3:4:5:6:0/112"}), &many),
        (
            json!({"subnet": "2001:db8:0:0:1::/80", "resolvConf": resolv_conf.path()}),
            &many,
        ),
        (
            json!({"subnet": "10.77.0.0/24", "gateway": "10.99.0.1"}),
            &many,
        ),
        (
            json!({"ranges": [[{"subnet": "10.77.0.0/30"}, {"subnet": "10.78.0.0/30"}], [{"subnet": "fd77::/64"}]]}),
            &many,
        ),
        (
            json!({"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.253", "rangeEnd": "10.77.0.254"}),
            &[
                ("ADD", "a", ""),
                ("ADD", "b", ""),
                ("ADD", "c", ""),
                ("DEL", "b", ""),
                ("ADD", "c", ""),
                ("ADD", "a", ""),
                ("DEL", "a", ""),
                ("DEL", "a", ""),
                ("ADD", "d", ""),
            ],
        ),
        (
            json!({"subnet": "10.77.0.0/24"}),
            &[
                ("ADD", "a", "IP=10.77.0.9"),
                ("ADD", "b", "IgnoreUnknown=1;IP=10.77.0.9"),
                ("ADD", "c", ""),
                ("ADD", "d", "IP=10.77.0.1"),
                ("ADD", "e", "IP=10.79.0.1"),
                ("CHECK", "a", ""),
                ("CHECK", "d", ""),
            ],
        ),
        (json!({"subnet": "10.77.0.5/24"}), &many),
        (json!({"subnet": "10.77.0.0/31"}), &many),
        (json!({"subnet": "fd77::/127"}), &many),
        (
            json!({"subnet": "10.77.0.0/24", "rangeStart": "10.78.0.1"}),
            &many,
        ),
        // without `subnet`, both plugins ignore `rangeStart` and `gateway` beside `ranges`
        (
            json!({"rangeStart": "10.77.0.100", "gateway": "10.77.0.9", "ranges": [[{"subnet": "10.77.0.0/24"}]]}),
            &many,
        ),
        (
            json!({"rangeStart": "10.77.0", "ranges": [[{"subnet": "10.77.0.0/24"}]]}),
            &many[..1],
        ),
        (
            json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.77.0.0/25"}]]}),
            &many,
        ),
        (
            json!({"ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "fd77::/64"}]]}),
            &many,
        ),
        (json!({}), &many[..1]),
    ];
    for (ipam, calls) in cases {
        let (ours, theirs) = (Node::new(), Node::new());
        let answers = [
            answers(&ours, &ipam, calls, true),
            answers(&theirs, &ipam, calls, false),
        ];
        // a wrong configuration does not make a DEL of `rdma-ipam` fail
        let differs = |(ours, theirs): (&Value, &Value)| {
            ours != theirs && !(ours.is_null() && *theirs == "refused")
        };
        assert!(
            !answers[0].iter().zip(&answers[1]).any(differs),
            "{ipam}\nours   {:?}\ntheirs {:?}",
            answers[0],
            answers[1]
        );
        assert_eq!(ours.leases(), theirs.leases(), "{ipam}");
        for lease in ours.leases() {
            let content = |node: &Node| fs::read(node.leases_dir().join(&lease)).unwrap();
            assert_eq!(content(&ours), content(&theirs));
        }
    }
}

#[test]
fn a_node_switches_over_and_back() {
    let node = Node::new();
    let conf =
        node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}));
    let theirs = |command: &str, container: &str| call(command, container, &conf).host_local();
    let ours = |command: &str, container: &str| call(command, container, &conf);
    assert_eq!(
        theirs("ADD", "a").addresses(),
        ["10.77.0.2/24", "fd77::2/64"]
    );
    assert_eq!(
        theirs("ADD", "b").addresses(),
        ["10.77.0.3/24", "fd77::3/64"]
    );
    // after a change from host-local to `rdma-ipam`, the round robin continues, and `rdma-ipam` keeps, checks and
    // releases host-local's leases
    assert_eq!(ours("ADD", "c").addresses(), ["10.77.0.4/24", "fd77::4/64"]);
    let taken = ours("ADD", "d").env("CNI_ARGS", "IP=10.77.0.2");
    taken.fails(
        11,
        "the requested address 10.77.0.2 is held by a eth0; retry when the address is free, or request another one",
    );
    ours("CHECK", "b").ok();
    ours("DEL", "b").ok();
    ours("CHECK", "b").fails(999, "b eth0 holds no address");
    assert_eq!(
        node.leases(),
        ["10.77.0.2", "10.77.0.4", "fd77::2", "fd77::4"]
    );
    // after a change back to host-local
    assert_eq!(
        theirs("ADD", "e").addresses(),
        ["10.77.0.5/24", "fd77::5/64"]
    );
    assert!(!theirs("ADD", "c").run().success, "it holds addresses");
    theirs("CHECK", "c").ok();
    theirs("DEL", "c").ok();
    assert!(
        !theirs("CHECK", "c").run().success,
        "nothing of ours looks like a lease"
    );
    assert_eq!(
        node.leases(),
        ["10.77.0.2", "10.77.0.5", "fd77::2", "fd77::5"]
    );
    // after a second change to `rdma-ipam`, with a note whose leases host-local released
    assert_eq!(node.notes(), ["c@eth0"]);
    assert_eq!(ours("ADD", "c").addresses(), ["10.77.0.6/24", "fd77::6/64"]);
    for container in ["a", "c", "e"] {
        ours("DEL", container).ok();
    }
    assert_eq!(node.leases(), [""; 0]);
    assert_eq!(node.notes(), [""; 0]);
}

#[test]
fn host_local_leaves_our_files_alone() {
    let node = Node::new();
    let mut conf = node.conf(json!({"strategy": "stable", "subnet": "fd77::/64"}));
    let address = call("ADD", "a", &conf).address();
    conf["conflicts"] = json!([address]);
    call("DEL", "a", &conf).ok();
    call("ADD", "b", &conf).result();
    let files = || {
        let mut files: Vec<_> = ["attachments", "conflicts"]
            .iter()
            .flat_map(|name| fs::read_dir(node.leases_dir().join("rdma-ipam").join(name)).unwrap())
            .map(|entry| entry.unwrap().path())
            .map(|path| (fs::read_link(&path).unwrap(), path))
            .collect();
        files.sort();
        files
    };
    let before = files();
    assert_eq!(before.len(), 2);
    for container in ["a", "b", "c"] {
        for command in ["DEL", "ADD", "CHECK", "DEL"] {
            call(command, container, &conf).host_local().run();
        }
    }
    assert_eq!(files(), before);
}

#[test]
fn a_note_that_host_local_made_old_hides_no_lease() {
    for command in ["DEL", "ADD"] {
        let node = Node::new();
        let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
        call("ADD", "a", &conf).result();
        call("DEL", "a", &conf).host_local().run();
        assert_eq!(call("ADD", "a", &conf).host_local().address(), "10.77.0.3");
        assert_eq!(node.notes(), ["a@eth0"]);
        call(command, "a", &conf).run();
        let left: &[&str] = if command == "ADD" {
            &["10.77.0.4"]
        } else {
            &[]
        };
        assert_eq!(node.leases(), left);
    }
}
