// SPDX-License-Identifier: Apache-2.0
//! What a configuration sets of virtual functions, and what they have before.

use crate::error::Error;
use attachments::{Attachment, Rail};
use network_conf::{Conf, vf};
use plan::select::SelectError;
use rdma_netns::{Kernel, Observed, VfSetting, VfSettingKind};

const SHARED: &str =
    "pods get children of it, and only a virtual function that moves into a pod is set up for it";

const OF_ANOTHER: &str = "an earlier plugin of the chain has put it into the pod, and sets it up; have \
                          that one do it, and leave it out here";

const BARE: &str =
    "it has no netdev, and only a virtual function whose netdev moves into a pod is set up for it";

const NO_FUNCTION: &str = "it is no virtual function";

const ONE_ADDRESS: &str =
    "it is one of several rails, and an address is one netdev's; ask for one device";

/// Has the record of each of the `rails` say what `conf` sets of it, and what that is before.
///
/// # Errors
/// A rail is no virtual function that moves, or its physical function cannot be asked.
pub fn record<K: Kernel>(kernel: &K, conf: &Conf, rails: &mut [Rail]) -> Result<(), Error> {
    if conf.vf.is_empty() {
        return Ok(());
    }
    let is_mac = |it: &VfSetting| it.kind() == VfSettingKind::Mac;
    let is_one_of_several = rails.len() > 1 && conf.vf.iter().any(is_mac);
    for rail in rails {
        let refused = |why| SelectError::CannotSetUp {
            fields: fields(&conf.vf),
            link: rail.name().clone(),
            why,
        };
        let Some(host_link) = &rail.host_link else {
            let why = match rail.shared {
                Some(_) => SHARED,
                None if rail.bare => BARE,
                None => OF_ANOTHER,
            };
            return Err(refused(why).into());
        };
        let vf = host_link.parent.as_ref().map(|it| kernel.vf(it));
        let Some(vf) = vf.transpose()?.flatten() else {
            return Err(refused(NO_FUNCTION).into());
        };
        if is_one_of_several {
            return Err(refused(ONE_ADDRESS).into());
        }
        rail.vf = conf.vf.clone();
        if let Some(host_link) = &mut rail.host_link {
            host_link.vf = Some(vf.as_in(&rail.vf));
        }
    }
    Ok(())
}

/// Has `observed` say what the record does of its functions: they were asked a moment ago.
pub fn tell(attachment: &Attachment, observed: &mut Observed) {
    for host_link in attachment
        .rails
        .iter()
        .filter_map(|it| it.host_link.as_ref())
    {
        let function = host_link.parent.clone().zip(host_link.vf.clone());
        observed.vfs.extend(function);
    }
}

fn fields(settings: &[VfSetting]) -> String {
    let fields: Vec<&str> = settings.iter().map(|it| vf::fields(it.kind())).collect();
    fields.join(", ")
}
