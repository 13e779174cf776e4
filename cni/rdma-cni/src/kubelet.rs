// SPDX-License-Identifier: Apache-2.0
//! Determines the devices that kubelet allocated to a pod. Kubelet reports the ids. The daemon's files contain the
//! devices of each id.

use attachments::Id;
use cni_protocol::Environment;
use dra::{Claims, Record};
use kubelet_api::pod_resources::{self, AskError, v1::PodResources};
use network_conf::Conf;
use plan::allocation::{self, AllocationError, Meaning};
use rdma_resources::{FileError, Grants, Published};
use std::{cell::OnceCell, io::ErrorKind, time::Duration};

/// Time limit for kubelet's answer, for all tries together. The pod's sandbox waits meanwhile. After a failure kubelet
/// creates the sandbox again.
const LIMIT: Duration = Duration::from_secs(2);

/// Reason why kubelet's allocation is not available.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// `CNI_ARGS` does not name the pod.
    #[error(
        "deviceID and devices are missing, and rdma-cni cannot query the pod's devices from kubelet: CNI_ARGS does \
         not name the pod (K8S_POD_NAMESPACE, K8S_POD_NAME); without Kubernetes, name the devices by deviceID or \
         devices"
    )]
    Nameless,
    /// Kubelet did not answer, or refused the request.
    #[error("{source}{}", if source.passes() { "; try again" } else { REMEDY })]
    Ask {
        /// Reason.
        source: AskError,
    },
    /// Kubelet does not know the pod.
    #[error(
        "kubelet at {socket:?} does not know pod {pod}: kubelet has just started, or another program made the pod; try \
         again, or name the devices of such a program's pods by deviceID or devices"
    )]
    Unknown {
        /// Path of kubelet's socket.
        socket: std::path::PathBuf,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// A file of the daemon cannot be read.
    #[error("{0}{remedy}", remedy = if .0.kind() == ErrorKind::Unsupported { SAME_VERSION } else { ALLOCATE_AGAIN })]
    File(#[from] FileError),
    /// An id leads to no device.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
}

const SAME_VERSION: &str = "; install that release of rdma-cni, too";

const ALLOCATE_AGAIN: &str = "; rdma-device-plugin writes this file: delete the pod, so that kubelet allocates devices \
                              again; if that is not enough, restart the daemon";

const REMEDY: &str =
    "; set podResourcesSocket to kubelet's socket, or name the devices by deviceID or devices";

/// Returns the pod's ids of `resources` with their devices, in the order of `resources`. The ids come from device
/// plugins and from claims.
pub fn allocated(
    conf: &Conf,
    environment: &Environment,
    resources: &[String],
) -> Result<Vec<Meaning>, KubeletError> {
    let pod = pod(conf, environment)?;
    let mut meanings = meanings(conf, &allocation::ids(&pod, resources))?;
    let claims = Claims::new(&conf.state_dir);
    let mut records = prepared_for(environment, &claims);
    let mut devices = allocation::claims(&pod);
    for device in records.iter().flat_map(allocation::of_record) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    for device in &devices {
        if !records.iter().any(|it| it.claim.uid == device.uid) {
            records.extend(claims.read(&device.uid)?);
        }
    }
    for device in devices {
        let is_its = |it: &&Record| it.claim.uid == device.uid && it.driver == device.driver;
        let Some(record) = records.iter().find(is_its) else {
            log::debug!(
                "claim {}: ignoring the device of driver {}",
                device.uid,
                device.driver
            );
            continue;
        };
        meanings.extend(allocation::of_claim(&device, record, resources));
    }
    let mut in_order = vec![];
    for resource in resources {
        in_order.extend(meanings.extract_if(.., |it| it.id.resource == *resource));
    }
    Ok(in_order)
}

/// Returns the claims that the daemon prepared for the pod. Kubelet's answer lacks claims that are used only by init
/// containers other than sidecars.
fn prepared_for(environment: &Environment, claims: &Claims) -> Vec<Record> {
    let Some(uid) = environment.args.get("K8S_POD_UID") else {
        return vec![];
    };
    let (records, unreadable) = claims.of_pod(uid);
    for error in unreadable {
        // without the record, ADD cannot write the CDI specification, which the claim's containers need to start
        log::warn!("pod {uid}: {error}; containers with this claim do not start");
    }
    records
}

/// Queries kubelet for the pod's resources.
fn pod(conf: &Conf, environment: &Environment) -> Result<PodResources, KubeletError> {
    let name = |key: &str| environment.args.get(key).filter(|text| !text.is_empty());
    let (Some(namespace), Some(name)) = (name("K8S_POD_NAMESPACE"), name("K8S_POD_NAME")) else {
        return Err(KubeletError::Nameless);
    };
    let socket = &conf.pod_resources_socket;
    pod_resources::of_pod_blocking(socket, namespace, name, LIMIT)
        .map_err(|source| KubeletError::Ask { source })?
        .ok_or_else(|| KubeletError::Unknown {
            socket: socket.clone(),
            pod: format!("{namespace}/{name}"),
        })
}

/// Resolves the ids to devices. Reads the published resources only if an id has no grant.
fn meanings(conf: &Conf, ids: &[Id]) -> Result<Vec<Meaning>, KubeletError> {
    let grants = Grants::new(&conf.state_dir);
    let published = OnceCell::new();
    let meaning = |id: &Id| {
        let grant = grants.read(&id.resource, &id.id)?;
        if grant.is_none() && published.get().is_none() {
            let _ = published.set(Published::read(&conf.state_dir)?);
        }
        let published = published.get().and_then(Option::as_ref);
        let meaning = allocation::meaning(id, grant, published)?;
        log::debug!("{id}: {:?}, {:?}", meaning.devices, meaning.sharing);
        Ok(meaning)
    };
    ids.iter().map(meaning).collect()
}
