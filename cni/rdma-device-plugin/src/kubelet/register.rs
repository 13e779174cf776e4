// SPDX-License-Identifier: Apache-2.0
//! One registration with kubelet, and the delay before the next attempt after a failure. The plugin registers only at
//! `kubelet.sock`, which every version of kubelet has.
//!
//! The plugin does not use kubelet's plugin watcher in addition. Kubelet would then make a second client with a second
//! stream, but keep one endpoint for both (`devicemanager/manager.go`). When one of the two clients ends, kubelet would
//! stop the endpoint permanently.

use super::service::OPTIONS;
use daemon_conf::ResourceName;
use kubelet_api::device_plugin::{
    RegisterRequest, VERSION, registration_client::RegistrationClient,
};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    path::Path,
    time::Duration,
};
use tonic::{Status, transport::Endpoint};

/// Time limit for a plugin's registration. Kubelet connects to the plugin, and then answers.
pub const LIMIT: Duration = Duration::from_secs(3);

/// Beginning of kubelet's error for a socket from which it already has a stream (1.37).
const ALREADY_CONNECTED: &str = "device plugin already connected";

/// Shortest and longest delay between attempts, without the random variation. A new socket of kubelet may refuse
/// connections for a moment.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Reason why a registration failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Kubelet's socket does not accept the connection.
    #[error("kubelet does not answer at {socket}: {}", root_cause(.source))]
    Away {
        /// Path of kubelet's socket.
        socket: String,
        /// Error of the connection.
        source: tonic::transport::Error,
    },
    /// Kubelet refuses to register the resource.
    #[error("kubelet refuses: {}", .0.message())]
    Refused(Box<Status>),
    /// Kubelet already has a stream from the same socket (`PluginConnected` in `devicemanager/manager.go`, 1.37).
    #[error("kubelet is already connected to this socket")]
    Known,
    /// Kubelet did not answer within the time limit.
    #[error("kubelet did not answer within {0:?}")]
    Silent(Duration),
}

/// Returns the innermost cause of an error. The outer errors only say that the connection failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Registers `resource` with the kubelet at the socket `kubelet`. The plugin listens at the socket `endpoint` in the
/// same directory.
///
/// # Errors
/// Kubelet is absent, does not answer within `limit`, or refuses the registration.
pub async fn register(
    kubelet: &Path,
    resource: &ResourceName,
    endpoint: &str,
    limit: Duration,
) -> Result<(), RegisterError> {
    let request = RegisterRequest {
        version: VERSION.into(),
        endpoint: endpoint.into(),
        resource_name: resource.to_string(),
        options: Some(OPTIONS),
    };
    let call = async {
        let socket = format!("unix://{}", kubelet.display());
        let away = |source| RegisterError::Away {
            socket: kubelet.display().to_string(),
            source,
        };
        let endpoint = Endpoint::from_shared(socket).map_err(away)?;
        let channel = endpoint.connect().await.map_err(away)?;
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map(|_| ()).map_err(|status| match status.message() {
            known if known.starts_with(ALREADY_CONNECTED) => RegisterError::Known,
            _ => RegisterError::Refused(Box::new(status)),
        })
    };
    let answer = tokio::time::timeout(limit, call).await;
    answer.unwrap_or(Err(RegisterError::Silent(limit)))
}

/// Returns the delay after `failures` successive failures. The delay doubles with each failure up to a limit. It varies
/// by up to a quarter, so that a node's resources do not all register at the same time.
pub fn back_off(failures: u32) -> Duration {
    let (first, longest) = BACK_OFF;
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let random = RandomState::new().build_hasher().finish() % 1000;
    let share = u32::try_from(750 + random / 2).unwrap_or(1000);
    doubled.min(longest).saturating_mul(share) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_to_a_limit() {
        for (failures, about) in [(1, 100), (2, 200), (3, 400), (7, 6400), (40, 10_000)] {
            let wait = back_off(failures).as_millis();
            let (least, most) = (about * 3 / 4, about * 5 / 4);
            assert!((least..=most).contains(&wait), "{failures}: {wait} ms");
        }
    }
}
