// SPDX-License-Identifier: Apache-2.0
//! Field `podAnnotations`: the properties of an attachment that the pod may choose by annotations, and the pod's
//! choices.

use crate::{Conf, smc::ANNOTATIONS};
use conf_reader::{Field, Wrong, json, range};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A property that a pod can choose by an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Choice {
    Mtu,
    Rails,
}

/// The allowed properties, and the pod's choices. Choices are checked only for pods that get devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAnnotations {
    allowed: BTreeSet<Choice>,
    requested: BTreeMap<Choice, Value>,
}

/// Largest number of rails in a pod.
const RAILS: u32 = 1000;

/// Maximum number of characters of a wrong value that an error shows, because kubelet copies the error into a
/// Kubernetes event.
const SHOWN: usize = 200;

impl Choice {
    const ALL: [Self; 2] = [Self::Mtu, Self::Rails];

    fn annotation(self) -> &'static str {
        match self {
            Self::Mtu => "hca.rdma/mtu",
            Self::Rails => "hca.rdma/rails",
        }
    }

    fn wrong(self, value: &Value, expected: &str) -> Wrong {
        let mut shown = json(value);
        if let Some((end, _)) = shown.char_indices().nth(SHOWN) {
            shown.truncate(end);
            shown.push('…');
        }
        let place = format!("the pod's annotation {}", self.annotation());
        Wrong::value(place, shown, expected)
    }
}

impl PodAnnotations {
    pub(super) fn parse(file: &Field<'_>) -> Result<Self, Wrong> {
        let runtime = file.at("runtimeConfig").value().unwrap_or(&Value::Null);
        let annotations = &runtime[ANNOTATIONS];
        let mut requested = BTreeMap::new();
        requested.extend(Choice::ALL.into_iter().filter_map(|choice| {
            let value = annotations.get(choice.annotation())?;
            Some((choice, value.clone()))
        }));
        Ok(Self {
            allowed: file.get("podAnnotations")?.unwrap_or_default(),
            requested,
        })
    }

    /// Returns the pod's annotations that `podAnnotations` does not allow.
    pub fn disallowed(&self) -> Vec<&'static str> {
        let requested = self.requested.keys();
        let ignored = requested.filter(|choice| !self.allowed.contains(choice));
        ignored.map(|choice| choice.annotation()).collect()
    }

    fn allowed(&self, choice: Choice) -> Option<&Value> {
        let value = self.requested.get(&choice)?;
        self.allowed.contains(&choice).then_some(value)
    }
}

impl Conf {
    /// Returns the configuration with the pod's choices. Returns `None` if the pod has made no choice that is allowed.
    ///
    /// # Errors
    /// A value is wrong.
    pub fn chosen_by_pod(&self) -> Result<Option<Self>, Wrong> {
        let annotations = &self.pod_annotations;
        let mtu = annotations.allowed(Choice::Mtu).map(mtu).transpose()?;
        let rails = annotations.allowed(Choice::Rails).map(rails).transpose()?;
        if mtu.is_none() && rails.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            mtu: mtu.or(self.mtu),
            rails,
            ..self.clone()
        }))
    }
}

fn mtu(value: &Value) -> Result<u32, Wrong> {
    let number = value.as_str().and_then(|text| text.parse().ok());
    let valid = number.filter(|mtu| (68..=65535).contains(mtu));
    valid.ok_or_else(|| Choice::Mtu.wrong(value, "must be a whole number from 68 to 65535"))
}

/// Parses a list such as `0-3,6`.
fn rails(value: &Value) -> Result<BTreeSet<usize>, Wrong> {
    let few = |text: &str| range(text.trim()).filter(|it| *it.end() < RAILS);
    // limits the work: a pod may have 256 KiB of annotations, and each range may name all rails
    let text = value.as_str();
    let text = text.filter(|it| it.split(',').count() <= RAILS as usize);
    let ranges: Option<Vec<_>> = text.and_then(|it| it.split(',').map(few).collect());
    let ranges = ranges.ok_or_else(|| {
        Choice::Rails.wrong(
            value,
            "must be a list of at most 1000 rails and ascending ranges from 0 to 999, such as \"0-3,6\"",
        )
    })?;
    let mut rails = BTreeSet::new();
    rails.extend(ranges.into_iter().flatten().map(|rail| rail as usize));
    Ok(rails)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_protocol::ConfError;
    use serde_json::json;

    fn conf(allowed: &Value, annotations: &Value) -> Result<Conf, ConfError> {
        let conf = json!({
            "cniVersion": "1.1.0", "name": "net", "podAnnotations": allowed,
            "runtimeConfig": {ANNOTATIONS: annotations},
        });
        Conf::parse(conf.as_object().expect("an object").clone())
    }

    fn chosen(annotations: &Value) -> Result<Option<Conf>, ConfError> {
        let conf = conf(&json!(["mtu", "rails"]), annotations).expect("a configuration");
        Ok(conf.chosen_by_pod()?)
    }

    #[test]
    fn a_pod_chooses_what_it_may() {
        let conf = chosen(&json!({"hca.rdma/mtu": "4200", "hca.rdma/rails": "0-2, 6"}));
        let conf = conf.expect("valid").expect("chosen");
        assert_eq!(conf.mtu, Some(4200));
        assert_eq!(conf.rails, Some(BTreeSet::from([0, 1, 2, 6])));
        assert!(chosen(&json!({"other": "x"})).expect("valid").is_none());
        assert!(chosen(&Value::Null).expect("valid").is_none());
    }

    #[test]
    fn annotations_that_a_pod_may_not_choose_are_not_read() {
        let annotations = json!({"hca.rdma/mtu": "no", "hca.rdma/rails": "0"});
        let conf = conf(&json!(["rails"]), &annotations).expect("a configuration");
        assert_eq!(conf.pod_annotations.disallowed(), ["hca.rdma/mtu"]);
        let chosen = conf.chosen_by_pod().expect("valid").expect("chosen");
        assert_eq!(
            (chosen.mtu, chosen.rails),
            (None, Some(BTreeSet::from([0])))
        );
    }

    #[test]
    fn errors_are_reported() {
        for (annotation, value) in [
            ("mtu", json!("67")),
            ("mtu", json!("4k")),
            ("mtu", json!(4200)),
            ("rails", json!("")),
            ("rails", json!("3-1")),
            ("rails", json!("0,,1")),
            ("rails", json!("-1")),
            ("rails", json!("0-1000")),
            ("rails", json!([0])),
        ] {
            let name = format!("hca.rdma/{annotation}");
            let error = chosen(&json!({name.clone(): value})).expect_err("wrong");
            let message = error.to_string();
            let expected = format!("the pod's annotation {name}: {value} is not valid: must be");
            assert!(message.starts_with(&expected), "{message}");
        }
        // the error is short even for an annotation that names 40 million rails
        let many = "0-999,".repeat(40_000) + "0";
        let error = chosen(&json!({"hca.rdma/rails": many})).expect_err("too many");
        assert!(error.to_string().len() < 400);
        let error = conf(&json!(["vlan"]), &Value::Null).expect_err("unknown");
        assert!(error.to_string().starts_with("podAnnotations"), "{error}");
    }
}
