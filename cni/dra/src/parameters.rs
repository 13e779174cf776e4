// SPDX-License-Identifier: Apache-2.0
//! What a claim or its class says of how its pod is attached: this driver's `opaque` parameters.

use conf_reader::{Field, Number, Wrong};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;

/// `apiVersion`
pub const API_VERSION: &str = "hca.rdma/v1alpha1";

/// `kind`
pub const KIND: &str = "AttachmentParameters";

/// The parameters that count for one device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// `rails`: which NICs of a device that stands for several; none: all.
    pub rails: Option<BTreeSet<usize>>,
    /// What is the same for all rails of a pod.
    pub attachment: AttachmentParameters,
}

/// How a pod is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentParameters {
    /// `mtu` of the netdevs in the pod, in bytes; none: as the chain's configuration has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// `smcr`: whether the pod's TCP connections may be carried by RDMA; none: as its annotation has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smcr: Option<bool>,
}

impl AttachmentParameters {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Object {
    api_version: String,
    kind: String,
    mtu: Option<Number<68, 65535>>,
    rails: Option<Vec<Number<0, 999>>>,
    smcr: Option<bool>,
}

impl Parameters {
    /// Reads `parameters`, as a claim or a class has them, after `before`, which they override field by field.
    ///
    /// # Errors
    /// A field is wrong, or not known.
    pub fn read(parameters: &Value, before: Self) -> Result<Self, Wrong> {
        let Value::Object(object) = parameters else {
            return Err(Wrong::of("parameters", "must be an object"));
        };
        let root = Field::root(object);
        let Object {
            api_version,
            kind,
            mtu,
            rails,
            smcr,
        } = root.read()?;
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
                .wrong("must name a rail; without rails, a device's are all"));
        }
        Ok(Self {
            rails: rails.or(before.rails),
            attachment: AttachmentParameters {
                mtu: mtu.map(|mtu| mtu.0).or(before.attachment.mtu),
                smcr: smcr.or(before.attachment.smcr),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(fields: Value) -> Value {
        let mut object = json!({"apiVersion": API_VERSION, "kind": KIND});
        for (name, value) in fields.as_object().expect("an object") {
            object[name] = value.clone();
        }
        object
    }

    #[test]
    fn a_later_one_overrides_what_it_has() {
        let class = object(json!({"mtu": 4200, "smcr": true}));
        let class = Parameters::read(&class, Parameters::default()).expect("parameters");
        let claim = object(json!({"mtu": 1500, "rails": [1, 0]}));
        let claim = Parameters::read(&claim, class).expect("parameters");
        let expected = Parameters {
            rails: Some([0, 1].into()),
            attachment: AttachmentParameters {
                mtu: Some(1500),
                smcr: Some(true),
            },
        };
        assert_eq!(claim, expected);
    }

    #[test]
    fn what_is_wrong_is_told_by_its_place() {
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
                "vlan: not known; the fields here are apiVersion, kind, mtu, rails, smcr",
            ),
        ] {
            let wrong = Parameters::read(&parameters, Parameters::default()).expect_err(words);
            assert!(wrong.to_string().starts_with(words), "{wrong}");
        }
    }
}
