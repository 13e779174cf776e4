// SPDX-License-Identifier: Apache-2.0
//! A virtual function of a record: the settings that its physical function makes, and its driver. The driver adopts new
//! GUIDs only when it is bound. For example, mlx5 reads the GUIDs once (`mlx5_ib_init_node_data()`,
//! `drivers/infiniband/hw/mlx5/main.c`).

use super::{locate, locate::Located};
use attachments::{Attachment, Phase, Rail, Stage};
use rdma_netns::{Guid, Link, NetnsSide, Observed, Op, Vf, VfSetting, VfSettingKind, pairing};

pub(super) struct Function<'a> {
    /// Recorded state.
    known: &'a Vf,
    /// Present state. `None`: the physical function does not report this virtual function.
    present: Option<&'a Vf>,
}

impl<'a> Function<'a> {
    /// Returns the virtual function whose netdev was recorded as `host_link`. Returns `None` if the attachment changed
    /// no setting of the function.
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

    /// Returns the settings that the function had before ADD.
    pub(super) fn before(&self) -> impl Iterator<Item = &'a VfSetting> + use<'a> {
        self.known.settings.iter()
    }

    /// Returns true if ADD changed the function's GUIDs.
    pub(super) fn has_guids(&self) -> bool {
        self.before().any(|it| it.guid().is_some())
    }

    /// Returns false if the physical function's driver reports this virtual function without a setting of `kind`.
    pub(super) fn reports(&self, kind: VfSettingKind) -> bool {
        self.present.is_none_or(|vf| vf.setting(kind).is_some())
    }

    /// Returns the operations for the `desired` settings that the function lacks. A setting that the physical function
    /// does not report always has an operation.
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

    /// Returns true if a restore changes the GUID of `kind`: the pod's value in `rail` differs from the recorded value.
    pub(super) fn gets_back(&self, rail: &Rail, kind: VfSettingKind) -> bool {
        let mut before = self.before().filter(|it| it.kind() == kind);
        before.any(|it| !rail.vf.contains(it))
    }
}

/// Returns true if `op` changes a setting that the driver of the physical function does not report. No later
/// observation shows the result of this operation.
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

/// Returns the operation by which the driver of `rail`'s function, on the host, adopts the configured GUIDs. Returns
/// `None` if the driver has adopted them, if the function's netdev is not on the host, or if the function does not have
/// the recorded driver.
pub(super) fn takes_over(rail: &Rail, host_link: &Link, observed: &Observed) -> Option<Op> {
    rebind(rail, host_link, observed, |setting, own| {
        setting.guid() != Some(own)
    })
}

/// Returns the operation by which the function of `rail`, on the host, loses the pod's GUIDs. `is_to_go` selects the
/// kinds of GUIDs. Returns `None` if the function has none of the pod's GUIDs of these kinds.
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

/// Returns the operation that binds the driver of `rail`'s function again. `is_due` decides this for each GUID that ADD
/// set: its arguments are this GUID and the function's present GUID.
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

/// Index of a rail in its record, and the values `index` and `driver` for the rail's [`Stage::Rebinding`].
pub type Rebind = (usize, u32, String);

/// Returns the rails whose drivers must be bound again before other pods may get the devices. There are two cases:
///
/// - The rail is restored (`home`), but its netdev may have upper netdevs in namespaces that `rdma-cni` cannot see.
/// - With `is_last_resort`: a device of the rail is neither on the host nor in the pod. A driver that is bound again
///   makes new devices on the host.
///
/// In both cases, binding must affect no other devices (`alone()`). Returns no rails if `rebindDriver` is off: a
/// function that returned to the host when its namespace ended can already have another owner, which has no record.
pub fn rebinds(
    attachment: &Attachment,
    others: &[Attachment],
    observed: &Observed,
    home: &[usize],
    is_last_resort: bool,
) -> Vec<Rebind> {
    // a killed ADD may not have moved any device
    if !attachment.rebind_driver || attachment.phase == Phase::Attaching {
        return vec![];
    }
    let is_elsewhere = |rail: &Rail, host_link: &Link| {
        let moves_rdma = locate::moves_rdma(attachment, observed);
        let rdma = rail.rdma.as_ref().filter(|_| moves_rdma);
        locate::link(rail, host_link, observed).is_err()
            || rdma.is_some_and(|it| locate::rdma(rail, it, others, observed).is_err())
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

/// Returns true if the driver of `rail`'s function was bound again after [`Stage::Rebinding`] was recorded for the
/// rail.
pub fn is_rebound(rail: &Rail, observed: &Observed) -> bool {
    let (Stage::Rebinding { index, .. }, Some(host_link)) = (&rail.stage, &rail.host_link) else {
        return false;
    };
    let located = locate::link(rail, host_link, observed);
    matches!(located, Ok(Located::At(NetnsSide::Host, link)) if link.index != *index)
}

/// Returns the driver of `rail`'s function, if only the rail's devices are affected when the driver is bound again.
/// Returns `None` for
/// - a device of one of `others`, the records of this boot whose devices are not restored;
/// - a function with further netdevs, virtual functions or sub-functions;
/// - a netdev whose RDMA device can belong to another function, as with erdma: the kernel would wait for that RDMA
///   device for ever.
fn alone<'a>(rail: &Rail, others: &[Attachment], observed: &'a Observed) -> Option<&'a str> {
    let address = rail.device()?;
    let device = observed.device(address)?;
    let mut devices = observed.devices.iter();
    let links = locate::links(observed);
    let netdevs = links.filter(|(_, it)| it.parent.as_ref() == Some(address));
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

/// Returns the operation that binds the driver of `rail` again. Returns `None` if the rail has no [`Stage::Rebinding`]
/// with `index`, the index of the netdev on the host. Index 0 means that the netdev is in another namespace.
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

/// Returns the operation that binds a driver to `rail`'s function, if the function has no driver. There are two
/// reasons: the driver refused the function, or the runtime killed a verb between unbind and bind.
pub(super) fn bind(rail: &Rail, observed: &Observed) -> Option<Op> {
    let (device, driver) = rail.device().zip(rail.rebound_driver().cloned())?;
    let is_bound = observed.device(device)?.driver.is_some();
    let device = device.clone();
    (!is_bound).then_some(Op::BindDriver { device, driver })
}

/// Returns true if the devices of rebound functions are on the host under their recorded names. The kernel makes the
/// devices under other names, and udev renames them shortly afterwards.
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
