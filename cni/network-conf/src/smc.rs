// SPDX-License-Identifier: Apache-2.0
//! Fields `smcr` and `smcUeid`, and the pod's own annotation: the use of SMC-R for a pod's TCP connections.

use cni_protocol::ConfError;
use conf_reader::{Field, Wrong, json};
use serde::Deserialize;
use serde_json::Value;

/// Key of the pod's annotations in `runtimeConfig`. containerd and CRI-O pass them to plugins with the capability of
/// this name.
pub const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Annotation by which a pod requests or refuses SMC-R.
const ANNOTATION: &str = "network.alibabacloud.com/erdma-smcr";

/// Largest length of a user EID, bytes: `SMC_MAX_EID_LEN` (`net/smc/smc_clc.h`).
const LONGEST_UEID: usize = 32;

/// Values of `smcr` and `smcUeid`, and the pod's annotation.
#[derive(Clone, Debug)]
pub struct Smc {
    /// `smcr`
    pub smcr: Smcr,
    /// `smcUeid`, if it is valid.
    pub ueid: Option<String>,
    /// Value of `smcUeid`, if it is invalid. An invalid value is an error only for pods that get devices.
    wrong_ueid: Option<Value>,
    /// The pod's annotation. It is checked only for pods that get devices.
    annotation: Annotation,
}

/// Value of `smcr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Smcr {
    /// No pod gets SMC-R.
    Off,
    /// Every pod gets SMC-R, except pods that refuse it. A pod for which SMC-R is not possible does not start.
    On,
    /// Pods that request SMC-R by annotation get it if possible.
    Annotation,
}

/// A pod's requirement for SMC-R.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmcRequirement {
    /// ADD does not set SMC-R up.
    None,
    /// ADD sets SMC-R up if possible.
    Requested,
    /// ADD sets SMC-R up, or fails.
    Required,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Annotation {
    Absent,
    Yes,
    No,
    /// The annotation has a value other than "true" and "false".
    Wrong(Value),
}

impl Smc {
    pub(super) fn parse(file: &Field<'_>) -> Result<Self, Wrong> {
        let (ueid, wrong_ueid) = match file.at("smcUeid").value() {
            Some(Value::String(text)) if is_ueid(text) => (Some(text.clone()), None),
            other => (None, other.cloned()),
        };
        let runtime = file.at("runtimeConfig").value().unwrap_or(&Value::Null);
        Ok(Self {
            smcr: file.get("smcr")?.unwrap_or(Smcr::Annotation),
            ueid,
            wrong_ueid,
            annotation: Annotation::of(&runtime[ANNOTATIONS]),
        })
    }

    /// Returns settings without SMC-R. DEL and GC use them if `smcr` is invalid, because these verbs read SMC-R
    /// settings from the record.
    pub(super) fn off() -> Self {
        Self {
            smcr: Smcr::Off,
            ueid: None,
            wrong_ueid: None,
            annotation: Annotation::Absent,
        }
    }

    /// Returns the pod's requirement. A pod may refuse SMC-R even if the configuration has `on`.
    ///
    /// # Errors
    /// The annotation is neither "true" nor "false", or `smcUeid` is invalid. This function checks neither value if
    /// SMC-R is off for all pods.
    pub fn requirement(&self) -> Result<SmcRequirement, ConfError> {
        self.check_ueid()?;
        let requirement = match (self.smcr, &self.annotation) {
            (Smcr::Off, _) => SmcRequirement::None,
            (_, Annotation::Wrong(value)) => {
                let place = format!("the pod's annotation {ANNOTATION}");
                let must = "must be \"true\" or \"false\"";
                return Err(Wrong::value(place, json(value), must).into());
            }
            (_, Annotation::No) | (Smcr::Annotation, Annotation::Absent) => SmcRequirement::None,
            (Smcr::Annotation, Annotation::Yes) => SmcRequirement::Requested,
            (Smcr::On, Annotation::Absent | Annotation::Yes) => SmcRequirement::Required,
        };
        Ok(requirement)
    }

    /// Returns an error if `smcUeid` is invalid. Returns no error if SMC-R is off for all pods. DEL and GC need no
    /// check, because they use the record.
    pub fn check_ueid(&self) -> Result<(), ConfError> {
        match &self.wrong_ueid {
            Some(value) if self.smcr != Smcr::Off => {
                let must = "must be 1 to 32 characters A-Z, 0-9, \".\" and \"-\", the first a letter or digit, \
                            without \"..\"";
                Err(Wrong::value("smcUeid", json(value), must).into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the settings for a pod whose claim requests SMC-R (`wanted` is true) or refuses it. The pod's annotation
    /// overrides the claim.
    pub fn or_by_claim(self, wanted: bool) -> Self {
        let annotation = match (self.annotation, wanted) {
            (Annotation::Absent, true) => Annotation::Yes,
            (Annotation::Absent, false) => Annotation::No,
            (own, _) => own,
        };
        Self { annotation, ..self }
    }

    /// Returns true if the pod's annotation or claim requests SMC-R, and the configuration allows SMC-R.
    pub fn is_requested_by_pod(&self) -> bool {
        self.smcr != Smcr::Off && self.annotation == Annotation::Yes
    }
}

impl Annotation {
    fn of(annotations: &Value) -> Self {
        match annotations {
            Value::Null => Self::Absent,
            Value::Object(annotations) => match annotations.get(ANNOTATION) {
                None | Some(Value::Null) => Self::Absent,
                Some(Value::String(text)) if text == "true" => Self::Yes,
                Some(Value::String(text)) if text == "false" => Self::No,
                Some(other) => Self::Wrong(other.clone()),
            },
            other => Self::Wrong(other.clone()),
        }
    }
}

/// Returns true if the kernel accepts `text` as a user EID (`smc_clc_ueid_valid()`, `net/smc/smc_clc.c`). Also returns
/// false if `text` contains "..", which smc-tools refuses.
fn is_ueid(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit();
    (1..=LONGEST_UEID).contains(&text.len())
        && text.bytes().next().is_some_and(alphanumeric)
        && text
            .bytes()
            .all(|b| alphanumeric(b) || b == b'.' || b == b'-')
        && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(conf: &Value) -> Result<Smc, Wrong> {
        Smc::parse(&Field::root(conf.as_object().expect("an object")))
    }

    fn requirement(smcr: Value, annotation: Value) -> Result<SmcRequirement, String> {
        let annotations = json!({ ANNOTATION: annotation });
        let conf = json!({ "smcr": smcr, "runtimeConfig": { ANNOTATIONS: annotations } });
        let smc = read(&conf).expect("a configuration");
        smc.requirement().map_err(|error| error.to_string())
    }

    #[test]
    fn a_claim_counts_where_the_pod_says_nothing() {
        let [none, requested] = [SmcRequirement::None, SmcRequirement::Requested];
        for (smcr, annotation, claim, expected) in [
            ("annotation", Value::Null, true, requested),
            ("annotation", Value::Null, false, none),
            ("annotation", json!("false"), true, none),
            ("annotation", json!("true"), false, requested),
            ("off", Value::Null, true, none),
            ("on", Value::Null, false, none),
        ] {
            let annotations = json!({ ANNOTATION: annotation });
            let conf = json!({ "smcr": smcr, "runtimeConfig": { ANNOTATIONS: annotations } });
            let smc = read(&conf).expect("a configuration").or_by_claim(claim);
            let found = smc.requirement().expect("yes or no");
            assert_eq!(found, expected, "{smcr} {annotation} {claim}");
        }
    }

    #[test]
    fn the_pods_word_counts_unless_it_is_off_for_all() {
        let table = [
            (
                "off",
                [
                    SmcRequirement::None,
                    SmcRequirement::None,
                    SmcRequirement::None,
                ],
            ),
            (
                "annotation",
                [
                    SmcRequirement::None,
                    SmcRequirement::Requested,
                    SmcRequirement::None,
                ],
            ),
            (
                "on",
                [
                    SmcRequirement::Required,
                    SmcRequirement::Required,
                    SmcRequirement::None,
                ],
            ),
        ];
        for (smcr, expected) in table {
            let annotations = [json!(null), json!("true"), json!("false")];
            let found =
                annotations.map(|annotation| requirement(json!(smcr), annotation).expect("valid"));
            assert_eq!(found, expected, "{smcr}");
        }
        assert_eq!(
            requirement(json!(null), json!("true")),
            Ok(SmcRequirement::Requested)
        );
    }

    #[test]
    fn an_annotation_that_is_neither_yes_nor_no_is_named() {
        for value in [
            json!("True"),
            json!("yes"),
            json!(""),
            json!(true),
            json!(1),
        ] {
            for smcr in ["on", "annotation"] {
                let error = requirement(json!(smcr), value.clone()).expect_err("refused");
                assert!(error.contains(ANNOTATION), "{error}");
                assert!(error.contains(&value.to_string()), "{error}");
            }
            assert_eq!(requirement(json!("off"), value), Ok(SmcRequirement::None));
        }
    }

    #[test]
    fn without_annotations_nothing_is_requested() {
        for runtime in [
            json!(null),
            json!({}),
            json!({ ANNOTATIONS: null }),
            json!({ ANNOTATIONS: {} }),
        ] {
            let smc = read(&json!({ "runtimeConfig": runtime })).expect("a configuration");
            assert_eq!(
                smc.requirement().ok(),
                Some(SmcRequirement::None),
                "{runtime}"
            );
        }
        let smc = read(&json!({ "runtimeConfig": { ANNOTATIONS: "true" } }));
        assert!(smc.expect("a configuration").requirement().is_err());
    }

    #[test]
    fn ueids_are_the_kernels() {
        for good in ["A", "0", "RACK-1.POD-2", "9.", "A-", &"A".repeat(32)] {
            let smc = read(&json!({ "smcUeid": good })).expect("a configuration");
            assert!(smc.requirement().is_ok(), "{good:?}");
            assert_eq!(smc.ueid.as_deref(), Some(good));
        }
        for bad in [
            "",
            "a",
            "-A",
            ".A",
            "A B",
            "A_B",
            "A..B",
            "Ä",
            &"A".repeat(33),
        ] {
            for smcr in ["on", "annotation"] {
                let smc = read(&json!({ "smcUeid": bad, "smcr": smcr })).expect("DEL goes on");
                let error = smc.requirement().expect_err(bad).to_string();
                assert!(error.starts_with("smcUeid"), "{error}");
                assert_eq!(smc.ueid, None);
            }
            let smc = read(&json!({ "smcUeid": bad, "smcr": "off" })).expect("a configuration");
            assert_eq!(smc.requirement().ok(), Some(SmcRequirement::None));
        }
    }
}
