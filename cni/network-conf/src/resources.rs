// SPDX-License-Identifier: Apache-2.0
//! Field `resources`: names of the resources that kubelet allocates.

use super::{Devices, resource_name::broken_rule};
use conf_reader::{Field, Wrong};
use std::collections::BTreeSet;

/// Resources of a configuration that names none. Clusters commonly use these names.
const DEFAULT: [&str; 2] = ["rdma/hca", "aliyun/erdma"];

pub(super) fn by_default() -> Devices {
    Devices::Resources(DEFAULT.map(str::to_owned).into())
}

/// Reads the configured names. Returns `None` if no names are configured.
pub(super) fn parse(file: &Field<'_>) -> Result<Option<Vec<String>>, Wrong> {
    let field = file.at("resources");
    let Some(list) = file.get::<Vec<String>>("resources")? else {
        return Ok(None);
    };
    if list.is_empty() {
        return Err(field.wrong("must have at least one resource name"));
    }
    let mut names = field.each(list, |name, element| match broken_rule(&name) {
        Some(rule) => Err(element.wrong(rule)),
        None => Ok(name),
    })?;
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(value: Value) -> Result<Option<Vec<String>>, String> {
        let conf = json!({ "resources": value });
        let fields = conf.as_object().expect("an object");
        parse(&Field::root(fields)).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_kubelets() {
        let names = [
            "rdma/hca",
            "aliyun/erdma",
            "nvidia.com/mlnx-nics_1.x",
            "a/B",
        ];
        assert_eq!(
            read(json!(names)),
            Ok(Some(names.map(str::to_owned).into()))
        );
        for bad in [
            json!("hca"),
            json!("rdma/"),
            json!("/hca"),
            json!("rdma/h/ca"),
            json!("RDMA/hca"),
            json!("rdma/-hca"),
            json!("rdma./hca"),
            json!("kubernetes.io/hca"),
            json!("mykubernetes.io/hca"),
            json!("requests.rdma/hca"),
            json!(format!("{}/hca", "a".repeat(245))),
            json!(format!("rdma/{}", "a".repeat(64))),
            json!(17),
        ] {
            let error = read(json!(["rdma/hca", bad])).expect_err("refused");
            assert!(error.contains("resources[1]"), "{error}");
            assert!(error.contains(&bad.to_string()), "{error}");
        }
    }

    #[test]
    fn a_name_counts_once() {
        let twice = json!(["rdma/hca", "rdma/vf", "rdma/hca"]);
        let names = vec!["rdma/hca".to_owned(), "rdma/vf".to_owned()];
        assert_eq!(read(twice), Ok(Some(names)));
        assert_eq!(read(Value::Null), Ok(None));
        assert!(read(json!([])).is_err());
        assert!(read(json!("rdma/hca")).is_err());
    }
}
