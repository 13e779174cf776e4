// SPDX-License-Identifier: Apache-2.0
//! A virtual function of a record: the settings that its physical function makes, and its driver. The driver adopts
//! GUIDs only when it is bound (mlx5 reads them once, `mlx5_ib_init_node_data()`, `drivers/infiniband/hw/mlx5/main.c`).

use super::{locate, locate::Located};
use attachments::{Attachment, Phase, Rail, Stage};
use rdma_netns::{Guid, Link, NetnsSide, Observed, Op, Vf, VfSetting, VfSettingKind, pairing};

/// A virtual function of a record.
pub(super) struct Function<'a> {
    /// Recorded state.
    known: &'a Vf,
    /// Present state, if the physical function reports it.
    present: Option<&'a Vf>,
}

impl<'a> Function<'a> {
    /// Returns the function whose netdev was recorded as `host_link`. `None`: the attachment changed no setting of the
    /// function.
    pub(super) fn of(host_link: &'a Link, observed: &'a Observed) -> Option<Self> {
        let known = host_link.vf.as_ref()?;
        let present = host_link.parent.as_ref();
        let present = present.and_then(|it| observed.vfs.get(it));
        Some(Self { known, present })
    }

    /// Returns true if the physical function reports this virtual function.
    pub(super) fn is_there(&self) -> bool {
        self.present.is_some()
    }

    /// Returns the recorded settings.
    pub(super) fn before(&self) -> impl Iterator<Item = &'a VfSetting> + use<'a> {
        self.known.settings.iter()
    }

    /// Returns true if ADD changed the function's GUIDs.
    pub(super) fn has_guids(&self) -> bool {
        self.before().any(|it| it.guid().is_some())
    }

    /// Returns true if the function's driver reports settings of `kind`. A plan makes unreported settings once, without
    /// comparing.
    pub(super) fn reports(&self, kind: VfSettingKind) -> bool {
        self.present.is_none_or(|vf| vf.setting(kind).is_some())
    }

    /// Returns the operations for the `desired` settings that the function does not have. A setting that the physical
    /// function does not report always needs an operation.
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

    /// Returns true if a restore sets the GUID of `kind` to another value than the pod's value in `rail`.
    pub(super) fn gets_back(&self, rail: &Rail, kind: VfSettingKind) -> bool {
        let mut before = self.before().filter(|it| it.kind() == kind);
        before.any(|it| !rail.vf.contains(it))
    }
}

/// Returns true if `op` makes a setting that the function's driver does not report. No observation shows the result of
/// such an operation.
pub fn is_unreported(op: &Op, observed: &Observed) -> bool {
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

/// Returns the operation that makes the driver of `rail`'s function adopt the configured GUIDs, while the function is
/// on the host. `None`: the driver has adopted them.
pub(super) fn takes_over(rail: &Rail, host_link: &Link, observed: &Observed) -> Option<Op> {
    rebind(rail, host_link, observed, |setting, own| {
        setting.guid() != Some(own)
    })
}

/// Returns the operation that removes the pod's GUIDs from the function of `rail` on the host, for the kinds of GUID
/// that `is_to_go` accepts. `None`: the function has no such GUID.
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

/// Returns the operation that binds the driver of `rail`'s function again. `is_due` decides for each of the pod's
/// settings, together with the function's present GUID.
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

/// Index of a rail in its record, and the index and driver for its [`Stage::Rebinding`].
pub type Rebind = (usize, u32, String);

/// Returns the rails whose drivers must be bound again before their devices become free for other pods. There are two
/// cases:
///
/// - the rail is `home`, but netdevs in unseen namespaces may lie on its netdev;
/// - as the last resort, the rail is in a namespace that is neither the host's nor the pod's: the driver makes new
///   devices on the host.
///
/// The function must pass `alone()`. Empty without `rebindDriver`: a function that returned when its namespace ended
/// can already have another owner without a record.
pub fn rebinds(
    attachment: &Attachment,
    others: &[Attachment],
    observed: &Observed,
    home: &[usize],
    is_last_resort: bool,
) -> Vec<Rebind> {
    // a killed ADD may have moved nothing
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

/// Returns true if the driver of `rail`'s function was bound again, after its [`Stage::Rebinding`] was recorded.
pub fn is_rebound(rail: &Rail, observed: &Observed) -> bool {
    let (Stage::Rebinding { index, .. }, Some(host_link)) = (&rail.stage, &rail.host_link) else {
        return false;
    };
    let located = locate::link(rail, host_link, observed);
    matches!(located, Ok(Located::At(NetnsSide::Host, link)) if link.index != *index)
}

/// Returns the driver of `rail`'s function, if binding it again affects no devices except the rail's. `None` for
/// - a device of one of `others`, the records of this boot whose devices are not restored;
/// - a function with further netdevs, virtual functions or sub-functions;
/// - a netdev whose RDMA device can belong to another function, as with erdma: the kernel would wait for that RDMA
///   device forever.
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

/// Returns the operation that binds the driver of `rail` again, if its [`Stage::Rebinding`] has `index`, the index of
/// the netdev on the host. Index 0: the netdev is in another namespace.
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

/// Returns the operation that binds a driver to `rail`'s function, if the function has none. The driver is missing if
/// it refused, or if a verb was killed between unbind and bind.
pub(super) fn bind(rail: &Rail, observed: &Observed) -> Option<Op> {
    let (device, driver) = rail.device().zip(rail.rebound_driver().cloned())?;
    let is_bound = observed.device(device)?.driver.is_some();
    let device = device.clone();
    (!is_bound).then_some(Op::BindDriver { device, driver })
}

/// Returns true if the devices of rebound functions are on the host under their recorded names. Udev renames them
/// shortly after the kernel has made them.
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
