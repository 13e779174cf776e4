// SPDX-License-Identifier: Apache-2.0
//! Tests of devices that claims allocated (dynamic resource allocation). ADD writes the CDI specifications of the
//! containers. `rdma-cni` removes a claim's specifications at the latest when the network of the claim's last pod ends.

use crate::{
    kubelet::{Cluster, address, record as attached},
    leases::bonds,
    node::{Pod, furnished, host_change},
};
use dra::{
    AttachmentParameters, ClaimName, Claims, Prepared, Record, cdi,
    record::{FORMAT, Request},
};
use fake_kernel::{Nic, Verdict};
use integration::{
    OddFile,
    kubelet::pod_resources::{claiming, pod},
};
use network_conf::{ChildConf, Mode, RoutingFields};
use nix::errno::Errno;
use rdma_netns::{Kernel, LinkChange, RdmaDevice, RdmaMode, VfSetting, VfVlan, child::MacvlanMode};
use rdma_resources::{CharNode, Sharing, grant::GrantedDevice};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

pub(crate) const VF: &str = "0000:3b:00.2";
pub(crate) const OTHER: &str = "0000:d8:00.2";
pub(crate) const DRIVER: &str = "hca.rdma";
pub(crate) const UID: &str = "0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11";
const POD_UID: &str = "5a1b0f4c-2f0e-4b7e-8f53-b5e0c7d0a001";

/// Writes the daemon's record of a claim for the devices at `addresses` in their present state.
pub(crate) fn prepare(
    cluster: &Cluster,
    addresses: &[&str],
    sharing: Sharing,
    awaits_network: bool,
) {
    let nics = addresses.iter().map(|text| {
        let rdma = cluster.rdma(&address(text));
        granted(text, rdma)
    });
    prepare_nics(cluster, nics.collect(), sharing, awaits_network);
}

pub(crate) fn granted(text: &str, rdma: RdmaDevice) -> GrantedDevice {
    GrantedDevice {
        address: address(text),
        char_devices: rdma.char_devices.iter().map(CharNode::from).collect(),
        rdma: rdma.name,
        parent: None,
    }
}

pub(crate) fn prepare_nics(
    cluster: &Cluster,
    nics: Vec<GrantedDevice>,
    sharing: Sharing,
    awaits_network: bool,
) {
    let device = Prepared {
        request: "nic".into(),
        pool: "node-1".into(),
        device: "rdma-vf-1".into(),
        share: None,
        resource: "rdma/vf".into(),
        sharing,
        attributes: Default::default(),
        nics,
    };
    let record = Record {
        format: FORMAT,
        driver: DRIVER.into(),
        claim: ClaimName {
            namespace: "default".into(),
            name: "claim".into(),
            uid: UID.into(),
        },
        boot_id: cluster.node.kernel.boot_id().unwrap(),
        cdi_dir: cluster.node.state.path().join("claims-cdi"),
        pods: [POD_UID.to_owned()].into(),
        awaits_network,
        networks: Default::default(),
        rails: Default::default(),
        files: Default::default(),
        generation: 1,
        absent: Default::default(),
        parameters: Default::default(),
        devices: vec![device],
        requests: vec![Request {
            name: "nic".into(),
            env: Default::default(),
            connection_manager: None,
            files: Default::default(),
            metadata: None,
            hook: None,
        }],
    };
    replace_record(&Claims::new(&cluster.state_dir()), record);
}

/// Prepares a claim with another record.
pub(crate) fn replace_record(claims: &Claims, record: Record) {
    claims.remove(&record.claim.uid, &record.cdi_dir).unwrap();
    claims.prepare(record).unwrap();
}

fn specification(cluster: &Cluster) -> PathBuf {
    let directory = cluster.node.state.path().join("claims-cdi");
    directory.join(format!("rdma-device-plugin-claim-{UID}.json"))
}

/// Returns the names of the character devices that a container of the claim gets. Returns `None` if the runtime could
/// not create the container.
pub(crate) fn given(cluster: &Cluster) -> Option<Vec<String>> {
    let text = fs::read(specification(cluster)).ok()?;
    let specification: Value = serde_json::from_slice(&text).unwrap();
    let nodes = specification["devices"][0]["containerEdits"]["deviceNodes"].clone();
    let nodes = nodes.as_array().unwrap().iter();
    let names = nodes.map(|it| it["path"].as_str().unwrap().rsplit('/').next().unwrap());
    Some(names.map(str::to_owned).collect())
}

/// Returns the JSON value of the variable `name` in a container of the claim. Returns `None` if the container has no
/// such variable.
fn variable(cluster: &Cluster, name: &str) -> Option<Value> {
    let text = fs::read(specification(cluster)).ok()?;
    let specification: Value = serde_json::from_slice(&text).unwrap();
    let env = specification["devices"][0]["containerEdits"]["env"].clone();
    let mut env = env.as_array()?.iter().filter_map(Value::as_str);
    let text = env.find_map(|it| it.strip_prefix(name)?.strip_prefix('='))?;
    Some(serde_json::from_str(text).unwrap())
}

/// Makes these pods the claim's only pods, and returns them.
pub(crate) fn pods(cluster: &Cluster, names: &[&str]) -> Vec<Pod> {
    let name = cdi::full_name(DRIVER, UID, "nic");
    let known = names.iter().map(|pod_name| {
        let pod = pod("default", pod_name, &[&[]]);
        claiming(pod, &[(DRIVER, "rdma-vf-1", &name)])
    });
    cluster.kubelet.set_pods(&known.collect::<Vec<_>>());
    names.iter().map(|name| cluster.node.pod(name)).collect()
}

/// Returns a cluster on which the lowest number of a character device is free, a pod with a claim, and the pod's
/// configuration. The kernel assigns this number at the next move.
pub(crate) fn with_a_hole() -> (Cluster, Value, Pod) {
    let mut world = furnished(RdmaMode::Exclusive);
    world.unplug("0000:3b:00.0");
    let cluster = Cluster::with(world);
    prepare(&cluster, &[VF], Sharing::Exclusive, true);
    let pod = pods(&cluster, &["a"]).remove(0);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    (cluster, config, pod)
}

fn uverbs(cluster: &Cluster, device: &str) -> String {
    cluster.rdma(&address(device)).char_devices[0].name.clone()
}

#[test]
fn add_writes_a_containers_devices_with_their_present_numbers() {
    let (cluster, config, pod) = with_a_hole();
    assert_eq!(uverbs(&cluster, VF), "uverbs2");
    assert_eq!(given(&cluster), None);
    let result = cluster.add(&pod, &config).must_succeed();
    assert_eq!(result["rails"].as_array().map(Vec::len), Some(1));
    assert_eq!(uverbs(&cluster, VF), "uverbs0");
    assert_eq!(given(&cluster), Some(vec!["uverbs0".to_owned()]));
    let ids = &attached(&cluster, &pod)["rails"][0]["allocated"]["ids"];
    let id = json!([{ "resource": "rdma/vf", "id": "default/claim/rdma-vf-1" }]);
    assert_eq!(*ids, id);
    // the daemon reports the record's rails to the API server
    let claims = Claims::new(&cluster.state_dir());
    let claim = claims.read(UID).unwrap().unwrap();
    let rails = claim.rails.values().flatten();
    let rails: Vec<_> = rails
        .map(|it| (it.device.as_deref(), &it.status_entry))
        .collect();
    assert_eq!(rails, [(Some("rdma-vf-1"), &result["rails"][0])]);
    assert_eq!(
        variable(&cluster, "RDMA_RAILS"),
        Some(result["rails"].clone())
    );
    assert!(claim.rails[&pod.container][0].hardware_address.is_some());

    cluster.del(&pod, &config).must_succeed();
    assert_eq!(given(&cluster), None);
    assert!(!cluster.node.record_of(&pod).exists());
    // the runtime makes the sandbox again, while the claim is still prepared
    cluster.add(&pod, &config).must_succeed();
    assert!(given(&cluster).is_some());
    cluster.del(&pod, &config).must_succeed();
}

/// The claim's device is a software RDMA device on a bond, as in the lab. The kernel reports no hardware of this
/// device. The daemon has recorded the hardware of the bond's port.
#[test]
fn a_bonds_rdma_in_software_is_given_as_soon_as_its_pod_has_a_network() {
    let mut world = bonds(0);
    world.plug(Nic::physical("0000:41:00.0", "eth6", "").without_rdma());
    world.plug(Nic::virtual_link("bond6", "bond").with_soft_rdma("rxe_bond6"));
    world.enslave("eth6", "bond6");
    for link in ["eth6", "bond6"] {
        world
            .execute(&host_change(link, LinkChange::Up(true)), None)
            .unwrap();
    }
    let cluster = Cluster::with(world);
    let observed = cluster.node.kernel.with(|world| world.observe(None));
    let mut devices = observed.host.rdma.into_iter();
    let soft = devices.find(|it| it.name == "rxe_bond6").unwrap();
    assert_eq!(soft.parent, None);
    let expected: Vec<_> = soft.char_devices.iter().map(|it| it.name.clone()).collect();
    prepare_nics(
        &cluster,
        vec![granted("0000:41:00.0", soft)],
        Sharing::Shared,
        true,
    );
    let pod = pods(&cluster, &["a"]).remove(0);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(given(&cluster), Some(expected));
    cluster.del(&pod, &config).must_succeed();
}

/// The pod gets the claim's MTU. Two claims of one pod must not set different MTUs.
#[test]
fn a_claim_determines_how_its_pod_is_attached() {
    let (cluster, config, first) = with_a_hole();
    let claims = Claims::new(&cluster.state_dir());
    let mut record = claims.read(UID).unwrap().unwrap();
    record.parameters.mtu = Some(1400);
    replace_record(&claims, record.clone());
    let plan = cluster.plan(&first, &config);
    assert!(plan.contains("mtu 1400"), "{plan}");
    cluster.add(&first, &config).must_succeed();
    assert_eq!(attached(&cluster, &first)["mtu"], 1400);
    cluster.del(&first, &config).must_succeed();

    let other = UID.replace('0', "9");
    record.claim.uid = other.clone();
    record.devices[0].device = "rdma-vf-2".into();
    record.devices[0].nics[0].address = address(OTHER);
    let names = [UID, &other].map(|uid| cdi::full_name(DRIVER, uid, "nic"));
    let devices = [
        (DRIVER, "rdma-vf-1", &*names[0]),
        (DRIVER, "rdma-vf-2", &*names[1]),
    ];
    cluster
        .kubelet
        .set_pods(&[claiming(pod("default", "a", &[&[]]), &devices)]);
    let both = cluster.node.pod("a");
    record.parameters.mtu = Some(1500);
    replace_record(&claims, record.clone());
    for message in [
        cluster.add(&both, &config).must_fail(7),
        cluster.plan(&both, &config),
    ] {
        let words = "mtu in the parameters of the pod's claims";
        assert!(
            message.contains(words) && message.contains("1400 in one and 1500"),
            "{message}"
        );
    }
    // a claim without an MTU agrees with any other claim
    record.parameters.mtu = None;
    replace_record(&claims, record.clone());
    let result = cluster.add(&both, &config).must_succeed();
    assert_eq!(result["rails"].as_array().map(Vec::len), Some(2));
    assert_eq!(attached(&cluster, &both)["mtu"], 1400);
    cluster.del(&both, &config).must_succeed();
}

/// A claim's parameters determine mode, kind of child and metric of its pod's attachment.
#[test]
fn a_class_determines_what_a_pod_gets_of_a_netdev() {
    let cluster = Cluster::with(furnished(RdmaMode::Shared));
    prepare(&cluster, &[VF], Sharing::Exclusive, true);
    let claims = Claims::new(&cluster.state_dir());
    let mut record = claims.read(UID).unwrap().unwrap();
    record.parameters = AttachmentParameters {
        mode: Some(Mode::Share),
        child: Some(ChildConf::Macvlan {
            mode: MacvlanMode::Private,
        }),
        routing: RoutingFields {
            metric: Some(77),
            table_base: None,
        },
        ..Default::default()
    };
    replace_record(&claims, record.clone());
    let pod = pods(&cluster, &["a"]).remove(0);
    let routing = json!({"metric": 50, "tableBase": 3000});
    let config = cluster.config(json!({ "resources": ["rdma/vf"], "routing": routing }));
    cluster.add(&pod, &config).must_succeed();
    let attached = attached(&cluster, &pod);
    let child = json!({"type": "macvlan", "mode": "private"});
    assert_eq!(attached["rails"][0]["shared"]["child"], child);
    assert_eq!(
        attached["routing"],
        json!({"metric": 77, "tableBase": 3000})
    );
    cluster.del(&pod, &config).must_succeed();
}

/// A tenant's VLAN comes from the tenant's device class. Settings that the class lacks come from the chain's
/// configuration.
#[test]
fn a_class_sets_up_the_virtual_functions_of_its_pods() {
    let cluster = Cluster::with(furnished(RdmaMode::Shared));
    prepare(&cluster, &[VF], Sharing::Exclusive, true);
    let claims = Claims::new(&cluster.state_dir());
    let mut record = claims.read(UID).unwrap().unwrap();
    let vlan = VfSetting::Vlan(VfVlan {
        id: 7,
        ..VfVlan::NONE
    });
    record.parameters = AttachmentParameters {
        vf: vec![vlan.clone()],
        ..Default::default()
    };
    replace_record(&claims, record.clone());
    let pod = pods(&cluster, &["a"]).remove(0);
    let fields = json!({ "resources": ["rdma/vf"], "vlan": 3, "trust": "on" });
    let config = cluster.config(fields);
    let before = cluster.node.snapshot();
    cluster.add(&pod, &config).must_succeed();
    let attached = attached(&cluster, &pod);
    let expected = json!([vlan, VfSetting::Trust(true)]);
    assert_eq!(attached["rails"][0]["vf"], expected);
    let function = VF.to_owned().try_into().unwrap();
    let vf = cluster.node.kernel.vf(&function).unwrap().unwrap();
    assert_eq!(vf.setting(vlan.kind()), Some(&vlan));
    cluster.del(&pod, &config).must_succeed();
    cluster.node.must_be(&before, "after DEL");
}

/// Kubelet does not report a claim that only init containers use. The daemon records the pod for which it prepared a
/// claim.
#[test]
fn a_claim_that_only_an_init_container_uses_is_attached() {
    let (cluster, config, _) = with_a_hole();
    cluster.kubelet.set_pods(&[pod("default", "a", &[&[]])]);
    let init = cluster.node.pod("a");
    let args = |uid: &str| {
        format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID={uid}")
    };
    let run = |verb: &str, uid: &str| cluster.run_with(verb, &init, &config, &args(uid));
    // this uid belongs to another pod with the same name
    run("ADD", UID).must_succeed();
    assert_eq!(given(&cluster), None);
    run("DEL", UID).must_succeed();

    let result = run("ADD", POD_UID).must_succeed();
    assert_eq!(result["rails"].as_array().map(Vec::len), Some(1));
    assert_eq!(given(&cluster), Some(vec!["uverbs0".to_owned()]));
    run("DEL", POD_UID).must_succeed();
    assert_eq!(given(&cluster), None);
    // an unreadable record may belong to another pod. If it belongs to this pod, the claim's containers do not start
    let damaged = cluster.state_dir().join("claims/damaged.json");
    fs::write(damaged, "{").unwrap();
    run("ADD", POD_UID).must_succeed();
    assert!(given(&cluster).is_some());
    run("DEL", POD_UID).must_succeed();
}

#[test]
fn a_claim_of_several_pods_gives_as_long_as_one_has_its_network() {
    let cluster = Cluster::new(RdmaMode::Shared);
    prepare(&cluster, &[VF, OTHER], Sharing::Shared, true);
    let config = cluster.config(json!({ "resources": ["rdma/hca", "rdma/vf"] }));
    let [first, second]: [Pod; 2] = pods(&cluster, &["a", "b"]).try_into().ok().unwrap();
    let expected = [VF, OTHER].map(|it| uverbs(&cluster, it)).to_vec();
    for pod in [&first, &second] {
        let result = cluster.add(pod, &config).must_succeed();
        assert_eq!(result["rails"].as_array().map(Vec::len), Some(2));
        assert_eq!(given(&cluster).as_ref(), Some(&expected));
    }
    cluster.del(&first, &config).must_succeed();
    assert_eq!(given(&cluster).as_ref(), Some(&expected));
    cluster
        .node
        .kernel
        .with(|world| world.unmount(&second.netns));
    let valid: [&Pod; 0] = [];
    cluster.node.gc(&valid, &config).must_succeed();
    assert_eq!(given(&cluster), None);
}

/// The kernel refuses one change of ADD, or ADD cannot write the CDI specification. No container then gets devices.
#[test]
fn there_is_nothing_to_give_after_an_add_that_failed() {
    for at in 1.. {
        let (cluster, config, pod) = with_a_hole();
        cluster.node.script(move |number| match number == at {
            true => Verdict::Refuse(Errno::EIO),
            false => Verdict::Proceed,
        });
        let answer = cluster.add(&pod, &config);
        if answer.code() == 0 {
            assert!(at > 3, "no changes");
            break;
        }
        assert_eq!(given(&cluster), None, "change {at}");
    }
    let (cluster, config, pod) = with_a_hole();
    fs::write(cluster.node.state.path().join("claims-cdi"), "in the way").unwrap();
    let message = cluster.add(&pod, &config).must_fail(106);
    assert!(
        message.contains(&format!("CDI specification of claim {UID}")),
        "{message}"
    );
    assert!(!cluster.node.record_of(&pod).exists());
    let rdma = cluster.rdma(&address(VF)).name;
    let kernel = &cluster.node.kernel;
    let (side, host) = kernel.with(|it| (it.place_of_rdma(&rdma), it.observe(None).host.id));
    assert_eq!(side, Some(host));
}

#[test]
fn an_object_at_a_claims_cdi_path_is_replaced() {
    for odd in OddFile::ALL {
        for unfinished in [false, true] {
            let (cluster, config, pod) = with_a_hole();
            let elsewhere = tempfile::tempdir().unwrap();
            let file = specification(&cluster);
            let path = match unfinished {
                true => file.with_extension("new"),
                false => file.clone(),
            };
            odd.put(&path, elsewhere.path());
            let answer = cluster.add(&pod, &config);
            if odd == OddFile::Directory {
                let message = answer.must_fail(106);
                assert!(
                    message.contains(path.to_str().unwrap()) || message.contains(UID),
                    "{message}"
                );
            } else {
                answer.must_succeed();
                assert!(fs::symlink_metadata(&file).unwrap().is_file(), "{odd:?}");
                assert_eq!(given(&cluster), Some(vec!["uverbs0".to_owned()]), "{odd:?}");
            }
            OddFile::assert_left_alone(elsewhere.path());
            cluster.del(&pod, &config).must_succeed();
            OddFile::assert_left_alone(elsewhere.path());
        }
    }
}

/// ADD and DEL are killed at every change. After the next DEL no container gets devices.
#[test]
fn there_is_nothing_to_give_after_a_kill_at_any_change() {
    for verb in ["ADD", "DEL"] {
        for verdict in [Verdict::DieBefore, Verdict::DieAfter] {
            for at in 1.. {
                let (cluster, config, pod) = with_a_hole();
                if verb == "DEL" {
                    cluster.add(&pod, &config).must_succeed();
                }
                let run = |_: &_| drop(cluster.run(verb, &pod, &config));
                if !cluster.node.kill(at, verdict, run) {
                    assert!(at > 3, "no changes");
                    break;
                }
                cluster.node.kernel.begin();
                cluster.del(&pod, &config).must_succeed();
                assert_eq!(given(&cluster), None, "{verb} {verdict:?} at {at}");
            }
        }
    }
}

/// One claim belongs to a resource that the chain does not attach, another one to another driver.
#[test]
fn claims_of_other_drivers_pass() {
    let (cluster, _, pod) = with_a_hole();
    let config = cluster.config(json!({ "resources": ["rdma/hca"] }));
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(given(&cluster), None);
    assert!(!cluster.node.record_of(&pod).exists());
    let gpu = integration::kubelet::pod_resources::pod("default", "a", &[&[]]);
    let name = cdi::full_name("gpu.example.org", UID, "nic");
    let gpu = claiming(gpu, &[("gpu.example.org", "rdma-vf-1", &name)]);
    cluster.kubelet.set_pods(&[gpu]);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    cluster.add(&pod, &config).must_succeed();
    assert!(!cluster.node.record_of(&pod).exists());
}
