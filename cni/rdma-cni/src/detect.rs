// SPDX-License-Identifier: Apache-2.0
//! `detect`: an entry without devices that records each call by the runtime. The daemon puts this entry into the
//! network's own directory to find out whether the runtime calls plugins of the directory (`conflist::placement`). If
//! the call cannot be recorded, the pod starts nevertheless, and the daemon leaves the list unchanged.

use cni_protocol::{Command, Environment, result};
use network_conf::Conf;
use rdma_netns::Kernel;
use serde_json::Value;
use std::{fs::File, io, path::Path};

/// Default directory of libcni's cached results.
const RESULT_CACHE: &str = "/var/lib/cni/results";

/// Returns the reply to the runtime, if any.
pub(crate) fn answer<K: Kernel>(
    kernel: &K,
    conf: &Conf,
    environment: &Environment,
) -> Option<Value> {
    let network = &conf.network;
    let is_noted = match environment.command {
        Command::Add => true,
        Command::Del => {
            has_namespace(kernel, environment)
                && (network.prev_result.is_some() || is_cached(conf, environment))
        }
        _ => false,
    };
    // a call by hand is no sign of the runtime
    if is_noted && environment.pod().is_some() {
        let verb = environment.command.as_str();
        if let Err(error) = note(conf, verb) {
            log::warn!("cannot record that the runtime called {verb}: {error}");
        }
    }
    let result = || {
        let unchanged = network.prev_result.clone();
        unchanged.unwrap_or_else(|| result::extend(None, network.version, &[]))
    };
    (environment.command == Command::Add).then(result)
}

/// Returns true if the pod's namespace exists, so that this DEL ends a running pod. After a reboot CRI-O's GC calls DEL
/// for pods of the previous boot, whose namespaces are gone.
fn has_namespace<K: Kernel>(kernel: &K, environment: &Environment) -> bool {
    let target = environment.target.as_ref();
    let netns = target.and_then(|it| it.netns.as_ref());
    netns.is_some_and(|it| kernel.open_pod(it).is_ok())
}

/// Returns true if libcni has cached a result of ADD (`getCacheFilePath()`, `libcni/api.go`). With a cached result this
/// DEL ends a running pod; without a cached result it ends a failed start. The difference matters with CRI-O: at a
/// pod's end CRI-O calls the cached list, which lacks the directory's plugins; after a failed start CRI-O calls the
/// list with these plugins. DEL receives the result itself only since version 0.4.0.
fn is_cached(conf: &Conf, environment: &Environment) -> bool {
    let Some(target) = &environment.target else {
        return false;
    };
    let (network, container) = (&conf.network.name, &target.container);
    let name = format!("{network}-{container}-{}", target.interface);
    Path::new(RESULT_CACHE).join(name).is_file()
}

/// Writes the record of the call, if the daemon has created the directory for it.
fn note(conf: &Conf, verb: &str) -> io::Result<()> {
    let name = format!("{verb}@{}", conf.network.name);
    match File::create_new(conf.state_dir.join("detected").join(name)) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        made => made.map(drop),
    }
}
