// SPDX-License-Identifier: Apache-2.0
//! Field `detect` of an entry without devices. With such an entry, `rdma-cni` only records the runtime's calls of ADD
//! and DEL. The daemon puts the entry into the network's own directory to find out whether the runtime calls the
//! directory's plugins (`conflist::placement`). If `rdma-cni` cannot record the call, the pod still starts, and the
//! daemon does not change the list.

use cni_protocol::{Command, Environment, result};
use network_conf::Conf;
use rdma_netns::Kernel;
use serde_json::Value;
use std::{fs::File, io, path::Path};

/// Default directory in which libcni caches results.
const RESULT_CACHE: &str = "/var/lib/cni/results";

/// Records a call of ADD, or of a DEL that ends a running pod. Returns the reply to the runtime, or `None` for verbs
/// without a reply.
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
    // without a pod's name, the caller is no Kubernetes runtime
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

/// Returns true if the pod's namespace exists. After a reboot, CRI-O's GC also calls DEL for pods of the previous boot,
/// whose namespaces no longer exist.
fn has_namespace<K: Kernel>(kernel: &K, environment: &Environment) -> bool {
    let target = environment.target.as_ref();
    let netns = target.and_then(|it| it.netns.as_ref());
    netns.is_some_and(|it| kernel.open_pod(it).is_ok())
}

/// Returns true if libcni has cached a result of ADD (`getCacheFilePath()`, `libcni/api.go`). Then this DEL ends a
/// running pod. Otherwise it ends a failed start. The difference matters with CRI-O: at a pod's end, CRI-O calls the
/// cached list, which lacks the directory's plugins. After a failed start, it calls the list with these plugins. This
/// function reads the cache because the runtime passes the result to DEL only since CNI version 0.4.0.
fn is_cached(conf: &Conf, environment: &Environment) -> bool {
    let Some(target) = &environment.target else {
        return false;
    };
    let (network, container) = (&conf.network.name, &target.container);
    let name = format!("{network}-{container}-{}", target.interface);
    Path::new(RESULT_CACHE).join(name).is_file()
}

/// Writes the record of the call if the daemon's directory for such records exists.
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
