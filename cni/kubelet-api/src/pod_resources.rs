// SPDX-License-Identifier: Apache-2.0
//! The devices that kubelet allocated to a pod's containers.

#[expect(
    missing_docs,
    rustdoc::invalid_html_tags,
    reason = "generated code; proto/pod_resources.proto documents it"
)]
pub mod v1 {
    tonic::include_proto!("v1");
}

use std::{
    error::Error,
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixStream, time::Instant};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Error as TransportError},
};
use v1::{
    GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
    pod_resources_lister_client::PodResourcesListerClient,
};

/// Largest response, bytes: the limit of kubelet's own clients (`podresources.MaxMessageSize`, 16 MiB). A response to
/// `List` has all pods of the node.
const LARGEST_ANSWER: usize = 16 << 20;

/// Pause after a brief failure, before the client repeats the request.
const PAUSE: Duration = Duration::from_millis(50);

/// A request to kubelet failed. [`Self::passes`] returns true if the failure is temporary.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the socket.
    #[error("kubelet does not answer at {socket:?}: {source}")]
    Away {
        /// Path of the socket.
        socket: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The socket does not exist, or cannot be used.
    #[error("kubelet's pod-resources socket {socket:?} cannot be used: {source}")]
    NoSocket {
        /// Path of the socket.
        socket: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Kubelet refused the request.
    #[error("kubelet at {socket:?} answered {}: {}", status.code(), status.message())]
    Refused {
        /// Path of the socket.
        socket: PathBuf,
        /// Status that kubelet returned.
        status: Status,
    },
    /// Kubelet did not answer within the limit.
    #[error("kubelet at {socket:?} did not answer within {limit:?}")]
    Silent {
        /// Path of the socket.
        socket: PathBuf,
        /// Time limit.
        limit: Duration,
    },
    /// The client cannot make its event loop.
    #[error("cannot make an event loop (epoll) for a request to kubelet: {0}")]
    Runtime(std::io::Error),
}

impl AskError {
    /// Returns true if a later request can succeed: kubelet is restarting, is busy, or exceeded the time limit, or the
    /// client's runtime could not start. A path without a socket is a permanent failure, because an ended kubelet
    /// leaves its socket file until the next kubelet makes a new one.
    pub fn passes(&self) -> bool {
        match self {
            Self::Away { .. } | Self::Silent { .. } | Self::Runtime(_) => true,
            Self::NoSocket { .. } => false,
            Self::Refused { status, .. } => !matches!(
                status.code(),
                Code::Unimplemented | Code::PermissionDenied | Code::Unauthenticated
            ),
        }
    }
}

/// Returns the devices that kubelet allocated to the pod's containers. Returns `None` if kubelet does not have the pod
/// (yet).
///
/// The client first calls `Get` for the pod. If kubelet does not have the pod, or `Get` is switched off, the client
/// calls `List`, because kubelet can report both with the same status. The client repeats the request until `limit` in
/// two cases: kubelet is unavailable because it is restarting, or kubelet limits the rate of requests (100 a second,
/// `pkg/kubelet/apis/grpc/ratelimit.go`).
///
/// The result includes restartable init containers (sidecars). Kubelet does not report other init containers, because
/// it allocates their devices again to later containers.
pub async fn of_pod(
    socket: &Path,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<PodResources>, AskError> {
    retry(socket, limit, || get_or_list(socket, namespace, name)).await
}

/// Repeats a request until `limit` while kubelet is unavailable or limits the rate. If `limit` ends during a request,
/// returns kubelet's refusal of the previous request, or [`AskError::Silent`] if kubelet did not refuse it.
async fn retry<T, A: Future<Output = Result<T, AskError>>>(
    socket: &Path,
    limit: Duration,
    request: impl Fn() -> A,
) -> Result<T, AskError> {
    let deadline = Instant::now() + limit;
    let mut refusal = None;
    let attempts = async {
        loop {
            match request().await {
                Err(error) if is_brief(&error) && Instant::now() + PAUSE < deadline => {
                    refusal = matches!(error, AskError::Refused { .. }).then_some(error);
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    };
    match within(socket, limit, attempts).await {
        Err(AskError::Silent { socket, limit }) => {
            Err(refusal.unwrap_or(AskError::Silent { socket, limit }))
        }
        answer => answer,
    }
}

async fn get_or_list(
    socket: &Path,
    namespace: &str,
    name: &str,
) -> Result<Option<PodResources>, AskError> {
    let mut client = connect(socket).await?;
    let request = GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: namespace.to_owned(),
    };
    match client.get(request).await {
        Ok(answer) => Ok(answer.into_inner().pod_resources),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        // kubelet returns Unknown both for a disabled `Get` and for a pod that does not exist
        Err(status) if matches!(status.code(), Code::Unimplemented | Code::Unknown) => {
            let pods = list(socket, &mut client).await?;
            let is_it = |pod: &PodResources| pod.name == name && pod.namespace == namespace;
            Ok(pods.into_iter().find(is_it))
        }
        Err(status) => Err(refused(socket, status)),
    }
}

/// Returns true if the failure can end within moments. The client then repeats the request.
fn is_brief(error: &AskError) -> bool {
    match error {
        AskError::Away { .. } => true,
        AskError::NoSocket { source, .. } => source.kind() == io::ErrorKind::NotFound,
        AskError::Refused { status, .. } => {
            matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)
        }
        AskError::Silent { .. } | AskError::Runtime(_) => false,
    }
}

/// Checks that a process listens at the socket. Sends no request.
pub fn probe_blocking(socket: &Path, limit: Duration) -> Result<(), AskError> {
    blocking(within(socket, limit, async {
        let stream = UnixStream::connect(socket).await;
        stream.map(|_| ()).map_err(|error| away(socket, error))
    }))
}

/// Returns the devices like [`of_pod`], for a program without a tokio runtime.
pub fn of_pod_blocking(
    socket: &Path,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<PodResources>, AskError> {
    blocking(of_pod(socket, namespace, name, limit))
}

fn blocking<T>(question: impl Future<Output = Result<T, AskError>>) -> Result<T, AskError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AskError::Runtime)?
        .block_on(question)
}

/// Returns the devices that kubelet allocated to all pods of the node.
pub async fn all(socket: &Path, limit: Duration) -> Result<Vec<PodResources>, AskError> {
    within(socket, limit, list_all(socket)).await
}

/// Returns the devices like [`all`]. Repeats the request until `limit` if kubelet is unavailable or limits the rate.
pub async fn all_patiently(socket: &Path, limit: Duration) -> Result<Vec<PodResources>, AskError> {
    retry(socket, limit, || list_all(socket)).await
}

async fn list_all(socket: &Path) -> Result<Vec<PodResources>, AskError> {
    let mut client = connect(socket).await?;
    list(socket, &mut client).await
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
    let away = |error| away(socket, system_error(error));
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

/// Returns the error of a failed connection to `socket`: temporary or permanent.
fn away(socket: &Path, source: io::Error) -> AskError {
    let socket = socket.to_owned();
    let is_other = |found: &fs::Metadata| !found.file_type().is_socket();
    let source = match fs::metadata(&socket) {
        Ok(found) if is_other(&found) => io::Error::other("it is not a socket"),
        _ if matches!(
            source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        ) =>
        {
            source
        }
        _ => return AskError::Away { socket, source },
    };
    AskError::NoSocket { socket, source }
}

/// Returns the system's error, which tonic wraps in its "transport error".
fn system_error(error: TransportError) -> io::Error {
    let mut cause: &dyn Error = &error;
    loop {
        let errno = cause.downcast_ref().and_then(io::Error::raw_os_error);
        match (errno, cause.source()) {
            (Some(errno), _) => return io::Error::from_raw_os_error(errno),
            (None, Some(source)) => cause = source,
            (None, None) => return io::Error::other(error),
        }
    }
}

fn refused(socket: &Path, status: Status) -> AskError {
    AskError::Refused {
        socket: socket.to_owned(),
        status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, future};

    const LIMIT: Duration = Duration::from_millis(200);

    /// Returns the client's error if kubelet returns `answers` and then never answers again.
    fn error_after(answers: &[fn() -> AskError]) -> AskError {
        let request_count = Cell::new(0);
        let question = || {
            let answer = answers.get(request_count.replace(request_count.get() + 1));
            async move {
                match answer {
                    Some(answer) => Err::<(), _>(answer()),
                    None => future::pending().await,
                }
            }
        };
        let request = retry(Path::new("/kubelet.sock"), LIMIT, question);
        blocking(request).expect_err("no answer")
    }

    fn too_often() -> AskError {
        let status = Status::resource_exhausted("rejected by rate limit");
        refused(Path::new("/kubelet.sock"), status)
    }

    fn no_socket() -> AskError {
        AskError::NoSocket {
            socket: "/kubelet.sock".into(),
            source: io::ErrorKind::NotFound.into(),
        }
    }

    #[test]
    fn a_missing_event_loop_is_named_by_the_kernels_term() {
        let full = io::Error::from_raw_os_error(24);
        assert_eq!(
            AskError::Runtime(full).to_string(),
            "cannot make an event loop (epoll) for a request to kubelet: Too many open files (os error 24)"
        );
    }

    #[test]
    fn a_cancelled_request_does_not_hide_later_answers() {
        let error = error_after(&[too_often, too_often]);
        assert!(matches!(error, AskError::Refused { .. }), "{error}");
    }

    #[test]
    fn a_socket_that_came_meanwhile_is_not_missing() {
        let cases: [&[fn() -> AskError]; 3] = [&[], &[no_socket], &[too_often, no_socket]];
        for answers in cases {
            // this thread can be scheduled late, so the limit may end before the last of `answers`
            let is_silent = |_| matches!(error_after(answers), AskError::Silent { .. });
            assert!((0..5).any(is_silent), "{} answers", answers.len());
        }
    }
}
