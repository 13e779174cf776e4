// SPDX-License-Identifier: Apache-2.0
//! Health reporters of devlink (`net/devlink/health.c`; before Linux 6.3 `net/core/devlink.c`): errors that a driver
//! reports about its firmware (`fw`, `fw_fatal`) and its queues (`tx`, `rx`).

use crate::{
    DeviceAddress,
    netlink::{
        NetlinkError, attribute,
        generic::{self, attributes_of},
        text, u32_of, u64_of,
    },
};
use std::fmt;

/// `DEVLINK_GENL_NAME`
const FAMILY: &str = "devlink";

/// `DEVLINK_GENL_MCGRP_CONFIG_NAME`
const CONFIG: &str = "config";

/// `DEVLINK_CMD_HEALTH_REPORTER_*`
const GET: u8 = 52;

/// `DEVLINK_ATTR_*`
const BUS_NAME: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const HEALTH_REPORTER: u16 = 114;
const HEALTH_REPORTER_NAME: u16 = 115;
const HEALTH_REPORTER_STATE: u16 = 116;
const HEALTH_REPORTER_ERR_COUNT: u16 = 117;
const HEALTH_REPORTER_RECOVER_COUNT: u16 = 118;

/// The state `DEVLINK_HEALTH_REPORTER_STATE_ERROR` (`include/net/devlink.h`); 0 is healthy.
const ERROR: u8 = 1;

/// A health reporter of a device or of one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reporter {
    /// Bus of the device: `pci`, `auxiliary`, `netdevsim`.
    pub bus: String,
    /// Name of the device on its bus.
    pub device: String,
    /// Port of the device. `None`: the reporter belongs to the whole device.
    pub port: Option<u32>,
    /// Name of the reporter: `fw`, `fw_fatal`, `tx`, `rx`, `vnic`.
    pub name: String,
    /// True in the state `error`: the driver reported an error, and the device has not recovered yet.
    pub is_error: bool,
    /// Errors so far, including recovered ones.
    pub errors: u64,
    /// Recoveries so far.
    pub recoveries: u64,
}

/// Formats the reporter as arguments of `devlink health show`.
impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bus, device, name, ..
        } = self;
        match self.port {
            Some(port) => write!(f, "{bus}/{device}/{port} reporter {name}"),
            None => write!(f, "{bus}/{device} reporter {name}"),
        }
    }
}

impl Reporter {
    /// Returns true if the reporter belongs to the device at `address` or to a port of the device.
    pub fn is_of(&self, address: &DeviceAddress) -> bool {
        self.bus == address.bus() && self.device == **address
    }
}

/// Returns the health reporters of all devices in the calling thread's namespace. Returns none if the kernel has no
/// devlink. The call blocks while a driver recovers its device, because the driver then has the device's lock.
///
/// # Errors
/// The kernel refused the request.
pub fn reporters() -> Result<Vec<Reporter>, NetlinkError> {
    let answers = generic::dump_if_known(FAMILY, GET)?;
    Ok(answers.bodies().filter_map(parse).collect())
}

/// Returns the number of the multicast group that receives each change of a reporter, for a socket of
/// `NETLINK_GENERIC`. Returns `None` if the kernel has no devlink.
pub(super) fn changes() -> Result<Option<u32>, NetlinkError> {
    generic::group(FAMILY, CONFIG)
}

pub(super) fn parse(body: &[u8]) -> Option<Reporter> {
    let of = |wanted| attribute(attributes_of(body), wanted);
    let reporter = of(HEALTH_REPORTER)?;
    let own = |wanted| attribute(reporter, wanted);
    let count = |wanted| own(wanted).and_then(u64_of).unwrap_or_default();
    Some(Reporter {
        bus: text(of(BUS_NAME)?)?.to_owned(),
        device: text(of(DEV_NAME)?)?.to_owned(),
        port: of(PORT_INDEX).and_then(u32_of),
        name: text(own(HEALTH_REPORTER_NAME)?)?.to_owned(),
        is_error: own(HEALTH_REPORTER_STATE)? == [ERROR],
        errors: count(HEALTH_REPORTER_ERR_COUNT),
        recoveries: count(HEALTH_REPORTER_RECOVER_COUNT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from Linux 6.12: the reporter `dummy` of netdevsim after a failed recovery.
    const ANSWER: &str = "340100000e0001006e657464657673696d000000100002006e657464657673696d313000640072000a00730064\
        756d6d7900000005007400010000000c00750001000000000000000c00760000000000000000000c007800000000000000000005007900\
        010000000c007700a098fbff000000000c008900d468a218c636ec1805008d0001000000";

    #[test]
    fn a_reporter_is_read() {
        let (digits, _) = ANSWER.as_bytes().as_chunks::<2>();
        let byte = |it: &[u8; 2]| u8::from_str_radix(str::from_utf8(it).ok()?, 16).ok();
        let mut bytes: Vec<u8> = digits.iter().map(|it| byte(it).expect("digits")).collect();
        let mut expected = Reporter {
            bus: "netdevsim".into(),
            device: "netdevsim10".into(),
            port: None,
            name: "dummy".into(),
            is_error: true,
            errors: 1,
            recoveries: 0,
        };
        assert_eq!(parse(&bytes).as_ref(), Some(&expected));
        assert_eq!(expected.to_string(), "netdevsim/netdevsim10 reporter dummy");
        for end in 0..bytes.len() {
            let part = parse(&bytes[..end]);
            assert!(part.is_none_or(|it| it.name == "dummy"));
        }
        // the reporter belongs to a port
        bytes.extend([8, 0, 3, 0, 2, 0, 0, 0]);
        expected.port = Some(2);
        assert_eq!(parse(&bytes).as_ref(), Some(&expected));
        assert_eq!(
            expected.to_string(),
            "netdevsim/netdevsim10/2 reporter dummy"
        );
    }

    #[test]
    fn a_reporter_belongs_to_the_device_of_its_bus() {
        let reporter = |bus: &str, device: &str| Reporter {
            bus: bus.into(),
            device: device.into(),
            port: None,
            name: "fw".into(),
            is_error: false,
            errors: 0,
            recoveries: 0,
        };
        let address = |text: &str| DeviceAddress::try_from(text.to_owned()).expect("an address");
        let pci = reporter("pci", "0000:3b:00.0");
        assert!(pci.is_of(&address("0000:3b:00.0")));
        assert!(!pci.is_of(&address("0000:3b:00.1")));
        assert!(reporter("auxiliary", "mlx5_core.sf.4").is_of(&address("mlx5_core.sf.4")));
        assert!(!reporter("netdevsim", "0000:3b:00.0").is_of(&address("0000:3b:00.0")));
    }
}
