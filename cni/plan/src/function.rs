// SPDX-License-Identifier: Apache-2.0
//! A virtual function of a record: what its physical function sets of it, and its driver, which takes GUIDs over when
//! it is bound to it (mlx5 reads them once, `mlx5_ib_init_node_data()` in `drivers/infiniband/hw/mlx5/main.c`).

use super::{locate, locate::Located};
use attachments::{Attachment, Phase, Rail, Stage};
use rdma_netns::{Guid, Link, NetnsSide, Observed, Op, Vf, VfSetting, VfSettingKind, pairing};

/// A virtual function of a record.
pub(super) struct Function<'a> {
    /// As the record has it.
    known: &'a Vf,
    /// As it is, if that can be asked.
    present: Option<&'a Vf>,
}

impl<'a> Function<'a> {
    /// The one whose netdev was `host_link`; none: nothing of it was changed.
    pub(super) fn of(host_link: &'a Link, observed: &'a Observed) -> Option<Self> {
        let known = host_link.vf.as_ref()?;
        let present = host_link.parent.as_ref();
        let present = present.and_then(|it| observed.vfs.get(it));
        Some(Self { known, present })
    }

    /// Whether its physical function was asked, and has it.
    pub(super) fn is_there(&self) -> bool {
        self.present.is_some()
    }

    /// As it was before.
    pub(super) fn before(&self) -> impl Iterator<Item = &'a VfSetting> + use<'a> {
        self.known.settings.iter()
    }

    /// Whether GUIDs of it were changed.
    pub(super) fn has_guids(&self) -> bool {
        self.before().any(|it| it.guid().is_some())
    }

    /// Whether its driver tells what it has of `kind`. What it does not tell is set once, and not looked at.
    pub(super) fn tells(&self, kind: VfSettingKind) -> bool {
        self.present.is_none_or(|vf| vf.setting(kind).is_some())
    }

    /// What it still lacks of `desired`: all of it, if it cannot be asked.
    pub(super) fn lacks<'b>(&self, desired: impl Iterator<Item = &'b VfSetting>) -> Vec<Op> {
        let is_missing = |it: &&VfSetting| self.present.is_none_or(|vf| !vf.settings.contains(it));
        let vf = self.present.unwrap_or(self.known);
        let op = |setting: &VfSetting| Op::SetVf {
            pf: vf.pf.clone(),
            number: vf.number,
            setting: setting.clone(),
        };
        desired.filter(is_missing).map(op).collect()
    }

    /// Whether it was to get another GUID of `kind` back than the pod's, which `rail` has.
    pub(super) fn gets_back(&self, rail: &Rail, kind: VfSettingKind) -> bool {
        let mut before = self.before().filter(|it| it.kind() == kind);
        before.any(|it| !rail.vf.contains(it))
    }
}

/// Whether `op` sets something that the function's driver does not tell: it is not seen afterwards that it was done.
pub fn is_untold(op: &Op, observed: &Observed) -> bool {
    let Op::SetVf {
        pf,
        number,
        setting,
    } = op
    else {
        return false;
    };
    let mut functions = observed.vfs.values();
    let function = functions.find(|vf| vf.pf == *pf && vf.number == *number);
    function.is_some_and(|vf| vf.setting(setting.kind()).is_none())
}

/// The change after which the function of `rail`, which is on the host, has the GUIDs that are set of it; none: it has
/// them.
pub(super) fn takes_over(rail: &Rail, host_link: &Link, observed: &Observed) -> Option<Op> {
    rebind(rail, host_link, observed, |setting, own| {
        setting.guid() != Some(own)
    })
}

/// The change after which the function of `rail`, which is on the host, has no GUID of the pod's any more, of those that
/// `is_to_go` says; none: it has none of them.
pub(super) fn gives_back(
    rail: &Rail,
    host_link: &Link,
    observed: &Observed,
    is_to_go: impl Fn(VfSettingKind) -> bool,
) -> Option<Op> {
    rebind(rail, host_link, observed, |setting, own| {
        setting.guid() == Some(own) && is_to_go(setting.kind())
    })
}

/// The driver of the function of `rail` bound anew, if `is_due` says so of a setting of the pod's and the GUID that the
/// function has.
fn rebind(
    rail: &Rail,
    host_link: &Link,
    observed: &Observed,
    is_due: impl Fn(&VfSetting, Guid) -> bool,
) -> Option<Op> {
    let (device, driver) = rail.device().zip(rail.driver.clone())?;
    let present = observed.device(device)?.driver.as_ref();
    let Ok(Located::At(NetnsSide::Host, link)) = locate::link(rail, host_link, observed) else {
        return None;
    };
    let own = |kind| match kind {
        VfSettingKind::NodeGuid => Guid::of_node(locate::rdma_anywhere(rail, observed)?),
        VfSettingKind::PortGuid => Guid::of_port(link),
        _ => None,
    };
    let mut settings = rail.vf.iter();
    let is_any_due = settings.any(|it| own(it.kind()).is_some_and(|own| is_due(it, own)));
    let device = device.clone();
    (is_any_due && present == Some(&driver)).then_some(Op::RebindDriver { device, driver })
}

/// A rail's place in its record, and what its [`Stage::Rebinding`] is to have: the index and the driver.
pub type Rebind = (usize, u32, String);

/// Returns the rails whose drivers are bound anew before a verb leaves them to others: those of the pod's that are `home`, on
/// which netdevs may lie in unseen namespaces; and, as the last resort, those in a namespace that is neither the host's nor the pod's, whose drivers make their devices on the host. `alone()`
/// says which ones may be. None without `rebindDriver`: a function that came home by its namespace's end can have another
/// owner by now, which no record of ours shows.
pub fn rebinds(
    attachment: &Attachment,
    others: &[Attachment],
    observed: &Observed,
    home: &[usize],
    is_last_resort: bool,
) -> Vec<Rebind> {
    // an ADD that was killed may have moved nothing
    if !attachment.rebind_driver || attachment.phase == Phase::Attaching {
        return vec![];
    }
    let is_elsewhere = |rail: &Rail, host_link: &Link| {
        let rdma = rail.rdma.as_ref().filter(|_| attachment.moves_rdma());
        locate::link(rail, host_link, observed).is_err()
            || rdma.is_some_and(|it| locate::rdma(it, others, observed).is_err())
    };
    let rails = attachment.rails.iter().enumerate();
    let pods = rails.filter(|(_, rail)| rail.stage == Stage::Pod);
    let rebinds = pods.filter_map(|(place, rail)| {
        let host_link = rail.host_link.as_ref()?;
        let index = match locate::link(rail, host_link, observed) {
            Ok(Located::At(NetnsSide::Host, link)) if home.contains(&place) => link.index,
            _ if is_last_resort && is_elsewhere(rail, host_link) => 0,
            _ => return None,
        };
        Some((place, index, alone(rail, others, observed)?.to_owned()))
    });
    rebinds.collect()
}

/// Returns true if the driver of the function of `rail` was bound anew, as its [`Stage::Rebinding`] says.
pub fn is_rebound(rail: &Rail, observed: &Observed) -> bool {
    let (Stage::Rebinding { index, .. }, Some(host_link)) = (&rail.stage, &rail.host_link) else {
        return false;
    };
    let located = locate::link(rail, host_link, observed);
    matches!(located, Ok(Located::At(NetnsSide::Host, link)) if link.index != *index)
}

/// The driver of the function of `rail`, if nothing ends with it but what is the rail's by its record: not
/// - a device that one of `others` has, records of this boot whose devices are not restored;
/// - further netdevs, virtual functions or sub-functions;
/// - a netdev whose RDMA device can be that of another function, as erdma's is: the kernel waits for it, and for ever.
fn alone<'a>(rail: &Rail, others: &[Attachment], observed: &'a Observed) -> Option<&'a str> {
    let address = rail.device()?;
    let device = observed.device(address)?;
    let mut devices = observed.devices.iter();
    let places = [Some(&observed.host), observed.pod.as_ref()];
    let links = places.into_iter().flatten().flat_map(|it| &it.links);
    let netdevs = links.filter(|it| it.parent.as_ref() == Some(address));
    let has_more = device.virtual_functions > 0
        || !rail.siblings.is_empty()
        || netdevs.count() > 1
        || devices.any(|it| it.physical_function.as_ref() == Some(address));
    let is_paired = !device.rdma_functions.is_empty()
        || device.rdma.is_empty() && !pairing::makers(&observed.devices).is_empty();
    let is_theirs = others.iter().any(|it| it.devices().contains(address));
    let driver = device.driver.as_deref();
    driver.filter(|_| !has_more && !is_paired && !is_theirs)
}

/// The change that binds the driver of `rail` anew because of its [`Stage::Rebinding`], if its netdev is the one on the host
/// that is to end, `index`; 0: it is in another namespace.
pub(super) fn bind_anew(rail: &Rail, index: u32) -> Option<Op> {
    let Stage::Rebinding {
        index: recorded,
        driver,
    } = &rail.stage
    else {
        return None;
    };
    let (device, driver) = (rail.device()?.clone(), driver.clone());
    (*recorded == index).then_some(Op::RebindDriver { device, driver })
}

/// The change that gives the function of `rail` its driver, if it has none: who bound it anew was killed, or the driver
/// refused.
pub(super) fn bind(rail: &Rail, observed: &Observed) -> Option<Op> {
    let (device, driver) = rail.device().zip(rail.rebound_driver().cloned())?;
    let is_bound = observed.device(device)?.driver.is_some();
    let device = device.clone();
    (!is_bound).then_some(Op::BindDriver { device, driver })
}

/// Whether the devices of the functions whose drivers were bound anew are on the host, under the names that they had:
/// udev gives them a moment after the kernel has made the devices.
pub fn are_named(attachment: &Attachment, observed: &Observed) -> bool {
    let rails = attachment.rails.iter();
    let mut rebound = rails.filter(|it| it.rebound_driver().is_some());
    rebound.all(|rail| {
        let of_link = |link: &Link| {
            let mut links = observed.host.links.iter();
            links.any(|it| it.parent == link.parent && it.name == link.name)
        };
        let rdma = rail.rdma.as_ref().is_none_or(|device| {
            let mut devices = observed.host.rdma.iter();
            devices.any(|it| it.parent == device.parent && it.name == device.name)
        });
        rdma && rail.host_link.as_ref().is_none_or(of_link)
    })
}
