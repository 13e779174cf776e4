//! Upgrades in both directions: what one version attached, another one checks and brings home. The
//! other versions are real ones, built by `scripts/versions`.

use integration::{Invocation, Node, Snapshot};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Versions by what their records could say for the first time: format 1, 2, 3.
const ALL: [&str; 3] = ["moves", "shares", "smc"];

/// `rdma-cni` of this tree, and of another version.
struct Two {
    node: Node,
    other: PathBuf,
    before: Snapshot,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    This,
    Other,
}

impl Two {
    #[track_caller]
    fn versions(other: &str) -> Self {
        let directory = std::env::var_os("RDMA_CNI_VERSIONS").map_or_else(
            || Path::new(&std::env::var_os("HOME").expect("HOME")).join(".cache/rdma-cni-versions"),
            PathBuf::from,
        );
        let other = directory.join(other).join("rdma-cni");
        assert!(
            other.exists(),
            "there is no {other:?}: run scripts/versions first"
        );
        let node = Node::with_rails(2);
        for line in [
            "address add 192.0.2.5/24 dev eth1",
            "address add 2001:db8:5::5/64 dev eth1 nodad",
            "route add 198.51.100.0/24 via 192.0.2.1 dev eth1 metric 120",
            "link set dev eth2 mtu 1400",
            "link property add dev eth2 altname second-rail",
        ] {
            node.host.ip(line);
        }
        let before = Snapshot::of(&node.host);
        Self {
            node,
            other,
            before,
        }
    }

    fn call(&self, who: Who, command: &str, netns: &Path) -> Invocation<'_> {
        let call = self.node.invoke(command, "a", netns);
        match who {
            Who::This => call,
            Who::Other => call.program(&self.other),
        }
    }

    /// ADD by one, CHECK and DEL by the other; then the same with the pod gone before.
    fn attach_and_bring_home(&self, configuration: &Value, first: Who, second: Who) {
        let mut checked = configuration.clone();
        for gone in [false, true] {
            let pod = self.node.pod("pod");
            let run = |who, command: &str, configuration: &Value| {
                self.call(who, command, pod.path())
                    .input(configuration)
                    .run()
            };
            checked["prevResult"] = run(first, "ADD", configuration).result();
            assert_eq!(self.node.records().len(), 1, "{first:?} wrote a record");
            run(second, "CHECK", &checked).silent();
            let netns = if gone { Path::new("") } else { pod.path() };
            self.call(second, "DEL", netns)
                .input(configuration)
                .run()
                .silent();
            self.before.assert_restored(&self.node.host);
            let left = self.node.records();
            assert!(left.is_empty(), "{second:?} left {left:?} of {first:?}");
        }
    }

    fn both_ways(&self, configuration: &Value) {
        self.attach_and_bring_home(configuration, Who::Other, Who::This);
        self.attach_and_bring_home(configuration, Who::This, Who::Other);
    }
}

#[test]
fn pods_with_moved_rails_outlive_upgrades_in_both_directions() {
    for version in ALL {
        let two = Two::versions(version);
        two.both_ways(&two.node.configuration(&["eth1", "eth2"]));
    }
}

#[test]
fn pods_with_shared_rails_outlive_upgrades_in_both_directions() {
    for version in &ALL[1..] {
        let two = Two::versions(version);
        let mut configuration = two.node.configuration(&["eth1", "eth2"]);
        configuration["mode"] = json!("share");
        two.both_ways(&configuration);
    }
}

#[test]
fn a_version_that_cannot_read_a_record_leaves_it_and_the_pod() {
    let two = Two::versions("moves");
    let mut configuration = two.node.configuration(&["eth1"]);
    configuration["mode"] = json!("share");
    let pod = two.node.pod("pod");
    let pod = pod.path();
    two.call(Who::This, "ADD", pod)
        .input(&configuration)
        .run()
        .result();
    let records = two.node.records();
    // the configuration as that version knows it
    let old = two.node.configuration(&["eth1"]);
    let outcome = two.call(Who::Other, "DEL", pod).input(&old).run();
    let failure = outcome.failure();
    assert_eq!(two.node.records(), records, "{failure:?}");
    two.call(Who::This, "DEL", pod)
        .input(&configuration)
        .run()
        .silent();
    two.before.assert_restored(&two.node.host);
}
