// SPDX-License-Identifier: Apache-2.0
//! whereabouts as the IPAM plugin of `rdma-cni`, installed by its own manifests and with the rights of its own account.
//! `integration/runtimes/build whereabouts` makes its program and its manifests. The rails are veths, on a node that
//! has access to the API server.

use integration::{
    ControlPlane, Invocation, Netns, Node, Snapshot,
    control_plane::kubeconfig,
    pages,
    plugin::{cni_path, debian, rdma_cni},
    wait,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};

/// Environment variable with the directory that `integration/runtimes/build` made.
const PROGRAMS: &str = "RDMA_WHEREABOUTS";

const PAGE: &str = "docs/ipam.md";

/// The first address of the page's range that `exclude` does not contain.
const FIRST: &str = "10.1.0.64";

/// A node whose pods get addresses from whereabouts.
struct Place<'a> {
    cluster: &'a ControlPlane,
    node: Node,
    programs: PathBuf,
}

impl<'a> Place<'a> {
    #[track_caller]
    fn new(cluster: &'a mut ControlPlane, programs: PathBuf) -> Self {
        let crds = programs.join("crds");
        cluster.kubectl(&format!("apply -f {}", crds.display()));
        cluster.until("pools are served", |it| {
            it.try_kubectl("get ippools.whereabouts.cni.cncf.io -A")
                .status
                .success()
        });
        let node = Node::on(cluster.netns());
        for rail in ["eth1", "eth2"] {
            node.add_rail(rail);
        }
        let place = Self {
            cluster,
            node,
            programs,
        };
        place.configure();
        place
    }

    /// Writes the files that whereabouts' DaemonSet writes on each node.
    #[track_caller]
    fn configure(&self) {
        let token = self
            .cluster
            .kubectl("-n kube-system create token whereabouts");
        let (host, port) = self.cluster.address();
        let server = format!("https://{host}:{port}");
        let authority = self.cluster.pki("ca.crt");
        let directory = self.node.directory();
        let path = kubeconfig::write(directory, "whereabouts", &token, &server, &authority);
        let conf = json!({ "datastore": "kubernetes", "kubernetes": { "kubeconfig": path } });
        fs::write(self.conf(), conf.to_string()).expect("written");
    }

    /// whereabouts' own configuration file.
    fn conf(&self) -> PathBuf {
        self.node.directory().join("whereabouts.conf")
    }

    /// A configuration with children of both rails, and the page's `ipam`.
    #[track_caller]
    fn configuration(&self) -> Value {
        let blocks = pages::blocks(PAGE).into_iter().flat_map(|it| it.lines);
        let mut ipams = blocks.filter(|line| line.contains(r#""type": "whereabouts""#));
        let line = ipams.next().expect("an example on the page");
        let example: Value = serde_json::from_str(&format!("{{{line}}}")).expect("JSON");
        let mut configuration = self.node.configuration(&["eth1", "eth2"]);
        configuration["mode"] = "share".into();
        configuration["ipam"] = example["ipam"].clone();
        configuration["ipam"]["configuration_path"] = self.conf().to_str().expect("UTF-8").into();
        configuration
    }

    fn invoke(&self, command: &str, pod: &str, netns: &Path) -> Invocation<'_> {
        let path = cni_path(&rdma_cni(), &[&self.programs]);
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}");
        let call = self.node.invoke(command, pod, netns);
        call.env("CNI_PATH", path).env("CNI_ARGS", args)
    }

    #[track_caller]
    fn add(&self, pod: &str, netns: &Netns) -> Value {
        let call = self.invoke("ADD", pod, netns.path());
        call.input(&self.configuration()).run().result()
    }

    #[track_caller]
    fn del(&self, pod: &str, netns: &Netns) {
        let call = self.invoke("DEL", pod, netns.path());
        call.input(&self.configuration()).run().silent();
    }

    /// Returns the pods and interfaces that have an address, according to the address pool on the API server.
    fn leases(&self) -> BTreeSet<String> {
        let pools = "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools";
        let pools = self.cluster.ask(pools).expect("the API server answers");
        let pools: Value = serde_json::from_str(&pools).expect("JSON");
        let pools = pools["items"].as_array().expect("a list");
        let leases = pools
            .iter()
            .filter_map(|it| it["spec"]["allocations"].as_object());
        let leases = leases.flat_map(|it| it.values());
        let words = |it: &Value| {
            let of = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}", of("podref"), of("ifname"))
        };
        leases.map(words).collect()
    }
}

/// ADD, CHECK and DEL of two pods, a pod of another plugin, a killed ADD, and an address that another machine uses.
pub(super) fn gives_each_rail_an_address_and_gets_it_back(cluster: &mut ControlPlane) {
    let Some(programs) = env::var_os(PROGRAMS).map(PathBuf::from) else {
        return; // scripts/test counts it as skipped
    };
    let place = Place::new(cluster, programs);
    two_pods_never_share_an_address(&place);
    pods_of_macvlan_and_ours_share_a_range(&place);
    a_killed_add_gives_its_addresses_back(&place);
    an_address_of_another_machine_is_refused(&place);
    let crds = place.programs.join("crds");
    cluster.kubectl(&format!("delete --wait=false -f {}", crds.display()));
}

fn two_pods_never_share_an_address(place: &Place) {
    let before = Snapshot::of(&place.node.host);
    let pods = ["a", "b"].map(|label| (label, place.node.pod(label)));
    let (mut addresses, mut results) = (BTreeSet::new(), vec![]);
    for (label, pod) in &pods {
        let result = place.add(label, pod);
        for rail in ["rdma0", "rdma1"] {
            let [address] = &pod.addresses(rail)[..] else {
                panic!("one address: {result}");
            };
            assert!(result.to_string().contains(address), "{result}");
            assert!(
                addresses.insert(address.clone()),
                "{address} is there twice"
            );
        }
        results.push(result);
    }
    let expected = (64..68).map(|it| format!("10.1.0.{it}/16"));
    assert_eq!(addresses, expected.collect());
    let [(_, a), (_, b)] = &pods;
    let peer = &b.addresses("rdma0")[0];
    let peer = peer.split('/').next().expect("an address");
    a.run(&format!("ping -n -c 1 -W 5 -I rdma0 {peer}"));

    // whereabouts does not support CHECK: rdma-cni itself finds a lost address
    let check = |result: &Value| {
        let mut configuration = place.configuration();
        configuration["prevResult"] = result.clone();
        let call = place.invoke("CHECK", "a", a.path());
        call.input(&configuration).run()
    };
    let why = check(&results[0]).error(104);
    assert!(why.contains("CNI CHECK method is not implemented"), "{why}");
    a.ip(&format!("address delete {FIRST}/16 dev rdma0"));
    let why = check(&results[0]).error(999);
    assert!(why.contains(FIRST), "{why}");

    place.del("a", a);
    let left = ["default/b rdma0", "default/b rdma1"].map(str::to_owned);
    assert_eq!(place.leases(), left.into());
    place.del("b", b);
    assert_eq!(place.leases(), BTreeSet::new());
    place.node.assert_restored(&before);
}

/// A pod with Debian's macvlan, as in a network that is not migrated yet.
fn pods_of_macvlan_and_ours_share_a_range(place: &Place) {
    let ipam = place.configuration()["ipam"].clone();
    let network = json!({ "cniVersion": "1.0.0", "name": "old", "type": "macvlan", "master": "eth1", "ipam": ipam });
    let old = place.node.pod("old");
    let macvlan = |command: &str| {
        let call = place.invoke(command, "old", old.path());
        let call = call.program(&debian("macvlan")).env("CNI_IFNAME", "net1");
        call.input(&network).run()
    };
    macvlan("ADD").result();
    assert_eq!(old.addresses("net1"), [format!("{FIRST}/16")]);
    let new = place.node.pod("new");
    place.add("new", &new);
    let addresses = ["rdma0", "rdma1"].map(|it| new.addresses(it).concat());
    assert_eq!(addresses, ["10.1.0.65/16", "10.1.0.66/16"]);
    old.run("ping -n -c 1 -W 5 10.1.0.65");
    macvlan("DEL").silent();
    let left = ["default/new rdma0", "default/new rdma1"].map(str::to_owned);
    assert_eq!(place.leases(), left.into());
    place.del("new", &new);
    assert_eq!(place.leases(), BTreeSet::new());
}

fn a_killed_add_gives_its_addresses_back(place: &Place) {
    let before = Snapshot::of(&place.node.host);
    let mut moved = place.configuration();
    moved["mode"] = "move".into();
    for restorer in ["DEL", "GC", "ADD"] {
        let pod = place.node.pod("killed");
        let call = place.invoke("ADD", "killed", pod.path());
        let mut add = call.input(&moved).start();
        wait::until("the first rail has an address", || {
            !place.leases().is_empty()
        });
        add.kill();
        assert_eq!(add.wait().status.signal(), Some(9));
        let leases = place.leases();
        assert!(leases.contains("default/killed rdma0"), "{leases:?}");
        match restorer {
            "DEL" => place.del("killed", &pod),
            "GC" => {
                let mut configuration = place.configuration();
                configuration["cni.dev/valid-attachments"] = json!([]);
                let call = place.invoke("GC", "other", pod.path());
                call.input(&configuration).run().silent();
            }
            _ => {
                let other = place.node.pod("other");
                place.add("other", &other);
                place.del("other", &other);
            }
        }
        assert_eq!(place.leases(), BTreeSet::new(), "{restorer}");
        place.node.assert_restored(&before);
    }
}

/// ADD fails if another machine has the address that whereabouts assigns. A second request would not help: whereabouts
/// would assign the same lowest free address again.
fn an_address_of_another_machine_is_refused(place: &Place) {
    let before = Snapshot::of(&place.node.host);
    place
        .node
        .switch
        .ip(&format!("address add {FIRST}/16 dev br0"));
    let pod = place.node.pod("late");
    let call = place.invoke("ADD", "late", pod.path());
    let why = call.input(&place.configuration()).run().error(106);
    assert!(why.contains(FIRST), "{why}");
    assert_eq!(place.leases(), BTreeSet::new());
    place.node.assert_restored(&before);
}
