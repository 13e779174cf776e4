// SPDX-License-Identifier: Apache-2.0
//! Observes the node, and changes nothing. If `doctor` cannot observe a part, it reports this part and observes the
//! others.
//!
//! | module | observes |
//! |---|---|
//! | `view` | files below the host's root |
//! | `system` | kernel modules, the mode at boot, udev, bonds |
//! | `chain` | the network configuration, programs |
//! | `services` | sockets, limits, the daemon |
//! | `records` | records, leases |

mod chain;
pub mod offline;
mod records;
mod services;
mod system;
mod view;

use super::{
    arguments::Paths,
    facts::{Chain, Facts, Part, PortGids},
};
use network_conf::{Conf, Devices, STATE_DIR};
use plan::select::{self, Choice};
use view::View;
pub(crate) use view::netns_below;

use attachments::given_up::Note;
use rdma_netns::{
    GpuDirectReader, Kernel, LinkType, Observed, RdmaCgroup, RdmaDevice, accelerators,
};

/// Gathers all facts of the node.
pub fn gather<K: Kernel>(kernel: &K, paths: &Paths) -> Facts {
    let mut view = View::new(&paths.root);
    let mut hidden = view.hidden(paths);
    view.namespace();
    let mut observed = view.keep("netdevs and RDMA devices", kernel.observe(None));
    let smc = kernel.has_smc().then(|| kernel.smc(None));
    let smc = smc.and_then(|smc| view.keep("SMC", smc).flatten());
    let runtimes = services::runtimes(&mut view);
    let chain = chain::read(&mut view, paths, &runtimes).unwrap_or_else(|| {
        hidden.insert(Part::Chain);
        Chain::default()
    });
    let ours = chain.picked.as_ref().and_then(|picked| picked.ours.clone());
    let conf = ours.and_then(|ours| Conf::parse(ours).ok());
    let devices = conf.as_ref().and_then(|conf| conf.devices.as_ref());
    if let (Some(Devices::Selectors(selectors)), Some(observed)) = (devices, &mut observed) {
        select::ask_for_rails(kernel, &Choice::Selectors(selectors), observed);
    }
    let configured = || conf.as_ref().map(|conf| conf.state_dir.clone());
    let state_dir = paths.state_dir.clone().or_else(configured);
    let state_dir = state_dir.unwrap_or_else(|| STATE_DIR.into());
    let boot_id = observed.as_ref().map(|it| it.boot_id.as_str());
    let (records, aside) = records::read(&mut view, kernel, &state_dir, boot_id);
    let gids = observed.iter().flat_map(|it| gids(&mut view, kernel, it));
    let gids = gids.collect();
    let given_up = records::given_up(&mut view, &state_dir);
    let devices = observed.iter().flat_map(|it| &it.devices);
    let nics = devices.map(|it| &it.address).collect();
    let (sysfs, procfs) = (view.path("/sys"), view.path("/proc"));
    let accelerators = view.keep("GPUs", accelerators(&sysfs, &nics));
    let accelerators = accelerators.unwrap_or_default();
    let gpudirect = GpuDirectReader::default().read((&sysfs, &procfs), &accelerators, &nics);
    add_unreported_settings(kernel, &given_up, observed.as_mut());
    Facts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        release: view
            .text("/proc/sys/kernel/osrelease")
            .map(|text| text.trim_end().to_owned())
            .unwrap_or_default(),
        modules: system::modules(&mut view),
        boot_modes: system::boot_modes(&mut view),
        naming: system::naming(&mut view),
        rdma_cgroup: RdmaCgroup::observe(&view.path("/sys"), &view.path("/proc")),
        limits_left: services::limits_left(&view, &state_dir),
        bond_modes: system::bond_modes(&mut view, observed.as_ref()),
        gpudirect,
        gids,
        smc,
        binaries: chain::binaries(&mut view, &paths.bin_dirs, &chain, conf.as_ref()),
        pod_resources: services::pod_resources(&view, &paths.kubelet_dir, conf.as_ref()),
        runtimes,
        daemon: services::daemon(&mut view, &paths.kubelet_dir, &state_dir),
        switches: services::switches(&mut view, &state_dir),
        records,
        aside,
        unreadable_claims: records::unreadable_claims(&view, &state_dir),
        given_up,
        links: records::links(&view, &state_dir, conf.as_ref()),
        leases: records::leases(&mut view, conf.as_ref()),
        cached: records::cached(&mut view),
        observed,
        chain,
        hidden,
        unseen: view.unseen,
    }
}

/// Adds to `observed`, for the netdev of each note, the settings that rtnetlink does not report. If the note has VF
/// settings, also adds the settings of the virtual function.
fn add_unreported_settings<K: Kernel>(kernel: &K, notes: &[Note], observed: Option<&mut Observed>) {
    let Some(observed) = observed else {
        return;
    };
    for note in notes {
        if let Some(link) = observed.host.link(&note.host_link.name) {
            let settings = (link.index, kernel.device_settings(link));
            observed.device_settings.push(settings);
        }
    }
    for note in notes.iter().filter(|note| note.host_link.vf.is_some()) {
        if let Some(function) = &note.host_link.parent {
            let vf = kernel.vf(function).ok().flatten();
            observed.vfs.extend(vf.map(|vf| (function.clone(), vf)));
        }
    }
}

/// Returns the GID tables of the host's RDMA devices, except InfiniBand devices.
fn gids<K: Kernel>(view: &mut View, kernel: &K, observed: &Observed) -> Vec<PortGids> {
    let is_infiniband = |device: &RdmaDevice| {
        let netdevs = device.ports.iter().filter_map(|port| port.netdev);
        let mut links = netdevs.filter_map(|index| observed.host.link_by_index(index));
        links.any(|link| link.link_type == LinkType::Infiniband)
    };
    let mut found = vec![];
    for device in observed.host.rdma.iter().filter(|it| !is_infiniband(it)) {
        for port in &device.ports {
            let table = kernel.gids(None, &device.name, port.number);
            let what = format!("the GIDs of {} port {}", device.name, port.number);
            if let Some(table) = view.keep(&what, table.map_err(|it| it.source.to_string())) {
                found.push(PortGids {
                    device: device.name.clone(),
                    port: port.number,
                    table,
                });
            }
        }
    }
    found
}
