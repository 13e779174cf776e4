// SPDX-License-Identifier: Apache-2.0
//! A ResourceClaim, as far as a driver needs it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// Which claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The API server's id of it: another claim can get its name.
    pub uid: String,
}

/// `default/trainer-rdma-x7z9k`
impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ClaimName {
    /// Whether its uid can be part of a file's name.
    pub fn has_plain_uid(&self) -> bool {
        is_plain(&self.uid)
    }
}

/// Whether `uid` is what an API server makes (a UUID), and no path.
pub(crate) fn is_plain(uid: &str) -> bool {
    let inner = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
    !uid.is_empty() && uid.len() <= 128 && uid.bytes().all(inner)
}

/// What a claim was allocated of one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The driver's results, in the order of the allocation.
    pub results: Vec<AllocationResult>,
    /// The pods that may use it.
    pub pods: Vec<PodReference>,
}

/// One device that was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationResult {
    /// The claim's request, without the name of a subrequest.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device's name in it.
    pub device: String,
    /// Which of several allocations of the device.
    pub share: Option<String>,
}

/// A pod that a claim is reserved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReference {
    /// Its name; its namespace is the claim's.
    pub name: String,
    /// The API server's id of it.
    pub uid: String,
}

/// A claim cannot be prepared as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another one.
    #[error("claim {claim} is another one now (uid {found:?}, not {:?}): its pod was made for one that is gone", claim.uid)]
    Another {
        /// The one that was asked for.
        claim: ClaimName,
        /// The uid of the one that is there.
        found: String,
    },
    /// It has no devices of this driver on this node.
    #[error("claim {claim} was allocated no device of driver {driver} in pool {pool}")]
    Nothing {
        /// The claim.
        claim: ClaimName,
        /// The driver.
        driver: String,
        /// The node's pool.
        pool: String,
    },
}

impl Claim {
    /// Of `object`, which the API server has as `name`, what is `driver`'s and of the pool `pool`.
    ///
    /// # Errors
    /// It is another claim; nothing of it is of that pool.
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
        let results: Vec<AllocationResult> = own.filter_map(AllocationResult::read).collect();
        if results.is_empty() {
            return Err(ClaimError::Nothing {
                claim: name.clone(),
                driver: driver.to_owned(),
                pool: pool.to_owned(),
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
        })
    }
}

impl AllocationResult {
    fn read(result: &Value) -> Option<Self> {
        let text = |field: &str| result[field].as_str().map(str::to_owned);
        let request = text("request")?;
        Some(Self {
            // kubelet asks by the request alone (`BaseRequestRef`)
            request: request.split('/').next().unwrap_or_default().to_owned(),
            pool: text("pool")?,
            device: text("device")?,
            share: text("shareID"),
        })
    }
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
    fn what_is_ours_is_read_and_nothing_else() {
        let ours = json!({"request": "nic/fast", "driver": "hca.rdma", "pool": "n", "device": "d", "shareID": "s"});
        let gpu =
            json!({"request": "gpu", "driver": "gpu.example.org", "pool": "n", "device": "g"});
        let elsewhere =
            json!({"request": "nic", "driver": "hca.rdma", "pool": "other", "device": "d"});
        let claim = object(json!([gpu, ours, elsewhere]));
        let claim = Claim::read(&claim, &name(), "hca.rdma", "n").expect("a claim");
        let expected = AllocationResult {
            request: "nic".into(),
            pool: "n".into(),
            device: "d".into(),
            share: Some("s".into()),
        };
        assert_eq!(claim.results, [expected]);
        let pods: Vec<&str> = claim.pods.iter().map(|it| &*it.name).collect();
        assert_eq!(pods, ["a"]);
    }

    #[test]
    fn nonsense_is_refused_in_a_sentence() {
        let mut another = object(json!([]));
        another["metadata"]["uid"] = json!("u-2");
        for (claim, words) in [
            (another, "is another one now"),
            (object(json!([])), "no device of driver hca.rdma in pool n"),
            (object(json!("text")), "no device of driver"),
            (json!({"metadata": {"uid": "u-1"}}), "no device of driver"),
            (json!(null), "is another one now"),
        ] {
            let error = Claim::read(&claim, &name(), "hca.rdma", "n").expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_uid_leads_nowhere() {
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
