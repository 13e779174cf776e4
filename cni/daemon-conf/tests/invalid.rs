// SPDX-License-Identifier: Apache-2.0
//! Tests of configurations: error messages of invalid ones, remarks about ignored fields, and the content of valid
//! ones.

use daemon_conf::{Conf, Ids, Parsed};
use std::path::Path;

const FORMATS: &str = "the file must have a field of exactly one format: resources or erdma (rdma-device-plugin), mode \
                       (k8s-rdma-sriov-dev-plugin), configList (k8s-rdma-shared-dev-plugin), \
                       resourceList (sriov-network-device-plugin)";

#[track_caller]
fn refused(text: &str, expected: &str) {
    let file = Path::new("/etc/rdma.json");
    let error = Conf::parse(text, file).expect_err(text).to_string();
    assert_eq!(error, format!("\"/etc/rdma.json\"{expected}"));
}

#[track_caller]
fn taken(text: &str) -> Parsed {
    Conf::parse(text, Path::new("config")).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn an_empty_or_broken_file() {
    let empty =
        " is empty; write which resources the node offers, or {\"mode\":\"hca\"} for rdma/hca";
    refused("", empty);
    refused(" \n\t", empty);
    refused("# nothing yet\n", empty);
    refused(
        "{\"mode\":\"hca\"",
        ", line 1, column 13: the file is not valid JSON: EOF while parsing an object at line 1 column 13",
    );
    refused(
        "{\n \"mode\": hca\n}",
        ", line 2, column 10: the file is not valid JSON: expected value at line 2 column 10",
    );
    let error = Conf::parse("resources:\n- name: \"rdma/hca\n", Path::new("f"));
    let error = error.expect_err("truncated").to_string();
    assert!(error.starts_with("\"f\", line "), "{error}");
    assert!(error.contains("not valid YAML"), "{error}");
    let missing = Conf::read(Path::new("/nonexistent/config.json")).expect_err("no file");
    assert_eq!(
        missing.to_string(),
        "cannot read \"/nonexistent/config.json\": No such file or directory (os error 2)"
    );
}

#[test]
fn a_file_of_none_of_the_formats() {
    refused("[]", &format!(": the file is not an object; {FORMATS}"));
    refused("hca", &format!(": the file is not an object; {FORMATS}"));
    refused("{}", &format!(": the object has no fields; {FORMATS}"));
    refused(
        r#"{"modes":"hca","list":[]}"#,
        &format!(": no field determines the format (fields: modes, list); {FORMATS}"),
    );
    for (text, field) in [
        (r#"{"resources":null}"#, "resources"),
        (r#"{"chain":{},"resources":null}"#, "resources"),
        (r#"{"cdi":true,"Mode":null}"#, "Mode"),
    ] {
        refused(
            text,
            &format!(": {field} is null, which counts as missing; {FORMATS}"),
        );
    }
    refused(
        r#"{"mode":"hca","resourceList":[]}"#,
        &format!(": mode and resourceList belong to different formats; {FORMATS}"),
    );
}

#[test]
fn values_of_our_own_format() {
    for (resource, expected) in [
        (
            r#""rdma/hca""#,
            r#"resources[0]: must be an object, and is "rdma/hca""#,
        ),
        ("{}", "resources[0].name: must be a string, and is missing"),
        (
            r#"{"name":"rdma/hca"}"#,
            "resources[0].kind: must be one of shared, perNic, exclusive, and is missing",
        ),
        (
            r#"{"name":"rdma/hca","kind":"hca"}"#,
            r#"resources[0].kind: must be one of shared, perNic, exclusive, and is "hca""#,
        ),
        (
            r#"{"name":"hca","kind":"shared"}"#,
            r#"resources[0].name: "hca" is not a valid resource name: it must have a prefix, as rdma/hca has"#,
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","count":0}"#,
            "resources[0].count: must be a whole number from 1 to 50000, and is 0",
        ),
        (
            r#"{"name":"rdma/hca","kind":"perNic","count":5001}"#,
            "resources[0].count: must be a whole number from 1 to 5000, and is 5001",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","allocate":"some"}"#,
            r#"resources[0].allocate: must be one of all, numa, and is "some""#,
        ),
        (
            r#"{"name":"rdma/vf","kind":"exclusive","count":3}"#,
            "resources[0].count: must be left out with kind exclusive: there is one id for each device",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","umad":"yes"}"#,
            r#"resources[0].umad: must be true or false, and is "yes""#,
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","selectors":{}}"#,
            "resources[0].selectors: not known; the fields here are name, kind, count, allocate, devices, parents, umad, memlock, limits, topology, environment, require",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[]}"#,
            "resources[0].devices: must have at least one selector; remove this field for the default selection",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{}]}"#,
            "resources[0].devices[0]: must have at least one of netdev, rdma, pci, driver, vendor, device, linkType, pf: otherwise it selects every device",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{"ifName":"eth0"}]}"#,
            "resources[0].devices[0].ifName: not known; the fields here are netdev, rdma, pci, driver, vendor, device, linkType, pf",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{"netdev":"eth["}]}"#,
            "resources[0].devices[0].netdev: invalid range pattern",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{"device":1017}]}"#,
            "resources[0].devices[0].device: must be a string or a list of strings, with numbers in quotes, and is 1017",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{"linkType":"eth"}]}"#,
            r#"resources[0].devices[0].linkType: must be ether or infiniband, and is "eth""#,
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{"pf":"ens1f0#a-b"}]}"#,
            r#"resources[0].devices[0].pf: "a-b" after # must be a number or an ascending range, as 0-3"#,
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","devices":[{"pf":["ens1f0","0000:3b:00.0"]}]}"#,
            "resources[0].devices[0].pf: has netdevs and PCI addresses; write a second selector for the PCI addresses",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","memlock":"8Gi"}"#,
            r#"resources[0].memlock: must be unlimited, or a number of bytes from 1, and is "8Gi""#,
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","memlock":0}"#,
            "resources[0].memlock: must be unlimited, or a number of bytes from 1, and is 0",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","limits":{}}"#,
            "resources[0].limits: must have handles, objects or both, and is {}",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","limits":{"handles":0}}"#,
            "resources[0].limits.handles: must be a whole number from 1 to 2147483647, and is 0",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","limits":{"objects":2147483648}}"#,
            "resources[0].limits.objects: must be a whole number from 1 to 2147483647, and is 2147483648",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","limits":{"objects":3}}"#,
            "resources[0].limits: needs devices by CDI names, whose entries have the hook that sets the limit; set cdi to true, or leave limits out",
        ),
        (
            r#"{"name":"rdma/hca","kind":"shared","memlock":"unlimited"}"#,
            "resources[0].memlock: needs devices by CDI names, whose entries have the hook that sets the limit; set cdi to true, or leave memlock out",
        ),
        (
            r#"{"name":"rdma/a","kind":"shared"},{"name":"rdma/a","kind":"exclusive"}"#,
            "resources[1]: the resource rdma/a is in resources[0] already; give one of the two another name",
        ),
    ] {
        refused(
            &format!(r#"{{"resources":[{resource}]}}"#),
            &format!(": {expected}"),
        );
    }
    refused(
        r#"{"resources":[]}"#,
        ": resources: must have at least one resource, and is []",
    );
    refused(
        r#"{"resources":[{"name":"rdma/a","kind":"shared"}],"cid":true}"#,
        ": cid: not known: did you mean cdi?",
    );
    for way in [r#""cdi":true"#, r#""dra":{}"#] {
        refused(
            &format!(
                r#"{{{way},"resources":[{{"name":"rdma/a","kind":"shared","memlock":65536}}]}}"#
            ),
            ": resources[0].memlock: needs rdma-cni on the node, which the container runtime runs as the hook that sets the limit; add chain, or leave memlock out",
        );
    }
    refused(
        r#"{"dra":{"resources":["rdma/b"]},"chain":{},"resources":[{"name":"rdma/a","kind":"shared","memlock":65536},{"name":"rdma/b","kind":"shared"}]}"#,
        ": resources[0].memlock: needs devices by CDI names, whose entries have the hook that sets the limit; set cdi to true, or leave memlock out",
    );
    refused(
        r#"{"cdi":true,"resources":[{"name":"rdma/a","kind":"shared"},{"name":"rdma/b","kind":"shared","umad":true}]}"#,
        ": resources[1]: with cdi, umad must be the same here as in resources[0]: a device has one CDI entry",
    );
}

#[test]
fn values_of_the_others() {
    for (text, expected) in [
        (
            r#"{"mode":"HCA"}"#,
            r#"mode: must be one of hca, sriov, and is "HCA""#,
        ),
        (r#"{"mode":1}"#, "mode: must be a string, and is 1"),
        (
            r#"{"mode":"sriov"}"#,
            "pfNetdevices: must name the physical functions' netdevs, because mode is sriov, and is missing",
        ),
        (
            r#"{"configList":[]}"#,
            "configList: must have at least one resource, and is []",
        ),
        (
            r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":-1}]}"#,
            "configList[0].rdmaHcaMax: must be a whole number from 0 to 50000, and is -1",
        ),
        (
            r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":9}]}"#,
            "configList[0].selectors: must select devices by one of vendors, deviceIDs, drivers, ifNames, linkTypes",
        ),
        (
            r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":9,"devices":["a"],"selectors":{"vendors":["15b3"]}}]}"#,
            "configList[0].devices: must be left out if selectors is set; write the names into selectors.ifNames",
        ),
        (
            r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":9,"selectors":{"linkTypes":["IB"]}}]}"#,
            r#"configList[0].selectors.linkTypes: may contain only ether and infiniband, and is ["IB"]"#,
        ),
        (
            r#"{"configList":[{"resourceName":"h/c","rdmaHcaMax":9,"devices":["a"]}]}"#,
            r#"configList[0].resourceName: "rdma/h/c" is not a valid resource name: it must have exactly one /"#,
        ),
        (
            r#"{"periodicUpdateInterval":-5,"configList":[]}"#,
            "periodicUpdateInterval: must be a whole number from 0 to 4294967295, and is -5",
        ),
        (
            r#"{"configList":[{"resourceName":"a","rdmaHcaMax":1,"devices":["x"]},{"resourceName":"a","rdmaHcaMax":1,"devices":["y"]}]}"#,
            "configList[1]: the resource rdma/a is in configList[0] already; give one of the two another name",
        ),
        (
            r#"{"resourceList":[{"selectors":{"isRdma":true}}]}"#,
            "resourceList[0].resourceName: must be a string, and is missing",
        ),
        (
            r#"{"resourceList":[{"resourceName":"a"},{"resourceName":"b","resourcePrefix":"x_y"}]}"#,
            "resourceList[0].selectors: must have at least one selector, and is missing",
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","resourcePrefix":"x_y","selectors":{}}]}"#,
            r#"resourceList[0].resourceName: "x_y/b" is not a valid resource name: the prefix must be a domain: parts of lower-case letters, digits and - (not first or last), separated by dots"#,
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","deviceType":"netdevice","selectors":{}}]}"#,
            r#"resourceList[0].deviceType: must be one of netDevice, auxNetDevice, accelerator, and is "netdevice""#,
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","selectors":{"isRdma":"true"}}]}"#,
            r#"resourceList[0].selectors.isRdma: must be true or false, and is "true""#,
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","selectors":[{"isRdma":true},{"isRdma":true,"needVhostNet":true}]}]}"#,
            "resourceList[0].selectors[1].needVhostNet: must be left out: the daemon does not give containers /dev/vhost-net and /dev/net/tun",
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","selectors":{"isRdma":true,"pKeys":["0x8001"]}}]}"#,
            "resourceList[0].selectors.pKeys: must be left out: the daemon cannot select devices by it",
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","selectors":{"isRdma":true,"vdpaType":"vhost"}}]}"#,
            r#"resourceList[0].selectors.vdpaType: must be left out where isRdma is true, and is "vhost""#,
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","deviceType":"auxNetDevice","selectors":{"isRdma":true}}]}"#,
            r#"resourceList[0].selectors.auxTypes: must be ["sf"] with deviceType auxNetDevice, and is missing"#,
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","selectors":{"isRdma":true,"pfNames":["ens1f0#1-x"]}}]}"#,
            r#"resourceList[0].selectors.pfNames: "1-x" after # must be a number or an ascending range, as 0-3"#,
        ),
        (
            r#"{"resourceList":[{"resourceName":"b","selectors":{}}]}"#,
            "resourceList: no resource is left: resourceList[0].selectors.isRdma: not true, so these devices of intel.com/b are left to sriov-network-device-plugin",
        ),
    ] {
        refused(text, &format!(": {expected}"));
    }
}

#[test]
fn ignored_fields_are_reported() {
    let parsed = taken(r#"{"mode":"hca","pfNetdevices":["eth0"],"verbose":1}"#);
    assert_eq!(
        parsed.remarks,
        [
            "verbose: unknown, ignored",
            "pfNetdevices: ignored, because it has no meaning in mode hca",
        ]
    );
    let parsed = taken(
        r#"{"PeriodicUpdateInterval":300,"configlist":[
            {"resourceName":"a","rdmaHcaMax":5,"devices":["eth0"],"note":""},
            {"resourceName":"b","devices":["eth1"]}]}"#,
    );
    assert_eq!(parsed.conf.resources.len(), 1);
    assert_eq!(
        parsed.remarks,
        [
            "periodicUpdateInterval: ignored, because the kernel reports added and removed devices",
            "configList[0].note: unknown, ignored",
            "configList[0].devices: deprecated; read as selectors.ifNames",
            "configList[1].devices: deprecated; read as selectors.ifNames",
            "configList[1].rdmaHcaMax: 0 or missing, so rdma/b has no ids and is left out",
        ]
    );
    let parsed = taken(
        r#"{"resourceList":[
            {"resourceName":"fpga","deviceType":"accelerator","selectors":{}},
            {"resourceName":"vf","excludeTopology":true,"additionalInfo":{},
             "selectors":[{"vendors":["8086"]},{"isRdma":true,"vendors":["15b3"],"x":1}]}]}"#,
    );
    let [vf] = parsed.conf.resources.as_slice() else {
        panic!("{:?}", parsed.conf);
    };
    assert_eq!((vf.name.as_str(), vf.topology), ("intel.com/vf", false));
    assert_eq!(vf.devices.len(), 1);
    assert_eq!(
        parsed.remarks,
        [
            "resourceList[0].deviceType: the daemon does not offer intel.com/fpga: accelerators are left to sriov-network-device-plugin",
            "resourceList[1].additionalInfo: ignored; PCIDEVICE_…_INFO of a container does not contain it",
            "resourceList[1].selectors[0].isRdma: not true, so these devices of intel.com/vf are left to sriov-network-device-plugin",
            "resourceList[1].selectors[1].x: unknown, ignored",
        ]
    );
}

/// Every format of the configuration can have `chain` with resources that `rdma-cni` attaches.
#[test]
fn every_format_may_have_the_chain() {
    for (format, resource) in [
        ("mode: hca", "rdma/hca"),
        (
            "configList: [{resourceName: hca_shared, rdmaHcaMax: 9, selectors: {ifNames: [ib0]}}]",
            "rdma/hca_shared",
        ),
        (
            "resourceList: [{resourceName: vf, selectors: {isRdma: true}}]",
            "intel.com/vf",
        ),
        ("resources: [{name: rdma/own, kind: shared}]", "rdma/own"),
    ] {
        let parsed = taken(&format!(
            "{format}\nchain: {{runtime: crio, plugin: {{resources: [{resource}]}}}}"
        ));
        assert_eq!(parsed.remarks, [] as [&str; 0], "{format}");
        let chain = parsed.conf.chain.unwrap_or_else(|| panic!("{format}"));
        assert_eq!(chain.runtime, conflist::Runtime::Crio { network: None });
        assert_eq!(
            chain.entry.fields()["resources"],
            serde_json::json!([resource])
        );
        assert_eq!(parsed.conf.resources[0].name.as_str(), resource);
        assert_eq!(taken(format).conf.chain, None, "{format}");
        let wrong = format!("{format}\nchain: {{plugin: {{mtu: no}}}}");
        let wrong = Conf::parse(&wrong, Path::new("f")).expect_err("a wrong MTU");
        assert!(wrong.to_string().contains("chain.plugin: "), "{wrong}");
    }
}

/// YAML and JSON give the same configuration. The JSON has the defaults of fields that the YAML leaves out.
#[test]
fn our_own_format() {
    let yaml = "
resources:
- name: rdma/hca
  kind: shared
- name: aliyun/erdma
  kind: perNic
  devices:
  - vendor: [1ded, '15b3']
    linkType: ether
- name: rdma/vf
  kind: exclusive
  umad: true
  topology: false
  devices:
  - pf: ens1f0#0-3,5
  - {pf: '0000:3b:00.1', driver: mlx5_*}
";
    let json = r#"{"resources":[
        {"name":"rdma/hca","kind":"shared","count":1000,"allocate":"all","umad":false,"topology":true},
        {"name":"aliyun/erdma","kind":"perNic","count":200,"allocate":"numa",
         "devices":[{"vendor":["1ded","15b3"],"linkType":["ether"]}]},
        {"name":"rdma/vf","kind":"exclusive","umad":true,"topology":false,
         "devices":[{"pf":["ens1f0#0-3,5"]},{"pf":"0000:3b:00.1","driver":"mlx5_*"}]}],"cdi":false}"#;
    let parsed = taken(yaml);
    let mut numbered = taken(json);
    for resource in &mut numbered.conf.resources {
        let is_default = std::mem::replace(&mut resource.has_default_count, true);
        assert_eq!(is_default, resource.ids == Ids::Exclusive);
    }
    assert_eq!(parsed, numbered);
    assert_eq!(parsed.remarks, Vec::<String>::new());
    assert_eq!(parsed.conf.resources.len(), 3);
    assert_eq!(parsed.conf.resources[2].place, "resources[2]");
}

#[test]
fn the_example_in_the_documentation() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/device-plugin-conf.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, rest) = page.split_once("```yaml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let names: Vec<String> = taken(example)
        .conf
        .resources
        .iter()
        .map(|resource| resource.name.to_string())
        .collect();
    assert_eq!(names, ["rdma/hca", "aliyun/erdma", "rdma/vf"]);
}
