// SPDX-License-Identifier: Apache-2.0
//! Selects the netdevs of the devices that kubelet allocated.
//!
//! An id of a shared resource can include all devices of a node. A pod must run even if one of these devices cannot be
//! attached. So a pod gets a shared device as a character device without a netdev, if the device's GIDs need no netdev,
//! as on InfiniBand. The selection omits a shared netdev that is down, unless the pod would then get no netdev.

use super::{Chosen, Remark, SelectError, bare, by_address, check_holders, host_use::Naming};
use crate::allocation::{self, Allotment, Meaning};
use attachments::Attachment;
use network_conf::{ChildConf, Conf, Mode};
use rdma_netns::{Link, LinkType, NetnsSide, Observed, RdmaMode};
use rdma_resources::Sharing;
use std::collections::BTreeSet;

/// Returns the netdevs to attach. Returns a bond only once, even if two devices are its ports. Of shared devices,
/// returns only those that the pod has chosen.
pub(super) fn choose<'a>(
    conf: &Conf,
    meanings: &[Meaning],
    observed: &'a Observed,
    others: &[Attachment],
    remarks: &mut Vec<Remark>,
) -> Result<Vec<Chosen<'a>>, SelectError> {
    let mut chosen: Vec<Chosen<'a>> = vec![];
    let mut down: Vec<Chosen<'a>> = vec![];
    let mode = conf.mode;
    let mut shared = Shared::default();
    for allotment in allocation::devices(meanings, &observed.devices)? {
        let shares = is_shared(mode, &allotment, observed);
        if shares && let Some((rdma, why)) = by_verbs_alone(conf, &allotment, observed, others)? {
            remarks.push(Remark::info(format!(
                "the pod gets {rdma} only as a character device: {why}"
            )));
            shared.nics += 1;
            continue;
        }
        let found = by_address(conf, &allotment.address, observed, others)?;
        let found = match &allotment.parent {
            Some(parent) => found.attached_to(parent, &allotment, observed)?,
            None => found,
        };
        if shares && !shared.is_chosen(conf.rails.as_ref(), &found, remarks) {
            continue;
        }
        let among = match shares && !found.link.up {
            true => &mut down,
            false => &mut chosen,
        };
        if !found.is_in(among) {
            among.push(Chosen {
                naming: Naming::Kubelet,
                allotment: Some(allotment),
                ..found
            });
        }
    }
    let last = conf.rails.iter().flatten().max();
    if let Some(&rail) = last.filter(|rail| **rail >= shared.nics) {
        let nics = shared.nics;
        return Err(SelectError::NoSuchRail { rail, nics });
    }
    if chosen.is_empty() {
        // all devices are down: attaching them fails, and the error has the reason
        return Ok(down);
    }
    remarks.extend(down.iter().map(|left_out| Remark {
        level: log::Level::Warn,
        text: format!(
            "{name} is down, so the pod does not get it; run ip link set {name} up",
            name = left_out.link.name
        ),
    }));
    Ok(chosen)
}

impl<'a> Chosen<'a> {
    /// Returns the netdev `parent` of the resource's `parents` setting: the device's own netdev or bond, or a VLAN on
    /// it.
    ///
    /// # Errors
    /// `parent` does not exist, or belongs to another device.
    fn attached_to(
        self,
        parent: &str,
        allotment: &Allotment,
        observed: &'a Observed,
    ) -> Result<Self, SelectError> {
        let host = &observed.host;
        let of_device = |link: &Link| {
            let lower = host.below_vlan(link).unwrap_or(link);
            self.side == NetnsSide::Host && lower.index == self.link.index
        };
        match host.link(parent).filter(|link| of_device(link)) {
            Some(link) => Ok(Self { link, ..self }),
            None => Err(SelectError::NoParent {
                parent: parent.to_owned(),
                netdev: self.link.name.clone(),
                resource: allotment.resource(),
            }),
        }
    }
}

/// The shared NICs that the selection has numbered so far.
#[derive(Default)]
struct Shared {
    nics: usize,
    /// Indexes of their netdevs on the host.
    seen: Vec<u32>,
}

impl Shared {
    /// Returns true if the pod's choice `rails` includes `found`, and numbers it as the next NIC. Returns false for a
    /// second port of a bond, which already has a number.
    fn is_chosen(
        &mut self,
        rails: Option<&BTreeSet<usize>>,
        found: &Chosen<'_>,
        remarks: &mut Vec<Remark>,
    ) -> bool {
        if self.seen.contains(&found.link.index) {
            // an earlier port of this bond has given the bond its number
            return false;
        }
        self.seen.push(found.link.index);
        let rail = self.nics;
        self.nics += 1;
        let is_chosen = rails.is_none_or(|rails| rails.contains(&rail));
        if !is_chosen {
            remarks.push(Remark::info(format!(
                "{} is left out: the pod's annotation selects other rails",
                found.link.name
            )));
        }
        is_chosen
    }
}

/// Returns true if pods share the device, so the netdev and the RDMA device stay on the host.
fn is_shared(mode: Mode, allotment: &Allotment, observed: &Observed) -> bool {
    mode != Mode::Move
        && allotment.sharing == Sharing::Shared
        && observed.rdma_mode == Some(RdmaMode::Shared)
}

/// Returns true if pods get children of allocated InfiniBand netdevs. The configuration then has `pkey`, a `child` of
/// type `ipoib`, or `"mode": "share"` without `child`. Without such a setting pods get no children, because programs on
/// InfiniBand need no IP address.
fn wants_ipoib(conf: &Conf) -> bool {
    let is_ipoib = match &conf.child {
        Some(ChildConf::Ipoib { .. }) => true,
        Some(_) => false,
        None => conf.mode == Mode::Share,
    };
    is_ipoib || conf.pkey.is_some()
}

/// Returns the RDMA device of `allotment`, with the reason, if the pod uses it without a netdev.
///
/// # Errors
/// Another attachment has the device, or its port is Ethernet and has no GIDs without a netdev.
fn by_verbs_alone<'a>(
    conf: &Conf,
    allotment: &Allotment,
    observed: &'a Observed,
    others: &[Attachment],
) -> Result<Option<(&'a str, &'static str)>, SelectError> {
    let address = &allotment.address;
    let Some(rdma) = bare::rdma_of(address, observed) else {
        return Ok(None);
    };
    let netdevs = observed.host.links_of(address, &observed.host);
    let why = match netdevs.first() {
        None if rdma.lacks_netdev() => {
            let pod = observed.pod.as_ref();
            if pod.is_some_and(|pod| !pod.links_of(address, &observed.host).is_empty()) {
                return Ok(None);
            }
            check_holders(address, others)?;
            return Err(bare::no_gids(address, rdma, observed));
        }
        None => "it has no netdev on the host",
        Some(link) if link.link_type == LinkType::Infiniband && !wants_ipoib(conf) => {
            "its netdev is InfiniBand, and pods get children of this netdev only with pkey, child.type \"ipoib\", or \
             mode \"share\" without child"
        }
        Some(_) => return Ok(None),
    };
    Ok(Some((&rdma.name, why)))
}
