// SPDX-License-Identifier: Apache-2.0
//! Parts of a ResourceClaim that a DRA driver needs.

use crate::parameters::{Parameters, Source};
use conf_reader::Wrong;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// Annotation of a claim that was made from a template (`PodResourceClaimAnnotation` in `resource/v1/types.go`).
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

/// Identity of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimName {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
    /// UID, which distinguishes claims with the same name.
    pub uid: String,
}

/// Formats the claim as `default/trainer-rdma-x7z9k`.
impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ClaimName {
    /// Returns true if the claim's UID can be part of a file name.
    pub fn has_plain_uid(&self) -> bool {
        is_plain(&self.uid)
    }
}

/// Returns true if `uid` has 1 to 128 letters, digits and hyphens, and nothing else, so that it cannot be a path. The
/// API server's UIDs are UUIDs.
pub(crate) fn is_plain(uid: &str) -> bool {
    let inner = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
    !uid.is_empty() && uid.len() <= 128 && uid.bytes().all(inner)
}

/// The part of a claim's allocation that belongs to one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Allocation results of the driver, in the order of the allocation.
    pub results: Vec<AllocationResult>,
    /// Pods that may use the claim.
    pub pods: Vec<PodReference>,
    /// Name of the claim in its pod; `None`: the claim was not made from a template.
    pub pod_claim: Option<String>,
}

/// Allocation result: one allocated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationResult {
    /// Request of the claim, without the name of a subrequest.
    pub request: String,
    /// Request with the name of its subrequest if it has one, such as `nic/fast`.
    pub full_request: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the device in the pool.
    pub device: String,
    /// Share id, which distinguishes several allocations of the device.
    pub share: Option<String>,
    /// True for administrative access (`adminAccess`). Other claims may have the device at the same time, and the
    /// device does not count as allocated.
    pub is_admins: bool,
    /// Parameters of the claim and of its class for this device.
    pub parameters: Parameters,
}

/// A pod for which a claim is reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReference {
    /// Name of the pod, in the claim's namespace.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

/// Reason why a claim cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A newer claim has the name of the requested claim.
    #[error("claim {claim} was replaced (uid {found:?}, not {:?}): its pod was created for the earlier claim", claim.uid)]
    Another {
        /// Claim that kubelet requested.
        claim: ClaimName,
        /// UID of the newer claim.
        found: String,
    },
    /// The claim has no devices of this driver on this node.
    #[error("claim {claim} was allocated no device of driver {driver} in pool {pool}")]
    Nothing {
        /// The claim.
        claim: ClaimName,
        /// Name of the driver.
        driver: String,
        /// Pool of the node.
        pool: String,
    },
    /// A parameter of the claim or of its class is wrong.
    #[error(
        "the parameters of claim {claim} or of its DeviceClass for driver {driver} are wrong: {wrong}"
    )]
    Parameters {
        /// The claim.
        claim: ClaimName,
        /// Name of the driver.
        driver: String,
        /// The wrong field.
        wrong: Box<Wrong>,
    },
    /// Two requests of the claim differ in parameters that apply to the whole pod.
    #[error(
        "the parameters of requests {} and {} of claim {claim} differ in a parameter other than rails, but a pod is \
         attached only once; set the same parameters in both", requests[0], requests[1]
    )]
    Contradiction {
        /// The claim.
        claim: ClaimName,
        /// Names of the two requests.
        requests: Box<[String; 2]>,
    },
}

impl Claim {
    /// Reads the devices of `driver` in `pool` that are allocated to a claim. `object` is the claim `name` in the API
    /// server.
    ///
    /// # Errors
    /// Another claim has the name, the claim has no device from `pool`, or its parameters are wrong or contradict each
    /// other.
    pub fn read(
        object: &Value,
        name: &ClaimName,
        driver: &str,
        pool: &str,
    ) -> Result<Self, ClaimError> {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if uid != name.uid {
            return Err(ClaimError::Another {
                claim: name.clone(),
                found: uid.to_owned(),
            });
        }
        let status = &object["status"];
        let results = list(&status["allocation"]["devices"]["results"]);
        let own = results.filter(|it| it["driver"] == driver && it["pool"] == pool);
        let mut results: Vec<AllocationResult> = own.filter_map(AllocationResult::read).collect();
        if results.is_empty() {
            return Err(ClaimError::Nothing {
                claim: name.clone(),
                driver: driver.to_owned(),
                pool: pool.to_owned(),
            });
        }
        let parameters = configured(&status["allocation"]["devices"]["config"], driver);
        for result in &mut results {
            let of_request = parameters
                .iter()
                .filter(|it| it.is_for(&result.full_request));
            for configured in of_request {
                let before = std::mem::take(&mut result.parameters);
                let read = Parameters::read(configured.parameters, configured.source, before);
                result.parameters = read.map_err(|wrong| ClaimError::Parameters {
                    claim: name.clone(),
                    driver: driver.to_owned(),
                    wrong: Box::new(wrong),
                })?;
            }
        }
        let first = &results[0];
        let is_another =
            |it: &&AllocationResult| it.parameters.attachment != first.parameters.attachment;
        if let Some(other) = results.iter().find(is_another) {
            return Err(ClaimError::Contradiction {
                claim: name.clone(),
                requests: Box::new([first, other].map(|it| it.request.clone())),
            });
        }
        let pods = list(&status["reservedFor"]).filter(|it| it["resource"] == "pods");
        let pods = pods.filter_map(|pod| {
            Some(PodReference {
                name: pod["name"].as_str()?.to_owned(),
                uid: pod["uid"].as_str()?.to_owned(),
            })
        });
        Ok(Self {
            results,
            pods: pods.collect(),
            pod_claim: object["metadata"]["annotations"][POD_CLAIM]
                .as_str()
                .map(str::to_owned),
        })
    }
}

impl AllocationResult {
    fn read(result: &Value) -> Option<Self> {
        let text = |field: &str| result[field].as_str().map(str::to_owned);
        let request = text("request")?;
        Some(Self {
            request: base(&request).to_owned(),
            full_request: request,
            pool: text("pool")?,
            device: text("device")?,
            share: text("shareID"),
            is_admins: result["adminAccess"] == true,
            parameters: Parameters::default(),
        })
    }
}

/// Returns the request without the name of a subrequest. Kubelet uses only the request's name (`BaseRequestRef`).
fn base(request: &str) -> &str {
    request.split('/').next().unwrap_or_default()
}

/// Parameters, and the requests to which they apply.
struct Configured<'a> {
    source: Source,
    /// Names of the requests; empty: all requests.
    requests: Vec<&'a str>,
    parameters: &'a Value,
}

impl Configured<'_> {
    /// Returns true if the parameters apply to `request`. The parameters of a request also apply to all its
    /// subrequests.
    fn is_for(&self, request: &str) -> bool {
        let is_it = |it: &&str| *it == request || *it == base(request);
        self.requests.is_empty() || self.requests.iter().any(is_it)
    }
}

/// Returns the parameters of `driver` in `config`. The parameters of classes come first, because the parameters of
/// claims override them.
fn configured<'a>(config: &'a Value, driver: &str) -> Vec<Configured<'a>> {
    let own = list(config).filter(|it| it["opaque"]["driver"] == driver);
    let of = |it: &'a Value| Configured {
        source: match it["source"] == "FromClass" {
            true => Source::Class,
            false => Source::Claim,
        },
        requests: list(&it["requests"]).filter_map(Value::as_str).collect(),
        parameters: &it["opaque"]["parameters"],
    };
    let mut own: Vec<_> = own.map(of).collect();
    own.sort_by_key(|it| it.source);
    own
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn name() -> ClaimName {
        ClaimName {
            namespace: "default".into(),
            name: "a".into(),
            uid: "u-1".into(),
        }
    }

    fn object(results: Value) -> Value {
        json!({
            "metadata": {"uid": "u-1"},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [
                    {"resource": "pods", "name": "a", "uid": "p-1"},
                    {"apiGroup": "example.org", "resource": "jobs", "name": "b", "uid": "j-1"},
                ],
            },
        })
    }

    #[test]
    fn only_the_drivers_results_are_read() {
        let ours = json!({"request": "nic/fast", "driver": "hca.rdma", "pool": "n", "device": "d", "shareID": "s"});
        let gpu =
            json!({"request": "gpu", "driver": "gpu.example.org", "pool": "n", "device": "g"});
        let elsewhere =
            json!({"request": "nic", "driver": "hca.rdma", "pool": "other", "device": "d"});
        let claim = object(json!([gpu, ours, elsewhere]));
        let claim = Claim::read(&claim, &name(), "hca.rdma", "n").expect("a claim");
        let expected = AllocationResult {
            request: "nic".into(),
            full_request: "nic/fast".into(),
            pool: "n".into(),
            device: "d".into(),
            share: Some("s".into()),
            is_admins: false,
            parameters: Parameters::default(),
        };
        assert_eq!(claim.results, [expected]);
        let pods: Vec<&str> = claim.pods.iter().map(|it| &*it.name).collect();
        assert_eq!(pods, ["a"]);
    }

    /// Parameters of a claim override parameters of its class, and later parameters override earlier ones. Parameters
    /// of another subrequest do not apply.
    #[test]
    fn parameters_are_those_of_the_request() {
        let result = |request: &str| json!({"request": request, "driver": "hca.rdma", "pool": "n", "device": request});
        let configured = |source: &str, requests: Value, fields: Value| {
            let mut parameters =
                json!({"apiVersion": "hca.rdma/v1alpha1", "kind": "AttachmentParameters"});
            for (name, value) in fields.as_object().expect("an object") {
                parameters[name] = value.clone();
            }
            let opaque = json!({"driver": "hca.rdma", "parameters": parameters});
            json!({"source": source, "requests": requests, "opaque": opaque})
        };
        let gpu = json!({"source": "FromClaim", "opaque": {"driver": "gpu.example.org", "parameters": {"x": 1}}});
        let claim = |config: Value| {
            let mut claim = object(json!([result("a/fast"), result("b")]));
            claim["status"]["allocation"]["devices"]["config"] = config;
            Claim::read(&claim, &name(), "hca.rdma", "n")
        };
        let found = claim(json!([
            configured("FromClaim", json!([]), json!({"mtu": 1500})),
            configured(
                "FromClass",
                json!(["a", "b"]),
                json!({"mtu": 9000, "smcr": true})
            ),
            configured("FromClaim", json!(["a/fast"]), json!({"rails": [1]})),
            configured("FromClaim", json!(["a/slow", "b"]), json!({"rails": [0]})),
            configured("FromClaim", json!(["b"]), json!({"rails": [2]})),
            gpu,
        ]));
        let found = found.expect("a claim");
        let rails = found.results.iter().map(|it| it.parameters.rails.clone());
        assert_eq!(
            rails.collect::<Vec<_>>(),
            [Some([1].into()), Some([2].into())]
        );
        for result in &found.results {
            let attachment = &result.parameters.attachment;
            assert_eq!((attachment.mtu, attachment.smcr), (Some(1500), Some(true)));
        }

        for (config, words) in [
            (
                configured("FromClass", json!(["b"]), json!({"mtu": 1500})),
                "the parameters of requests a and b of claim default/a differ in a parameter other than rails, \
                 but a pod is attached only once; set the same parameters in both",
            ),
            (
                configured("FromClass", json!([]), json!({"mtu": 15})),
                "the parameters of claim default/a or of its DeviceClass for driver hca.rdma are wrong: mtu: must be",
            ),
            (
                configured("FromClaim", json!([]), json!({"mode": "share"})),
                "the parameters of claim default/a or of its DeviceClass for driver hca.rdma are wrong: mode: is \
                 allowed only in a DeviceClass",
            ),
        ] {
            let error = claim(json!([config])).expect_err(words).to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn invalid_claims_are_refused() {
        let mut another = object(json!([]));
        another["metadata"]["uid"] = json!("u-2");
        for (claim, words) in [
            (another, "was replaced"),
            (object(json!([])), "no device of driver hca.rdma in pool n"),
            (object(json!("text")), "no device of driver"),
            (json!({"metadata": {"uid": "u-1"}}), "no device of driver"),
            (json!(null), "was replaced"),
        ] {
            let error = Claim::read(&claim, &name(), "hca.rdma", "n").expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_uid_is_no_path() {
        for (uid, expected) in [
            ("0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11", true),
            ("", false),
            ("../../etc/passwd", false),
            ("a/b", false),
            ("a.json", false),
        ] {
            let claim = ClaimName {
                uid: uid.into(),
                ..name()
            };
            assert_eq!(claim.has_plain_uid(), expected, "{uid}");
        }
    }
}
