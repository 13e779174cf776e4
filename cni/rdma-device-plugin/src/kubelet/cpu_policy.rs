//! Whether kubelet gives containers CPUs of their own: only then has a device a near one.
//!
//! Its CPU manager keeps `cpu_manager_state` (`pkg/kubelet/cm/cpumanager/state` in Kubernetes), which
//! says what is in force; `config.yaml` is where kubeadm and others put what is configured.

use crate::{
    conf::{Allocate, Ids},
    offer::Offer,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

const STATIC: &str = "static";

/// What to say where an offer is for containers that have CPUs of their own, and kubelet's give none.
pub async fn remark(offers: &[Offer], kubelet_dir: &Path) -> Option<String> {
    let is_aligned = |offer: &&Offer| {
        let allocate = match offer.kind {
            Ids::Shared { allocate, .. } | Ids::PerNic { allocate, .. } => Some(allocate),
            Ids::Exclusive => None,
        };
        // with one device there is nothing to choose
        allocate == Some(Allocate::Numa) && offer.devices.len() > 1
    };
    let names: Vec<&str> = offers
        .iter()
        .filter(is_aligned)
        .map(|it| it.name.as_str())
        .collect();
    if names.is_empty() {
        return None;
    }
    let directory = kubelet_dir.to_owned();
    let found = tokio::task::spawn_blocking(move || policy(&directory)).await;
    match found.ok().flatten() {
        None => {
            log::debug!("kubelet's CPU policy is not known");
            None
        }
        Some(policy) if policy == STATIC => None,
        Some(policy) => Some(format!(
            "{}: a device near a container's CPUs is allocated only with kubelet's static CPU \
             policy (cpuManagerPolicy: static), and it is {policy}",
            names.join(", ")
        )),
    }
}

/// The policy's name; none: neither file says.
fn policy(kubelet_dir: &Path) -> Option<String> {
    let read = |file: &str| fs::read_to_string::<PathBuf>(kubelet_dir.join(file)).ok();
    let state = || -> Option<String> {
        let state: Value = serde_json::from_str(&read("cpu_manager_state")?).ok()?;
        Some(state.get("policyName")?.as_str()?.to_owned())
    };
    let config = || -> Option<String> {
        let config: Value = serde_saphyr::from_str(&read("config.yaml")?).ok()?;
        let named = config.get("cpuManagerPolicy").and_then(Value::as_str);
        // kubelet's default (`SetDefaults_KubeletConfiguration`)
        Some(
            named
                .filter(|it| !it.is_empty())
                .unwrap_or("none")
                .to_owned(),
        )
    };
    state().filter(|it| !it.is_empty()).or_else(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_comes_before_what_is_configured() {
        for (state, config, wanted) in [
            (
                Some(r#"{"policyName":"static","checksum":1}"#),
                None,
                Some("static"),
            ),
            (
                Some(r#"{"policyName":"none"}"#),
                Some("cpuManagerPolicy: static"),
                Some("none"),
            ),
            (Some("{"), Some("cpuManagerPolicy: static"), Some("static")),
            (None, Some("kind: KubeletConfiguration"), Some("none")),
            (None, Some("- [odd"), None),
            (None, None, None),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            for (file, text) in [("cpu_manager_state", state), ("config.yaml", config)] {
                if let Some(text) = text {
                    fs::write(directory.path().join(file), text).expect("written");
                }
            }
            let found = policy(directory.path());
            assert_eq!(found.as_deref(), wanted, "{state:?} {config:?}");
        }
    }
}
