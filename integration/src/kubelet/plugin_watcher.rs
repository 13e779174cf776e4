//! Kubelet's plugin watcher: asks every socket in `plugins_registry` what it is.

use super::plugins::{Shared, Way};
use inotify::{Inotify, WatchMask};
use kubelet_api::{
    device_plugin::VERSION,
    plugin_registration::{
        DEVICE_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus,
        registration_client::RegistrationClient,
    },
};
use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};
use tokio_stream::StreamExt;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

/// Starts watching: what is there is asked first. To be called where a runtime is.
pub(super) fn start(registry: PathBuf, shared: Shared) -> impl Future<Output = ()> {
    let events = Inotify::init().and_then(|inotify| {
        inotify
            .watches()
            .add(&registry, WatchMask::CREATE | WatchMask::MOVED_TO)?;
        inotify.into_event_stream(vec![0; 4096])
    });
    let mut events = events.expect("inotify");
    async move {
        for socket in sockets(&registry).expect("the watcher's directory") {
            ask(&socket, &shared).await;
        }
        while let Some(Ok(event)) = events.next().await {
            let socket = event.name.map(|name| registry.join(name));
            if let Some(socket) = socket.filter(|path| is_socket(path)) {
                ask(&socket, &shared).await;
            }
        }
    }
}

fn sockets(registry: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(registry)? {
        found.push(entry?.path());
    }
    found.retain(|path| is_socket(path));
    Ok(found)
}

/// What is hidden is passed over.
fn is_socket(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    if name.is_none_or(|name| name.starts_with('.')) {
        return false;
    }
    fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
}

/// Asks, calls the plugin, and says what came of it.
async fn ask(socket: &Path, shared: &Shared) {
    let Ok((mut client, info)) = info(socket).await else {
        return;
    };
    let taken = take(&info, shared).await;
    let status = RegistrationStatus {
        plugin_registered: taken.is_ok(),
        error: taken.err().unwrap_or_default(),
    };
    // a plugin that does not listen is registered all the same
    let _ = client.notify_registration_status(status).await;
}

async fn info(socket: &Path) -> Result<(RegistrationClient<Channel>, PluginInfo), Status> {
    let failed = |error: tonic::transport::Error| Status::unknown(error.to_string());
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let channel = endpoint.map_err(failed)?.connect().await.map_err(failed)?;
    let mut client = RegistrationClient::new(channel);
    let info = client.get_info(InfoRequest {}).await?.into_inner();
    Ok((client, info))
}

async fn take(info: &PluginInfo, shared: &Shared) -> Result<(), String> {
    if info.r#type != DEVICE_PLUGIN {
        return Err(format!("no handler for the type {:?}", info.r#type));
    }
    if !info.supported_versions.iter().any(|it| it == VERSION) {
        return Err(format!("no version of {:?}", info.supported_versions));
    }
    let endpoint = Path::new(&info.endpoint);
    shared
        .connect(&info.name, endpoint, Way::PluginWatcher, None)
        .await
        .map_err(|status| status.message().to_owned())
}
