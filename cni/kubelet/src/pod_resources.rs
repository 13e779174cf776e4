// SPDX-License-Identifier: Apache-2.0
//! What kubelet allocated to a pod's containers.

#[expect(
    missing_docs,
    rustdoc::invalid_html_tags,
    reason = "generated code; proto/pod_resources.proto says what it is"
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

/// As kubelet's own clients have it (`podresources.MaxMessageSize`, 16 MiB): a list is of all pods.
const LARGEST_ANSWER: usize = 16 << 20;

/// How long until kubelet is asked again that was away, or had no time.
const PAUSE: Duration = Duration::from_millis(50);

/// Kubelet could not be asked; [`Self::passes`] tells whether that passes by itself.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers at the socket.
    #[error("kubelet does not answer at {socket:?}: {source}")]
    Away {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no such socket, or none that may be used.
    #[error("kubelet's pod-resources cannot be had at {socket:?}: {source}")]
    NoSocket {
        /// The path.
        socket: PathBuf,
        /// Why.
        source: io::Error,
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

impl AskError {
    /// Whether asking again later can help: kubelet restarts, is busy, or did not answer in time.
    /// Kubelet leaves its socket behind when it ends, and makes it anew when it starts: a path
    /// with nothing at it, or with something else, stays as it is.
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

/// What kubelet allocated to the pod's containers. None: kubelet does not know the pod (yet).
///
/// `Get` is asked first, for one pod; where kubelet has it turned off, `List`. Until `limit` is
/// over, kubelet is asked again when it is away (it restarts) or has answered that it is
/// asked too often (more than 100 times a second, `pkg/kubelet/apis/grpc/ratelimit.go`).
///
/// Of init containers only those that restart (sidecars) count: kubelet tells of no others, whose
/// devices are the later containers' as well.
pub async fn of_pod(
    socket: &Path,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<PodResources>, AskError> {
    patiently(socket, limit, || ask(socket, namespace, name)).await
}

/// Asks again, until `limit` is over, while kubelet is away or has no time. Where the time ends in the middle
/// of a question, what kubelet answered to the one before is the reason.
async fn patiently<T, A: Future<Output = Result<T, AskError>>>(
    socket: &Path,
    limit: Duration,
    question: impl Fn() -> A,
) -> Result<T, AskError> {
    let deadline = Instant::now() + limit;
    let mut answered = None;
    let asking = async {
        loop {
            match question().await {
                Err(error) if is_brief(&error) && Instant::now() + PAUSE < deadline => {
                    answered = matches!(error, AskError::Refused { .. }).then_some(error);
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    };
    match within(socket, limit, asking).await {
        Err(AskError::Silent { socket, limit }) => {
            Err(answered.unwrap_or(AskError::Silent { socket, limit }))
        }
        answer => answer,
    }
}

async fn ask(socket: &Path, namespace: &str, name: &str) -> Result<Option<PodResources>, AskError> {
    let mut client = connect(socket).await?;
    let request = GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: namespace.to_owned(),
    };
    match client.get(request).await {
        Ok(answer) => Ok(answer.into_inner().pod_resources),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        // kubelet has no code of its own for "turned off" and for "no such pod"
        Err(status) if matches!(status.code(), Code::Unimplemented | Code::Unknown) => {
            let pods = list(socket, &mut client).await?;
            let is_it = |pod: &PodResources| pod.name == name && pod.namespace == namespace;
            Ok(pods.into_iter().find(is_it))
        }
        Err(status) => Err(refused(socket, status)),
    }
}

/// Whether a moment is worth waiting for.
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

/// Whether somebody listens at the socket; nothing is asked.
pub fn probe_blocking(socket: &Path, limit: Duration) -> Result<(), AskError> {
    blocking(within(socket, limit, async {
        let stream = UnixStream::connect(socket).await;
        stream.map(|_| ()).map_err(|error| away(socket, error))
    }))
}

/// The same, from a program without a runtime: all that is made for it is gone again when it
/// returns.
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

/// What kubelet allocated to all pods of the node.
pub async fn all(socket: &Path, limit: Duration) -> Result<Vec<PodResources>, AskError> {
    within(socket, limit, ask_for_all(socket)).await
}

/// The same; until `limit` is over, kubelet is asked again when it is away, or is asked too often.
pub async fn all_patiently(socket: &Path, limit: Duration) -> Result<Vec<PodResources>, AskError> {
    patiently(socket, limit, || ask_for_all(socket)).await
}

async fn ask_for_all(socket: &Path) -> Result<Vec<PodResources>, AskError> {
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

/// Nobody answers at `socket`, for a while or for ever.
fn away(socket: &Path, source: io::Error) -> AskError {
    let socket = socket.to_owned();
    let is_other = |found: &fs::Metadata| !found.file_type().is_socket();
    let source = match fs::metadata(&socket) {
        Ok(found) if is_other(&found) => io::Error::other("it is no socket"),
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

/// The system's own error, which tonic wraps in "transport error".
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

    /// The error after `answers`, after which kubelet is silent.
    fn error_after(answers: &[fn() -> AskError]) -> AskError {
        let asked = Cell::new(0);
        let question = || {
            let answer = answers.get(asked.replace(asked.get() + 1));
            async move {
                match answer {
                    Some(answer) => Err::<(), _>(answer()),
                    None => future::pending().await,
                }
            }
        };
        let asking = patiently(Path::new("/kubelet.sock"), LIMIT, question);
        blocking(asking).expect_err("no answer")
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
    fn a_question_that_is_cut_off_does_not_hide_what_was_answered() {
        let error = error_after(&[too_often, too_often]);
        assert!(matches!(error, AskError::Refused { .. }), "{error}");
    }

    #[test]
    fn a_socket_that_came_meanwhile_is_not_missing() {
        let cases: [&[fn() -> AskError]; 3] = [&[], &[no_socket], &[too_often, no_socket]];
        for answers in cases {
            let error = error_after(answers);
            assert!(matches!(error, AskError::Silent { .. }), "{error}");
        }
    }
}
