// SPDX-License-Identifier: Apache-2.0
//! In the lab, virtual functions that igb configures while a pod has them, with the fields of sriov-cni:
//! `integration/lab/vm --tier full --exclusive`, one test at a time.

use integration::{
    Attachment, Conflist, Netns, Snapshot,
    lab::{self, Function, Lab, NICS, ipv4},
    traffic::{self, End},
    udev, wait,
};
use nix::errno::Errno;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The host's state according to `ip`, and the settings of virtual functions that their physical functions report.
#[derive(Debug)]
struct Before {
    host: Snapshot,
    functions: [Vec<String>; 2],
}

impl Before {
    #[track_caller]
    fn of(lab: &Lab) -> Self {
        Self {
            host: Snapshot::of(&lab.host),
            functions: NICS.map(|nic| functions(lab, nic)),
        }
    }

    #[track_caller]
    fn assert_restored(&self, lab: &Lab) {
        self.host.assert_restored(&lab.host);
        assert_eq!(self.functions, NICS.map(|nic| functions(lab, nic)));
    }
}

/// Returns the lines of `ip link show` about the functions of `nic`, one for each function.
#[track_caller]
fn functions(lab: &Lab, nic: &str) -> Vec<String> {
    let text = lab.host.ip(&format!("-d link show dev {nic}"));
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("vf "));
    lines.map(str::to_owned).collect()
}

fn list(lab: &Lab, function: &Function, settings: &Value) -> Conflist {
    let mut plugin = json!({"type": "rdma-cni", "stateDir": lab.state(), "deviceID": function.pci});
    for (field, value) in settings.as_object().expect("fields") {
        plugin[field] = value.clone();
    }
    Conflist::new("1.0.0", vec![plugin])
}

/// The example of sriov-cni's reference (`docs/configuration-reference.md`), without the values that igb refuses:
/// another tag, a lower limit, a link state.
fn example() -> Value {
    json!({
        "mac": "CA:FE:C0:FF:EE:00",
        "vlan": 1000,
        "vlanQoS": 4,
        "max_tx_rate": 200,
        "spoofchk": "off",
        "trust": "on",
        "logLevel": "debug",
        "logFile": "/tmp/sriov.log",
    })
}

#[test]
fn a_function_is_set_up_for_its_pod_and_put_back() {
    let lab = Lab::new(2);
    lab.give_addresses();
    let before = Before::of(&lab);
    let function = lab.functions[0][1].clone();
    let list = list(&lab, &function, &example());
    let runtime = lab.runtime();
    for dies in [false, true] {
        let pod = lab.pod(if dies { "dies" } else { "lives" });
        let attachment = Attachment::new(pod.name(), pod.path(), "eth0");
        let result = runtime.add(&list, &attachment);
        let result = result.unwrap_or_else(|outcome| panic!("{outcome}"));
        assert_eq!(result["interfaces"][0]["mac"], "ca:fe:c0:ff:ee:00");
        let link = pod.link("eth0").expect("a netdev");
        assert_eq!(link["address"], "ca:fe:c0:ff:ee:00");
        lab::open_verbs(&pod, &function.rdma);
        let [first, second] = &functions(&lab, NICS[0])[..] else {
            panic!("{:?}", functions(&lab, NICS[0]));
        };
        assert_eq!(*first, before.functions[0][0], "another one's");
        for expected in [
            "link/ether ca:fe:c0:ff:ee:00",
            "vlan 1000, qos 4",
            "max_tx_rate 200Mbps",
            "spoof checking off",
            "trust on",
        ] {
            assert!(second.contains(expected), "{expected}: {second}");
        }
        runtime.check(&list, &attachment).expect("CHECK");
        lab.host
            .ip(&format!("link set dev {} vf 1 spoofchk on", NICS[0]));
        let drift = runtime.check(&list, &attachment).expect_err("it differs");
        let expected = format!("vf 1 of {} has spoofchk on, not spoofchk off", NICS[0]);
        assert!(drift.to_string().contains(&expected), "{drift}");
        if dies {
            pod.die();
        }
        let deleted = runtime.del(&list, &attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        before.assert_restored(&lab);
    }
}

/// Returns true if `address` answers one packet within two seconds.
#[track_caller]
fn reaches(pod: &Netns, address: &str) -> bool {
    let mut ping = pod.command("ping");
    let output = ping.args(["-c", "1", "-W", "2", address]).output();
    output.expect("ping").status.success()
}

/// The extended example of sriov-cni's README, with its type changed: `igb` accepts all of it. The pods request their
/// hardware addresses as with Multus without the capability `mac`.
#[test]
fn an_example_with_addresses_has_two_pods_reach_each_other() {
    let lab = Lab::new(1);
    let before = Before::of(&lab);
    let runtime = lab.runtime();
    let leases = lab.state().join("leases");
    let pods = [0, 1].map(|nic| {
        let function = &lab.functions[nic][0];
        let mut list = list(
            &lab,
            function,
            &json!({
                "podArguments": ["mac"],
                "vlan": 1000,
                "spoofchk": "off",
                "trust": "on",
                "ipam": {
                    "type": "host-local",
                    "dataDir": leases,
                    "subnet": "10.56.217.0/24",
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "gateway": "10.56.217.1",
                },
            }),
        );
        list.version = "0.3.1".to_owned();
        list.name = "sriov-advanced".to_owned();
        let pod = lab.pod(&function.netdev);
        let mut attachment = Attachment::new(&function.netdev, pod.path(), "net1");
        let mac = format!("02:00:00:00:01:0{nic}");
        attachment
            .args
            .insert("IgnoreUnknown".into(), "true".into());
        attachment.args.insert("MAC".into(), mac.clone());
        let added = runtime.add(&list, &attachment);
        let result = added.unwrap_or_else(|outcome| panic!("{outcome}"));
        let address = format!("10.56.217.{}/24", nic + 2);
        assert_eq!(result["interfaces"][0]["mac"], mac);
        assert_eq!(result["ips"][0]["address"], address);
        assert_eq!(result["ips"][0]["gateway"], "10.56.217.1");
        assert_eq!(pod.link("net1").expect("a netdev")["address"], mac);
        assert_eq!(pod.addresses("net1"), [address]);
        let default = pod.show("route show default");
        assert_eq!(default[0]["gateway"], "10.56.217.1");
        assert_eq!(default[0]["dev"], "net1");
        // sriov-cni sets 0; with 200, the pod keeps using its own default route
        assert_eq!(default[0]["metric"], 200);
        let function = &functions(&lab, NICS[nic])[0];
        for expected in [&*mac, "vlan 1000", "spoof checking off", "trust on"] {
            assert!(function.contains(expected), "{expected}: {function}");
        }
        (pod, list, attachment)
    });
    wait::until("one pod reaches the other", || {
        reaches(&pods[0].0, "10.56.217.3")
    });
    for (_, list, attachment) in &pods {
        let deleted = runtime.del(list, attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    }
    let held = fs::read_dir(leases.join("sriov-advanced")).expect("host-local's directory");
    let names = held.map(|file| file.expect("a file").file_name());
    let names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    assert!(
        !names.iter().any(|it| it.starts_with("10.56.")),
        "{names:?}"
    );
    before.assert_restored(&lab);
}

/// If igb refuses a value, ADD reports the setting as a command of `ip`, with the kernel's error, and undoes all its
/// changes.
#[test]
fn a_refusal_of_the_driver_is_reported_and_undone() {
    let lab = Lab::new(1);
    let before = Before::of(&lab);
    let function = lab.functions[1][0].clone();
    let pod = lab.pod("pod");
    let attachment = Attachment::new("a", pod.path(), "eth0");
    for (more, refused, errno) in [
        (
            json!({"link_state": "enable"}),
            "state enable",
            Errno::EOPNOTSUPP,
        ),
        (
            json!({"min_tx_rate": 100, "max_tx_rate": 200}),
            "min_tx_rate 100 max_tx_rate 200",
            Errno::EINVAL,
        ),
        (
            json!({"vlanProto": "802.1ad"}),
            "vlan 1000 qos 4 proto 802.1ad",
            Errno::EPROTONOSUPPORT,
        ),
    ] {
        let mut settings = example();
        for (field, value) in more.as_object().expect("fields") {
            settings[field] = value.clone();
        }
        let outcome = lab
            .runtime()
            .add(&list(&lab, &function, &settings), &attachment);
        let outcome = outcome.expect_err("igb takes it").to_string();
        let command = format!("ip link set dev {} vf 0 {refused}: ", NICS[1]);
        let kernels = format!("(os error {})", errno as i32);
        assert!(outcome.contains(&command), "{command}: {outcome}");
        assert!(outcome.contains(&kernels), "{kernels}: {outcome}");
        before.assert_restored(&lab);
    }
}

/// Two pods in one VLAN have RDMA between them. A pod outside the VLAN does not reach them.
#[test]
fn tenants_are_apart() {
    let lab = Lab::new(2);
    lab.give_addresses();
    let [server, other] = [lab.functions[0][0].clone(), lab.functions[0][1].clone()];
    let client = lab.functions[1][1].clone();
    let [to, from] = [ipv4(0, 0), ipv4(0, 9)];
    lab.host
        .ip(&format!("address add {from}/24 dev {}", client.netdev));
    let before = Before::of(&lab);
    let runtime = lab.runtime();
    let pods = [(&server, 100), (&client, 100), (&other, 0)].map(|(function, vlan)| {
        let pod = lab.pod(&function.netdev);
        let attachment = Attachment::new(&function.netdev, pod.path(), "eth0");
        let list = list(&lab, function, &json!({"vlan": vlan}));
        let added = runtime.add(&list, &attachment);
        added.unwrap_or_else(|outcome| panic!("{outcome}"));
        (pod, list, attachment)
    });
    let [(server_pod, ..), (client_pod, ..), (other_pod, ..)] = &pods;
    wait::until("both are on VLAN 100", || reaches(client_pod, &to));
    assert!(!reaches(other_pod, &to), "it is on none");
    assert!(!reaches(other_pod, &from), "it is on none");
    traffic::rping(
        End {
            pod: server_pod,
            rdma: &server.rdma,
            address: &to,
        },
        End {
            pod: client_pod,
            rdma: &client.rdma,
            address: &from,
        },
    );
    for (_, list, attachment) in &pods {
        let deleted = runtime.del(list, attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    }
    before.assert_restored(&lab);
}

/// The udev rule of `conf/node`, with the line of the rule's example changed to the physical function `pci` and to
/// `count` virtual functions. Drop removes the rule.
struct Rule(PathBuf);

impl Rule {
    /// Applies the rule until `is_applied`, at most three times: udevd sometimes closes the connection that requests a
    /// reload (see [`udev::settle`]), and `udevadm control` does not report that.
    fn install(lab: &Lab, pci: &str, count: u32, is_applied: impl Fn() -> bool) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../conf/node/udev/rules.d/61-rdma-vfs.rules");
        let text = fs::read_to_string(file).expect("the rule");
        let line = text.lines().find_map(|line| line.strip_prefix("#ACTION"));
        let line = line.expect("an example").replace("0000:3b:00.0", pci);
        let line = line.replace(
            "sriov_numvfs}=\"4\"",
            &format!("sriov_numvfs}}=\"{count}\""),
        );
        assert!(
            line.contains(pci) && line.ends_with(&format!("\"{count}\"")),
            "{line}"
        );
        let rule = Self(PathBuf::from("/run/udev/rules.d/61-rdma-vfs.rules"));
        fs::write(&rule.0, format!("ACTION{line}\n")).expect("written");
        let applied = (0..3).any(|_| {
            // as at boot (systemd-udev-trigger.service)
            lab.host.run("udevadm control --reload");
            lab.host
                .run("udevadm trigger --type=devices --action=add --subsystem-match=pci");
            udev::settle(&lab.host);
            is_applied()
        });
        assert!(applied, "udev has not applied: {line}");
        rule
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
        drop(
            Command::new("udevadm")
                .args(["control", "--reload"])
                .status(),
        );
    }
}

#[test]
fn functions_are_made_once_by_the_nodes_rule() {
    let lab = Lab::without_rdma(0);
    let device = Path::new("/sys/class/net").join(NICS[0]).join("device");
    let pci = fs::read_link(&device).expect("a link");
    let pci = pci.file_name().expect("a name").to_string_lossy();
    let count = || {
        let text = fs::read_to_string(device.join("sriov_numvfs"));
        text.expect("a number")
            .trim()
            .parse::<u32>()
            .expect("a number")
    };
    assert_eq!(count(), 0);
    let rule = Rule::install(&lab, &pci, 2, || count() == 2);
    let function = fs::read_link(device.join("virtfn1")).expect("a function");
    let function = function.file_name().expect("a name").to_string_lossy();
    wait::until("the function has a netdev", || {
        let netdevs = fs::read_dir(device.join("virtfn1/net"));
        netdevs.is_ok_and(|it| it.count() == 1)
    });
    udev::settle(&lab.host);
    let list = Conflist::new(
        "1.0.0",
        vec![json!({
            "type": "rdma-cni", "stateDir": lab.state(), "deviceID": *function, "requireRdma": false,
        })],
    );
    let pod = lab.pod("pod");
    let attachment = Attachment::new("a", pod.path(), "eth0");
    let added = lab.runtime().add(&list, &attachment);
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    // a rule with another number does not remove the function from its pod
    drop(rule);
    let rule = Rule::install(&lab, &pci, 3, || true);
    assert_eq!(count(), 2);
    assert!(pod.has_link("eth0"));
    let deleted = lab.runtime().del(&list, &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    // the rule applies when the NIC appears again
    fs::write(device.join("sriov_numvfs"), "0").expect("taken away");
    drop(rule);
    drop(Rule::install(&lab, &pci, 3, || count() == 3));
}

/// A pod with a function of `lab`, without RDMA, and with the additional `settings`.
#[track_caller]
fn attached(lab: &Lab, label: &str, settings: Value) -> (Netns, Conflist, Attachment) {
    let mut settings = settings;
    settings["requireRdma"] = false.into();
    let list = list(lab, &lab.functions[0][1], &settings);
    let pod = lab.pod(label);
    let attachment = Attachment::new(pod.name(), pod.path(), "eth0");
    let added = lab.runtime().add(&list, &attachment);
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    (pod, list, attachment)
}

/// DEL binds the function's driver again, and the next pod can get the function.
#[test]
fn a_function_that_its_pod_moved_to_another_pod_comes_home_as_the_last_resort() {
    let lab = Lab::without_rdma(2);
    let before = Before::of(&lab);
    let other = lab.pod("other");
    let (pod, list, attachment) = attached(&lab, "pod", json!({"rebindDriver": true}));
    pod.ip(&format!(
        "link set dev eth0 netns {} name stolen",
        other.name()
    ));
    let deleted = lab.runtime().del(&list, &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    assert!(!other.has_link("stolen"));
    before.assert_restored(&lab);
    let (_next, list, attachment) = attached(&lab, "next", json!({}));
    let deleted = lab.runtime().del(&list, &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    before.assert_restored(&lab);
}

/// A pod has netdevs on its function in a namespace that DEL cannot name. These netdevs end only if the configuration
/// makes DEL bind the function's driver again.
#[test]
fn netdevs_of_a_pod_in_other_namespaces_end_where_a_driver_is_bound_anew() {
    for (settings, has_one_in_the_pod, ends) in [
        (json!({}), false, false),
        (json!({"rebindDriver": true}), false, true),
        (json!({"rebindDriver": true}), true, true),
    ] {
        let lab = Lab::without_rdma(2);
        let before = Before::of(&lab);
        let (pod, list, attachment) = attached(&lab, "pod", settings.clone());
        let nested = lab.pod("nested");
        let in_nested = format!("netns {}", nested.name());
        let places = if has_one_in_the_pod {
            vec!["", &in_nested]
        } else {
            vec![&*in_nested]
        };
        for (number, place) in places.into_iter().enumerate() {
            for (name, kind) in [
                ("v", format!("vlan id 10{number}")),
                ("m", "macvlan".into()),
            ] {
                pod.ip(&format!(
                    "link add link eth0 name {name}{number} {place} type {kind}"
                ));
            }
        }
        let deleted = lab.runtime().del(&list, &attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        let case = format!("{settings} {has_one_in_the_pod}");
        let left = nested.ip("-brief link show");
        assert_eq!(!left.contains('@'), ends, "{case}: {left}");
        assert!(!pod.ip("-brief link show").contains('@'), "{case}");
        before.assert_restored(&lab);
    }
}
