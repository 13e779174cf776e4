// SPDX-License-Identifier: Apache-2.0
//! CDI specifications of claims (dynamic resource allocation). ADD writes a specification when the pod's network is
//! ready, because the preceding moves may change character devices. The runtime does not create a container whose claim
//! has no specification.

use crate::{error::ClaimError, node::Node};
use attachments::{Attachment, Id, Rail, libraries::Allocation};
use cni_protocol::ConfError;
use conf_reader::Wrong;
use dra::{AttachmentParameters, Claims, Record, record::JoinedRail};
use network_conf::{Conf, RoutingFields, vf};
use plan::{
    allocation::{self, Meaning},
    select::Choice,
};
use rdma_netns::{Kernel, LinkType, Observed, RdmaDevice};
use rdma_resources::{CharNode, FileError, container::LibraryFile, grant::GrantedDevice};
use serde::Serialize;
use serde_json::json;
use std::{borrow::Cow, collections::BTreeMap, path::Path};

/// Returns `conf` with the settings of the pod's claims and annotations. An annotation overrides a claim.
///
/// # Errors
/// Claims contradict each other, or an annotation has a wrong value.
pub fn of_pod<'a>(conf: &'a Conf, choice: &Choice<'_>) -> Result<Cow<'a, Conf>, ConfError> {
    let by_claims = applied(conf, choice)?.map_or(Cow::Borrowed(conf), Cow::Owned);
    for annotation in conf.pod_annotations.disallowed() {
        log::warn!("ignoring annotation {annotation}: podAnnotations does not allow it");
    }
    for argument in &conf.unheard_arguments {
        log::warn!("ignoring the pod's {argument}: podArguments does not allow it");
    }
    let by_pod = by_claims.chosen_by_pod()?;
    Ok(by_pod.map_or(by_claims, Cow::Owned))
}

/// Returns `conf` with the settings of the claims that allocated the devices of `choice`. Returns `None` if the claims
/// have no settings.
///
/// # Errors
/// The claims contradict each other.
fn applied(conf: &Conf, choice: &Choice<'_>) -> Result<Option<Conf>, Wrong> {
    let Choice::Allocated(meanings) = choice else {
        return Ok(None);
    };
    let claims = meanings.iter().filter_map(|it| it.claim.as_ref());
    let all: Vec<&AttachmentParameters> = claims.map(|it| &it.parameters).collect();
    if all.iter().all(|it| it.is_empty()) {
        return Ok(None);
    }
    let mut conf = conf.clone();
    conf.mtu = one_of("mtu", &all, |it| it.mtu)?.or(conf.mtu);
    if let Some(wanted) = one_of("smcr", &all, |it| it.smcr)? {
        conf.smc = conf.smc.or_by_claim(wanted);
    }
    conf.mode = one_of("mode", &all, |it| it.mode)?.unwrap_or(conf.mode);
    conf.child = one_of("child", &all, |it| it.child)?.or(conf.child);
    let of_vf = |it: &AttachmentParameters| Some(it.vf.clone()).filter(|vf| !vf.is_empty());
    conf.vf = vf::over(one_of("vf", &all, of_vf)?.unwrap_or_default(), conf.vf);
    let routing = RoutingFields {
        metric: one_of("routing.metric", &all, |it| it.routing.metric)?,
        table_base: one_of("routing.tableBase", &all, |it| it.routing.table_base)?,
    };
    conf.routing = routing.over(conf.routing);
    Ok(Some(conf))
}

/// Returns the value of a parameter. All claims that set the parameter must set the same value.
fn one_of<T: PartialEq + Serialize>(
    name: &str,
    all: &[&AttachmentParameters],
    value: impl Fn(&AttachmentParameters) -> Option<T>,
) -> Result<Option<T>, Wrong> {
    let mut values = all.iter().filter_map(|it| value(it));
    let Some(first) = values.next() else {
        return Ok(None);
    };
    match values.find(|it| *it != first) {
        None => Ok(Some(first)),
        Some(other) => {
            let place = format!("{name} in the parameters of the pod's claims");
            let values = format!("{} in one and {} in another", json!(first), json!(other));
            let must =
                "must be the same in all claims of a pod, because a pod is attached only once";
            Err(Wrong::value(place, values, must))
        }
    }
}

/// Writes the CDI specifications of the claims that allocated the devices of `choice`, with the `observed` character
/// devices. Call this function when the network of `attachment` is ready.
pub fn joined<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    choice: &Choice<'_>,
    observed: &Observed,
) -> Result<(), ClaimError> {
    let Choice::Allocated(meanings) = choice else {
        return Ok(());
    };
    let mut uids: Vec<&String> = vec![];
    for record in meanings.iter().filter_map(|it| it.claim.as_ref()) {
        if !uids.contains(&&record.claim.uid) {
            uids.push(&record.claim.uid);
        }
    }
    let claims = Claims::new(node.store.root());
    let failed = |uid: &String, source| ClaimError {
        uid: uid.clone(),
        source,
    };
    let read = |uid: &&String| {
        let record = claims.read(uid).map_err(|source| failed(uid, source));
        record.transpose()
    };
    let records: Vec<Record> = uids.iter().filter_map(read).collect::<Result<_, _>>()?;
    let files = files(node.kernel, attachment, (&records, meanings), observed);
    for uid in uids {
        let now = |nic: &GrantedDevice| nodes(nic, observed);
        let own: Vec<&Meaning> = meanings.iter().filter(|it| is_of(it, uid)).collect();
        let rails = attachment.rails.iter();
        let rails = rails
            .flat_map(|rail| joined_rails(rail, &own, attachment, observed))
            .collect();
        let network = (&*attachment.key.container, rails, files.clone());
        let joined = claims.joined(uid, &observed.boot_id, network, now);
        if joined.map_err(|source| failed(uid, source))? {
            log::info!("claim {uid}: its containers can get their devices");
        } else {
            log::warn!("claim {uid} was unprepared while its pod's network was set up");
        }
    }
    Ok(())
}

/// Returns the library files for the pod's containers, by file name. A container can have several claims, but sees each
/// file only once. So each file covers the devices of all claims in `records` that have the file.
fn files<K: Kernel>(
    kernel: &K,
    attachment: &Attachment,
    (records, meanings): (&[Record], &[Meaning]),
    observed: &Observed,
) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for file in LibraryFile::ALL {
        let mut fixed = None;
        let mut ids = vec![];
        for record in records {
            for device in &record.devices {
                let mut requests = record.requests.iter();
                let request = requests.find(|it| it.name == device.request);
                let Some(text) = request.and_then(|it| it.files.get(file.name())) else {
                    continue;
                };
                // the text is empty for a resource that the chain does not attach
                fixed = fixed.max(Some(text));
                ids.push((allocation::id_of(record, device), &*device.nics));
            }
        }
        let Some(fixed) = fixed else {
            continue;
        };
        let port = |_: &Id, nic: &GrantedDevice| {
            let port = rdma(nic, observed)?.ports.first()?;
            let is_infiniband = port.link_layer == Some(LinkType::Infiniband);
            Some((port.number, is_infiniband))
        };
        let attaches = |resource: &str| meanings.iter().any(|it| it.id.resource == resource);
        let allocation = Allocation {
            kernel,
            attachments: vec![attachment],
            ids,
        };
        let variables = allocation.variables(file, port, attaches);
        if let Some(why) = variables.undecided {
            log::warn!("{}: {why}", attachment.pod.as_deref().unwrap_or("a pod"));
        }
        let text = LibraryFile::text(variables.all) + fixed;
        files.insert(file.name().to_owned(), text);
    }
    files
}

fn is_of(meaning: &Meaning, uid: &str) -> bool {
    let record = meaning.claim.as_ref();
    record.is_some_and(|it| it.claim.uid == uid)
}

/// Returns `rail` once for each device of the claim (`own`) that belongs to the rail. If none belongs to the rail,
/// returns `rail` once, as a rail of another claim. Omits a rail that has neither an RDMA device nor addresses.
fn joined_rails(
    rail: &Rail,
    own: &[&Meaning],
    attachment: &Attachment,
    observed: &Observed,
) -> Vec<JoinedRail> {
    let Some(description) = attachment.describe_rail(rail) else {
        return vec![];
    };
    let hardware_address = rail.in_pod(observed).map(|link| link.mac.to_string());
    let allocated = rail.allocated.as_ref();
    let is_its = |meaning: &&&Meaning| allocated.is_some_and(|it| it.ids.contains(&meaning.id));
    let device = |meaning: &&Meaning| {
        let (_, device) = meaning.id.id.rsplit_once('/').unwrap_or_default();
        Some(device.to_owned())
    };
    let mut devices: Vec<Option<String>> = own.iter().filter(is_its).map(device).collect();
    if devices.is_empty() {
        devices.push(None);
    }
    let joined = devices.into_iter().map(|device| JoinedRail {
        device,
        hardware_address: hardware_address.clone(),
        status_entry: description.clone(),
    });
    joined.collect()
}

/// Removes the CDI specifications of the sandbox `container` when its network ends. Only logs a failure, which would
/// otherwise delay the pod's end. The daemon removes the claim's files after the claim's last pod.
pub fn left(state_dir: &Path, container: &str) {
    if let Err(error) = Claims::new(state_dir).left(container) {
        log::warn!(
            "sandbox {container}: {error}; its claims keep their CDI specifications until their last pod ends"
        );
    }
}

/// Updates the CDI specifications of all claims whose containers may have one of the RDMA devices `moved`, which have
/// just moved. [`joined`] updates only claims by which kubelet allocated the attachment's devices. With Multus, an
/// attachment names its device itself.
pub fn follow(
    state_dir: &Path,
    moved: &[&RdmaDevice],
    observed: &Observed,
) -> Result<(), FileError> {
    let changed = Claims::new(state_dir).follow(&observed.boot_id, |nic| {
        let device = rdma(nic, observed).filter(|it| moved.contains(it));
        device.map(nodes_of)
    })?;
    for record in changed {
        log::info!(
            "claim {}: its CDI specification has the present numbers",
            record.claim.uid
        );
    }
    Ok(())
}

/// Returns the character devices of the RDMA device of `nic`.
fn nodes(nic: &GrantedDevice, observed: &Observed) -> Option<Vec<CharNode>> {
    rdma(nic, observed).map(nodes_of)
}

/// Returns the character devices of `device`.
pub fn nodes_of(device: &RdmaDevice) -> Vec<CharNode> {
    device.char_devices.iter().map(CharNode::from).collect()
}

/// Returns the RDMA device of `nic`, in the pod or on the host.
fn rdma<'a>(nic: &GrantedDevice, observed: &'a Observed) -> Option<&'a RdmaDevice> {
    let function = observed.device(&nic.address);
    let is_its = |rdma: &&RdmaDevice| match &rdma.parent {
        Some(parent) => *parent == nic.address,
        // a software RDMA device, such as one on a bond, has no parent device: compare names
        None => rdma.name == nic.rdma || function.is_some_and(|it| it.rdma.contains(&rdma.name)),
    };
    let pod = observed.pod.iter().flat_map(|pod| &pod.rdma);
    pod.chain(&observed.host.rdma).find(is_its)
}
