// SPDX-License-Identifier: Apache-2.0
//! Parameters of a pod's attachment. A claim or its class contains them, as `opaque` parameters of this driver.

use conf_reader::{Field, Number, Wrong, not_known};
use network_conf::{ChildConf, Mode, PodArguments, RoutingFields, child, vf};
use rdma_netns::VfSetting;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::Value;
use std::collections::BTreeSet;

/// Value of `apiVersion`.
pub const API_VERSION: &str = "hca.rdma/v1alpha1";

/// Value of `kind`.
pub const KIND: &str = "AttachmentParameters";

/// Kind of object that contains the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A DeviceClass, which the cluster's operator makes.
    Class,
    /// The claim itself.
    Claim,
}

/// Parameters for one device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// `rails`: selected NICs of a device with several NICs; `None`: all NICs.
    pub rails: Option<BTreeSet<usize>>,
    /// Parameters that apply to all rails of a pod.
    pub attachment: AttachmentParameters,
}

/// Parameters of a pod's attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentParameters {
    /// `mtu` of the netdevs in the pod, in bytes; `None`: the chain's configuration decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// `smcr`: true if SMC-R may carry the pod's TCP connections; `None`: the pod's annotation decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smcr: Option<bool>,
    /// `mode`, allowed only in a class: `rdma-cni` moves netdevs, or shares them. `None`: the chain's configuration
    /// decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// `child`, allowed only in a class: the kind of the pod's child netdev on a shared NIC. `None`: the chain's
    /// configuration decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildConf>,
    /// `vf`, allowed only in a class: settings of a virtual function that apply while the pod has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vf: Vec<VfSetting>,
    /// `routing`: metrics and tables of the routes in the pod. For a missing field, the chain's configuration decides.
    #[serde(default, skip_serializing_if = "RoutingFields::is_empty")]
    pub routing: RoutingFields,
}

impl AttachmentParameters {
    /// Returns true if no parameter is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Object {
    api_version: String,
    kind: String,
    child: Option<IgnoredAny>,
    mode: Option<Mode>,
    mtu: Option<Number<68, 65535>>,
    rails: Option<Vec<Number<0, 999>>>,
    #[serde(rename = "routing")]
    _routing: IgnoredAny,
    smcr: Option<bool>,
    vf: Option<IgnoredAny>,
}

/// Names of the fields of each object in the parameters. `vf` has no addresses, because many pods use one class.
const NAMES: [(&str, &[&str]); 3] = [
    ("child", &["type", "mode"]),
    ("routing", &["metric", "tableBase"]),
    (
        "vf",
        &[
            "vlan",
            "vlanQoS",
            "vlanProto",
            "min_tx_rate",
            "max_tx_rate",
            "spoofchk",
            "trust",
            "link_state",
        ],
    ),
];

impl Parameters {
    /// Reads `parameters` from an object of the kind `source`. These parameters override fields of `before`.
    ///
    /// # Errors
    /// A field is wrong, unknown, or not allowed in a claim.
    pub fn read(parameters: &Value, source: Source, before: Self) -> Result<Self, Wrong> {
        let Value::Object(object) = parameters else {
            return Err(Wrong::of("parameters", "must be an object"));
        };
        let root = Field::root(object);
        let Object {
            api_version,
            kind,
            child,
            mode,
            mtu,
            rails,
            _routing: _,
            smcr,
            vf,
        } = root.read()?;
        for (name, known) in NAMES {
            let object = root.object(name)?;
            if let Some(unknown) = object.unknown(known).first() {
                return Err(object.at(unknown).refused(not_known(unknown, known)));
            }
        }
        for (name, found, expected) in [
            ("apiVersion", api_version, API_VERSION),
            ("kind", kind, KIND),
        ] {
            if found != expected {
                return Err(root.at(name).wrong(format!("must be \"{expected}\"")));
            }
        }
        let rails: Option<BTreeSet<usize>> =
            rails.map(|rails| rails.iter().map(|rail| rail.0 as usize).collect());
        if rails.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(root
                .at("rails")
                .wrong("must name a rail; leave rails out for all rails of a device"));
        }
        let others = [
            ("child", child.is_some()),
            ("mode", mode.is_some()),
            ("vf", vf.is_some()),
        ];
        if let (Source::Claim, Some((name, _))) = (source, others.iter().find(|(_, is)| *is)) {
            let sentence = "is allowed only in a DeviceClass, because it affects other pods of the NIC; remove it, \
                            or request a class that sets it";
            return Err(Wrong::of(*name, sentence));
        }
        let child = child::parse(&root)?;
        let routing = RoutingFields::parse(&root)?;
        let vf = vf::parse(&root.object("vf")?, &PodArguments::default())?;
        let before_it = before.attachment;
        Ok(Self {
            rails: rails.or(before.rails),
            attachment: AttachmentParameters {
                mtu: mtu.map(|mtu| mtu.0).or(before_it.mtu),
                smcr: smcr.or(before_it.smcr),
                mode: mode.or(before_it.mode),
                child: child.or(before_it.child),
                vf: vf::over(vf, before_it.vf),
                routing: RoutingFields {
                    metric: routing.metric.or(before_it.routing.metric),
                    table_base: routing.table_base.or(before_it.routing.table_base),
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_netns::{VfVlan, child::MacvlanMode};
    use serde_json::json;

    fn object(fields: Value) -> Value {
        let mut object = json!({"apiVersion": API_VERSION, "kind": KIND});
        for (name, value) in fields.as_object().expect("an object") {
            object[name] = value.clone();
        }
        object
    }

    #[test]
    fn later_parameters_override_earlier_fields() {
        let class = object(json!({
            "mtu": 4200, "smcr": true, "mode": "share", "child": {"type": "macvlan", "mode": "private"},
            "vf": {"vlan": 100, "spoofchk": "on"},
            "routing": {"metric": 7, "tableBase": 3000},
        }));
        let class = Parameters::read(&class, Source::Class, Parameters::default());
        let claim = object(json!({"mtu": 1500, "rails": [1, 0], "routing": {"tableBase": 0}}));
        let claim = Parameters::read(&claim, Source::Claim, class.expect("parameters"));
        let expected = Parameters {
            rails: Some([0, 1].into()),
            attachment: AttachmentParameters {
                mtu: Some(1500),
                smcr: Some(true),
                mode: Some(Mode::Share),
                child: Some(ChildConf::Macvlan {
                    mode: MacvlanMode::Private,
                }),
                vf: vec![
                    VfSetting::Vlan(VfVlan {
                        id: 100,
                        ..VfVlan::NONE
                    }),
                    VfSetting::SpoofCheck(true),
                ],
                routing: RoutingFields {
                    metric: Some(7),
                    table_base: Some(0),
                },
            },
        };
        let claim = claim.expect("parameters");
        assert_eq!(claim, expected);
        // the record contains the parameters as JSON
        let text = serde_json::to_string(&claim.attachment).expect("JSON");
        let read: AttachmentParameters = serde_json::from_str(&text).expect("parameters");
        assert_eq!(read, claim.attachment);
    }

    #[test]
    fn fields_that_concern_other_pods_are_for_classes() {
        for (name, fields) in [
            ("mode", json!({"mode": "share"})),
            ("child", json!({"child": {"type": "ipvlan"}})),
            ("vf", json!({"vf": {"vlan": 7}})),
        ] {
            let parameters = object(fields);
            let of_class = Parameters::read(&parameters, Source::Class, Parameters::default());
            of_class.expect("a class may say it");
            let of_claim = Parameters::read(&parameters, Source::Claim, Parameters::default());
            let wrong = of_claim.expect_err("a claim may not").to_string();
            assert!(
                wrong.starts_with(&format!("{name}: is allowed only in a DeviceClass")),
                "{wrong}"
            );
        }
    }

    /// A claim may set routing tables, because they affect only the pod's namespace.
    #[test]
    fn fields_that_concern_only_the_pod_are_for_claims_too() {
        for fields in [
            json!({"mtu": 1500}),
            json!({"rails": [0]}),
            json!({"smcr": false}),
            json!({"routing": {"metric": 7, "tableBase": 3000}}),
        ] {
            let parameters = object(fields);
            for source in [Source::Class, Source::Claim] {
                let read = Parameters::read(&parameters, source, Parameters::default());
                assert_ne!(read.expect("parameters"), Parameters::default());
            }
        }
    }

    #[test]
    fn errors_name_the_field() {
        for (parameters, words) in [
            (json!("9000"), "parameters: must be an object"),
            (json!({"kind": KIND}), "apiVersion"),
            (
                json!({"apiVersion": "hca.rdma/v2", "kind": KIND}),
                "apiVersion: must be \"hca.rdma/v1alpha1\", and is \"hca.rdma/v2\"",
            ),
            (
                json!({"apiVersion": API_VERSION, "kind": "Nic"}),
                "kind: must be \"AttachmentParameters\", and is \"Nic\"",
            ),
            (
                object(json!({"mtu": "9000"})),
                "mtu: must be a whole number from 68 to 65535, and is \"9000\"",
            ),
            (
                object(json!({"rails": [0, -1]})),
                "rails[1]: must be a whole number from 0 to 999, and is -1",
            ),
            (object(json!({"rails": []})), "rails: must name a rail"),
            (object(json!({"smcr": "yes"})), "smcr: must be"),
            (
                object(json!({"vlan": 7})),
                "vlan: not known; the fields here are apiVersion, kind, child, mode, mtu, rails, routing, smcr, vf",
            ),
            (
                object(json!({"vf": {"vlan": 4095}})),
                "vf.vlan: must be a whole number from 0 to 4094, and is 4095",
            ),
            (
                object(json!({"vf": {"mac": "02:00:00:00:00:01"}})),
                "vf.mac: not known; the fields here are vlan, vlanQoS, vlanProto, min_tx_rate",
            ),
            (
                object(json!({"vf": {"trust": "yes"}})),
                "vf.trust: must be one of on, off",
            ),
            (object(json!({"vf": 7})), "vf: must be an object"),
            (
                object(json!({"mode": "copy"})),
                "mode: must be one of auto, move, share, and is \"copy\"",
            ),
            (
                object(json!({"child": "macvlan"})),
                "child: must be an object",
            ),
            (
                object(json!({"child": {"kind": "macvlan"}})),
                "child.kind: not known; the fields here are type, mode",
            ),
            (
                object(json!({"child": {"type": "bond"}})),
                "child.type: must be one of macvlan, ipvlan, ipoib, and is \"bond\"",
            ),
            (
                object(json!({"child": {"mode": "passthru"}})),
                "child.mode: passthru is not supported: a passthru macvlan allows only one child",
            ),
            (
                object(json!({"routing": {"tableBase": 254}})),
                "routing.tableBase: must be 0 (no tables) or more than 255",
            ),
            (
                object(json!({"routing": {"table": 1000}})),
                "routing.table: not known; the fields here are metric, tableBase",
            ),
        ] {
            let read = Parameters::read(&parameters, Source::Class, Parameters::default());
            let wrong = read.expect_err(words);
            assert!(wrong.to_string().starts_with(words), "{wrong}");
        }
    }
}
