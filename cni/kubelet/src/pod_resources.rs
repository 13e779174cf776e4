//! What kubelet allocated to a pod's containers.

#[expect(
    missing_docs,
    reason = "generated code; proto/pod_resources.proto says what it is"
)]
pub mod v1 {
    tonic::include_proto!("v1");
}

use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Error as TransportError},
};
use v1::{
    GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
    pod_resources_lister_client::PodResourcesListerClient,
};

/// As kubelet's own clients have it (`podresources.MaxMessageSize`, 16 MiB): a list is of all pods.
const LARGEST_ANSWER: usize = 16 << 20;

/// Kubelet could not be asked. All of these pass: it starts, or is busy.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers at the socket.
    #[error("kubelet does not answer at {socket:?}: {source}")]
    Away {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: TransportError,
    },
    /// It refused.
    #[error("kubelet at {socket:?} answered {}: {}", status.code(), status.message())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Its answer.
        status: Status,
    },
    /// It did not answer in time.
    #[error("kubelet at {socket:?} did not answer within {limit:?}")]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for.
        limit: Duration,
    },
    /// A question could not be asked at all.
    #[error("cannot start the runtime of a gRPC call: {0}")]
    Runtime(std::io::Error),
}

/// What kubelet allocated to the pod's containers. None: kubelet does not know the pod (yet).
///
/// `Get` is asked first, for one pod; where kubelet has it turned off, `List`. Containers that
/// init containers alone share their devices with are not told by kubelet: an init container
/// counts only if it restarts (a sidecar).
pub async fn of_pod(
    socket: &Path,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<PodResources>, AskError> {
    within(socket, limit, async {
        let mut client = connect(socket).await?;
        let request = GetPodResourcesRequest {
            pod_name: name.to_owned(),
            pod_namespace: namespace.to_owned(),
        };
        match client.get(request).await {
            Ok(answer) => Ok(answer.into_inner().pod_resources),
            // kubelet has no code of its own for "turned off" and for "no such pod"
            Err(status) if matches!(status.code(), Code::Unimplemented | Code::Unknown) => {
                let pods = list(socket, &mut client).await?;
                let is_it = |pod: &PodResources| pod.name == name && pod.namespace == namespace;
                Ok(pods.into_iter().find(is_it))
            }
            Err(status) => Err(refused(socket, status)),
        }
    })
    .await
}

/// The same, from a program without a runtime: all that is made for it is gone again when it
/// returns.
pub fn of_pod_blocking(
    socket: &Path,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<PodResources>, AskError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AskError::Runtime)?
        .block_on(of_pod(socket, namespace, name, limit))
}

/// What kubelet allocated to all pods of the node.
pub async fn all(socket: &Path, limit: Duration) -> Result<Vec<PodResources>, AskError> {
    within(socket, limit, async {
        let mut client = connect(socket).await?;
        list(socket, &mut client).await
    })
    .await
}

async fn within<T>(
    socket: &Path,
    limit: Duration,
    question: impl Future<Output = Result<T, AskError>>,
) -> Result<T, AskError> {
    let answer = tokio::time::timeout(limit, question).await;
    answer.unwrap_or_else(|_| {
        Err(AskError::Silent {
            socket: socket.to_owned(),
            limit,
        })
    })
}

async fn connect(socket: &Path) -> Result<PodResourcesListerClient<Channel>, AskError> {
    let away = |source| AskError::Away {
        socket: socket.to_owned(),
        source,
    };
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(away)?;
    let channel = endpoint.connect().await.map_err(away)?;
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
}

async fn list(
    socket: &Path,
    client: &mut PodResourcesListerClient<Channel>,
) -> Result<Vec<PodResources>, AskError> {
    let answer = client.list(ListPodResourcesRequest {}).await;
    let answer = answer.map_err(|status| refused(socket, status))?;
    Ok(answer.into_inner().pod_resources)
}

fn refused(socket: &Path, status: Status) -> AskError {
    AskError::Refused {
        socket: socket.to_owned(),
        status,
    }
}
