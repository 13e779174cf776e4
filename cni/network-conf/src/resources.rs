// SPDX-License-Identifier: Apache-2.0
//! Field `resources`: names of the resources that kubelet allocates.

use super::Devices;
use conf_reader::{Field, Wrong};
use serde_json::Value;

/// Resources of a configuration that names none. Clusters commonly use these names.
const DEFAULT: [&str; 2] = ["rdma/hca", "aliyun/erdma"];

/// Largest length of a name's part before the slash, bytes (`validation.IsDNS1123Subdomain`,
/// `k8s.io/apimachinery/pkg/util/validation`).
const LONGEST_PREFIX: usize = 253;
/// Largest length of a name's part after the slash, bytes (`IsQualifiedName`, same package).
const LONGEST_NAME: usize = 63;

pub(super) fn by_default() -> Devices {
    Devices::Resources(DEFAULT.map(str::to_owned).into())
}

/// Reads the configured names. Returns `None` if no names are configured.
pub(super) fn parse(file: &Field<'_>) -> Result<Option<Vec<String>>, Wrong> {
    let field = file.at("resources");
    let list = field.list()?;
    if list.is_empty() {
        return match field.is_there() {
            true => Err(field.wrong("must have at least one resource name")),
            false => Ok(None),
        };
    }
    let mut names: Vec<String> = vec![];
    for field in list {
        let name = field.value().and_then(Value::as_str);
        let name = name.filter(|name| is_resource_name(name)).ok_or_else(|| {
            field.wrong(
                "must be the name of an extended resource, such as \"rdma/hca\": a DNS name in lower case (not \
                 kubernetes.io or its subdomains), a slash, and up to 63 letters, digits and - _ . (- _ . not first or \
                 last)",
            )
        })?;
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Ok(Some(names))
}

/// Returns true if `text` is a valid name of a resource (`IsExtendedResourceName`,
/// `k8s.io/kubernetes/pkg/apis/core/v1/helper`).
fn is_resource_name(text: &str) -> bool {
    let Some((prefix, name)) = text.split_once('/') else {
        return false;
    };
    let small = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| framed(label, small, |b| b == b'-');
    prefix.len() <= LONGEST_PREFIX
        && prefix.split('.').all(is_label)
        && prefix != "kubernetes.io"
        && !prefix.ends_with(".kubernetes.io")
        && name.len() <= LONGEST_NAME
        && framed(name, |b| b.is_ascii_alphanumeric(), |b| b"-_.".contains(&b))
}

/// Returns true if the first and last byte of `text` are accepted by `outer`, and the bytes between them by
/// `outer` or `inner`.
fn framed(text: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|it| it.is_some_and(|b| outer(*b)))
        && bytes.iter().all(|b| outer(*b) || inner(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
