// SPDX-License-Identifier: Apache-2.0
//! Configured settings of virtual functions, and the settings before ADD.

use crate::error::Error;
use attachments::{Attachment, Rail};
use network_conf::{Conf, vf};
use plan::select::SelectError;
use rdma_netns::{
    Guid, Kernel, Link, LinkType, Observed, RdmaDevice, Vf, VfSetting, VfSettingKind,
};

const SHARED: &str = "pods get children of its netdev, and rdma-cni sets up only virtual functions that move into a pod";

const OF_ANOTHER: &str = "an earlier plugin of the chain moved it into the pod: configure it in that plugin's entry, \
                          and remove the setting from this entry";

const BARE: &str = "its RDMA device has no netdev, and rdma-cni sets up only virtual functions whose netdev moves \
                    into a pod";

const NO_FUNCTION: &str = "it is no virtual function";

const NO_TEXT: &str = "the name of its physical function's netdev is not UTF-8, so it cannot be recorded; rename \
                       that netdev";

const NO_INFINIBAND: &str = "it is no InfiniBand function";

const NO_GUIDS: &str = "the driver of its physical function does not report the GUIDs of its functions (Linux 5.5 \
                        and mlx5 do), so rdma-cni could not restore them";

const NOT_REPORTED: &str = "the driver of its physical function does not report their present values, so rdma-cni could \
                            not restore them";

const NO_DRIVER: &str = "it has no driver that could adopt a GUID";

const ONE_ADDRESS: &str = "the pod has several rails, but an address or a GUID belongs to one device; request one \
                           device";

/// Records the configured settings and the present settings for each of the `rails`.
///
/// # Errors
/// - A rail cannot have the configured settings, for example because it is no virtual function that moves.
/// - A restore could not set a setting back, because its present value is unknown.
/// - The physical function cannot be queried.
pub fn record<K: Kernel>(
    kernel: &K,
    conf: &Conf,
    observed: &Observed,
    rails: &mut [Rail],
) -> Result<(), Error> {
    if conf.vf.is_empty() {
        return Ok(());
    }
    let is_of_one = |it: &VfSetting| it.kind() == VfSettingKind::Mac || it.guid().is_some();
    let is_one_of_several = rails.len() > 1 && conf.vf.iter().any(is_of_one);
    let sets_guids = conf.vf.iter().any(|it| it.guid().is_some());
    for rail in rails {
        let link = rail.name().clone();
        let refused_of = |settings, why| SelectError::CannotSetUp {
            fields: fields(settings),
            link: link.clone(),
            why,
        };
        let refused = |why| refused_of(&conf.vf, why);
        let Some(host_link) = &rail.host_link else {
            let why = match rail.shared {
                Some(_) => SHARED,
                None if rail.bare => BARE,
                None => OF_ANOTHER,
            };
            return Err(refused(why).into());
        };
        let vf = host_link.parent.as_ref().map(|it| kernel.vf(it));
        let Some(mut vf) = vf.transpose()?.flatten() else {
            return Err(refused(NO_FUNCTION).into());
        };
        if vf.pf.index().is_some() {
            return Err(refused(NO_TEXT).into());
        }
        if is_one_of_several {
            return Err(refused(ONE_ADDRESS).into());
        }
        let is_reported = |kind| vf.setting(kind).is_some();
        let guids = [VfSettingKind::NodeGuid, VfSettingKind::PortGuid];
        match sets_guids {
            true if host_link.link_type != LinkType::Infiniband => {
                return Err(refused(NO_INFINIBAND).into());
            }
            true if !guids.into_iter().all(is_reported) => return Err(refused(NO_GUIDS).into()),
            true => {
                let device = host_link.parent.as_ref();
                let driver = device.and_then(|it| observed.device(it)?.driver.clone());
                rail.driver = Some(driver.ok_or_else(|| refused(NO_DRIVER))?);
                name_guids(&mut vf, host_link, rail.rdma.as_ref());
            }
            false => {}
        }
        let (mut presumed, mut unknown) = (vec![], vec![]);
        for setting in conf.vf.iter().filter(|it| vf.setting(it.kind()).is_none()) {
            match setting.kind().presumed() {
                Some(before) => presumed.push(before),
                None => unknown.push(setting.clone()),
            }
        }
        if !unknown.is_empty() {
            return Err(refused_of(&unknown, NOT_REPORTED).into());
        }
        vf.settings.extend(presumed);
        rail.vf = conf.vf.clone();
        if let Some(host_link) = &mut rail.host_link {
            host_link.vf = Some(vf.as_in(&rail.vf));
        }
    }
    Ok(())
}

/// Replaces zero GUIDs in `vf` by the function's own GUIDs. The physical function reports zero for a GUID that it has
/// not set (`mlx5_ib_get_vf_guid()`, `drivers/infiniband/hw/mlx5/ib_virt.c`). A function without a GUID gets a GUID
/// whose bits are all 1, as with ib-sriov-cni, because the kernel accepts no zero GUID.
fn name_guids(vf: &mut Vf, host_link: &Link, rdma: Option<&RdmaDevice>) {
    let or_own = |reported: Guid, own: Option<Guid>| match own.filter(|it| it.is_valid()) {
        _ if reported != Guid::ZERO => reported,
        own => own.unwrap_or(Guid::ONES),
    };
    for setting in &mut vf.settings {
        match setting {
            VfSetting::NodeGuid(guid) => *guid = or_own(*guid, rdma.and_then(Guid::of_node)),
            VfSetting::PortGuid(guid) => *guid = or_own(*guid, Guid::of_port(host_link)),
            _ => {}
        }
    }
}

/// Adds the present settings of the record's virtual functions to `observed`. Queries the physical function, because
/// the record's GUIDs and presumed settings can differ from the reported ones.
///
/// # Errors
/// A physical function cannot be queried.
pub fn observe<K: Kernel>(
    kernel: &K,
    attachment: &Attachment,
    observed: &mut Observed,
) -> Result<(), Error> {
    for rail in &attachment.rails {
        let Some(host_link) = &rail.host_link else {
            continue;
        };
        let Some((function, _)) = host_link.parent.clone().zip(host_link.vf.as_ref()) else {
            continue;
        };
        let vf = kernel.vf(&function)?;
        observed.vfs.extend(vf.map(|vf| (function, vf)));
    }
    Ok(())
}

/// Records the new names and indexes of RDMA devices after their drivers were bound again.
pub fn renew(attachment: &mut Attachment, observed: &Observed) {
    let rails = attachment.rails.iter_mut();
    for rail in rails.filter(|rail| rail.driver.is_some()) {
        let present = plan::rdma_anywhere(rail, observed).cloned();
        if let (Some(device), Some(RdmaDevice { name, index, .. })) = (&mut rail.rdma, present) {
            (device.name, device.index) = (name, index);
        }
    }
}

fn fields(settings: &[VfSetting]) -> String {
    let mut fields: Vec<&str> = settings.iter().map(|it| vf::fields(it.kind())).collect();
    // one field sets both the node GUID and the port GUID
    fields.dedup();
    fields.join(", ")
}
